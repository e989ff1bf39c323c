"""The store against a model: whatever is called, routed, sent and confirmed in whichever order,
each queue is sent what is for it, once, in order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.outbox import sql
from busmq_spark.outbox.sql import OutboxEntryKind

QUEUES = ("a", "b", "c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from(QUEUES), st.integers(1, 4)),
        st.tuples(st.just("send"), st.sampled_from(QUEUES), st.integers(1, 2)),
        st.tuples(
            st.just("publish"), st.lists(st.sampled_from(QUEUES), max_size=3), st.integers(1, 3)
        ),
        st.tuples(st.just("route"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("forward"), st.sampled_from(QUEUES), st.integers(1, 5)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


class Modelled:
    """A store, and what it should send."""

    opening: int

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made = 0
        self.expected: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
        self.sent: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
        self.events: dict[int, list[str]] = {}
        self.reopen(0, 0)

    def do(self, work: Callable[[], object]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        work()
        self.connection.execute("COMMIT")

    def values(self, count: int) -> list[bytes]:
        self.made += count
        return [b"%d" % n for n in range(self.made - count, self.made)]

    def reopen(self, _: int, __: int) -> None:
        if hasattr(self, "connection"):
            self.connection.close()
        self.connection = sql.create_or_open(self.path)
        self.do(
            lambda: setattr(
                self, "opening", sql.begin_opening(self.connection, f"sender {self.made}")
            )
        )

    def push(self, queue: str, count: int, kind: OutboxEntryKind = OutboxEntryKind.PUSH) -> None:
        values = self.values(count)
        self.expected[queue] += values
        self.do(
            lambda: sql.store_messages(
                self.connection,
                self.opening,
                kind,
                sql.find_or_add_destination(self.connection, queue),
                values,
            )
        )

    def send(self, queue: str, count: int) -> None:
        self.push(queue, count, OutboxEntryKind.SEND)

    def publish(self, queues: list[str], count: int) -> None:
        values = self.values(count)
        for queue in dict.fromkeys(queues):
            self.expected[queue] += values
        last: list[int] = []
        self.do(lambda: last.append(sql.store_events(self.connection, self.opening, ["k"], values)))
        self.events.update({last[0] - back: queues for back in range(count)})

    def route(self, most: int, _: int) -> None:
        for each in sql.unrouted_entries(self.connection, most):
            self.do(
                lambda each=each: sql.route_event(
                    self.connection, each.id, self.events.pop(each.id)
                )
            )

    def forward(self, queue: str, most: int) -> bool:
        [to] = [
            each for each in sql.waiting_destinations(self.connection) if each.queue == queue
        ] or [None]
        chunk = to and sql.next_chunk(self.connection, to, 0, most, 6)
        if not to or not chunk:
            return False
        assert [*chunk.numbers] == sorted({*chunk.numbers})
        assert len(chunk.numbers) == len(chunk.values) <= most
        self.sent[queue] += chunk.values
        self.do(lambda: sql.confirm_sent(self.connection, to, chunk.numbers[-1]))
        return True


@given(steps=STEPS)
def test_each_queue_is_sent_what_is_for_it_once_and_in_order(
    steps: list[tuple[str, object, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Modelled(Path(folder) / "outbox.db")
        for name, first, second in steps:
            getattr(model, name)(first, second)
            for queue in QUEUES:
                assert model.sent[queue] == model.expected[queue][: len(model.sent[queue])]
        model.route(1000, 0)
        while sum(model.forward(queue, 5) for queue in QUEUES):
            continue
        assert model.sent == model.expected
        with closing(model.connection):
            assert sql.is_empty(model.connection)
            assert model.connection.execute("SELECT count(*) FROM outgoing").fetchone() == (0,)


def test_a_chunk_has_messages_of_one_sender_and_commands_apart(path: Path) -> None:
    model = Modelled(path)
    model.push("a", 2)
    model.send("a", 2)
    model.push("a", 1)
    model.reopen(0, 0)
    model.push("a", 2)
    [to] = sql.waiting_destinations(model.connection)
    found = []
    behind = 0
    while (chunk := sql.next_chunk(model.connection, to, behind, 100, 1000)) is not None:
        found.append((chunk.sender, chunk.commands, len(chunk.values)))
        behind = chunk.numbers[-1]
    assert found == [
        ("sender 0", False, 2),
        ("sender 0", True, 2),
        ("sender 0", False, 1),
        ("sender 5", False, 2),
    ]
    model.connection.close()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("ss", [(True, 2)]),
        ("pp", [(False, 2)]),
        ("pps", [(False, 2), (True, 1)]),
        ("sp", [(True, 1), (False, 1)]),
    ],
)
def test_a_chunk_of_one_opening_has_commands_or_none(
    path: Path, steps: str, expected: list[tuple[bool, int]]
) -> None:
    model = Modelled(path)
    for step in steps:
        (model.send if step == "s" else model.push)("a", 1)
    [to] = sql.waiting_destinations(model.connection)
    found, behind = [], 0
    while (chunk := sql.next_chunk(model.connection, to, behind, 100, 1000)) is not None:
        found.append((chunk.commands, len(chunk.values)))
        behind = chunk.numbers[-1]
    assert found == expected
    model.connection.close()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_chunk_keeps_to_its_bytes_but_for_one_message(path: Path, size: int) -> None:
    model = Modelled(path)
    model.do(
        lambda: sql.store_messages(
            model.connection,
            model.opening,
            OutboxEntryKind.PUSH,
            sql.find_or_add_destination(model.connection, "a"),
            [b"x" * size] * 3,
        )
    )
    [to] = sql.waiting_destinations(model.connection)
    chunk = sql.next_chunk(model.connection, to, 0, 100, 15)
    assert chunk is not None
    assert len(chunk.values) == {1: 3, 7: 2, 1000: 1}[size]
    model.connection.close()
