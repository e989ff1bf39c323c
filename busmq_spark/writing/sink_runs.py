"""The runs of a sink and their staged lists, also after a run that died before its commit.

Rule 1. A run (of a query, from its start to its end; a batch write) gets a number, its epoch, from
        the record of its sink; a later run a higher one.
Rule 2. Once a later run has its number, no earlier one can record a batch (record.lua). So the
        later one removes what they have staged (``sweep``), but for the lists that are on record,
        which it appends itself.
Rule 3. Staged lists are noted in a hash beside their queue (``stages``), in the script that makes
        them. A list is removed by its name, which is unique for ever: however late, or often, this
        reaches Redis, it removes nothing that was staged since.
Rule 4. While a task of a run stages, all lists of the run live on (``renew``): those of tasks that
        have ended, too. The ttl is for runs that die and have no successor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from busmq_spark.queue.command_generators import Flow, command, script, slices
from busmq_spark.queue.keys import QueueKeys, sink_queues, sink_record
from busmq_spark.writing import sink as sinks
from busmq_spark.writing.sink import StagedList, by_queue, decode_manifest

NAMES_PER_CALL = 1000


@dataclass(frozen=True, slots=True)
class SinkRun:
    """A run of a sink, for which its tasks stage rows. ``epoch`` is higher for a run that began
    later.
    """

    sink: str
    epoch: int
    before: tuple[str, ...] = field(default=(), compare=False)
    """Queues of the batch that was on record when the run began; only for the task that began
    it.
    """


def begin(
    sink: str, run: str, queues: Sequence[str]
) -> Flow[tuple[int, tuple[StagedList, ...] | None]]:
    """Called before a task stages rows for queues. Returns the epoch of the run and, to the task
    that began the run, the recorded lists.

    The other tasks of the run get None instead. Safe to repeat: a task whose first call was
    executed without a reply gets None, too.
    """
    noted = [
        script("enlist", (sink_queues(sink),), (run, sinks.STAGE_TTL_S, *part))
        for part in slices(queues, NAMES_PER_CALL)
    ]
    (epoch, first, manifest), *_ = yield [
        script("begin", (sink_record(sink),), (run, sinks.STAGE_TTL_S)),
        *noted,
    ]
    return int(epoch), (decode_manifest(manifest) if manifest else ()) if first else None


def staged_queues(sink: str) -> Flow[dict[str, str]]:
    """The queues that runs of the sink have staged for, and the last run that did."""
    flat: list[bytes] = yield command("HGETALL", sink_queues(sink))
    names = [name.decode() for name in flat]
    return dict(zip(names[0::2], names[1::2], strict=True))


def forget_swept(sink: str, run: str, queues: Sequence[str]) -> Flow[None]:
    """Forget queues that were swept, unless the run stages for them by now."""
    for part in slices(queues, NAMES_PER_CALL):
        yield script("unlist", (sink_queues(sink),), (run, *part))


def sweep(queues: Sequence[QueueKeys], run: SinkRun, held: Sequence[StagedList]) -> Flow[list[int]]:
    """Remove what earlier runs have staged for these queues, but for the lists that are on record.
    The result is how many of each.
    """
    kept, calls = by_queue(held), []
    for keys in queues:
        attempts = [part.key.removeprefix(keys.stage("")) for part in kept.get(keys.name, ())]
        calls.append(
            script("sweep", (keys.stages(run.sink),), (run.epoch, keys.stage(""), *attempts))
        )
    removed: list[int] = (yield calls) if calls else []
    return removed


def renew(queues: Sequence[QueueKeys], run: SinkRun) -> Flow[list[int]]:
    """Let what the run has staged for these queues live on. The result is how many lists of each
    there are.
    """
    calls = [
        script("renew", (keys.stages(run.sink),), (run.epoch, keys.stage(""), sinks.STAGE_TTL_S))
        for keys in queues
    ]
    there: list[int] = (yield calls) if calls else []
    return there
