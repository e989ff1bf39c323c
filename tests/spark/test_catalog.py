"""The queues of a bus as tables of Spark SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import SparkSession

from busmq_spark.groups.topic import partition_of
from busmq_spark.queue.keys import QueueKeys
from tests.conftest import Fresh
from tests.spark.conftest import Bus
from tests.spark.topic_tools import make_topic, partitions_of
from tests.support import PATIENCE_S

Sql = Callable[[str], list[tuple[Any, ...]]]


@contextmanager
def named(spark: SparkSession, catalog: str, options: dict[str, str]) -> Iterator[str]:
    """A catalog by this name, which must be new: Spark keeps what it has loaded."""
    name = catalog.replace("-", "_")
    settings = {
        f"spark.sql.catalog.{name}": "busmq.spark.BusmqCatalog",
        **{f"spark.sql.catalog.{name}.{key}": options[key] for key in options},
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield name
    finally:
        for key in settings:
            spark.conf.unset(key)


@pytest.fixture
def catalog(spark: SparkSession, shim_jar: Path, bus: Bus, fresh: Fresh) -> Iterator[str]:
    """The name of a catalog of its own."""
    with named(spark, fresh("bus"), {"redis.url": bus.url}) as name:
        yield name


@pytest.fixture
def sql(spark: SparkSession, catalog: str, queue: str) -> Sql:
    """Runs a statement in which ``bus`` is the catalog and ``orders`` the queue of the test."""
    return lambda text: [
        tuple(row)
        for row in spark.sql(
            text.replace("bus.", f"{catalog}.").replace("orders", f"`{queue}`")
        ).collect()
    ]


def test_tables_are_the_queues(spark: SparkSession, catalog: str, bus: Bus, queue: str) -> None:
    assert queue not in [
        row["tableName"] for row in spark.sql(f"SHOW TABLES IN {catalog}").collect()
    ]
    bus.attach(queue)
    assert queue in [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {catalog}").collect()]
    assert spark.catalog.tableExists(f"{catalog}.`{queue}`")


def test_a_table_is_described_with_the_columns_of_the_source_and_the_state_of_the_queue(
    sql: Sql, bus: Bus, queue: str
) -> None:
    bus.fill(queue, 3)
    described = {row[0]: row[1] for row in sql("DESCRIBE EXTENDED bus.orders")}
    assert (
        described.items()
        >= {
            "queue": "string",
            "id": "bigint",
            "value": "binary",
            "Provider": "busmq-realtime",
        }.items()
    )
    assert "last.id=3,messages=3" in described["Table Properties"]


def test_select_is_a_snapshot_that_removes_nothing(sql: Sql, bus: Bus, queue: str) -> None:
    bus.fill(queue, 3)
    for _ in range(2):
        assert sql("SELECT id, CAST(value AS STRING) FROM bus.orders WHERE id > 1") == [
            (2, f"{queue}:2"),
            (3, f"{queue}:3"),
        ]
        assert sql("SELECT count(*), max(queue) FROM bus.orders") == [(3, queue)]
    assert bus.ids(queue) == [1, 2, 3]


def test_create_table_makes_a_queue_with_a_ttl_and_a_maxsize(
    sql: Sql, bus: Bus, queue: str
) -> None:
    sql("CREATE TABLE bus.orders TBLPROPERTIES (ttl = '2h', maxsize = 5)")
    assert sql("SELECT * FROM bus.orders") == []
    assert bus("HMGET", QueueKeys(queue).metadata, "ttl", "maxsize") == [b"7200", b"5"]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        sql("CREATE TABLE bus.orders")
    sql("CREATE TABLE IF NOT EXISTS bus.orders")


@pytest.mark.parametrize(
    "columns",
    [
        "(value STRING)",
        "(queue STRING, id BIGINT, value BINARY)",
        "(value STRING) USING busmq OPTIONS (ttl = '7200')",
    ],
)
def test_create_table_takes_the_columns_of_a_queue(
    sql: Sql, bus: Bus, queue: str, columns: str
) -> None:
    sql(f"CREATE TABLE bus.orders {columns}")
    sql(
        "INSERT INTO bus.orders VALUES ('a')"
        if "id" not in columns
        else "INSERT INTO bus.orders (value) VALUES ('a')"
    )
    assert bus.stored(queue) == [b"a"]


def test_create_table_as_select_fills_the_queue(sql: Sql, bus: Bus, queue: str) -> None:
    sql("CREATE TABLE bus.orders AS SELECT 'a' AS value")
    assert bus.stored(queue) == [b"a"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "(body STRING)",
            "column 'body' does not exist; the source has: queue string, id long, value binary",
        ),
        (
            "(value STRING) TBLPROPERTIES (size = 5)",
            "property 'size' says nothing to a queue, which takes ttl and maxsize",
        ),
        (
            "(value STRING) TBLPROPERTIES (ttl = 'soon')",
            "option 'ttl' is 'soon'; expected seconds, or a number with s, m, h or d",
        ),
        (
            "(value STRING) USING parquet",
            "a table of this catalog is a queue, and none of format 'parquet'; leave USING out",
        ),
        (
            "(value STRING) PARTITIONED BY (value)",
            "a queue has no partitions; leave PARTITIONED BY out",
        ),
    ],
)
def test_what_a_queue_cannot_be_is_refused_and_nothing_is_made(
    sql: Sql, bus: Bus, queue: str, text: str, reason: str
) -> None:
    with pytest.raises(IllegalArgumentException) as failed:
        sql(f"CREATE TABLE bus.orders {text}")
    assert str(failed.value).startswith("[BUSMQ_CONFIG]")
    assert reason in str(failed.value)
    assert not bus("EXISTS", QueueKeys(queue).metadata)


@pytest.fixture
def table(spark: SparkSession, fresh: Fresh) -> Iterator[str]:
    """The name of a table of Spark's own catalog."""
    name = fresh("t").replace("-", "_")
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_table_with_options_is_read_and_written_with_them(
    spark: SparkSession, shim_jar: Path, bus: Bus, queue: str, table: str
) -> None:
    options = f"subscribe '{queue}', queue '{queue}', `redis.url` '{bus.url}', minPartitions 2"
    spark.sql(f"CREATE TABLE {table} USING `busmq-realtime` OPTIONS ({options})")
    spark.sql(f"INSERT INTO {table} VALUES ('a'), ('b')")
    assert bus.stored(queue) == [b"a", b"b"]
    assert [
        bytes(row["value"]) for row in spark.sql(f"SELECT value FROM {table} ORDER BY id").collect()
    ] == [b"a", b"b"]
    assert spark.table(table).rdd.getNumPartitions() == 2
    assert (
        spark.read.option("minPartitions", 1).table(table).rdd.getNumPartitions() == 1
    )  # those of the statement count first


