"""One SparkSession for the whole run, queries that are stopped whatever happens, and queues to push
to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue import queue as core
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse
from busmq_spark.spark import stores
from busmq_spark.spark.java_runtime import ensure_java, ensure_python
from busmq_spark.spark.read import acquisition, reader_threads
from busmq_spark.spark.tune import tune
from busmq_spark.store import multi_source_store
from tests.conftest import Fresh
from tests.jvm import module
from tests.peers.node import need
from tests.spark.centres import DataCentre
from tests.spark.engine import Engine
from tests.spark.java_log import JavaLog, java_log
from tests.spark.jvm_engine import JvmEngine
from tests.spark.lines import Lines
from tests.spark.links import LINKED, LINKS, Centre, leading_to
from tests.spark.preloaded import preloaded_python
from tests.spark.sink_engines import JavaSink, PythonSink, SinkEngine
from tests.support import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]


LANGUAGES = {"python": (), "java": (pytest.mark.jvm, pytest.mark.spark)}

LACKS = {
    "start": (
        "Spark before 4.2 does not tell a Python source where its query stands: the first batch"
        " shows it, waits for all links, and no start says what is logged"
    ),
    "report": "Spark before 4.2 does not ask a Python source how far it is behind",
    "limits": (
        "Spark before 4.2 has no read limits in Python: a first batch takes everything,"
        " AvailableNow is one, and the next run acknowledges it"
    ),
}
"""What the Python engine has of Spark from 4.2 on, and what Spark before it does instead. Java has
it on each Spark that runs the jar.
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``language`` (or a fixture that does, as ``engine``) runs with the Python
    and with the Java implementation.
    """
    if "language" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only")
        assert only is None or only.kwargs["reason"]
        languages = [
            pytest.param(name, marks=marks)
            for name, marks in LANGUAGES.items()
            if only is None or name in only.args
        ]
        metafunc.parametrize("language", languages)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unfit = [item for item in items if not _is_a_way_to_read(_params(item))]
    if pyspark.__version__ >= "4.3" and not any(
        "test_smoke" in word for word in config.args
    ):  # there every other test runs, and shows the same
        unfit += [item for item in items if item.path.name == "test_smoke.py"]
    config.hook.pytest_deselected(items=unfit)
    items[:] = [item for item in items if item not in unfit]
    for item in items:
        names = getattr(item, "fixturenames", ())
        for needed in item.iter_markers("needs"):
            if pyspark.__version__ < "4.2" and _params(item).get("language") != "java":
                item.add_marker(pytest.mark.skip(reason=LACKS[needed.args[0]]))
        if (
            pyspark.__version__ < "4.2"
        ):  # it leaves the sockets of collect() to the garbage collector
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
                )
            )
        if "spark" in names:
            item.add_marker("spark")
        if "shim_jar" in names:
            item.add_marker("jvm")
        if "bus" in names or "redis_server" in names:
            item.add_marker("redis")


def _is_a_way_to_read(params: dict[str, Any]) -> bool:
    """Whether Spark calls a reader like that: ``before_42`` is Python's way, and the only one on a
    Spark before 4.2.
    """
    if "before_42" not in params:
        return True
    python = params.get("language") != "java"
    return python if params["before_42"] else not (python and pyspark.__version__ < "4.2")


def _params(item: pytest.Item) -> dict[str, Any]:
    return (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    ensure_java()
    ensure_python()
    # Workers import the package from this tree even where it is not installed.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    if pyspark.__version__ >= "4.1" and not module.missing():
        module.built()  # tune finds it
    builder = SparkSession.builder.master("local[2]").appName("busmq_spark tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.streaming.stopTimeout": "90s",
        "spark.sql.session.timeZone": "UTC",
        # The jar is on the class path, and Java's tests name their format or engine
        "spark.datasource.busmq.engine": "python",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with (
        preloaded_python(tmp_path_factory.mktemp("python")) as python,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PYSPARK_PYTHON", python)
        patch.setenv("PYSPARK_DRIVER_PYTHON", python)  # where a source plans
        session = tune(builder).getOrCreate()
        patch.undo()
        session.sparkContext.setLogLevel("OFF")  # failing queries are what many tests are about
        yield session
        session.stop()


@pytest.fixture(scope="session")
def shim_jar(spark: SparkSession) -> Path:
    """The Java module, which the session then has on its class path."""
    need(module.missing())
    return module.JAR


class Bus:
    """The queues of one server, as a producer and a stranger with redis-cli see them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.link = SyncLink(parse(url)[0])

    def attach(self, queue: str, *, ttl_s: int = 3600, maxsize: int = 0) -> str:
        """Create a queue; the result is its incarnation."""
        return self.link.run(
            core.attach(QueueKeys(queue), new_token(), ttl_s=ttl_s, maxsize=maxsize)
        ).born

    def push(self, queue: str, *values: str | bytes, ttl_s: int = 3600) -> None:
        """Append values, to a queue that is created if need be."""
        self.attach(queue, ttl_s=ttl_s)
        self.link.run(
            core.push_many(
                QueueKeys(queue), [v.encode() if isinstance(v, str) else v for v in values]
            )
        )

    def fill(self, queue: str, rows: int, *, first: int = 1) -> None:
        """Append values that say their id (in a queue where ``first`` is the next id)."""
        self.push(queue, *(f"{queue}:{i}" for i in range(first, first + rows)))

    def stored(self, queue: str) -> list[bytes]:
        """The values that are in the queue now, oldest first."""
        found: list[bytes] = self("LRANGE", QueueKeys(queue).messages, 0, -1)
        return found[1::2]

    def ids(self, queue: str) -> list[int]:
        """The ids that are in the queue now."""
        return [int(id) for id in self("LRANGE", QueueKeys(queue).messages, 0, -1)[0::2]]

    def leave_holes(self, queue: str) -> None:
        """Fill the queue with 7; a reliable consumer takes 1 to 3, an unreliable one 4 and 5, and
        the first comes back: 1, 2, 3, 6, 7.
        """
        keys = QueueKeys(queue)
        self.fill(queue, 7)
        self.link.run(core.pop(keys, reliable=True, ttl_s=60, most=3))
        self.link.run(core.pop(keys, most=2))
        self.link.run(core.ack(keys, 0, ttl_s=60, restore=True))
        assert self.ids(queue) == [1, 2, 3, 6, 7]

    def take_when_full(
        self, queue: str, maxsize: int, rows: int, query: StreamingQuery
    ) -> list[int]:
        """Take ten messages whenever the queue is full, until all ``rows`` that ``query`` writes
        are taken: their values.
        """
        found: list[int] = []

        def drained() -> bool:
            assert query.exception() is None
            if len(stored := self.ids(queue)) == maxsize or len(found) + len(stored) == rows:
                found.extend(
                    int(message.value)
                    for message in self.link.run(core.pop(QueueKeys(queue), most=10))
                )
            return len(found) == rows

        wait_until(drained, PATIENCE_S)
        return found

    def close_queue(self, queue: str) -> None:
        """Remove the queue with everything in it, as npm busmq's close does."""
        self.link.run(core.delete(QueueKeys(queue)))

    def __call__(self, *words: str | int | bytes) -> Any:
        return self.link.execute(command(*words))


