"""A query from queue to queue, its Redis, its checkpoint, and what must be true of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.groups.dead_letter import decode_letter
from busmq_spark.option_parsing import parse
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue as queues
from busmq_spark.queue.command_generators import command, script
from busmq_spark.queue.keys import QueueKeys, sink_record
from busmq_spark.queue.scripts import load, script_names
from busmq_spark.reading.reader_operations import QueueState, states
from busmq_spark.redis_io.layout import redis_layout, sync_links
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.sync_link import SyncClusterLink
from tests.faults.process import DriverProcess
from tests.faults.proxy import Gate, Held
from tests.support import wait_until

AT_ONCE = 3000
"""Messages that one call of a script can still push."""


class Bus:
    """The queues of one server, or of those that ``where`` (options of a source) names, seen by the
    test itself and not through the proxy.
    """

    def __init__(self, server: EmbeddedRedis | None = None, **where: str) -> None:
        self._server = server
        self.alone = server is not None
        """Whether no other scene uses its servers."""
        self.where = where or {"redis.url": self.server.url}
        found = redis_layout(parse(RedisOptions, self.where))
        self.cluster = found.cluster
        [self.link] = sync_links(found)
        if server:
            self.load_scripts()

    @property
    def server(self) -> EmbeddedRedis:
        assert self._server is not None, "this bus has many servers"
        return self._server

    def keys(self, queue: str) -> QueueKeys:
        return QueueKeys(queue, self.cluster)

    def load_scripts(self) -> None:
        """So that a script is sent once and not, unknown at first, a second time: gates count."""
        for name in script_names():
            self.link.execute(command("SCRIPT", "LOAD", load(name).text))

    def create(self, queue: str, ttl_s: int = 3600) -> None:
        self.link.run(queues.attach(self.keys(queue), new_token(), ttl_s=ttl_s))

    def push(self, queue: str, values: Sequence[bytes]) -> None:
        """In steps of a whole batch, so that a running query does not see a part of one."""
        keys = self.keys(queue)
        for at in range(0, len(values), AT_ONCE):
            part = values[at : at + AT_ONCE]
            assert self.link.execute(script("push", keys.appending, (keys.available, *part)))[
                1
            ] == len(part)

    def values(self, queue: str) -> list[bytes]:
        flat = self.link.execute(command("LRANGE", self.keys(queue).messages, 0, -1))
        return list(flat[1::2])

    def count(self, queue: str) -> int:
        return self.link.run(queues.count(self.keys(queue)))

    def state(self, queue: str) -> QueueState:
        return self.link.run(states([(self.keys(queue), -1)]))[0]

    def close(self, queue: str) -> None:
        self.link.run(queues.delete(self.keys(queue)))

    def progress(self, queue: str) -> str:
        """How far the only sink of a queue has come: ``batch:slot:moved`` or ``batch:done``."""
        found = self.link.execute(command("HVALS", self.keys(queue).sinks))
        assert len(found) <= 1, found
        return found[0].decode().partition(";")[0] if found else ""

    def staged(self, queue: str, batch: int) -> dict[str, int]:
        """Rows in each list that tasks of a batch have staged for a queue."""
        keys = self.link.execute(command("KEYS", self.keys(queue).stage(f"*:{batch}:*:*")))
        return {key.decode(): self.link.execute(command("LLEN", key)) for key in keys}

    def recorded(self, query: str) -> int:
        """The batch that the sink of a query has recorded last."""
        return int(self.link.execute(command("HGET", sink_record(query), "batch")) or -1)

    def kept_for_ever(self) -> list[str]:
        """Keys of ours without a ttl."""
        servers = self.link.master_links if isinstance(self.link, SyncClusterLink) else [self.link]
        keys = [key.decode() for server in servers for key in server.execute(command("KEYS", "*"))]
        return [key for key in keys if self.link.execute(command("TTL", key)) < 0]


class Checkpoint:
    """The checkpoint folder of a query, as Spark wrote it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def planned(self) -> int:
        """The last batch in the offset log."""
        return _last(self.folder / "offsets")

    @property
    def planned_with_rows(self) -> int:
        """The last batch in the offset log that has rows: an idle query plans one without, so that
        Spark commits the one before.
        """
        return next(
            batch for batch in range(self.planned, -1, -1) if "idle" not in self._offset(batch)
        )

    @property
    def committed(self) -> int:
        """The last batch in the commit log."""
        return _last(self.folder / "commits")

    @property
    def query(self) -> str:
        """The id of the query, which is also that of its sink."""
        return str(json.loads((self.folder / "metadata").read_text())["id"])

    def end(self, queue: str, batch: int | None = None) -> dict[str, Any]:
        """Where a batch (the last one) ends in a queue."""
        return dict(self._offset(self.planned if batch is None else batch)["queues"][queue])

    def _offset(self, batch: int) -> dict[str, Any]:
        return dict(json.loads((self.folder / "offsets" / str(batch)).read_text().splitlines()[-1]))


def _last(folder: Path) -> int:
    return max((int(file.name) for file in folder.glob("*") if file.name.isdigit()), default=-1)


