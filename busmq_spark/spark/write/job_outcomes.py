"""The sink with option ``settle``: rows are outcomes of jobs in a group, with the fields that are
stored with them.

Rule 1. A row writes its fields and its outcome in one step, while its job has no outcome of the
        group for this message. Repeated or late rows change nothing, also while another run is
        still writing.
Rule 2. A row without id answers the newest message of its queue, as of when a batch write was
        planned: a task that comes again changes nothing.
Rule 3. Tasks write at once: the outcomes of a batch that fails stay, and the repeated batch writes
        the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructType

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.groups import job as flows
from busmq_spark.groups import shared_group as groups
from busmq_spark.groups.job import Fields, LeasedJob
from busmq_spark.groups.shared_group import LeasedMessage
from busmq_spark.options import WriteOptions
from busmq_spark.queue.command_generators import group_by
from busmq_spark.queue.keys import JobKeys
from busmq_spark.spark.compat import freeze_imports
from busmq_spark.spark.schema import FIELDS_COLUMN_TYPES, refuse_equal_names
from busmq_spark.spark.stores import full_queue_wait, sink_store
from busmq_spark.spark.write.commit_message import SinkCommitMessage
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore

log = logging.getLogger("busmq_spark")

ROWS_PER_CALL = 500
OK_COLUMN, FAILED_COLUMN = "ok", "failed"
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "job": (StringType,),
    "value": (StringType, BinaryType),
    "id": (LongType,),
    "queue": (StringType,),
    "outcome": (StringType,),
    "error": (StringType,),
    "fields": (MapType,),
}


@dataclass(frozen=True, slots=True)
class JobOutcomeColumns:
    """The columns of rows beside the job and its outcome."""

    queue: str | None
    """The option; the queue is None when rows name theirs."""
    needs_id: bool = False
    """Whether each row must name the message that it answers: a repeated row may come when another
    message is the newest.
    """
    lives: Mapping[str, AttachedJobQueue] = field(default_factory=dict)
    """The queues that were looked up when the write was planned."""

    @classmethod
    def of(
        cls, schema: StructType, queue: str | None, *, needs_id: bool = False
    ) -> JobOutcomeColumns:
        """``needs_id``: also where the queue is known. Raises ConfigError for a missing or unknown
        column, a wrong type, or no queue.
        """
        refuse_equal_names(schema.names)
        for column in schema.fields:
            types = _TYPES.get(column.name.lower())
            kind = column.dataType.simpleString()
            if types is None:
                raise ConfigError(
                    reason=(
                        f"column {column.name!r} has no place; with settle the sink takes job"
                        " (string) or value (the message that names it), outcome (string), error"
                        " (string), fields (map<string,binary>), and id and queue as the source"
                        " has them"
                    )
                )
            if not isinstance(column.dataType, types) or (
                types == (MapType,) and kind not in FIELDS_COLUMN_TYPES
            ):
                wanted = (
                    FIELDS_COLUMN_TYPES[0]
                    if types == (MapType,)
                    else " or ".join(t().simpleString() for t in types)
                )
                raise ConfigError(reason=f"column {column.name!r} is {kind}; expected {wanted}")
        names, has = (
            tuple(name.lower() for name in schema.names),
            ", ".join(schema.names) or "no columns",
        )
        if not {"job", "value"} & {*names}:
            raise ConfigError(
                reason=(
                    f"no column names the job; expected job (string) or value; the rows have: {has}"
                )
            )
        if queue is None and "queue" not in names:
            raise ConfigError(
                reason=(
                    "no queue is named: set option 'queue', or give the rows a column queue: the"
                    " one that the jobs were sent to"
                )
            )
        if (needs_id or queue is None) and "id" not in names:
            who, remedy = (
                ("a query", "")
                if needs_id
                else ("a write to the queues that its rows name", ", or set option 'queue'")
            )
            raise ConfigError(
                reason=(
                    f"{who} needs, with settle, the column id of the source: without it what comes"
                    " again behind a newer message writes its outcomes twice. Select id,"
                    f" too{remedy}; the rows have: {has}"
                )
            )
        return cls(queue, needs_id or queue is None)

    def look_up_queue(self, options: WriteOptions) -> JobOutcomeColumns:
        """Return the columns with the present facts about the queue of the option: rows without id
        answer its newest message. Raises QueueMissing.
        """
        if self.queue is None:
            return self
        return replace(self, lives={self.queue: AttachedJobQueue.fetch(self.queue, options)})

    def to_record_batch(self, rows: Sequence[Any]) -> Any:
        """Return a record batch of Spark rows, for Spark versions that hand over rows."""
        return pa.RecordBatch.from_pylist([row.asDict() for row in rows])


class AttachedJobQueue(NamedTuple):
    """The facts about its queue that an outcome needs."""

    born: str
    ttl_ms: int
    newest: int
    """The last id that was given in it."""

    @classmethod
    def fetch(cls, queue: str, options: WriteOptions) -> AttachedJobQueue:
        """Fetch the present facts. Raises QueueMissing."""
        store = _job_store(options)
        attached = store.attach([queue], QueueCreateOptions(allowed=False, ttl_s=options.ttl_s))[
            queue
        ]
        return cls(attached.born, 1000 * attached.ttl_s, store.states({queue: -1})[queue].last_id)


def _job_store(options: WriteOptions) -> RedisStore:
    store = sink_store(options)
    assert isinstance(store, RedisStore), "links are refused"
    return store


class _OutcomeRow(NamedTuple):
    queue: str
    named: bool
    """Whether the row says which message it answers."""
    work: LeasedJob
    error: str | None
    fields: Fields


class JobOutcomeTaskWriter:
    """Rows of one task."""

    def __init__(
        self,
        options: WriteOptions,
        columns: JobOutcomeColumns,
    ) -> None:
        self._options, self._columns = options, columns
        self._store = _job_store(options)
        self._lives = dict(columns.lives)
        self._attached_outcome_queues: set[str] = set()

    def write(self, batches: Iterator[Any]) -> SinkCommitMessage:
        """Return when all rows are written: the driver has nothing to commit."""
        freeze_imports()
        for batch in batches:
            for at in range(0, batch.num_rows, ROWS_PER_CALL):
                made = (
                    self._parse_row({name.lower(): value for name, value in row.items()})
                    for row in batch.slice(at, ROWS_PER_CALL).to_pylist()
                )
                for queue, rows in group_by(made, lambda row: row.queue).items():
                    self._write_outcomes(queue, rows)
        return SinkCommitMessage("", ())

    def _write_outcomes(self, queue: str, rows: Sequence[_OutcomeRow]) -> None:
        named = [row for row in rows if row.named]
        leased = self._store.run(
            queue,
            groups.are_leased(
                self._store.keys(queue),
                self._options.settle,
                [row.work.delivery.id for row in named],
            ),
        )
        # Workers have these: at the first lease of a message they record nothing that
        # job_outcome.lua could see.
        begun = {row.work for row, by_worker in zip(named, leased, strict=True) if by_worker}
        rows = [row for row in rows if row.work not in begun]
        works = [(row.work, row.error) for row in rows]
        fields = (
            [row.fields for row in rows] if any(row.fields for row in rows) else None
        )  # without any, many jobs are one call
        answers = self._store.run(
            queue, flows.write_outcomes(works, queue, flows.OUTCOME_TTL_S, fields)
        )
        if late := len(begun) + sum(answer == "late" for answer, _ in answers):
            log.warning(
                "queue %r, group %r: %d jobs are not settled: a worker has them",
                queue,
                self._options.settle,
                late,
            )
        self._publish_durably(
            [
                (row.work.done, outcome)
                for row, (_, outcome) in zip(rows, answers, strict=True)
                if row.work.done and outcome
            ]
        )

    def _publish_durably(self, outcomes: Sequence[tuple[str, bytes]]) -> None:
        """Push outcomes to the queues that their jobs name, also the ones that were stored before:
        their writer may have died before this.
        """
        if not outcomes:
            return
        parts: dict[str, list[bytes]] = {}
        for name, outcome in outcomes:
            parts.setdefault(name, []).append(outcome)
        self._store.attach(
            list(parts.keys() - self._attached_outcome_queues),
            QueueCreateOptions(allowed=True, ttl_s=self._options.ttl_s),
        )
        self._attached_outcome_queues |= parts.keys()
        self._store.appender().push_each(parts, full_queue_wait(self._options))

    def _parse_row(self, row: dict[str, Any]) -> _OutcomeRow:
        queue = self._columns.queue or row["queue"]
        if not queue:
            raise MessageRefused(
                reason="column 'queue' is NULL or empty in some rows; expected the name of a queue"
            )
        if self._columns.needs_id and row.get("id") is None:
            raise MessageRefused(
                reason=(
                    "column 'id' is NULL in some rows; expected the id of the message that each"
                    " answers, as the source has it"
                )
            )
        life, ttl_ms, newest = self._queue_life(queue)
        id, client, done = self._parse_job(row, queue)
        message = newest if row.get("id") is None else row["id"]
        error = row.get("error")
        if row.get("outcome") not in (None, OK_COLUMN, FAILED_COLUMN):
            raise MessageRefused(
                reason=(
                    f"column 'outcome' is {row['outcome']!r} in some rows; expected {OK_COLUMN!r},"
                    f" {FAILED_COLUMN!r} or NULL"
                )
            )
        if error is None and row.get("outcome") == FAILED_COLUMN:
            error = FAILED_COLUMN
        elif row.get("outcome") == OK_COLUMN:
            error = None
        delivery = LeasedMessage(
            message, b"", 1, 0, ""
        )  # no lease, so rows of different runs do not refuse each other
        work = LeasedJob(
            delivery,
            JobKeys(id, self._store.keys(queue).cluster),
            client,
            self._options.settle,
            life,
            done,
        )
        given = row.get("fields") or ()
        fields = {
            flows.check_field(name): (
                flows.encode_field(name, value.encode() if isinstance(value, str) else value),
                ttl_ms,
            )
            for name, value in (
                given.items() if isinstance(given, dict) else given
            )  # a dict: of Spark 4.0, which hands over rows
            if value is not None
        }
        return _OutcomeRow(queue, row.get("id") is not None, work, error, fields)

    def _parse_job(self, row: dict[str, Any], queue: str) -> tuple[str, str, str]:
        """Return the job, its sender, and the queue to which its outcomes are pushed as well."""
        value = row.get("value")
        id, client, done = "", "", ""
        if value is not None:
            id, client, done = flows.decode_reference(
                value.encode() if isinstance(value, str) else value, queue
            )
        named = row.get("job")
        if named is None and not id:
            raise MessageRefused(
                reason="column 'job' is NULL in some rows; expected the id of a job"
            )
        return (id if named is None else flows.check_job(named)), client, done

    def _queue_life(self, queue: str) -> AttachedJobQueue:
        if queue not in self._lives:
            self._lives[queue] = AttachedJobQueue.fetch(queue, self._options)
        return self._lives[queue]