class MakeBus(Protocol):
    """Opens the queues of a server of the test's own."""

    def __call__(self, server: EmbeddedRedis | str) -> Bus: ...


@pytest.fixture
def bus_of() -> Iterator[MakeBus]:
    made: list[Bus] = []

    def make(server: EmbeddedRedis | str) -> Bus:
        made.append(Bus(server if isinstance(server, str) else server.url))
        return made[-1]

    yield make
    for bus in made:
        bus.link.close()


@pytest.fixture
def bus(redis_url: str, bus_of: MakeBus) -> Bus:
    return bus_of(redis_url)


@pytest.fixture
def queue(fresh: Fresh) -> str:
    """The name of a queue that does not exist yet."""
    return fresh("q")


class Query:
    """A streaming query and every batch it delivered, as a foreachBatch saw them."""

    def __init__(self) -> None:
        self.query: StreamingQuery
        self.batches: list[tuple[int, list[Any]]] = []

    def take(self, frame: DataFrame, batch: int) -> None:
        self.batches.append((batch, frame.collect()))

    @property
    def rows(self) -> list[Any]:
        return [row for _, rows in self.batches for row in rows]

    @property
    def values(self) -> list[bytes]:
        return [bytes(row["value"]) for row in self.rows]

    @property
    def sizes(self) -> list[int]:
        """Rows per batch that had any."""
        return [len(rows) for _, rows in self.batches if rows]

    def wait_for(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait until the condition holds; an error of the query comes up at once."""

        def settled() -> object:
            if error := self.query.exception():
                raise error
            return condition()

        wait_until(settled, PATIENCE_S, what)

    def wait_rows(self, rows: int) -> None:
        self.wait_for(lambda: len(self.rows) >= rows, f"{rows} rows")


class Stream(Protocol):
    """Starts a streaming read; options are the source's. It is stopped at the end of the test."""

    def __call__(
        self,
        options: dict[str, Any],
        *,
        checkpoint: str = "c",
        schema: str = "",
        trigger: dict[str, Any] | None = None,
    ) -> Query: ...


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    started: list[Query] = []

    def start(
        options: dict[str, Any],
        *,
        checkpoint: str = "c",
        schema: str = "",
        trigger: dict[str, Any] | None = None,
    ) -> Query:
        reader = spark.readStream.format("busmq").options(**options)
        frame = (reader.schema(schema) if schema else reader).load()
        found = Query()
        writer = frame.writeStream.foreachBatch(found.take).option(
            "checkpointLocation", str(tmp_path / checkpoint)
        )
        found.query = (writer.trigger(**trigger) if trigger else writer).start()
        started.append(found)
        return found

    yield start
    for query in started:
        query.query.stop()


@pytest.fixture
def drain(stream: Stream) -> Stream:
    """Like ``stream``, but with everything that is there now, to its end; an error of the query is
    raised.
    """

    def run(
        options: dict[str, Any],
        *,
        checkpoint: str = "c",
        schema: str = "",
        trigger: dict[str, Any] | None = None,
    ) -> Query:
        found = stream(
            options, checkpoint=checkpoint, schema=schema, trigger=trigger or {"availableNow": True}
        )
        assert found.query.awaitTermination(int(2 * PATIENCE_S))
        return found

    return run


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> Iterator[Lines]:
    made = Lines(spark, tmp_path)
    yield made
    made.stop()


class Sink(Protocol):
    """Starts a streaming write of the rows of a queue (or of the frame) into busmq."""

    def __call__(
        self, frame: DataFrame, options: dict[str, Any], *, checkpoint: str = "s", wait: bool = True
    ) -> StreamingQuery: ...


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Sink]:
    """``wait``: everything that is there now, to its end; an error of the query is raised."""
    started: list[StreamingQuery] = []

    def start(
        frame: DataFrame, options: dict[str, Any], *, checkpoint: str = "s", wait: bool = True
    ) -> StreamingQuery:
        writer = (
            frame.writeStream.format("busmq")
            .options(**options)
            .option("checkpointLocation", str(tmp_path / checkpoint))
        )
        query = (writer.trigger(availableNow=True) if wait else writer).start()
        started.append(query)
        if wait:
            assert query.awaitTermination(int(2 * PATIENCE_S))
        return query

    yield start
    for query in started:
        query.stop()


