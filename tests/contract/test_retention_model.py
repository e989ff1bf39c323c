"""What a queue keeps against a dictionary: whatever producers, readers and limits do, in any
order.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from busmq_spark.groups import shared_group
from busmq_spark.groups.shared_group import SettleRequest
from busmq_spark.queue import queue, retention
from busmq_spark.queue.command_generators import command
from busmq_spark.reading import reader_operations, reader_subscriptions, times_of_ids
from busmq_spark.reading.reader_operations import CumulativeAckRequest
from busmq_spark.redis_io.sync_link import SyncLink
from tests.clocks import noted, npm_push, pass_by
from tests.conftest import FreshKeys
from tests.support import FACTOR

HOUR_MS = 3_600_000
"""The time a test takes is nothing beside it, and less than the minute by which ages are shorter
than so many hours.
"""
_tokens = count(1)
NAMES = ("one", "two", "shared")
LIMITS = st.tuples(
    st.sampled_from([0, 2]), st.sampled_from([0, 3]), st.sampled_from([0, 6])
).filter(any)
"""Hours, messages, bytes."""


class Kept(RuleBasedStateMachine):
    """Redis and the dictionary, side by side. Every call of Redis is one of a new second: then it
    looks at what may go.
    """

    link: SyncLink
    fresh: FreshKeys

    @initialize(limits=st.none() | LIMITS | LIMITS | LIMITS, name=st.sampled_from(NAMES))
    def begin(self, limits: tuple[int, int, int] | None, name: str) -> None:
        self.keys = self.fresh("model")
        self.link.run(queue.attach(self.keys, "born", ttl_s=600))
        self.values: dict[int, tuple[int, int]] = {}  # id → bytes, hour
        self.acks: dict[str, int] = {}
        self.given = self.hour = self.done = 0
        self.limits: tuple[int, int, int] | None = None
        self.gone = 0
        """Everything up to this id has been let go by the limits of some time."""
        self.retain(limits)
        self.register(name, "earliest")

    @rule(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), npm=st.booleans())
    def push(self, sizes: list[int], npm: bool) -> None:
        for size in [1] * len(sizes) if npm else sizes:
            self.given += 1
            self.values[self.given] = (size, self.hour)
        if npm:
            npm_push(self._redis, self.keys, len(sizes))
            self.link.run(times_of_ids.note_times([self.keys]))
        for size in [] if npm else sizes:  # one by one, since the bytes of a push count together
            self.link.run(queue.push(self.keys, b"v" * size))
        self._touch()

    @rule(hours=st.integers(1, 3))
    def time_passes(self, hours: int) -> None:
        if not noted(self._redis, self.keys):
            return
        self.hour += hours
        pass_by(self._redis, self.keys, hours * HOUR_MS)
        self._touch()

    @rule(name=st.sampled_from(NAMES[:2]), back=st.integers(0, 3))
    def acknowledge(self, name: str, back: int) -> None:
        last = max(0, self.given - back)
        self._next_second()
        self.link.run(
            reader_operations.ack_to([CumulativeAckRequest(self.keys, last, "born", "")], name)
        )
        self.acks[name] = max(last, self.acks.get(name, 0))
        self._let_go(acked=min(last, *self.acks.values()))

    @rule(most=st.integers(1, 5))
    def settle(self, most: int) -> None:
        if "shared" not in self.acks:
            return
        held = self.link.run(
            shared_group.lease(self.keys, "shared", f"t{next(_tokens)}", most)
        ).deliveries
        assert [each.id for each in held] == [
            id for id in sorted(self.values) if id > self.acks["shared"]
        ][:most]
        self._next_second()
        self.link.run(
            shared_group.settle(
                self.keys,
                "shared",
                "born",
                [SettleRequest(each.id, each.token, "ack") for each in held],
            )
        )
        if held:
            self.acks["shared"] = held[-1].id
        self._let_go(acked=min(self.acks.values()))

    @rule(name=st.sampled_from(NAMES), start=st.sampled_from(["earliest", "latest"]))
    def register(self, name: str, start: str) -> None:
        shared: dict[str, str | int] | None = {"lease_ms": 60_000} if name == "shared" else None
        found = self.link.run(reader_subscriptions.register(self.keys, name, start, shared=shared))
        assert found == self.acks.setdefault(
            name, self._floor if start == "earliest" else self.given
        )

    @rule(name=st.sampled_from(NAMES), back=st.integers(0, 8))
    def seek(self, name: str, back: int) -> None:
        if name in self.acks:
            to = self.link.run(
                reader_subscriptions.seek(self.keys, name, max(0, self.given - back))
            )
            assert to == max(self._floor, self.given - back)
            self.acks[name] = to

    @rule(name=st.sampled_from(NAMES))
    def drop(self, name: str) -> None:
        self._next_second()
        self.link.run(reader_subscriptions.unsubscribe(self.keys, name))
        self.acks.pop(name, None)
        if self.acks:
            self._let_go(acked=min(self.acks.values()))

    @rule(limits=st.none() | LIMITS)
    def retain(self, limits: tuple[int, int, int] | None) -> None:
        age, newest, size = limits or (0, 0, 0)
        self._next_second()
        given = (60 * (60 * age - 1) if age else None, newest or None, size or None)
        found = self.link.run(retention.set_retention(self.keys, retention.parse_limits(*given)))
        if (
            self.limits is None and limits
        ):  # what all readers there are have acknowledged, also where it is still stored
            self.done = max(self.done, self._floor, min(self.acks.values(), default=0))
        if limits != self.limits:
            self.gone = self._floor
        self.limits = limits if limits else (0, 0, 0) if self.limits else None
        self._let_go()
        assert (found is None) == (self.limits is None)

    @invariant()
    def what_is_stored_and_counted(self) -> None:
        stored = [int(id) for id in self._redis("LRANGE", self.keys.messages, 0, -1)[0::2]]
        assert stored == sorted(self.values)
        found = self.link.run(retention.read_retention(self.keys))
        kept = sum(id <= self.done for id in self.values) if self.limits is not None else 0
        assert (self.link.run(queue.count(self.keys)), found.kept if found else 0) == (
            len(self.values) - kept,
            kept,
        )

    @property
    def _floor(self) -> int:
        return min(self.values, default=self.given + 1) - 1

    def _let_go(self, acked: int = 0) -> None:
        """What goes: without limits what all have acknowledged, else what is beyond one of them,
        too.
        """
        if self.limits is None:
            self._drop(acked)
            return
        self.done = max(self.done, acked)
        age, newest, size = self.limits
        if not any(self.limits):  # it ends
            self._drop(min([self.done, *self.acks.values()]))
            if self._floor >= self.done:
                self.limits, self.done = None, 0
            return
        old = max(
            (id for id, (_, hour) in self.values.items() if age and hour <= self.hour - age),
            default=0,
        )
        large, total = 0, 0
        for id in sorted(self.values, reverse=True):
            if size and total >= size:
                large = id
                break
            total += self.values[id][0]
        self.gone = max(self.gone, old, self.given - newest if newest else 0, large)
        self._drop(min([self.done, self.gone, *self.acks.values()]))

    def _drop(self, last: int) -> None:
        self.values = {id: value for id, value in self.values.items() if id > last}

    def _touch(self) -> None:
        self._next_second()
        self.link.run(reader_operations.keep_alive([self.keys]))
        self._let_go()

    def _next_second(self) -> None:
        if bound := self._redis("HGET", self.keys.metadata, "lets"):
            self._redis("HSET", self.keys.metadata, "lets", b"0:" + bound.partition(b":")[2])

    def _redis(self, *words: str | bytes | int) -> Any:
        return self.link.execute(command(*words))


def test_what_is_kept_is_what_a_dictionary_keeps(link: SyncLink, fresh_keys: FreshKeys) -> None:
    class Here(Kept):
        pass

    Here.link, Here.fresh = link, staticmethod(fresh_keys)  # type: ignore[assignment]
    run_state_machine_as_test(
        Here, settings=settings(max_examples=60 * FACTOR, stateful_step_count=30, deadline=None)
    )