def test_a_misspelt_option_of_a_table_is_an_error(
    spark: SparkSession, shim_jar: Path, bus: Bus, queue: str, table: str
) -> None:
    spark.sql(
        f"CREATE TABLE {table} USING `busmq-realtime` OPTIONS (subscribe '{queue}', `redis.url`"
        f" '{bus.url}', minPartition 2)"
    )
    with pytest.raises(
        IllegalArgumentException,
        match=r"unknown option 'minPartition'; did you mean 'minPartitions'",
    ):
        spark.sql(f"SELECT * FROM {table}").collect()


def test_a_table_of_the_source_in_python_takes_its_options_from_the_statement_and_says_so(
    spark: SparkSession, bus: Bus, queue: str, table: str
) -> None:
    bus.push(queue, "a")
    options = f"subscribe '{queue}', `redis.url` '{bus.url}'"
    said = (
        r"\[BUSMQ_CONFIG\] .*Spark hands the OPTIONS of a table to no reader or writer in"
        r" Python.*WITH \(subscribe"
    )
    with pytest.raises(AnalysisException, match=said):
        spark.sql(f"CREATE TABLE {table} USING busmq OPTIONS ({options})")
    spark.sql(f"CREATE TABLE {table} (value BINARY) USING busmq OPTIONS ({options})")
    with pytest.raises(AnalysisException, match=said):
        spark.sql(f"SELECT * FROM {table}").collect()
    with pytest.raises(AnalysisException, match=said):
        spark.sql(f"INSERT INTO {table} VALUES (X'61')")
    given = f"subscribe = '{queue}', `redis.url` = '{bus.url}'"
    assert [
        bytes(row["value"])
        for row in spark.sql(f"SELECT value FROM {table} WITH ({given})").collect()
    ] == [b"a"]


def test_an_empty_queue_is_an_empty_table(sql: Sql, bus: Bus, queue: str) -> None:
    bus.attach(queue)
    assert sql("SELECT * FROM bus.orders") == []


@pytest.mark.parametrize(
    ("insert", "stored"),
    [
        ("INSERT INTO bus.orders VALUES ('a'), ('b')", [b"a", b"b"]),
        ("INSERT INTO bus.orders (value) VALUES ('a')", [b"a"]),
        ("INSERT INTO bus.orders SELECT to_json(struct(1 AS x)) AS value", [b'{"x":1}']),
        ("INSERT INTO bus.orders SELECT queue, id, value FROM bus.orders", [b"old"]),
    ],
)
def test_insert_appends(sql: Sql, bus: Bus, queue: str, insert: str, stored: list[bytes]) -> None:
    bus.push(queue, "old")
    sql(insert)
    assert bus.stored(queue) == [b"old", *stored]


