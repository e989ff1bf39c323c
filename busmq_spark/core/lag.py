"""How far the readers of queues are behind: in messages, and by the age of the oldest one that a reader has not acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from busmq_spark.core.clock import ages, note_if_allowed
from busmq_spark.core.flow import Flow, command
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.state import states, subscriptions

QUEUES_PER_STEP = 500
Kind: TypeAlias = Literal["ordered", "shared", "query", "consumer"]


@dataclass(frozen=True, slots=True)
class ReaderLag:
    """One reader of one queue."""

    queue: str
    reader: str
    """The name of its group or subscription; empty for what reads without one."""
    kind: Kind
    """A group of either kind; without a name a query that holds the lease, else whatever consumes the queue, if anything does."""
    behind: int
    """Messages that it has not acknowledged."""
    behind_s: int | None
    """Seconds since the oldest of them came, or a little less; None where that is not known."""
    holder: str
    """The holder of the lease; empty when there is none, and for a shared group."""


def lags(queues: Sequence[QueueKeys]) -> Flow[list[ReaderLag]]:
    """Every reader of queues of one server. Queues that do not exist, and those without messages and readers, have none."""
    found: list[ReaderLag] = []
    for start in range(0, len(queues), QUEUES_PER_STEP):
        found += yield from _of_some(queues[start : start + QUEUES_PER_STEP])
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    keys: QueueKeys
    name: str
    next: int
    """The oldest stored id that it has not acknowledged, if there is one."""
    behind: int


def _of_some(queues: Sequence[QueueKeys]) -> Flow[list[ReaderLag]]:
    yield from note_if_allowed(queues)
    known = yield from states([(keys, -1) for keys in queues])
    acked = yield from subscriptions(queues)
    replies = yield [call for keys in queues for call in (command("HGET", keys.metadata, "acked"), command("LINDEX", keys.toack, 0))]
    readers: list[_Reader] = []
    for keys, state, names, done, taken in zip(queues, known, acked, replies[0::2], replies[1::2], strict=True):
        # Without a name: what a query has acknowledged, or what a reliable consumer has taken and not acknowledged.
        positions = names or {"": max(state.floor, state.done, int(done or 0)) if taken is None else int(taken) - 1}
        for name, last in positions.items() if state.exists else ():
            readers.append(_Reader(keys, name, (max(last, state.floor) if names else last) + 1, max(0, state.last_id - last)))
    return (yield from _lags(readers))


def _lags(readers: Sequence[_Reader]) -> Flow[list[ReaderLag]]:
    if not readers:
        return []
    waiting = yield from ages([(each.keys, each.next) for each in readers])
    held = [command("GET", each.keys.lease(each.name)) for each in readers]
    replies = yield [*held, *(command("HEXISTS", each.keys.acks, f":shared:{each.name}") for each in readers)]
    found = []
    for each, age_ms, lease, shared in zip(readers, waiting, replies, replies[len(readers) :], strict=False):
        kind = _kind(each.name, held=lease is not None, shared=bool(shared))
        if kind != "consumer" or each.behind:
            behind_s = 0 if not each.behind else None if age_ms < 0 else age_ms // 1000
            found.append(ReaderLag(each.keys.name, each.name, kind, each.behind, behind_s, (lease or b"").decode("utf-8", "replace")))
    return found


def _kind(name: str, *, held: bool, shared: bool) -> Kind:
    if name:
        return "shared" if shared else "ordered"
    return "query" if held else "consumer"
