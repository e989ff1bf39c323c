"""The alerts and dashboards of conf/, with a real Prometheus: each rule fires when its fault is
there and ends when it is gone, and each panel has data.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import psutil
import pytest

import busmq_spark
from busmq_spark.cli import exporter
from busmq_spark.cli.exporter import BusExporter
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.metrics import Metrics, serve_pages
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, mirror_report
from busmq_spark.reading.reader_record import ReaderRecord, lease_field
from busmq_spark.reading.readers import Look
from busmq_spark.redis_io.layout import redis_layout, sync_links
from busmq_spark.spark import observe
from busmq_spark.spark.observe import QueryListener, _QuerySeries
from tests.metrics import dashboards
from tests.support import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "conf" / "prometheus" / "busmq-rules.yml").read_text("utf-8")
ALERTS = re.findall(r"alert: (\w+)", RULES)
# In the test time runs faster.
FASTER = (
    (r"for: \w+", "for: 0s"),
    (r"\[10m\]", "[6s]"),
    (r"offset 10m", "offset 6s"),
    (r"replica_lag_seconds > 10", "replica_lag_seconds > 1"),
    (r"(reader|query)_lag_seconds > 300", r"\1_lag_seconds > 1"),
    (r"_seconds > 600", "_seconds > 3"),
)
FILLERS = 14
MENDED_APART = {"BusmqExporterDown", "BusmqRedisDown"}


def test_each_rule_is_checked_and_links_to_its_entry_in_the_run_book() -> None:
    links = re.findall(r"runbook_url: (docs/[\w.]+)#([\w-]+)", RULES)
    assert len(links) == len(ALERTS)
    for page, anchor in links:
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
        assert anchor in {
            re.sub(r"[^\w-]", "", each.lower().replace(" ", "-")) for each in headings
        }


@pytest.mark.parametrize(
    ("part", "declared"),
    [("exporter", exporter.GAUGES), ("observe", observe.GAUGES | observe.COUNTERS)],
)
def test_the_page_lists_each_metric(
    part: str, declared: dict[str, tuple[tuple[str, ...], str]]
) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    found = page.partition(f"<!-- {part} -->\n")[2].partition(f"<!-- /{part} -->")[0]
    rows = [
        f"| `{name}` | {', '.join(f'`{label}`' for label in labels)} | {doc} |\n"
        for name, (labels, doc) in declared.items()
    ]
    assert found == "".join(rows)


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_the_dashboards_are_those_that_the_program_makes(name: str) -> None:
    file = dashboards.FOLDER / f"{name}.json"
    assert file.read_text("utf-8") == dashboards.made(name), "python -m tests.metrics.dashboards"


class Prometheus:
    """A server of Prometheus that reads every 1.5 s: so long may a scrape take without Redis."""

    def __init__(self, folder: Path, targets: dict[str, str]) -> None:
        rules = RULES
        for slow, fast in FASTER:
            assert re.search(slow, rules)
            rules = re.sub(slow, fast, rules)
        (folder / "rules.yml").write_text(rules)
        jobs = [
            {"job_name": name, "static_configs": [{"targets": [address]}]}
            for name, address in targets.items()
        ]
        (folder / "prometheus.yml").write_text(  # JSON is YAML
            json.dumps(
                {
                    "global": {"scrape_interval": "1500ms", "evaluation_interval": "500ms"},
                    "rule_files": ["rules.yml"],
                    "scrape_configs": jobs,
                }
            )
        )
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={address}",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, PATIENCE_S, "Prometheus")

    def _answers(self) -> bool:
        try:
            return bool(self.query("vector(1)"))
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return False

    def query(self, text: str) -> list[Any]:
        return list(self._get(f"query?query={urllib.parse.quote(text)}")["result"])

    @property
    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self._get("alerts")["alerts"]}

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


class Faults:
    """Each method breaks something, and returns the call that mends it."""

    def __init__(self, server: EmbeddedRedis, listener: Any) -> None:
        self.server, self.listener = server, listener
        [self.link] = sync_links(redis_layout(RedisOptions(url=server.url)))

    def run(self, *words: str | int) -> Any:
        return self.link.execute(command(*words))

    def aof_fails(self) -> Callable[[], None]:
        """The child that rewrites the file is killed."""
        self.run("CONFIG", "SET", "rdb-key-save-delay", 10_000_000)
        self.run("BGREWRITEAOF")
        parent = psutil.Process(self.server.pid)
        wait_until(parent.children, PATIENCE_S, "the child")
        for child in parent.children():
            child.kill()
        self._wait_rewritten("err")
        self.run("CONFIG", "SET", "rdb-key-save-delay", 0)

        def mend() -> None:
            self.run("BGREWRITEAOF")
            self._wait_rewritten("ok")

        return mend

    def _wait_rewritten(self, end: str) -> None:
        told = f"aof_last_bgrewrite_status:{end}".encode()
        wait_until(lambda: told in self.run("INFO", "persistence"), PATIENCE_S, end)

    def memory(self) -> Callable[[], None]:
        """Redis is nearly full, and evicts keys that expire soon."""
        used = int(re.search(rb"used_memory:(\d+)", self.run("INFO", "memory"))[1])
        self.run("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
        self.run("CONFIG", "SET", "maxmemory", used + 8_000_000)
        for number in range(FILLERS):
            self.run("SET", f"filler{number}", "x" * 800_000, "EX", 100)

        def mend() -> None:
            self.run("DEL", *(f"filler{number}" for number in range(FILLERS)))
            self.run("CONFIG", "SET", "maxmemory", 0)
            self.run("CONFIG", "SET", "maxmemory-policy", "noeviction")

        return mend

    def replica(self, stack: ExitStack) -> Callable[[], None]:
        """A replica that answers no more."""
        replica = EmbeddedRedis(replica_of=("127.0.0.1", self.server.port))
        stack.enter_context(replica)
        wait_until(lambda: b"state=online" in self.run("INFO", "replication"), PATIENCE_S, "online")
        os.kill(replica.pid, signal.SIGSTOP)

        def mend() -> None:
            os.kill(replica.pid, signal.SIGCONT)

        stack.callback(mend)
        return mend

    async def queues(self) -> Callable[[], None]:
        """A group that does not read, a queue that is nearly full, dead letters, and the like."""
        async with busmq_spark.Bus(self.server.url) as bus:
            for name, maxsize in (("late", 10), ("short", 0), ("broken", 0), ("copy", 0)):
                queue = bus.queue(name)
                await queue.attach(maxsize=maxsize)
                await queue.push_many([b"x"] * 10)
            async with bus.queue("late") as queue, queue.group("mail", shared=True) as group:
                [message], _ = await group.take(1)
                await group.reject(message, "bad")
        self.run("EXPIRE", "bus:queue:short:metadata", 1000)
        self.run("SET", "bus:queue:broken:msgid", "no number")
        away, here = (
            '{"from":"wss://eu/bus","path":["eu"]}',
            '{"from":"wss://us/bus","path":["us"]}',
        )
        self.run("HSET", "bus:queue:copy:metadata", "mirror_of", away, "mirrored", "10:x:10")
        self.run("HSET", "bus:queue:short:metadata", "mirror_of", here, "mirrored", "10:x:10")
        report = {"from": "wss://us/bus", "patterns": ["*"], "queues": 1, "error": None}
        self.run(
            "SET", mirror_report("t"), json.dumps({**report, "odd": {"short": [20, 400, None]}})
        )
        names = ("late", "late.dead", "short", "broken", "copy")
        return lambda: self.run("DEL", *(f"bus:queue:{name}:metadata" for name in names))

    async def readers(self) -> Callable[[], None]:
        """A reader that holds its lease and reads nothing, and one whose lag grew in each look."""
        async with busmq_spark.Bus(self.server.url) as bus, bus.queue("read") as queue:
            await queue.push_many([b"x"] * 20)
            async with queue.group("stuck"), queue.group("slow") as group:
                await group.ack(await anext(aiter(group.batches(3))))
        keys, now = QueueKeys("read"), int(self.run("TIME")[0]) * 1000
        looks = (Look(now - 15_000, 0, 2), Look(now - 10_000, 1, 6), Look(now - 5_000, 2, 12))
        told = "".join(f";{ms}:{position}:{newest}" for ms, position, newest in looks)
        record = ReaderRecord(kind="ordered", id="slow").encode()
        self.run("HSET", keys.readers, lease_field("slow"), f"{now}:600000:{now}:{told} {record}")
        for name in ("stuck", "slow"):
            self.run("SET", keys.lease(name), name, "EX", 600)
        return lambda: self.run("DEL", keys.metadata)

    def queries(self) -> Callable[[], None]:
        """A query that failed, and one that lags, loses messages and stands still."""
        from pyspark.sql.streaming.listener import QueryTerminatedEvent

        from tests.spark.test_observe import RUN, progress, started

        listener, failed = self.listener, uuid.uuid4()
        listener.onQueryStarted(started("failed", failed))
        text = "[BUSMQ_QUEUE_BUSY] queue 'q'"
        listener.onQueryTerminated(QueryTerminatedEvent(failed, RUN, text, None))
        listener.onQueryStarted(started())
        listener.onQueryProgress(progress(endOffset=json.dumps({"lost": 0})))
        self.lose = lambda: listener.onQueryProgress(progress())

        def mend() -> None:
            calm = json.dumps({"lag": 0, "lag_s": 0})
            listener.onQueryStarted(started("failed", failed))
            listener.onQueryProgress(progress(latestOffset=calm))
            listener.onQueryTerminated(QueryTerminatedEvent(failed, RUN, None, None))

        return mend


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[EmbeddedRedis, BusExporter]]:
    monkeypatch.setattr(exporter, "DOCTOR_INTERVAL_S", 0.0)  # with each scrape
    with EmbeddedRedis(aof=True, fsync="everysec") as server:
        source = BusExporter(RedisOptions(url=server.url), stuck_after_s=1)
        yield server, source
        source.close()


@pytest.mark.fault
@pytest.mark.slow
async def test_each_rule_fires_and_ends_and_each_panel_has_data(
    exported: tuple[EmbeddedRedis, BusExporter], tmp_path: Path
) -> None:
    if shutil.which("prometheus") is None:
        assert os.environ.get("CI") != "true"
        pytest.skip("Prometheus is not installed (apt-get install prometheus)")
    server, source = exported
    series = _QuerySeries()
    listener = QueryListener(series, None)
    pages = []
    for each in (source, series):
        pages.append(Metrics())
        pages[-1].add_source(each)
    with ExitStack() as stack:
        exporting = stack.enter_context(ExitStack())
        urls = [exporting.enter_context(serve_pages("127.0.0.1", 0, pages[0]))]
        urls.append(stack.enter_context(serve_pages("127.0.0.1", 0, pages[1])))
        names = ("busmq", "busmq-spark")
        targets = {name: url.split("/")[2] for name, url in zip(names, urls, strict=True)}
        prometheus = Prometheus(tmp_path, targets)
        stack.callback(prometheus.close)

        def fire(wanted: set[str]) -> None:
            """Those about a change end soon by themselves, so not all fire at once."""
            seen = set[str]()

            def told() -> bool:
                seen.update(prometheus.firing)
                return wanted <= seen

            try:
                wait_until(told, PATIENCE_S)
            except AssertionError:
                raise AssertionError(f"{wanted - seen} did not fire") from None

        faults = Faults(server, listener)
        stack.callback(faults.link.close)
        mends = [await faults.queues(), await faults.readers(), faults.queries()]
        mends.append(faults.aof_fails())
        for before in ("busmq_query_lost_total", "busmq_redis_evicted_keys"):
            wait_until(partial(prometheus.query, before), PATIENCE_S, before)
        faults.lose()
        mends += [faults.replica(stack), faults.memory()]
        fire({*ALERTS} - MENDED_APART)
        for query in dashboards.queries():
            wait_until(partial(prometheus.query, query), PATIENCE_S, query)
        for mend in reversed(mends):
            mend()
        wait_until(lambda: not prometheus.firing - {"BusmqQueryStalled"}, PATIENCE_S, "calm")
        server.stop()
        exporting.close()
        fire({"BusmqExporterDown"})
        port = int(targets["busmq"].rpartition(":")[2])
        stack.enter_context(serve_pages("127.0.0.1", port, pages[0]))
        fire({"BusmqRedisDown"})
        server.start()
        wait_until(lambda: not prometheus.firing & MENDED_APART, PATIENCE_S, "both are back")
