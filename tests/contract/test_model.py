"""Several clients at once against a simple model of a queue: any order of their calls, the same
outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Message
from busmq_spark.reading import reader_operations
from busmq_spark.reading.reader_operations import CumulativeAckRequest
from busmq_spark.redis_io.sync_link import SyncLink
from tests.conftest import FreshKeys, link_to
from tests.contract.conftest import Run


@dataclass
class Model:
    """A queue as a person would explain it: three lists and a counter."""

    maxsize: int
    given: int = 0
    messages: list[Message] = field(default_factory=list)
    toack: list[Message] = field(default_factory=list)
    acked: dict[str, int] = field(default_factory=dict)

    def push(self, values: list[bytes]) -> int:
        room = max(0, self.maxsize - len(self.messages)) if self.maxsize else len(values)
        for value in values[:room]:
            self.given += 1
            self.messages.append(Message(self.given, value))
        return min(room, len(values))

    def pop(self, most: int, reliable: bool) -> list[Message]:
        taken, self.messages = self.messages[:most], self.messages[most:]
        if reliable:
            self.toack += taken
        return taken

    def ack(self, last: int, restore: bool) -> None:
        self.toack = [message for message in self.toack if message.id > last]
        if restore:
            self.messages, self.toack = self.toack + self.messages, []

    def ack_to(self, id: int, subscription: str) -> str:
        if id > self.given:
            return "older"
        if subscription:
            self.acked[subscription] = max(id, self.acked.get(subscription, 0))
        low = min([id, *self.acked.values()])
        self.messages = [message for message in self.messages if message.id > low]
        return "ok"


ids = st.integers(0, 30)
steps = st.one_of(
    st.tuples(st.just("push"), st.binary(max_size=4)),
    st.tuples(st.just("push_many"), st.lists(st.binary(max_size=4), max_size=9)),
    st.tuples(st.just("pop"), st.integers(1, 6)),
    st.tuples(st.just("reliable_pop"), st.integers(1, 6)),
    st.tuples(st.just("ack"), ids),
    st.tuples(st.just("restore"), ids),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("ack_to"), st.tuples(ids, st.sampled_from(["", "a", "b"]))),
)


def both(run: Run, keys: QueueKeys, model: Model, what: str, how: object) -> tuple[object, object]:
    """The same operation on Redis and on the model: their results."""
    match what, how:
        case "push", bytes(value):
            stored = model.push([value])
            return run(queue.push(keys, value)), model.given if stored else None
        case "push_many", list(values):
            return run(queue.push_many(keys, values)), model.push(values)
        case "pop", int(most):
            return run(queue.pop(keys, most=most)), model.pop(most, reliable=False)
        case "reliable_pop", int(most):
            return run(queue.pop(keys, reliable=True, ttl_s=60, most=most)), model.pop(
                most, reliable=True
            )
        case "ack" | "restore", int(last):
            return run(queue.ack(keys, last, ttl_s=60, restore=what == "restore")), model.ack(
                last, what == "restore"
            )
        case "ack_to", (int(id), str(subscription)):
            return run(
                reader_operations.ack_to([CumulativeAckRequest(keys, id, "b", "")], subscription)
            )[0].status, model.ack_to(id, subscription)
    had, model.messages = bool(model.messages), []
    return run(queue.flush(keys)), had


@pytest.fixture
def clients(redis_url: str) -> Iterator[list[SyncLink]]:
    links = [link_to(redis_url) for _ in range(3)]
    yield links
    for each in links:
        each.close()


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 2), steps), max_size=30), st.sampled_from([0, 0, 7]))
def test_clients_that_interleave_any_calls_see_one_queue(
    clients: list[SyncLink],
    fresh_keys: FreshKeys,
    calls: list[tuple[int, tuple[str, object]]],
    maxsize: int,
) -> None:
    keys, model = fresh_keys(), Model(maxsize)
    clients[0].run(queue.attach(keys, "b", ttl_s=60, maxsize=maxsize))
    for who, (what, how) in calls:
        found, expected = both(clients[who].run, keys, model, what, how)
        assert found == expected, (what, how)
        assert whole(clients[who], keys.messages) == model.messages
        assert whole(clients[who], keys.toack) == model.toack
    seen = clients[0].run(reader_operations.states([(keys, -1)]))[0]
    assert (seen.last_id, seen.count) == (model.given, len(model.messages))
    ends = (model.messages[0].id, model.messages[-1].id) if model.messages else (0, 0)
    assert (seen.oldest, seen.newest) == ends
    assert clients[0].run(reader_operations.subscriptions([keys])) == [model.acked]


def whole(link: SyncLink, key: str) -> list[Message]:
    flat = link.execute(command("LRANGE", key, 0, -1))
    return [Message(int(id), value) for id, value in zip(flat[0::2], flat[1::2], strict=True)]