def test_overwrite_is_refused_and_nothing_is_lost(sql: Sql, bus: Bus, queue: str) -> None:
    bus.push(queue, "old")
    with pytest.raises(
        IllegalArgumentException, match=r"\[BUSMQ_CONFIG\] mode overwrite would delete"
    ):
        sql("INSERT OVERWRITE bus.orders VALUES ('new')")
    assert bus.stored(queue) == [b"old"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM bus.orders",
        "INSERT INTO bus.orders VALUES ('a')",
        "DESCRIBE bus.orders",
        "SELECT * FROM bus.x.orders",
    ],
)
def test_a_queue_that_does_not_exist_is_no_table(sql: Sql, bus: Bus, queue: str, text: str) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql(text)
    assert not bus("EXISTS", f"bus:queue:{queue}:metadata")


@pytest.mark.parametrize(
    "text",
    [
        "DROP TABLE bus.orders",
        "ALTER TABLE bus.orders ADD COLUMN x INT",
        "ALTER TABLE bus.orders RENAME TO bus.others",
    ],
)
def test_sql_neither_removes_nor_changes_a_queue(sql: Sql, bus: Bus, queue: str, text: str) -> None:
    bus.push(queue, "old")
    with pytest.raises(IllegalArgumentException, match=r"by SQL"):
        sql(text)
    assert bus.stored(queue) == [b"old"]


def test_options_of_one_use_go_with_the_statement_and_none_may_name_another_queue(
    spark: SparkSession, catalog: str, bus: Bus, queue: str
) -> None:
    bus.fill(queue, 3)
    table = f"{catalog}.`{queue}`"
    assert spark.read.option("minPartitions", 3).table(table).rdd.getNumPartitions() == 3
    with pytest.raises(IllegalArgumentException, match="names a queue, and so does the table"):
        spark.read.option("subscribe", "another").table(table).collect()


def test_streams_read_and_write_tables(
    spark: SparkSession, catalog: str, bus: Bus, queue: str, tmp_path: Path
) -> None:
    bus.fill(queue, 3)
    bus.attach(f"{queue}-out")
    rows = spark.readStream.table(f"{catalog}.`{queue}`").select("value")
    writer = rows.writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert writer.toTable(f"{catalog}.`{queue}-out`").awaitTermination(int(PATIENCE_S))
    assert bus.stored(f"{queue}-out") == [f"{queue}:{i}".encode() for i in (1, 2, 3)]


def test_a_setting_that_means_nothing_to_a_catalog_is_an_error(
    spark: SparkSession, catalog: str
) -> None:
    said = "maxsize says nothing to a catalog"
    with (
        named(spark, f"{catalog}_other", {"maxsize": "5"}) as other,
        pytest.raises(IllegalArgumentException, match=said),
    ):
        spark.sql(f"SHOW TABLES IN {other}")


def test_a_topic_is_a_table_with_its_columns_and_rows_go_to_the_partition_of_their_key(
    spark: SparkSession, sql: Sql, catalog: str, bus: Bus, queue: str
) -> None:
    make_topic(bus, queue, 3, "a")
    described = {row[0]: row[1] for row in sql("DESCRIBE EXTENDED bus.orders")}
    assert described.items() >= {"topic": "string", "partition": "int"}.items()
    assert "partitions=3" in described["Table Properties"]
    assert sql(
        "SELECT topic, partition, CAST(value AS STRING) FROM bus.orders ORDER BY partition"
    ) == [(queue, p, f"{p}a") for p in range(3)]
    spark.createDataFrame([("k", "v")], "key string, value string").writeTo(
        f"{catalog}.`{queue}`"
    ).append()
    assert bus.stored(f"{queue}/{partition_of('k', 3)}")[1:] == [b"v"]
    sql("INSERT INTO bus.orders VALUES ('w')")
    assert sum(len(part) for part in partitions_of(bus, queue)) == 5
    with pytest.raises(
        IllegalArgumentException,
        match=r"option 'subscribe' names a queue, and the table '.*' a topic; leave the option out",
    ):
        sql("SELECT * FROM bus.orders WITH (subscribe = 'q')")
    with pytest.raises(
        IllegalArgumentException, match="option 'topic' names a topic, and so does the table"
    ):
        sql("SELECT * FROM bus.orders WITH (topic = 'q')")
