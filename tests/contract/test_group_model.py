"""A shared group against a dictionary: whatever its holders do, in any order, with any late
answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from busmq_spark.groups import shared_group as flows
from busmq_spark.groups.shared_group import LeasedMessage, SettleRequest
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.reading import reader_operations
from busmq_spark.reading.reader_subscriptions import register, seek
from busmq_spark.redis_io.sync_link import SyncLink
from tests.conftest import FreshKeys
from tests.support import FACTOR

UNIT_MS = 1_000_000_000
"""Eleven days: the time a test takes is nothing beside it."""
LEASE, LIMIT = 4, 5
AT_ONCE = -math.inf
"""When a message is due that is given back without a delay: before any time to which the clock is
set back.
"""
_tokens = count(1)


@dataclass
class Known:
    """What a message of the group must be. Times in units."""

    tries: int
    token: str
    leased_until: int | None = None
    due_at: float | None = None

    def in_flight(self, now: int) -> bool:
        return self.leased_until is not None and self.leased_until > now


def pairs_of(reply: list[bytes]) -> dict[str, str]:
    texts = [each.decode() for each in reply]
    return dict(zip(texts[0::2], texts[1::2], strict=True))


class SharedGroup(RuleBasedStateMachine):
    """Redis and the dictionary, side by side."""

    link: SyncLink
    fresh: FreshKeys

    @initialize(limited=st.booleans())
    def begin(self, limited: bool) -> None:
        self.keys, self.limit = self.fresh("model"), LIMIT if limited else 0
        self.born = self.link.run(queue.attach(self.keys, "born", ttl_s=600)).born
        self.link.run(
            register(self.keys, "g", shared={"lease_ms": LEASE * UNIT_MS, "limit": self.limit})
        )
        self.link.run(reader_operations.subscribe([self.keys], "other", ["earliest"]))
        self.now = self.given = self.next = self.other = self.low = 0
        self.open: dict[int, Known] = {}
        self.done: set[int] = set()
        self.deliveries: list[LeasedMessage] = []

    @rule(many=st.integers(1, 6))
    def push(self, many: int) -> None:
        self.given += self.link.run(queue.push_many(self.keys, [b"v"] * many))

    @rule(most=st.integers(1, 7), apart=st.booleans())
    def lease(self, most: int, apart: bool) -> None:
        self._lease(most, apart)

    def _lease(self, most: int, apart: bool = False) -> None:
        found = self.link.run(
            flows.lease(self.keys, "g", token := f"t{next(_tokens)}", most, apart=apart)
        )
        again = {
            id
            for id, known in self.open.items()
            if not known.in_flight(self.now) and (known.due_at is None or known.due_at <= self.now)
        }
        room = min(most, self.limit - self._in_flight()) if self.limit else most
        got = [each.id for each in found.deliveries]
        assert len(got) == max(0, min(room, len(again) + self.given - self.next))
        old = [id for id in got if id in again]
        assert len(old) == min(len(got), len(again))
        assert got[len(old) :] == list(range(self.next + 1, self.next + 1 + len(got) - len(old)))
        for each in found.deliveries:
            assert each.tries == (self.open[each.id].tries if each.id in self.open else 0) + 1
            self.open[each.id] = Known(each.tries, token, leased_until=self.now + LEASE)
        self.next = max([self.next, *got])
        again_leased = self.link.run(
            flows.lease(self.keys, "g", token, 1, again=True, apart=apart)
        ).deliveries
        assert [each[:5] for each in again_leased] == sorted(
            each[:5] for each in found.deliveries
        )  # not when the reply was made
        self.deliveries += found.deliveries

    @precondition(lambda self: self.deliveries)
    @rule(
        data=st.data(),
        action=st.sampled_from(["ack", "ack", "ack", "retry", "extend", "release"]),
        units=st.integers(0, 6),
        twice=st.booleans(),
    )
    def settle(self, data: st.DataObject, action: flows.Action, units: int, twice: bool) -> None:
        """Some that were handed out, whenever that was: most answers are late."""
        some = data.draw(
            st.lists(
                st.sampled_from(self.deliveries[-12:]),
                min_size=1,
                max_size=6,
                unique_by=lambda each: each.id,
            )
        )
        if data.draw(st.booleans()):
            some.sort(key=lambda each: (each.token, each.id))
            settlements = flows.settlements_of(some, action, units * UNIT_MS)
        else:
            settlements = [
                SettleRequest(each.id, each.token, action, units * UNIT_MS) for each in some
            ]
        results = self.link.run(flows.settle(self.keys, "g", self.born, settlements))
        assert results == [self._settled(each, action, units) for each in some]
        if twice:
            self.link.run(flows.settle(self.keys, "g", self.born, settlements))

    def _settled(self, each: LeasedMessage, action: str, units: int) -> int:
        known = self.open.get(each.id)
        if known is None:
            return -1
        if known.token != each.token:
            return 0
        if action == "ack":
            del self.open[each.id]
            self.done.add(each.id)
        elif action == "retry":
            known.leased_until, known.due_at = None, self.now + units if units else AT_ONCE
        elif known.due_at is not None:
            return int(action == "release")
        elif action == "extend":
            known.leased_until = self.now + units
        else:
            known.leased_until, known.due_at, known.tries = (
                None,
                self.now + units if units else AT_ONCE,
                known.tries - 1,
            )
        return 1

    @precondition(lambda self: not self._in_flight())
    @rule(id=st.integers(0, 40))
    def seek(self, id: int) -> None:
        """Also back, so that ids are leased again of which others have late answers."""
        if id <= self.given:
            self.next = self.link.run(seek(self.keys, "g", id))
            assert self.next == max(id, min(self.low, self.other))
            self.open.clear()

    @rule(most=st.integers(1, 7))
    def left_by_a_version_before(self, most: int) -> None:
        """When each message had a lease of its own, and what is `newest` now was `next`."""
        group, due, tries, runs = self.keys.group("g")
        scores = pairs_of(self.link.execute(command("ZRANGE", due, 0, -1, "WITHSCORES")))
        for name, record in pairs_of(self.link.execute(command("HGETALL", tries))).items():
            try_, token, first, *count = record.split(":")
            for id in range(int(name), int(name) + int(*count or "1")):
                self.link.execute(command("ZADD", due, scores[name], id))
                self.link.execute(command("HSET", tries, id, f"{try_}:{token}:{first}"))
        self.link.execute(command("HSET", group, "next", self.next))
        self.link.execute(command("HDEL", group, "newest", "wide"))
        self.link.execute(command("DEL", runs))
        self._lease(most)

    @rule(units=st.integers(-3, 5))
    def pass_by(self, units: int) -> None:
        """Moves what is stored back instead of the clock forward; or the other way round, as if the
        clock were set back.
        """
        _, due, *_ = self.keys.group("g")
        items = self.link.execute(command("ZRANGE", due, 0, -1, "WITHSCORES"))
        for id, score in zip(items[0::2], map(float, items[1::2]), strict=True):
            moved = (
                int(score) - units * UNIT_MS if score > 0 else min(-1, int(score) + units * UNIT_MS)
            )
            self.link.execute(command("ZADD", due, str(moved), id))
        self.now += units

    @rule(id=st.integers(1, 40))
    def other_acks(self, id: int) -> None:
        if id <= self.given:
            self.link.run(
                reader_operations.ack_to(
                    [reader_operations.CumulativeAckRequest(self.keys, id, self.born, "")], "other"
                )
            )
            self.other = max(self.other, id)
            self._settle_none()

    def _settle_none(self) -> None:
        self.link.run(flows.settle(self.keys, "g", self.born, []))

    @invariant()
    def as_the_dictionary_says(self) -> None:
        if not hasattr(self, "keys"):
            return
        self._settle_none()
        low = self.low = next((id for id in range(self.next) if id + 1 in self.open), self.next)
        assert int(self.link.execute(command("HGET", self.keys.acks, "g"))) == low
        stored = [
            int(id) for id in self.link.execute(command("LRANGE", self.keys.messages, 0, -1))[0::2]
        ]
        assert stored == list(range(min(low, self.other) + 1, self.given + 1))
        [found] = [each for each in self.link.run(flows.list_groups(self.keys)) if each.shared]
        assert (found.in_flight, found.waiting, found.unread) == (
            self._in_flight(),
            len(self.open) - self._in_flight(),
            self.given - self.next,
        )

    def _in_flight(self) -> int:
        return sum(known.in_flight(self.now) for known in self.open.values())


def test_a_shared_group_does_what_a_dictionary_does(
    link: SyncLink, fresh_keys: FreshKeys, layout: str
) -> None:
    class Here(SharedGroup):
        pass

    Here.link, Here.fresh = link, staticmethod(fresh_keys)  # type: ignore[assignment]
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=FACTOR * (60 if layout == "direct" else 10),
            stateful_step_count=30,
            deadline=None,
        ),
    )
