"""The accepted rows of a sink, and their values per queue in an Arrow batch.

Arrow and numpy are imported where there are rows: each process that plans or commits imports this,
and has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.groups.topic import MAX_PARTITIONS, key_hashes, partition_queue
from busmq_spark.spark.schema import refuse_equal_names

GATHERED_BYTES = 8 * 1024 * 1024
"""Bytes of record batches whose rows are sent together where they name their queues."""
_TYPES = {
    "value": (StringType, BinaryType),
    "queue": (StringType,),
    "topic": (StringType,),
    "key": (StringType, BinaryType),
    "partition": (IntegerType,),
    "id": (LongType,),
    "source": (StringType,),
    "index": (IntegerType,),
}
NULL_TOPIC_REMEDY = "a message cannot be. Filter them, or use coalesce()"
NULL_KEY_REMEDY = (
    "the key of a message cannot be. Filter them, use coalesce(), or leave the column out"
)


@dataclass(frozen=True, slots=True)
class TopicColumns:
    """The columns that choose topic and partition of a row; a column is None when it is missing, or
    when another one overrides it.
    """

    topic: str | None
    topic_column: str | None
    partition_column: str | None
    key_column: str | None


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of the value and the queue, or topic and partition, of a row. An option wins over
    a column, as Kafka's ``topic`` does.
    """

    value: str
    queue_column: str | None
    queue: str | None
    topic: TopicColumns | None = None
    """The columns of topic and partition, for rows that go to topics; then ``queue_column`` and
    ``queue`` are None.
    """

    @classmethod
    def of(cls, schema: StructType, queue: str | None, topic: str | None = None) -> SinkColumns:
        """``queue`` and ``topic`` are the options, of which one may be given. ``id``, ``index`` and
        ``source`` are allowed, and so is what else the source gives where an option says where rows
        go.

        Raises ConfigError for a missing or unknown column, two of one name, a wrong type, for no
        queue and no topic, or for both.
        """
        refuse_equal_names(schema.names)
        found: dict[str, str] = {}
        if "value" not in map(str.lower, schema.names):
            raise ConfigError(
                reason=(
                    "column 'value' is missing; the rows have:"
                    f" {', '.join(schema.names) or 'no columns'}"
                )
            )
        for column in schema.fields:
            name = column.name.lower()
            types = _TYPES.get(name)
            if types is None:
                raise ConfigError(
                    reason=(
                        f"column {column.name!r} has no place; the sink takes value (string or"
                        " binary) and queue (string), or for topics topic (string), partition"
                        " (int) and key (string or binary)"
                    )
                )
            if not isinstance(column.dataType, types):
                wanted = " or ".join(t().simpleString() for t in types)
                kind = column.dataType.simpleString()
                remedy = (
                    "; use to_json(struct(...)) for a structured value" if name == "value" else ""
                )
                raise ConfigError(
                    reason=f"column {column.name!r} is {kind}; expected {wanted}{remedy}"
                )
            found[name] = column.name
        if columns := _topic_columns(found, queue, topic):
            return cls(found["value"], None, None, columns)
        if queue is None and "queue" not in found:
            raise ConfigError(
                reason=(
                    "no queue is named: set option 'queue', or give the rows a column queue; for a"
                    " topic option or column topic"
                )
            )
        return cls(found["value"], None if queue else found["queue"], queue)

    def values_by_queue(
        self, batches: Iterable[Any], topics: TopicPartitioner | None = None
    ) -> Iterator[dict[str, list[bytes]]]:
        """The values of record batches per queue, each in row order; of many queues those of
        several batches at once. ``topics``: for such rows.

        Spark's batches have 10,000 rows: ten for each of 1,000 queues, and a call to Redis with ten
        costs nearly as much as one with fifty.
        """
        found: dict[str, list[bytes]] = {}
        size = 0
        for batch in batches:
            for queue, values in self.values_of_batch_by_queue(batch, topics):
                found.setdefault(queue, []).extend(values)
            size += batch.nbytes
            if found and (self.queue is not None or size >= GATHERED_BYTES):
                yield found
                found, size = {}, 0
        if found:
            yield found

    def values_of_batch_by_queue(
        self, batch: Any, topics: TopicPartitioner | None = None
    ) -> Iterator[tuple[str, list[bytes]]]:
        """The values of a record batch per queue, each in row order. Raises MessageRefused for a
        NULL.
        """
        if batch.num_rows == 0:
            return
        values = filled_column(batch, self.value)
        if self.queue is not None:
            yield self.queue, as_binary_array(values)
            return
        if topics is not None:
            import numpy as np
            import pyarrow as pa

            found = list(topics.rows_by_queue(batch))
            sorted_values = as_binary_array(
                values.take(pa.array(np.concatenate([rows for _, rows in found])))
                if len(found) > 1
                else values
            )
            at = 0
            for queue, rows in found:
                yield queue, sorted_values[at : at + len(rows)]
                at += len(rows)
            return
        import pyarrow.compute as pc  # large, and not for rows of one queue

        assert self.queue_column is not None
        names = filled_column(batch, self.queue_column)
        coded = names.dictionary_encode()
        queues = coded.dictionary.to_pylist()
        if "" in queues:
            raise MessageRefused(
                reason=(
                    f"column {self.queue_column!r} is empty in some rows; expected the name of a"
                    " queue"
                )
            )
        sorted_values = as_binary_array(
            values.take(pc.array_sort_indices(coded.indices))
        )  # stable: rows of a queue keep their order
        at = 0
        for queue, count in zip(
            queues, pc.value_counts(coded.indices).field("counts").to_pylist(), strict=True
        ):
            yield queue, sorted_values[at : at + count]
            at += count

    def to_record_batch(self, rows: Sequence[Any]) -> Any:
        """A record batch of Spark rows, for Spark versions that hand over rows."""
        import pyarrow as pa

        of_topics = (
            (self.topic.topic_column, self.topic.partition_column, self.topic.key_column)
            if self.topic
            else ()
        )
        names = [self.value, *filter(None, (self.queue_column, *of_topics))]
        return pa.RecordBatch.from_pydict({name: [row[name] for row in rows] for name in names})


