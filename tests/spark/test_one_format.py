"""``format("busmq")`` with the jar on the class path: Java for what Java can do, Python for the
rest, and ``engine`` to choose.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from busmq_spark import __version__
from busmq_spark.errors import EngineError, JarVersionError
from busmq_spark.spark.data_source import VERSION_OPTION, BusmqDataSource
from tests.conftest import Fresh
from tests.spark.conftest import ROOT, Bus
from tests.spark.test_installed import clean
from tests.support import PATIENCE_S

SETTING = "spark.datasource.busmq.engine"
Copy = Callable[..., StreamingQuery]


@pytest.fixture
def auto(spark: SparkSession, shim_jar: Path) -> Iterator[SparkSession]:
    """The session with no choice of an engine, as a user's is."""
    chosen = spark.conf.get(SETTING)
    spark.conf.set(SETTING, "auto")
    yield spark
    spark.conf.set(SETTING, chosen)


@pytest.fixture
def copy(auto: SparkSession, bus: Bus, queue: str, tmp_path: Path) -> Iterator[Copy]:
    """Copies what is in the queue into another; options are for both sides."""
    started: list[StreamingQuery] = []

    def run(**options: str) -> StreamingQuery:
        rows = (
            auto.readStream.format("busmq")
            .options(**{"redis.url": bus.url, "subscribe": queue, **options})
            .load()
            .select("value")
        )
        writer = rows.writeStream.format("busmq").options(
            **{"redis.url": bus.url, "queue": f"{queue}-out", **options}
        )
        started.append(
            writer.option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        assert started[-1].awaitTermination(int(2 * PATIENCE_S))
        return started[-1]

    yield run
    for query in started:
        query.stop()


def engines(query: StreamingQuery) -> tuple[bool, bool]:
    """Whether the source and the sink of the last batch were Java's."""
    progress = json.loads(query.lastProgress.json)
    names = (progress["sources"][0]["description"], progress["sink"]["description"])
    assert all(name.startswith("busmq[engine=java") or "ython" in name for name in names)
    return names[0].startswith("busmq[engine=java"), names[1].startswith("busmq[engine=java")


def of_java(frame: Any) -> bool:
    """Whether a batch read is Java's."""
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    assert ("busmq.spark" in plan or "engine=java" in plan) != ("Python" in plan), plan
    return "Python" not in plan


@pytest.mark.parametrize(
    ("options", "java"),
    [
        ({}, True),
        ({"engine": "java"}, True),
        ({"engine": "auto"}, True),
        ({"engine": "Python"}, False),
    ],
)
def test_a_batch_is_read_and_written_by_the_engine_that_is_chosen(
    auto: SparkSession, bus: Bus, queue: str, options: dict[str, str], java: bool
) -> None:
    where = {"redis.url": bus.url, **options}
    auto.range(1, 4, 1, 1).selectExpr("cast(id AS string) AS value").write.format("busmq").mode(
        "append"
    ).options(**where, queue=queue).save()
    assert bus.stored(queue) == [b"1", b"2", b"3"]
    frame = auto.read.format("busmq").options(**where, subscribe=queue).load()
    assert frame.columns == ["queue", "id", "value"]
    assert of_java(frame) == java
    assert [bytes(row["value"]) for row in frame.collect()] == [b"1", b"2", b"3"]
    text = (
        auto.read.format("busmq")
        .schema("id long, value string")
        .options(**where, subscribe=queue)
        .load()
    )
    assert of_java(text) == java
    assert [tuple(row) for row in text.collect()] == [(1, "1"), (2, "2"), (3, "3")]


def test_the_session_chooses_where_the_option_does_not(
    auto: SparkSession, bus: Bus, queue: str
) -> None:
    bus.push(queue, "x")
    read = auto.read.format("busmq").options(**{"redis.url": bus.url, "subscribe": queue})
    auto.conf.set(SETTING, "python")
    assert not of_java(read.load())
    assert of_java(read.option("engine", "java").load())
    auto.conf.set(SETTING, "scala")
    with pytest.raises(
        Exception,
        match=(
            r"^\[BUSMQ_CONFIG\] spark.datasource.busmq.engine is 'scala'; expected one of auto,"
            r" java, python"
        ),
    ):
        auto.read.format("busmq").options(**{"redis.url": bus.url, "subscribe": queue}).load()


def test_a_view_is_read_by_java(auto: SparkSession, bus: Bus, queue: str, fresh: Fresh) -> None:
    bus.push(queue, "x")
    view = fresh("v").replace("-", "_")
    auto.sql(
        f"CREATE TEMPORARY VIEW {view} USING busmq OPTIONS (subscribe '{queue}', `redis.url`"
        f" '{bus.url}')"
    )
    assert of_java(auto.table(view))
    assert [bytes(row["value"]) for row in auto.table(view).collect()] == [b"x"]
    auto.catalog.dropTempView(view)


def test_a_table_keeps_its_options_in_java(
    auto: SparkSession, bus: Bus, queue: str, fresh: Fresh
) -> None:
    table = fresh("t").replace("-", "_")
    auto.sql(
        f"CREATE TABLE {table} USING busmq OPTIONS (subscribe '{queue}', queue '{queue}',"
        f" `redis.url` '{bus.url}')"
    )
    auto.sql(f"INSERT INTO {table} VALUES ('a')")
    assert [bytes(row["value"]) for row in auto.table(table).collect()] == [b"a"]
    with pytest.raises(
        Exception, match=r"^\[BUSMQ_ENGINE\] engine=python is not possible: a table"
    ):
        auto.read.option("engine", "python").table(table).collect()
    auto.sql(f"DROP TABLE {table}")


def test_what_is_wrong_with_an_option_is_said_at_load_by_both(auto: SparkSession, bus: Bus) -> None:
    for engine in ("java", "python"):
        with pytest.raises(
            Exception,
            match=(
                r"\[BUSMQ_CONFIG\] unknown option 'min[Pp]artition'; did you mean 'minPartitions'"
            ),
        ):
            auto.read.format("busmq").options(
                **{"redis.url": bus.url, "subscribe": "q", "minPartition": "2", "engine": engine}
            ).load()


@pytest.mark.parametrize("first", ["java", "python"])
def test_a_checkpoint_that_one_engine_began_goes_on_in_the_other_and_back(
    bus: Bus, copy: Copy, queue: str, first: str
) -> None:
    second = "python" if first == "java" else "java"
    for turn, engine in enumerate((first, second, first)):
        bus.fill(queue, 10, first=1 + 10 * turn)
        query = copy(engine=engine)
        assert engines(query) == (engine == "java", engine == "java")
        assert bus.stored(f"{queue}-out") == [
            f"{queue}:{i}".encode() for i in range(1, 11 + 10 * turn)
        ]
    assert (
        query.lastProgress.sources[0].description.startswith("busmq[engine=java " + queue)
        or first == "python"
    )


def test_a_query_that_chooses_none_is_javas(bus: Bus, copy: Copy, queue: str) -> None:
    bus.push(queue, "x")
    assert engines(copy()) == (True, True)


def test_complete_mode_appends_each_result_in_both(
    auto: SparkSession, bus: Bus, queue: str, tmp_path: Path
) -> None:
    def count(engine: str) -> list[bytes]:
        options = {"redis.url": bus.url, "engine": engine}
        rows = (
            auto.readStream.format("busmq").options(**options, subscribe=queue, ack="none").load()
        )
        counted = rows.groupBy().count().selectExpr("cast(count AS string) AS value")
        writer = (
            counted.writeStream.format("busmq")
            .outputMode("complete")
            .options(**options, queue=f"{queue}-{engine}")
        )
        query = (
            writer.option("checkpointLocation", str(tmp_path / engine))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(2 * PATIENCE_S))
        return bus.stored(f"{queue}-{engine}")

    bus.push(queue, "a", "b")
    assert count("java") == count("python") == [b"2"]
    bus.push(queue, "c")
    assert count("java") == count("python") == [b"2", b"3"]


NOT_JAVAS = {
    "federation": {"federation.url": "ws://127.0.0.1:1/bus"},
    "unix": {"redis.url": "unix:///no/such.sock"},
    "jobs": {"redis.url": "redis://h", "jobFields": "a"},
}


@pytest.mark.parametrize("what", NOT_JAVAS)
def test_what_java_cannot_do_is_pythons_or_one_error(auto: SparkSession, what: str) -> None:
    read = auto.read.format("busmq").options(subscribe="q", **NOT_JAVAS[what])
    own = {"federation": "source", "jobs": "fields"}  # Python's columns
    assert [name for name in own.values() if name in read.load().columns] == [
        own[each] for each in own if each == what
    ]
    for use in (
        lambda: read.option("engine", "java").load(),
        lambda: (
            auto.readStream.format("busmq")
            .options(subscribe="q", engine="java", **NOT_JAVAS[what])
            .load()
        ),
        lambda: (
            auto.sql("SELECT 'x' AS value")
            .write.format("busmq")
            .mode("append")
            .options(queue="q", engine="java", **NOT_JAVAS[what])
            .save()
        ),
    ):
        with pytest.raises(
            Exception, match=r"^\[BUSMQ_ENGINE\] engine=java is not possible: .*Leave engine out"
        ) as failed:
            use()
        assert "\n" not in str(failed.value).strip()


def test_a_jar_of_another_version_is_refused() -> None:
    assert (
        VERSION_OPTION
        not in BusmqDataSource({VERSION_OPTION: __version__, "subscribe": "q"}).options
    )
    with pytest.raises(
        JarVersionError,
        match=(
            r"^\[BUSMQ_JAR_VERSION\] the jar on the class path of Spark is of version 0\.0\.9, and"
            r" the Python package"
        ),
    ):
        BusmqDataSource({VERSION_OPTION: "0.0.9", "subscribe": "q"})


def test_every_use_of_python_says_the_version_of_the_jar(
    auto: SparkSession, bus: Bus, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own such option is overwritten by the jar's."""
    bus.push(queue, "x")
    options = {"redis.url": bus.url, "engine": "python", VERSION_OPTION: "0.0.9"}
    frame = (
        auto.read.format("busmq").schema("value string").options(**options, subscribe=queue).load()
    )
    assert frame.collect()[0]["value"] == "x"
    frame.write.format("busmq").mode("append").options(**options, queue=queue).save()
    assert bus.stored(queue) == [b"x", b"x"]


@pytest.mark.parametrize(
    ("release", "said"),
    [("4.3.0", "the jar that has it is not on the class path"), ("4.0.5", "this is Spark 4.0.5")],
)
def test_python_alone_cannot_be_java(
    monkeypatch: pytest.MonkeyPatch, release: str, said: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", release)
    with pytest.raises(
        EngineError, match=rf"^\[BUSMQ_ENGINE\] engine=java is not possible: {said}"
    ):
        BusmqDataSource(
            {"redis.url": "redis://127.0.0.1:1", "subscribe": "q", "engine": "java"}
        ).schema()


PROGRAM = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.memory", "512m")
spark = builder.config("spark.jars", ",".join(sys.argv[1:])).getOrCreate()
try:
    spark.read.format("busmq").options(**{"redis.url": "redis://127.0.0.1:1", "subscribe": "q", "engine": "java"}).load()
except Exception as error:
    print("SAID", " ".join(str(error).split("\\n")))
"""  # noqa: E501


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_spark_with_two_jars_says_so(spark: SparkSession, shim_jar: Path, tmp_path: Path) -> None:
    """One without: test_without_jar.py."""
    other = tmp_path / "other.jar"
    with ZipFile(shim_jar) as jar, ZipFile(other, "w") as made:
        contract = json.loads(jar.read("busmq/spark/contract.json"))
        made.writestr("busmq/spark/contract.json", json.dumps({**contract, "version": "0.0.9"}))
    command = [sys.executable, "-c", PROGRAM, str(shim_jar), str(other)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=clean(str(ROOT)), cwd=tmp_path
    )
    [said] = [line for line in done.stdout.splitlines() if line.startswith("SAID")]
    assert said.startswith(
        "SAID [BUSMQ_JAR_VERSION] the class path of Spark has jars of busmq_spark of several"
        " versions: 0.0.9 ("
    )
    assert f"{__version__} (" in said
