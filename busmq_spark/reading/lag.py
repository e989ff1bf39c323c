"""The lag of the readers of queues: in messages, and by the age of the oldest one that a reader has
not acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from busmq_spark.queue.command_generators import Flow, command, slices
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import states, subscriptions
from busmq_spark.reading.times_of_ids import ages, note_times_if_allowed

QUEUES_PER_STEP = 500
Kind: TypeAlias = Literal["ordered", "shared", "query", "consumer"]


@dataclass(frozen=True, slots=True)
class ReaderLag:
    """A reader of a queue."""

    queue: str
    reader: str
    """The name of its group or subscription; empty for what reads without one."""
    kind: Kind
    """A group of either kind; without a name a query that holds the lease, else whatever consumes
    the queue, if anything does.
    """
    behind: int
    """Messages that it has not acknowledged."""
    behind_s: int | None
    """Seconds since the oldest of them came, or a little less; the age is None where it is not
    known.
    """
    holder: str
    """The holder of the lease; empty when there is none, and for a shared group."""


def read_lags(queues: Sequence[QueueKeys]) -> Flow[list[ReaderLag]]:
    """Every reader of queues of one server. Queues that do not exist, and those without messages
    and readers, have none.
    """
    found: list[ReaderLag] = []
    for part in slices(queues, QUEUES_PER_STEP):
        found += yield from _lags_together(part)
    return found


@dataclass(frozen=True, slots=True)
class _ReaderProgress:
    keys: QueueKeys
    name: str
    next: int
    """The oldest stored id that it has not acknowledged, if there is one."""
    behind: int


def _lags_together(queues: Sequence[QueueKeys]) -> Flow[list[ReaderLag]]:
    yield from note_times_if_allowed(queues)
    known = yield from states([(keys, -1) for keys in queues])
    acked = yield from subscriptions(queues)
    replies = yield [
        call
        for keys in queues
        for call in (command("HGET", keys.metadata, "acked"), command("LINDEX", keys.toack, 0))
    ]
    readers: list[_ReaderProgress] = []
    for keys, state, names, acked_without_name, taken in zip(
        queues, known, acked, replies[0::2], replies[1::2], strict=True
    ):
        if not state.exists:
            continue
        if names:
            readers += [
                _ReaderProgress(
                    keys, name, max(last, state.floor) + 1, max(0, state.last_id - last)
                )
                for name, last in names.items()
            ]
            continue
        last = max(state.floor, state.done, int(acked_without_name or 0))  # of a query
        if (
            taken is not None
        ):  # by a reliable consumer: the oldest message that it has not acknowledged
            last = int(taken) - 1
        readers.append(_ReaderProgress(keys, "", last + 1, max(0, state.last_id - last)))
    return (yield from _lags(readers))


def _lags(readers: Sequence[_ReaderProgress]) -> Flow[list[ReaderLag]]:
    if not readers:
        return []
    ages_ms = yield from ages([(reader.keys, reader.next) for reader in readers])
    leases = [command("GET", reader.keys.lease(reader.name)) for reader in readers]
    replies = yield [
        *leases,
        *(command("HEXISTS", reader.keys.acks, f":shared:{reader.name}") for reader in readers),
    ]
    found = []
    for reader, age_ms, lease, shared in zip(
        readers, ages_ms, replies, replies[len(readers) :], strict=False
    ):
        kind = _kind(reader.name, held=lease is not None, shared=bool(shared))
        if kind != "consumer" or reader.behind:
            behind_s = 0 if not reader.behind else None if age_ms < 0 else age_ms // 1000
            found.append(
                ReaderLag(
                    reader.keys.name,
                    reader.name,
                    kind,
                    reader.behind,
                    behind_s,
                    (lease or b"").decode("utf-8", "replace"),
                )
            )
    return found


def _kind(name: str, *, held: bool, shared: bool) -> Kind:
    if name:
        return "shared" if shared else "ordered"
    return "query" if held else "consumer"
