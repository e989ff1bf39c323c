"""Every noun of the bus in queries whose tasks run on executors, with each engine that has it. They
share one Spark: executors cost many seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from busmq_spark.bus.bus import Bus as Program
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.groups.topic import open_topic, partition_of, partition_queues
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import TopicKeys
from busmq_spark.queue.retention import parse_limits, set_retention
from busmq_spark.routing.cloud_event import Event
from busmq_spark.writing import mirror as mirrors
from tests.clocks import HOUR, pass_by
from tests.faults.job_scene import GROUP, JobPipeline, sending, settles
from tests.faults.process import DriverProcess, is_over
from tests.faults.proxy import Held, Proxy
from tests.faults.scene import Bus, Parted, Pipeline
from tests.jvm import module
from tests.mirror.centres import Centre, centre, copied, looked, mirroring, url
from tests.peers.node import need
from tests.support import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

FORMATS = {
    "python": {"of": "busmq-quick", "into": "busmq"},
    "java": {"of": "busmq-realtime", "into": "busmq-realtime"},
}
MINUTE = 60_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverProcess]:
    with DriverProcess(
        tmp_path_factory.mktemp("cluster"), master="local-cluster[2,1,1024]"
    ) as made:
        yield made


@pytest.fixture
def driver(cluster: DriverProcess) -> Iterator[DriverProcess]:
    yield cluster
    cluster.stop()


@pytest.fixture(params=["python", pytest.param("java", marks=pytest.mark.jvm)])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "java":
        need(module.missing())
    return str(request.param)


def numbers(bus: Bus, queue: str) -> list[int]:
    return list(map(int, bus.values(queue)))


def wait_well(driver: DriverProcess, *queues: tuple[Bus, str, int]) -> None:
    """Until each queue has so many messages; an error of the query ends it."""
    wait_until(
        lambda: all(len(bus.values(queue)) >= rows for bus, queue, rows in queues) or driver.error,
        what="everything has arrived",
    )
    assert driver.active, driver.error


def test_a_query_goes_from_topic_to_topic(bus: Bus, driver: DriverProcess, tmp_path: Path) -> None:
    run = Pipeline(
        bus, tmp_path, source="in/0,in/1,in/2", change="keyed", maxMessagesPerPartition="500"
    )
    bus.link.run(open_topic(TopicKeys("in", bus.cluster), 3, "x"))
    run.source_options, run.sink_options = {"topic": "in"}, {"topic": "metrics", "partitions": "3"}
    queues = partition_queues("metrics", 3)
    formats = [FORMATS["python"]] if module.missing() else list(FORMATS.values())
    for turn, each in enumerate(formats, 1):
        run.start(driver, **each)
        run.feed(2000)
        wait_until(
            lambda: (
                sum(map(bus.count, [*queues, *run.sources]))
                == sum(map(bus.count, queues))
                == 6000 * turn  # noqa: B023
                or driver.error
            )
        )
        assert driver.active, driver.error
        driver.stop()
    for partition, queue in enumerate(queues):
        wanted = [
            b"%07d" % n
            for n in range(2000 * len(formats))
            if partition_of(str(n % 17), 3) == partition
        ]
        assert sorted(bus.values(queue)) == sorted(3 * wanted)


def test_rows_and_dead_letters_of_a_query_arrive(
    bus: Bus, driver: DriverProcess, tmp_path: Path, engine: str
) -> None:
    run = Parted(bus, tmp_path)
    for _ in range(2):
        run.feed(300)
        if not run.attempts:
            run.start(driver, **FORMATS[engine])
        run.check(driver)


def test_events_are_read_and_made(
    bus: Bus, driver: DriverProcess, tmp_path: Path, engine: str
) -> None:
    run = Pipeline(bus, tmp_path, change="seen", maxMessagesPerPartition="50")
    sent = [
        Event(
            id=f"e{n}",
            source="/web",
            type="order" if n % 3 else "other",
            subject=str(n),
            data={"n": n},
        )
        for n in range(200)
    ]
    bus.push("in", [*(event.encode() for event in sent), b"no event"])
    run.start(driver, **FORMATS[engine])
    wanted = [
        ("seen", event.id, event.source, event.subject, event.data)
        for event in sent
        if event.type == "order"
    ]
    wait_well(driver, (bus, "out", len(wanted)))
    found = [Event.decode(value) for value in bus.values("out")]
    assert [
        (event.type, event.id, event.source, event.subject, event.data) for event in found
    ] == wanted


def test_what_is_kept_is_run_again_from_ten_minutes_ago_beside_the_running_query(
    bus: Bus, driver: DriverProcess, tmp_path: Path, engine: str
) -> None:
    keys = bus.keys("in")
    daily = Pipeline(bus, tmp_path / "daily", subscription="daily", maxMessagesPerPartition="100")
    again = Pipeline(
        bus,
        tmp_path / "again",
        sink="again",
        subscription="again",
        startingOffsets="-10m",
        maxMessagesPerPartition="100",
    )
    bus.link.run(set_retention(keys, parse_limits("7d", None, None)))
    for ms in (HOUR, 5 * MINUTE):
        daily.feed(300)
        pass_by(lambda *words: bus.link.execute(command(*words)), keys, ms)
    daily.start(driver, **FORMATS[engine])
    wait_well(driver, (bus, "out", 600))
    again.start(driver, beside=True, **FORMATS[engine])
    daily.feed(200)
    wait_well(driver, (bus, "out", 800), (bus, "again", 500))
    assert (numbers(bus, "out"), numbers(bus, "again")) == ([*range(800)], [*range(300, 800)])
    assert numbers(bus, "in") == [*range(800)], "it is kept"


@pytest.mark.parametrize("first", [*FORMATS])
def test_a_query_goes_on_at_the_promoted_mirror_with_the_other_engine(
    driver: DriverProcess, tmp_path: Path, first: str
) -> None:
    need(module.missing())
    second = next(name for name in FORMATS if name != first)
    with (
        EmbeddedRedis() as there,
        EmbeddedRedis() as here,
        centre(there.url) as far,
        centre(here.url) as near,
    ):

        def run_until(place: Centre, name: str, rows: int) -> None:
            source = {
                "redis.url": url(place),
                "subscribe": "orders",
                "subscription": "billing",
                "maxMessagesPerPartition": "50",
            }
            sink = {"redis.url": url(near), "queue": "out"}
            driver.start(
                checkpoint=str(tmp_path / "checkpoint"),
                source=source,
                sink=sink,
                change="plain",
                mark="",
                **FORMATS[name],
            )
            wait_until(
                lambda: near.state("out").last_id >= rows or driver.error,
                what="everything has arrived",
            )
            assert driver.active, driver.error
            driver.stop()

        far.create("orders")
        far.push("orders", 300)
        with mirroring(there.url, near, "orders", groups=True) as runner:
            run_until(far, first, 300)
            far.push("orders", 60)
            copied(runner, far, ["orders"])
            looked(runner)
            there.kill()
        assert near.run("orders", mirrors.promote(near.keys("orders")))[:2] == (True, 360)
        near.push("orders", 40)
        run_until(near, second, 400)
        assert near.stored("out") == [(n, b"v%d" % n) for n in range(1, 401)]


@pytest.mark.parametrize("engine", ["python", pytest.param("auto", marks=pytest.mark.jvm)])
def test_jobs_are_read_with_their_fields_and_settled(
    bus: Bus, driver: DriverProcess, tmp_path: Path, engine: str
) -> None:
    """With the jar, ``auto`` hands them to the engine in Python."""
    run = JobPipeline(bus, tmp_path)
    run.options["engine"] = run.sink_options["engine"] = engine
    with Program.sync(bus.server.url) as program, program.jobs("in") as jobs:
        jobs.queue.subscribe(GROUP)
        sent = [jobs.new() for _ in range(60)]
        for n, job in enumerate(sent):
            job["n"] = n
            jobs.send(job)
        run.start(driver, of="busmq")
        for n, job in enumerate(sent):
            done = job.wait([GROUP], timeout_s=PATIENCE_S, fail_fast=False)[GROUP]
            assert (done.ok, done.error, done.message) == (
                n % 3 != 0,
                "" if n % 3 else f"{n}|run 1",
                n + 1,
            )
            assert job.load("by") == {"by": b"%d|run 1" % n}
        assert driver.active, driver.error


def kill_executor(driver: DriverProcess, held: Held) -> None:
    """Returns when its Python processes have ended, too: they miss it a little later, and would
    come to the next gate.
    """
    executor = driver.executor_of(driver.worker_at(held.ports))
    python = executor.children(recursive=True)
    executor.kill()
    wait_until(
        lambda: all(map(is_over, python)), what="the Python processes of the executor have ended"
    )


async def test_an_executor_killed_among_outcomes_leaves_each_job_one_outcome(
    bus: Bus, proxy: Proxy, driver: DriverProcess, tmp_path: Path
) -> None:
    chance = Random(14)
    run = JobPipeline(bus, tmp_path)
    async with sending(bus.server.url) as sent:
        await asyncio.to_thread(run.start, driver, proxy.url)
        for reply in (False, True):
            gate = proxy.hold(settles, skip=chance.randrange(1, 40), reply=reply)
            sent.send(40)
            held = await asyncio.to_thread(run.wait_at, gate, driver)
            assert run.checkpoint.committed < run.checkpoint.planned, "its batch is not committed"
            await asyncio.to_thread(kill_executor, driver, held)
            held.cut()
            gate.open()
            await sent.check()
            await asyncio.to_thread(held.arrive)
            await sent.check_once()
        assert await asyncio.to_thread(lambda: driver.active)
        assert run.attempts == 1