@pytest.fixture
def java_spark(language: str, request: pytest.FixtureRequest) -> SparkSession | None:
    """The session with the Java module; None where the test is about Python, which needs no
    session.
    """
    if language == "python":
        return None
    request.getfixturevalue("shim_jar")
    return request.getfixturevalue("spark")  # type: ignore[no-any-return]


@pytest.fixture
def engine(java_spark: SparkSession | None) -> Iterator[Callable[..., Engine]]:
    """Makes engines around the source in the language of the test, and stops their readers at the
    end.
    """
    made: list[Engine] = []

    def make(options: dict[str, Any], **more: Any) -> Engine:
        made.append(
            JvmEngine(java_spark, options, more.get("folder", ""))
            if java_spark
            else Engine(options, **more)
        )
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture
def sink_engine(java_spark: SparkSession | None) -> Callable[[Mapping[str, str]], SinkEngine]:
    """Makes a write with the sink in the language of the test."""
    return lambda options: JavaSink(java_spark, options) if java_spark else PythonSink(options)


@pytest.fixture
def caplog(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.LogCaptureFixture | JavaLog]:
    """What the implementation in the language of the test has logged."""
    spark = request.getfixturevalue("java_spark") if "language" in request.fixturenames else None
    if spark is None:
        yield caplog
    else:
        with java_log(spark) as log:
            yield log


@pytest.fixture(scope="session")
def centre_servers() -> Iterator[dict[str, EmbeddedRedis]]:
    with EmbeddedRedis() as own, EmbeddedRedis() as eu, EmbeddedRedis() as us:
        yield {"": own, "eu": eu, "us": us}


@pytest.fixture
def buses(centre_servers: dict[str, EmbeddedRedis], bus_of: MakeBus) -> dict[str, Bus]:
    return {source: bus_of(server) for source, server in centre_servers.items()}


@pytest.fixture
def centres(
    centre_servers: dict[str, EmbeddedRedis], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Centre]:
    made = {link: Centre(centre_servers[link].url) for link in ("eu", "us")}
    monkeypatch.setattr(stores, "open_link", leading_to(made))
    monkeypatch.setattr(stores, "_shared_stores", {})
    monkeypatch.setattr(multi_source_store, "ANSWER_BUDGET_S", PATIENCE_S)  # none of them is slow
    monkeypatch.setattr(multi_source_store, "PROBE_PAUSES_S", (0.002, 0.01))
    monkeypatch.setattr(acquisition, "STOPPING_READER_GRACE_S", 0.0)
    monkeypatch.setattr(reader_threads, "DISCOVERY_INTERVAL_S", 0.02)
    return made


@pytest.fixture
def linked(
    centres: dict[str, Centre], buses: dict[str, Bus], engine: Callable[..., Engine]
) -> Callable[..., Engine]:
    """Makes an engine over all three; its rows are queue, id, value, source."""
    own = {"redis.url": buses[""].url, **LINKS}
    return lambda queue="", schema=LINKED, **more: engine(
        {**own, **({"subscribe": queue} if queue else {}), **more}, schema=schema
    )


@pytest.fixture(scope="session")
def data_centres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, DataCentre]]:
    """Two, at different addresses of this machine. A test that ends the server of one starts it
    again.
    """
    folder = tmp_path_factory.mktemp("centres")
    with DataCentre(folder / "eu", "127.0.0.1") as eu, DataCentre(folder / "us", "127.0.0.2") as us:
        yield {"eu": eu, "us": us}
