"""Dead letters of a pipeline: the form is that of groups, they come in the same commit, and busmq
dead puts them back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, lit

from busmq_spark import Event, dead_letters, json_columns
from busmq_spark.errors import ConfigError
from busmq_spark.groups.dead_letter import decode_letter, make_dead_letter
from busmq_spark.groups.shared_group import LeasedMessage
from tests.cli import forked
from tests.spark.conftest import Bus

VALUES = [b'{"n": 1}', b"nope", b"\xff\x00", b'{"n": "x"}', b'{"n": 5}', b"", b"null", b"[]", b"{}"]
BAD = [2, 3, 4, 6, 7, 8]


def messages(spark: SparkSession, queue: str = "orders") -> DataFrame:
    return spark.createDataFrame(
        [(queue, n, bytearray(value)) for n, value in enumerate(VALUES, 1)],
        "queue string, id long, value binary",
    )


def checked(messages: DataFrame, **dead: Any) -> DataFrame:
    """One row for the sink of every message, good or bad."""
    good, bad = json_columns(messages, "n int", on_error="dead-letter", **dead)
    return good.select(
        lit("checked").alias("queue"),
        "id",
        expr("coalesce(cast(n as string), 'none')").alias("value"),
    ).unionByName(bad)


def test_a_dead_letter_is_the_one_that_a_group_makes(spark: SparkSession) -> None:
    queue = "my queue/7 *~é%+"
    made = (
        dead_letters(messages(spark, queue), "id <= 3", "why\n\tnot", group="g")
        .orderBy("id")
        .collect()
    )
    for row, value in zip(made, VALUES, strict=False):
        assert (row.queue, row.id) == (f"{queue}.dead", made.index(row) + 1)
        letter = decode_letter(row.value.encode())
        assert (
            letter.queue,
            letter.group,
            letter.id,
            letter.value,
            letter.tries,
            letter.error,
        ) == (queue, "g", row.id, value, 1, "why not")
        ours, theirs = (
            Event.decode(row.value.encode()),
            Event.decode(
                make_dead_letter(
                    queue, "g", LeasedMessage(row.id, value, 1, 1, ""), "why\n\tnot", 1
                )
            ),
        )
        assert (ours.source, ours.type, ours.datacontenttype, ours.data) == (
            theirs.source,
            theirs.type,
            theirs.datacontenttype,
            theirs.data,
        )
        assert [*json.loads(row.value)] == [*json.loads(theirs.encode())]
        assert {name: type(value) for name, value in ours.extensions.items()} == {
            name: type(value) for name, value in theirs.extensions.items()
        }


def test_dead_letters_of_queues_of_one_name_say_over_which_link_they_were_read(
    spark: SparkSession,
) -> None:
    read = [
        messages(spark).where("id = 2").withColumn("source", lit(link))
        for link in ("eu", "local", "us")
    ]
    every = read[0].unionByName(read[1]).unionByName(read[2])
    for made in (
        dead_letters(every, "true", "x"),
        json_columns(every, "n int", on_error="dead-letter")[1],
    ):
        values = [row.value.encode() for row in made.orderBy("value").collect()]
        assert sorted(decode_letter(value).link for value in values) == ["", "eu", "us"]
        assert {decode_letter(value).queue for value in values} == {"orders"}
        assert {Event.decode(value).source for value in values} == {
            "/busmq/queues/orders",
            "/busmq/links/eu/queues/orders",
            "/busmq/links/us/queues/orders",
        }


def test_json_that_does_not_fit_is_a_dead_letter_and_the_rest_are_columns(
    spark: SparkSession,
) -> None:
    good, bad = json_columns(
        messages(spark),
        "n int, s string",
        on_error="dead-letter",
        group="flights",
        into="elsewhere",
    )
    assert [(row.queue, row.id, row.n, row.s) for row in good.orderBy("id").collect()] == [
        ("orders", 1, 1, None),
        ("orders", 5, 5, None),
        ("orders", 9, None, None),
    ]
    found = bad.orderBy("id").collect()
    assert [(row.queue, row.id) for row in found] == [("elsewhere", id) for id in BAD]
    letter = decode_letter(found[0].value.encode())
    assert (letter.group, letter.value, letter.error) == (
        "flights",
        b"nope",
        "it is no JSON of struct<n:int,s:string>",
    )
    everything = json_columns(messages(spark), "n int").count()
    assert everything == len(VALUES)  # without it nothing has changed


@pytest.mark.parametrize(
    "value",
    [
        b'{"n":1} x',
        b'{"n":1}{"n":2}',
        b'{"n":1},{"n":2}',
        b'{"n":1}}',
        b'{"n":1}],[{"n":2}',
        b'{"n":1},"n":2',
        b'[{"n":1}]',
        b'[{"n":1},{"n":2}]',
        b'{"n":1,"s":"\xff"}',
        b'{"n":1,"s":"x',
        b'{"n":1.5}',
        b"1",
    ],
)
def test_what_follows_an_object_or_stands_beside_it_is_not_dropped_in_silence(
    spark: SparkSession, value: bytes
) -> None:
    message = spark.createDataFrame(
        [("orders", 1, bytearray(value))], "queue string, id long, value binary"
    )
    good, bad = json_columns(message, "n int, s string", on_error="dead-letter")
    assert good.collect() == []
    assert [decode_letter(row.value.encode()).value for row in bad.collect()] == [value]


def test_an_object_may_have_space_around_it_more_members_and_names_with_dots(
    spark: SparkSession,
) -> None:
    values = [b' {"n":1} \n', b'{"n":2,"other":[{"n":3}],"n":2}', '{"n":3,"a.b":"é"}'.encode()]
    rows = [("orders", id, bytearray(value)) for id, value in enumerate(values, 1)]
    good, bad = json_columns(
        spark.createDataFrame(rows, "queue string, id long, value binary"),
        "n int, `a.b` string",
        on_error="dead-letter",
    )
    assert [tuple(row) for row in good.orderBy("id").collect()] == [
        ("orders", 1, 1, None),
        ("orders", 2, 2, None),
        ("orders", 3, 3, "é"),
    ]
    assert bad.collect() == []


def test_the_reason_may_be_a_column_and_so_may_the_condition(spark: SparkSession) -> None:
    made = dead_letters(messages(spark), col("id") == 5, expr("concat('id ', id)"))
    assert [decode_letter(row.value.encode()).error for row in made.collect()] == ["id 5"]
    assert [
        decode_letter(row.value.encode()).error
        for row in dead_letters(messages(spark), "id = 5", lit(None)).collect()
    ] == [""]


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        (["queue", "id"], {}, "column 'value' is missing; a dead letter is made of queue"),
        (["cast(id as int) as id", "queue", "value"], {}, "column 'id' is integer"),
        (["queue", "id", "value"], {"group": ""}, "group is ''; expected text that is not empty"),
        (["queue", "id", "value"], {"into": ""}, "into is ''"),
    ],
)
def test_what_cannot_be_is_an_error_before_anything_runs(
    spark: SparkSession, columns: list[str], given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        # Names of arguments
        dead_letters(messages(spark).selectExpr(*columns), "true", "x", **given)  # type: ignore[arg-type]
    assert message in str(refused.value)


def test_options_of_json_columns_that_do_not_go_together_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="on_error is 'raise'; expected"):
        # What users give
        json_columns(messages(spark), "n int", on_error="raise")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="into is given; expected on_error"):
        # What users give
        json_columns(messages(spark), "n int", into="x")  # type: ignore[call-overload]


def test_a_dead_letter_queue_that_is_the_queue_itself_ends_the_query(spark: SparkSession) -> None:
    with pytest.raises(
        PySparkException,
        match=(
            r"\[BUSMQ_CONFIG\] the dead-letter queue of 'orders' is that queue itself; name another"
        ),
    ):
        dead_letters(messages(spark), "id = 2", "x", into="orders").collect()


@pytest.mark.parametrize("engine", ["python", pytest.param("java", marks=pytest.mark.jvm)])
def test_good_rows_and_dead_letters_are_written_once_and_put_back_once(
    spark: SparkSession,
    bus: Bus,
    queue: str,
    tmp_path: Path,
    engine: str,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "java":
        request.getfixturevalue("shim_jar")
    bus.push(queue, *VALUES)
    where = {"redis.url": bus.url, "engine": engine}

    def run() -> None:
        source = spark.readStream.format("busmq").options(**where, subscribe=queue).load()
        rows = checked(source, group="checks", into=f"{queue}.dead")
        rows = rows.withColumn("queue", expr(f"if(queue = 'checked', '{queue}.checked', queue)"))
        query = (
            rows.writeStream.format("busmq")
            .options(**where, checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert sorted(bus.stored(f"{queue}.checked")) == [b"1", b"5", b"none"]
    assert [decode_letter(value).id for value in bus.stored(f"{queue}.dead")] == BAD
    for n in range(2):  # the second finds nothing
        [answer] = busmq(bus.url, "dead", "replay", f"{queue}.dead", "--to", queue, "--yes")
        assert answer["replayed"] == ({queue: len(BAD)} if n == 0 else {})
    assert bus.stored(queue)[-len(BAD) :] == [VALUES[id - 1] for id in BAD]
    assert bus.stored(f"{queue}.dead") == []
    run()
    assert len(bus.stored(f"{queue}.checked")) == 3
    again = [decode_letter(value) for value in bus.stored(f"{queue}.dead")]
    assert [(each.id, each.value) for each in again] == [
        (len(VALUES) + n, VALUES[id - 1]) for n, id in enumerate(BAD, 1)
    ]
    listed = busmq(bus.url, "dead", "list", f"{queue}.dead")
    assert [
        (each["originalid"], each["queue"], each["group"], each["error"]) for each in listed
    ] == [(each.id, queue, "checks", "it is no JSON of struct<n:int>") for each in again]


def busmq(url: str, *words: str) -> list[dict[str, Any]]:
    """What a command line answers."""
    code, out, err = forked.run([*words, "--json"], b"", {**os.environ, "BUSMQ_REDIS_URL": url})
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]
