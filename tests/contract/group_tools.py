"""A shared group, as tests of its flows and scripts use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from busmq_spark.groups import shared_group as flows
from busmq_spark.groups.shared_group import LeasedMessage, MessageLeaseResult
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_subscriptions import register

if TYPE_CHECKING:
    from tests.contract.conftest import Redis, Run

LEASE_MS = 30_000
_tokens = count(1)


class Shared:
    """A shared group of a queue with some messages."""

    def __init__(
        self, run: Run, redis: Redis, keys: QueueKeys, life: str, name: str = "g", **settings: int
    ) -> None:
        self.run, self.redis, self.keys, self.life, self.name = run, redis, keys, life, name
        run(register(keys, name, "earliest", shared={"lease_ms": LEASE_MS, "limit": 0, **settings}))

    def leased(
        self, most: int = 10, token: str = "", *, again: bool = False, apart: bool = False
    ) -> MessageLeaseResult:
        return self.run(
            flows.lease(
                self.keys, self.name, token or f"t{next(_tokens)}", most, again=again, apart=apart
            )
        )

    def lease(self, most: int = 10) -> Sequence[LeasedMessage]:
        return self.leased(most).deliveries

    def settle(
        self, action: flows.Action, deliveries: Sequence[LeasedMessage], ms: int = 0
    ) -> list[int] | None:
        return self.run(
            flows.settle(
                self.keys, self.name, self.life, flows.settlements_of(deliveries, action, ms)
            )
        )

    def held(self, *ids: int) -> list[int]:
        found = self.run(flows.are_leased(self.keys, self.name, ids))
        return [id for id, has in zip(ids, found, strict=True) if has]

    def pass_by(self, ms: int) -> None:
        """As if so much time had gone by."""
        _, due, *_ = self.keys.group(self.name)
        items = self.redis("ZRANGE", due, 0, -1, "WITHSCORES")
        for id, score in zip(items[0::2], map(int, items[1::2]), strict=True):
            self.redis("ZADD", due, score - ms if score > 0 else min(-1, score + ms), id)

    def leases(self) -> dict[int, int]:
        """As Redis has them: the first id of each, and how many messages it is of."""
        items = self.redis("HGETALL", self.keys.group(self.name)[2])
        return {
            int(id): int(record.split(b":")[3]) if record.count(b":") == 3 else 1
            for id, record in zip(items[0::2], items[1::2], strict=True)
        }

    def remove(self, *ids: int) -> None:
        """As an accident would that leaves holes among the ids."""
        items = self.redis("LRANGE", self.keys.messages, 0, -1)
        kept = [
            word
            for pair in zip(items[0::2], items[1::2], strict=True)
            if int(pair[0]) not in ids
            for word in pair
        ]
        self.redis("DEL", self.keys.messages)
        self.redis("RPUSH", self.keys.messages, *kept)

    @property
    def stored(self) -> list[int]:
        return [int(id) for id in self.redis("LRANGE", self.keys.messages, 0, -1)[0::2]]

    @property
    def position(self) -> int:
        return int(self.redis("HGET", self.keys.acks, self.name))

    @property
    def state(self) -> flows.GroupState:
        [found] = [
            each
            for each in self.run(flows.list_groups(self.keys))
            if each.subscription.name == self.name
        ]
        return found


Make = Callable[..., Shared]


def ids(deliveries: Sequence[LeasedMessage]) -> list[int]:
    return [each.id for each in deliveries]
