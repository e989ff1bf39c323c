"""The world of a planning as a table says it: queues with states, sizes and answers to a loss;
writes down what the planner asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from busmq_spark.queue.message import MAX_ID
from busmq_spark.queue.position import Position
from busmq_spark.queue.qualified_queue_names import qualified_name
from busmq_spark.reading.batch_planner import (
    IdsAtTimesQuestion,
    IntactQueuesQuestion,
    LastIdsQuestion,
    MessageFingerprintsQuestion,
    PositionAfterLossQuestion,
    PrefetchRowsQuestion,
    Question,
    QueueStatesQuestion,
    ReleaseExpiredQueue,
)
from busmq_spark.reading.loss import loss_between
from busmq_spark.reading.offsets import position_of
from busmq_spark.reading.reader_operations import QueueState
from busmq_spark.reading.times_of_ids import TimeLookupResult
from busmq_spark.reading.trigger_limits import LastIdWithinBytesQuestion


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

    def __call__(self, question: Question) -> Any:
        self.asked.append(_text(question).replace("\ufdd0", "/"))
        match question:
            case LastIdsQuestion(queues):
                return [self._queues.get(queue, {}).get("last_id", 0) for queue in queues]
            case IntactQueuesQuestion(wanted):
                return {queue: self._intact(queue, *asked) for queue, asked in wanted.items()}
            case QueueStatesQuestion(ids):
                return {
                    queue: self._state(queue, id)
                    for queue, id in ids.items()
                    if queue in self._queues
                }
            case MessageFingerprintsQuestion(ids):
                return {
                    queue: f"m{id}"
                    for queue, id in ids.items()
                    if not self._queues[queue].get("lost_link")
                }
            case IdsAtTimesQuestion(wanted):
                return {
                    queue: TimeLookupResult(self._times[queue], 0, 0, 10**12, 0) for queue in wanted
                }
            case LastIdWithinBytesQuestion(queue, first, last, budget):
                fitting = min(last - first + 1, budget // self._sizes[queue])
                return first - 1 + fitting, fitting * self._sizes[queue]
            case PrefetchRowsQuestion(ranges):
                return {part.queue for part in ranges} & {*self._fetched}
            case PositionAfterLossQuestion(queue, _, _):
                if queue not in self._after_loss:
                    raise LostInTest
                found = self._after_loss[queue]
                return found and position_of(found)
            case ReleaseExpiredQueue():
                return None

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


def _text(question: Question) -> str:
    match question:
        case LastIdsQuestion(queues):
            return " ".join(["counters", *sorted(queues)])
        case IntactQueuesQuestion(wanted):
            return " ".join(
                [
                    "intact",
                    *(
                        f"{queue}:{at.last}..{upto if upto < MAX_ID else ''}"
                        for queue, (at, upto) in sorted(wanted.items())
                    ),
                ]
            )
        case QueueStatesQuestion(ids):
            return " ".join(["states", *(f"{queue}:{id}" for queue, id in sorted(ids.items()))])
        case MessageFingerprintsQuestion(ids):
            return " ".join(["marks", *(f"{queue}:{id}" for queue, id in sorted(ids.items()))])
        case IdsAtTimesQuestion(wanted):
            return " ".join(["times", *(f"{queue}:{ms}" for queue, ms in sorted(wanted.items()))])
        case LastIdWithinBytesQuestion(queue, first, last, budget):
            return f"bytes {queue} {first}..{last} {budget}"
        case PrefetchRowsQuestion(ranges):
            return " ".join(
                ["fetch", *(f"{part.queue}:{part.first}..{part.last}" for part in ranges)]
            )
        case PositionAfterLossQuestion(queue, _, loss):
            return f"lost {queue} {loss.kind} {loss.ids}"
        case ReleaseExpiredQueue(queue):
            return f"gone {queue}"