class Pipeline:
    """Queues ``sources`` to ``sinks`` on one checkpoint, for one driver after another. Values carry
    their place in the order.
    """

    def __init__(
        self,
        bus: Bus,
        folder: Path,
        *,
        source: str = "in",
        sink: str | None = "out",
        change: str = "plain",
        **options: str,
    ) -> None:
        self.bus, self.folder = bus, folder
        self.sources = source.split(",")
        self.sink = sink
        self.source_options = {"subscribe": source}
        self.sink_options = {"queue": sink} if sink else {}
        self.change, self.options = change, options
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self.fed = dict.fromkeys(self.sources, 0)
        self.attempts = 0
        for queue in self.sources:
            bus.create(queue)

    def sink_of(self, queue: str) -> str:
        return self.sink or f"out-{queue}"

    def feed(self, rows: int) -> None:
        """Push the next ``rows`` messages to every source."""
        for queue, before in self.fed.items():
            self.bus.push(queue, [self.value(seq) for seq in range(before, before + rows)])
            self.fed[queue] += rows

    def value(self, seq: int) -> bytes:
        """The message at this place of a source."""
        return b"%07d" % seq

    def start(self, driver: DriverProcess, url: str | None = None, **how: str) -> None:
        """Start the query in a driver; ``how`` are more words of the order (driver.py)."""
        self.attempts += 1
        where = {**self.bus.where, **({"redis.url": url} if url else {})}
        source = {**where, **self.source_options, **self.options}
        sink = {**where, **self.sink_options}
        driver.start(
            checkpoint=str(self.checkpoint.folder),
            source=source,
            sink=sink,
            change=self.change,
            mark=f"run {self.attempts}",
            **how,
        )

    def wait_at(self, gate: Gate, driver: DriverProcess) -> Held:
        """The next command at the gate; if none comes, the error says what became of the query."""
        try:
            return gate.wait()
        except AssertionError as error:
            error.add_note(f"the query: {driver.error or 'runs'}")
            raise

    def wait_done(self, driver: DriverProcess) -> None:
        """Until everything fed is in the sinks and acked, and the idle tail too."""

        def done() -> bool:
            arrived = all(
                self.bus.count(self.sink_of(queue)) >= rows for queue, rows in self.fed.items()
            )
            return arrived and all(self.bus.count(queue) == 0 for queue in self.sources)

        try:
            wait_until(done, what="all messages are in the sink and acked")
        except AssertionError as error:
            counts = {
                queue: (rows, self.bus.count(queue), self.bus.count(self.sink_of(queue)))
                for queue, rows in self.fed.items()
            }
            error.add_note(
                f"fed, left in the source, in the sink: {counts}; the query:"
                f" {driver.error or 'runs'}"
            )
            raise

    def arrived(self, queue: str) -> list[int]:
        """The places of the messages of a source queue that are in its sink, in the order in which
        they are there.
        """
        return [int(value.partition(b"|")[0]) for value in self.bus.values(self.sink_of(queue))]

    def check_whole(self, driver: DriverProcess) -> None:
        """Every message exactly once and in order, the sources acked, nothing left behind, and the
        query is well.
        """
        self.wait_done(driver)
        for queue, rows in self.fed.items():
            arrived = self.arrived(queue)
            wrong = next((at for at, seq in enumerate(arrived) if seq != at), None)
            assert wrong is None, (
                f"place {wrong} has message {arrived[wrong]}, of {len(arrived)} for {rows}"
            )
            assert len(arrived) == rows
        self.check_clean(driver)

    def check_clean(self, driver: DriverProcess) -> None:
        """The query is well, and every key of ours ends by itself."""
        assert driver.active, driver.error
        queues = {*self.sources, *(self.sink_of(queue) for queue in self.sources)}
        ours = tuple(
            self.bus.keys(queue).base for queue in queues
        )  # other tests may use the same servers
        kept = [
            key
            for key in self.bus.kept_for_ever()
            if self.bus.alone or key.startswith((*ours, "bus:sink:"))
        ]
        assert not kept, f"keys without a ttl: {kept}"


class Parted(Pipeline):
    """Every third message is no JSON."""

    def __init__(self, bus: Bus, folder: Path) -> None:
        super().__init__(bus, folder, sink=None, change="parted")

    def feed(self, rows: int) -> None:
        before = self.fed["in"]
        self.bus.push(
            "in",
            [
                b"bad %d" % n if n % 3 == 0 else b'{"n":%d}' % n
                for n in range(before, before + rows)
            ],
        )
        self.fed["in"] += rows

    def check(self, driver: DriverProcess) -> None:
        """Each once, in order, and each original whole."""
        numbers = range(self.fed["in"])
        good = [b'{"n":%d}' % n for n in numbers if n % 3]

        def arrived() -> bool:
            assert driver.active, driver.error
            return len(self.bus.values("out")) >= len(good) and len(
                self.bus.values("in.dead")
            ) >= len(numbers) - len(good)

        wait_until(arrived, what="everything has arrived")
        assert self.bus.values("out") == good
        letters = [decode_letter(value) for value in self.bus.values("in.dead")]
        assert [(each.queue, each.id, each.value) for each in letters] == [
            ("in", n + 1, b"bad %d" % n) for n in numbers if n % 3 == 0
        ]
