"""The world of a planning as a table says it: queues with states, sizes and answers to a loss;
writes down what the planner asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from busmq_spark.queue.keys import qualified_name
from busmq_spark.queue.message import MAX_ID, Position, Range
from busmq_spark.reading.loss import Loss, loss_between
from busmq_spark.reading.offsets import position_of
from busmq_spark.reading.reader_operations import QueueState
from busmq_spark.reading.times_of_ids import TimeLookupResult


class LostInTest(Exception):
    """The table has no answer to a loss: it is an error."""


def name_of(text: str) -> str:
    """``eu/q`` is queue q of link eu."""
    source, slash, queue = text.partition("/")
    return qualified_name(source, queue) if slash else text


def positions(table: Mapping[str, Any]) -> dict[str, Position]:
    """Positions of a table."""
    return {name_of(queue): position_of(found) for queue, found in table.items()}


class World:
    """Answers for one planning. A queue is ``{"born": …, "oldest": 4, "newest": 9, "last_id": 9}``,
    the fingerprint of message 7 is m7.
    """

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.asked: list[str] = []
        self._queues = {name_of(queue): found for queue, found in table["queues"].items()}
        self._sizes = {name_of(queue): size for queue, size in table.get("sizes", {}).items()}
        self._times = table.get("times", {})
        self._after_loss = {
            name_of(queue): found for queue, found in table.get("after_loss", {}).items()
        }
        self._fetched = [name_of(queue) for queue in table.get("fetched", ())]

    @property
    def store(self) -> World:
        """It answers the questions about queues, too."""
        return self

    def counters(self, queues: Sequence[str]) -> list[int]:
        self._note("counters", sorted(queues))
        return [self._queues.get(queue, {}).get("last_id", 0) for queue in queues]

    def intact(
        self, wanted: Mapping[str, tuple[Position, int]]
    ) -> dict[str, tuple[int, str] | None]:
        self._note(
            "intact",
            (
                f"{queue}:{at.last}..{upto if upto < MAX_ID else ''}"
                for queue, (at, upto) in sorted(wanted.items())
            ),
        )
        return {queue: self._intact(queue, *asked) for queue, asked in wanted.items()}

    def states(self, wanted: Mapping[str, int]) -> dict[str, QueueState]:
        self._note("states", _pairs(wanted))
        return {
            queue: self._state(queue, id) for queue, id in wanted.items() if queue in self._queues
        }

    def marks(self, ids: Mapping[str, int]) -> dict[str, str]:
        self._note("marks", _pairs(ids))
        return {
            queue: f"m{id}" for queue, id in ids.items() if not self._queues[queue].get("lost_link")
        }

    def find_times(self, wanted: Mapping[str, int]) -> dict[str, TimeLookupResult]:
        self._note("times", _pairs(wanted))
        return {queue: TimeLookupResult(self._times[queue], 0, 0, 10**12, 0) for queue in wanted}

    def bytes_until(self, queue: str, first: int, last: int, budget: int) -> tuple[int, int]:
        self._note("bytes", [queue, f"{first}..{last}", str(budget)])
        fitting = min(last - first + 1, budget // self._sizes[queue])
        return first - 1 + fitting, fitting * self._sizes[queue]

    def prefetch(self, ranges: Sequence[Range]) -> set[str]:
        self._note("fetch", (f"{part.queue}:{part.first}..{part.last}" for part in ranges))
        return {part.queue for part in ranges} & {*self._fetched}

    def handle_loss(self, queue: str, at: Position | None, loss: Loss) -> Position | None:
        self._note("lost", [queue, loss.kind, str(loss.ids)])
        if queue not in self._after_loss:
            raise LostInTest
        found = self._after_loss[queue]
        return found and position_of(found)

    def drop_expired_queue(self, queue: str) -> None:
        self._note("gone", [queue])

    def _note(self, question: str, words: Iterable[str]) -> None:
        self.asked.append(" ".join([question, *words]).replace("\ufdd0", "/"))

    def _intact(self, queue: str, at: Position, upto: int) -> tuple[int, str] | None:
        """As lua/intact.lua looks at the queue."""
        state = self._state(queue, at.last)
        upto = min(upto, state.last_id)
        if (
            loss_between(at, state)
            or upto < at.last
            or (upto > at.last and not state.oldest <= upto <= state.newest)
        ):
            return None
        return state.last_id, f"m{upto}" if upto > at.last else ""

    def _state(self, queue: str, asked: int) -> QueueState:
        found = self._queues[queue]
        oldest, newest = found.get("oldest", 0), found.get("newest", 0)
        mark = f"m{asked}" if oldest <= asked <= newest and asked > 0 else ""
        count = newest - oldest + 1 if newest else 0
        newest_mark = f"m{newest}" if newest else ""
        return QueueState(
            found.get("ttl_s", 60),
            found.get("born", ""),
            0,
            found.get("last_id", newest),
            oldest,
            newest,
            count,
            found.get("mark", mark),
            newest_mark,
            found.get("done", 0),
        )


def _pairs(asked: Mapping[str, int]) -> list[str]:
    return [f"{queue}:{number}" for queue, number in sorted(asked.items())]