def _topic_columns(
    found: Mapping[str, str], queue: str | None, topic: str | None
) -> TopicColumns | None:
    """Return the columns of a row's topic; return None where rows go to queues. Raises ConfigError
    for what says both, or chooses a partition of none.
    """
    if topic is None and (queue is not None or "topic" not in found):
        if strange := [
            found[name]
            for name in ("key", "partition")
            if name in found and (name == "key" or queue is None)
        ]:
            reason = (
                f"column {strange[0]!r} chooses a partition of a topic, and these rows go to"
                " queues; leave it out, or name a topic"
            )
            raise ConfigError(reason=reason)
        return None
    if topic is None and "queue" in found:
        raise ConfigError(
            reason=(
                "columns 'queue' and 'topic' both say where a row goes; leave one out, or set"
                " option 'queue' or 'topic'"
            )
        )
    partition = found.get("partition")
    return TopicColumns(
        topic, None if topic else found["topic"], partition, None if partition else found.get("key")
    )


def filled_column(batch: Any, name: str) -> Any:
    """A column of a record batch. Raises MessageRefused for a NULL in it."""
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count:
        remedy = NULL_KEY_REMEDY if name.lower() == "key" else NULL_TOPIC_REMEDY
        raise MessageRefused(
            reason=(
                f"column {name!r} is NULL in {column.null_count} of {batch.num_rows} rows; {remedy}"
            )
        )
    return column


def as_binary_array(values: Any) -> list[bytes]:
    """An Arrow array of text or bytes, as bytes."""
    import pyarrow as pa

    if not pa.types.is_binary(values.type):
        values = values.cast(
            pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary()
        )
    found: list[bytes] = values.to_pylist()
    return found


@dataclass(slots=True)
class TopicPartitioner:
    """The rows of one task for topics. ``count_partitions`` says how many partitions a topic
    has.
    """

    columns: TopicColumns
    count_partitions: Callable[[str], int]
    next_partition: int
    """The partition of the next record batch, where neither its rows nor their keys say one: modulo
    the number of partitions.
    """
    _partition_counts: dict[str, int] = field(default_factory=dict)

    def rows_by_queue(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Partition queues and the rows of a record batch for each, as indices in row order; the
        queue of the first row comes first.

        Raises MessageRefused for a NULL and for a partition that the topic has not, TopicMissing.
        """
        import numpy as np

        topics, of_row = self._topics(batch)
        codes = of_row * MAX_PARTITIONS + self._partitions(batch, topics, of_row)
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        begins = np.flatnonzero(np.diff(ordered, prepend=-1))
        ends = np.append(begins[1:], len(order))
        for at in np.argsort(order[begins]):
            topic, partition = divmod(int(ordered[begins[at]]), MAX_PARTITIONS)
            yield partition_queue(topics[topic], partition), order[begins[at] : ends[at]]

    def _topics(self, batch: Any) -> tuple[list[str], Any]:
        """The topics of a record batch, and the place of each row's topic among them."""
        import numpy as np

        if self.columns.topic_column is None:
            assert self.columns.topic is not None
            return [self.columns.topic], np.zeros(batch.num_rows, np.int64)
        coded = filled_column(batch, self.columns.topic_column).dictionary_encode()
        topics = coded.dictionary.to_pylist()
        if "" in topics:
            raise MessageRefused(
                reason=(
                    f"column {self.columns.topic_column!r} is empty in some rows; expected the name"
                    " of a topic"
                )
            )
        return topics, coded.indices.to_numpy().astype(np.int64)

    def _partitions(self, batch: Any, topics: list[str], of_row: Any) -> Any:
        import numpy as np

        sizes = np.array([self._partition_count(topic) for topic in topics], np.int64)
        if self.columns.partition_column is not None:
            chosen = filled_column(batch, self.columns.partition_column).to_numpy().astype(np.int64)
            for topic, partition in (
                (topics[of_row[at]], int(chosen[at]))
                for at in np.flatnonzero((chosen < 0) | (chosen >= sizes[of_row]))[:1]
            ):
                if (
                    not 0 <= partition < self._partition_count(topic, again=True)
                ):  # it may have grown
                    raise MessageRefused(
                        reason=(
                            f"column {self.columns.partition_column!r} is {partition} in some rows;"
                            f" topic {topic!r} has the partitions 0 to"
                            f" {self._partition_counts[topic] - 1}"
                        )
                    )
                return self._partitions(batch, topics, of_row)
            return chosen
        if self.columns.key_column is not None:
            keys = filled_column(batch, self.columns.key_column).dictionary_encode()
            hashes = np.fromiter(
                key_hashes(as_binary_array(keys.dictionary)), np.int64, len(keys.dictionary)
            )
            return hashes[keys.indices.to_numpy()] % sizes[of_row]
        self.next_partition += 1
        return (self.next_partition - 1) % sizes[of_row]

    def _partition_count(self, topic: str, *, again: bool = False) -> int:
        if again or topic not in self._partition_counts:
            self._partition_counts[topic] = self.count_partitions(topic)
        return self._partition_counts[topic]
