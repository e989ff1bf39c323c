"""The messages of the tasks of a sink to its driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from busmq_spark.writing.sink_runs import SinkRun

if TYPE_CHECKING:
    from busmq_spark.writing.sink import StagedList

BASE_SETTING = "spark.sql.streaming.checkpointLocation"
"""The setting for the checkpoints of queries without the option: each in a folder of its own
below.
"""


@dataclass(frozen=True, slots=True)
class BaseLocation:
    """The folder that the setting of a session names, and the name of the query, if it has one."""

    folder: str = ""
    query_name: str = ""

    @classmethod
    def of_task(cls, query: str, local_property: Callable[[str], str]) -> BaseLocation:
        """Return what the properties of a task of the query say: Spark copies settings there.

        The description of the job begins with the name, if there is one, and goes on with the id.
        """
        name, named, _ = local_property("spark.job.description").partition(f"<br/>id = {query}")
        return cls(local_property(BASE_SETTING), name if named else "")


class SinkCommitMessage(WriterCommitMessage):
    """The result of a task: its query, the lists that it staged, and their run (None where it
    staged nothing).

    ``base``: where the session keeps checkpoints, which the driver's half of a sink is not told.
    """

    def __init__(
        self,
        query: str,
        staged: tuple[StagedList, ...],
        run: SinkRun | None = None,
        base: BaseLocation | None = None,
    ) -> None:
        self.query = query
        self.staged = staged
        self.run = run
        self.base = base or BaseLocation()


def base_location(messages: Sequence[WriterCommitMessage | None]) -> BaseLocation:
    """Return where the session of the query keeps checkpoints."""
    return next((m.base for m in messages if isinstance(m, SinkCommitMessage)), BaseLocation())


def merge_outcomes(
    messages: Sequence[WriterCommitMessage | None],
) -> tuple[str, list[StagedList], SinkRun | None]:
    """The query, all staged lists in partition order (Spark aligns the messages with the
    partitions), and their run.
    """
    outcomes = [m for m in messages if isinstance(m, SinkCommitMessage)]
    runs = [m.run for m in outcomes if m.run is not None]
    run = next((run for run in runs if run.before), runs[0] if runs else None)
    return (
        next((m.query for m in outcomes if m.query), ""),
        [s for m in outcomes for s in m.staged],
        run,
    )
