"""What Spark does with a streaming reader, without Spark: offset log, commit log, replay after a
crash. A batch takes a millisecond or two.

The order of the calls is the one measured of Spark 4.3 (and, with ``before_42``, of 4.0 and 4.1,
which hand over neither start nor limit, and have AvailableNow as one batch); on these it is the
only one.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import pyspark
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, by_source
from busmq_spark.spark import stores
from busmq_spark.spark.data_source import BusmqDataSource
from busmq_spark.spark.error_display import FailingReader
from busmq_spark.spark.read import planning
from busmq_spark.spark.read.stream_reader import StreamReader
from busmq_spark.store.redis_store import open_store
from tests.support import PATIENCE_S, wait_until

planning.IDLE_BEFORE_EMPTY_BATCH_S = 0.0  # idle at once: tests do not wait

Row = tuple[str, int, bytes]
Crash = Literal["", "planned", "read"]
SCHEMA = StructType().add("queue", StringType()).add("id", LongType()).add("value", BinaryType())


class Engine:
    """One query with its checkpoint. ``reader`` is the process on the driver; ``restart`` gives it
    a new one, as after a crash.
    """

    always_before_42 = pyspark.__version__ < "4.2"

    def __init__(
        self,
        options: dict[str, str],
        *,
        before_42: bool = False,
        schema: StructType = SCHEMA,
        homes: Mapping[str, str] = MappingProxyType({}),
        folder: str = "",
    ) -> None:
        """``homes``: the addresses of the Redis behind links that are real ones. ``folder``: that
        of the source in the checkpoint of its query.
        """
        self.options = {name: str(value) for name, value in {"idlePollMs": "1", **options}.items()}
        self.asynchronous = False
        """As with async progress tracking: nothing that is planned is in a log yet, and Spark
        commits nothing.
        """
        self.planned: list[dict[str, Any]] = []
        self.committed = 0
        self.tasks: list[int] = []
        """Rows of each task of the last batch."""
        self.before_42, self._schema, self._homes, self._folder = (
            before_42 or self.always_before_42,
            schema,
            homes,
            folder,
        )
        self.reader = self._new_reader()

    def _new_reader(self) -> StreamReader:
        made = BusmqDataSource(self.options).streamReader(self._schema)
        if isinstance(made, FailingReader):
            made.initialOffset()
        assert isinstance(made, StreamReader)
        return made

    @property
    def is_blind(self) -> bool:
        """Whether the next batch is planned without its start."""
        return self.before_42 and self.reader._planning._planned is None

    def restart(self, **options: str) -> None:
        """A new driver process on the same checkpoint, perhaps with other options."""
        self.kill()
        self.options.update(options)
        self.reader = self._new_reader()

    def kill(self) -> None:
        """The driver process is gone. Its leases are deleted, since this process, whose they are,
        lives on.
        """
        if stream_queues := self.reader._planning.stream_queues:
            stream_queues._keep_alive.stop()
            for thread in stream_queues._keep_alive.threads.values():
                thread.join()
            for source, queues in by_source(stream_queues.queues).items():
                if source in self._homes:
                    store = open_store(RedisOptions(url=self._homes[source]))
                else:
                    store = (
                        stores.open_link(stream_queues._options, source)
                        if source
                        else open_store(stream_queues._options)
                    )
                for queue in queues:
                    store._link_of_queue(queue).execute(
                        command("DEL", store.keys(queue).lease(stream_queues._options.subscription))
                    )
                store.close()
        self.reader.stop()
        self.reader = self._new_reader()

    def silence(self, ask: Callable[..., Any], queue: str) -> None:
        """Wait for the end of the killed one's listener: one that lingers, as one of a killed
        process does not, would look like a consumer.
        """
        wait_until(lambda: ask("PUBSUB", "NUMSUB", QueueKeys(queue).available)[1] == 0, PATIENCE_S)

    def step(self, crash: Crash = "", limit: Any = None) -> list[Row] | None:
        """One batch: its rows, or None when there is nothing new. ``crash`` ends it after that
        step; then restart.
        """
        if len(self.planned) == self.committed and not self._plan(limit):
            return None
        if crash == "planned":
            return None
        start = (
            self.planned[self.committed - 1]
            if self.committed
            else through_json(self.reader.initialOffset())
        )
        parts = self.reader.partitions(start, self.planned[-1])
        read = self._read(parts)
        self.tasks = [len(rows) for rows in read]
        if crash != "read":
            self.committed += 1
        return [row for rows in read for row in rows]

    def rows_of(self, part: Any) -> Iterator[Row]:
        """What a task reads, row by row."""
        return rows_of(self._new_reader(), part)

    def _read(self, parts: Any) -> list[list[Row]]:
        copy = pickle.loads(
            pickle.dumps(self._new_reader())
        )  # the planner's copy travels to the tasks
        return [list(rows_of(copy, pickle.loads(pickle.dumps(part)))) for part in parts]

    def _plan(self, limit: Any) -> bool:
        """Write the next entry of the offset log, unless nothing is new."""
        if (
            self.options.get("idlePollMs") == "1"
            and isinstance(self.reader, StreamReader)
            and (polling := self.reader._planning._polling)
        ):
            # Ask each time, as in jvm_engine.py: else a push may come before its notice and the
            # next poll
            polling._next = 0.0
        start = self.planned[-1] if self.planned else through_json(self.reader.initialOffset())
        end = (
            self.reader.latestOffset()
            if self.before_42
            else self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        )
        end = through_json(end)
        if self.planned and end == start:
            return False
        self.planned.append(end)
        if len(self.planned) > 1 and not self.asynchronous:
            self.reader.commit(self.planned[-2])
        return True

    def drain(self) -> list[list[Row]]:
        """Batches with rows until nothing is new."""
        batches = []
        while (rows := self.step()) is not None:
            if rows:
                batches.append(rows)
        return batches

    def available_now(self) -> list[list[Row]]:
        """What Trigger.AvailableNow does on a new reader."""
        if self.before_42:  # one batch, after the one that had begun
            return [
                rows for _ in range(1 + len(self.planned) - self.committed) if (rows := self.step())
            ]
        self.reader.prepareForTriggerAvailableNow()
        return self.drain()

    def positions(self) -> dict[str, int]:
        """The last id that is done, per queue, as the offset log has it."""
        return {queue: entry["last"] for queue, entry in self.planned[-1].get("queues", {}).items()}


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset as it comes back from the checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def rows_of(reader: StreamReader, part: Any) -> Iterator[Row]:
    for batch in reader.read(part):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
