"""The partitions for the rows of a sink: column ``partition`` names one, else column ``key``
chooses, else a task fills partitions in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from busmq_spark.errors import MessageRefused
from busmq_spark.groups.topic import MAX_PARTITIONS, key_hashes, partition_queue
from busmq_spark.spark.sink_schema import TopicColumns, as_binary_array, filled_column


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
