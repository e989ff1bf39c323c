"""Events as columns and back: the same JSON as routing/cloud_event.py reads and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import lit, struct

from busmq_spark import Event, events, to_events
from busmq_spark.errors import ConfigError, MessageRefused
from tests.spark.conftest import Bus

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "cloudevents-v1.json").read_text())
LEAST = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
NONE = [
    b"",
    b"\xff",
    b"{",
    b"7",
    b"[]",
    b"null",
    b'{"id":"1"} {}',
    json.dumps(LEAST).encode() + b" x",
    json.dumps(LEAST).encode("utf-16"),
    *(
        json.dumps({**LEAST, **changes}).encode()
        for changes in (
            {"specversion": "0.3"},
            {"specversion": 1.0},
            {"id": ""},
            {"id": None},
            {"type": 7},
            {"source": ["x"]},
            {"time": "yesterday"},
            {"time": "2026-02-30T12:00:00Z"},
            {"time": "2026-05-01 12:00:00Z"},
            {"time": 7},
            {"subject": ""},
            {"subject": 7},
            {"data": 1, "data_base64": "AA=="},
            {"data_base64": "%"},
            {"data_base64": "A"},
            {"data_base64": "AA == "},
            {"data_base64": 7},
            {"Capital": "x"},
            {"a-b": "x"},
            {"a": 1.5},
            {"a": 2**31},
            {"a": [1]},
            {"a": {"b": 1}},
        )
    ),
]
GOOD = [
    *(case["value"].encode() for case in GOLDEN),
    *(
        json.dumps({**LEAST, **changes}).encode()
        for changes in (
            {"subject": None, "x": None, "data": None},
            {"time": "2026-05-01t12:00:00.123456z"},
            {"a": True, "b": -(2**31), "c": 2**31 - 1, "extensions": "x"},
            {"data": [], "datacontenttype": "application/JSON; charset=utf-8"},
            {"data": "[1]", "datacontenttype": "text/json"},
            {"data": {"b": 1, "a": [None, "é \u2028", {"z": 0, "y": False}]}},
            {"data": 12345678901234567890123456789},
            {"data_base64": ""},
        )
    ),
    b'  {"type":"t" , "source":"/s","id":"1",\n"specversion":"1.0"}  ',
]


@pytest.fixture(autouse=True)
def in_utc(spark: SparkSession) -> Any:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield
    spark.conf.unset("spark.sql.session.timeZone")


def decoded(value: bytes) -> Event | None:
    try:
        return Event.decode(value)
    except MessageRefused:
        return None


def as_columns(event: Event) -> dict[str, Any]:
    """What Spark says of an event."""
    is_json = event.datacontenttype is None or "json" in event.datacontenttype.lower()
    data, raw = (None, event.data) if isinstance(event.data, bytes) else (event.data, None)
    return {
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "subject": event.subject,
        "datacontenttype": event.datacontenttype,
        "dataschema": event.dataschema,
        "data": data if data is None or is_json else ("text", data),
        "data_base64": raw,
        "extensions": {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in event.extensions.items()
        },
    }


def of_row(row: Row) -> dict[str, Any]:
    """The same of a row."""
    found = {name: row[name] for name in as_columns(Event(id="1", source="/s", type="t"))}
    is_json = row.datacontenttype is None or "json" in row.datacontenttype.lower()
    if row.data is not None:
        found["data"] = json.loads(row.data) if is_json else ("text", row.data)
    if row.data_base64 is not None:
        found["data_base64"] = bytes(row.data_base64)
    return found


def test_spark_and_python_agree_on_what_an_event_is_and_says(spark: SparkSession) -> None:
    """And written again it is the same event, to the byte where Python has written it."""
    rows = spark.createDataFrame(
        [("q", n, bytearray(value)) for n, value in enumerate(GOOD + NONE)],
        "queue string, id long, value binary",
    )
    found = events(rows).orderBy("message_id").collect()
    assert events(rows).columns == [*events(rows).columns[:10], "queue", "message_id"]
    assert [(row.queue, row.message_id) for row in found] == [
        ("q", n) for n in range(len(GOOD + NONE))
    ]
    for row, value in zip(found, GOOD + NONE, strict=True):
        event = decoded(value)
        assert (event is None) == (row.id is None), value
        assert (
            (of_row(row) == as_columns(event))
            if event
            else not any(row[name] for name in row.asDict() if name not in ("queue", "message_id"))
        )
        assert event is None or (row.time is None) == (event.time is None)
    again = to_events(events(rows).where("id is not null")).orderBy("id").collect()
    assert [(row.queue, row.id) for row in again] == [("q", n) for n in range(len(GOOD))]
    for row, value in zip(again, GOOD, strict=True):
        ours, theirs = Event.decode(row.value.encode()), Event.decode(value)
        assert of_event(ours) == of_event(theirs)
        if (
            theirs.time is None
            and value == theirs.encode()
            and all(isinstance(each, str) for each in theirs.extensions.values())
        ):
            assert row.value.encode() == value


def of_event(event: Event) -> dict[str, Any]:
    return as_columns(event)


def test_rows_become_events_with_the_id_of_their_message(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [("orders", 7, 0, "AA", 1.5)],
        "queue string, id long, index int, carrier string, delay double",
    )
    made = to_events(
        rows.select("queue", "id", "index", struct("carrier", "delay").alias("data")),
        type="late",
        source="/p",
    )
    [row] = made.collect()
    assert made.columns == ["queue", "index", "id", "value"]
    assert (row.queue, row.id, row["index"]) == ("orders", 7, 0)
    expected = {
        "specversion": "1.0",
        "id": "orders/7/0",
        "source": "/p",
        "type": "late",
        "datacontenttype": "application/json",
    }
    assert row.value == json.dumps(
        {**expected, "data": {"carrier": "AA", "delay": 1.5}}, separators=(",", ":")
    )


@pytest.mark.parametrize(
    ("data", "kind", "expected", "content"),
    [
        ("'say \"hi\"'", None, 'say "hi"', "text/plain"),
        ("'{\"a\": 1.50}'", "application/json", {"a": 1.5}, "application/json"),
        ("'[1,2]'", "application/xml", "[1,2]", "application/xml"),
        ("cast('ab' as binary)", None, b"ab", "application/octet-stream"),
        ("array(1, null)", None, [1, None], "application/json"),
        ("map('a', 1)", None, {"a": 1}, "application/json"),
        ("7L", None, 7, "application/json"),
        ("true", None, True, "application/json"),
        ("1.5D", None, 1.5, "application/json"),
        ("parse_json('{\"a\": [1]}')", None, {"a": [1]}, "application/json"),
        ("cast(null as string)", None, None, None),
    ],
)
def test_data_of_any_type_goes_as_what_it_is(
    spark: SparkSession, data: str, kind: str | None, expected: object, content: str | None
) -> None:
    rows = spark.sql(f"select 'e1' as id, {data} as data")
    event = Event.decode(
        to_events(rows, type="t", source="/s", datacontenttype=kind).collect()[0].value.encode()
    )
    assert (event.data, event.datacontenttype) == (expected, content)


def test_columns_for_the_sink_go_beside_the_event(spark: SparkSession) -> None:
    rows = spark.sql("select 'e1' as id, 'users' as topic, 'k' as key, 3 as partition, 'x' as data")
    assert (
        to_events(rows, type="t", source="/s").drop("value").collect()
        == rows.select("topic", "partition", "key").collect()
    )


def test_attributes_are_columns_and_times_have_their_zone(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    rows = spark.sql(
        "select 'e1' as id, 't' as type, '/s' as source, timestamp'2026-05-01 12:00:00.25' as time,"
        " 'about' as subject, 'https://s' as dataschema, map('trace', '1', 'none', null) as"
        " extensions"
    )
    event = Event.decode(to_events(rows).collect()[0].value.encode())
    assert (event.time, event.subject, event.dataschema, event.extensions) == (
        "2026-05-01T12:00:00.250000+02:00",
        "about",
        "https://s",
        {"trace": "1"},
    )
    [back] = events(to_events(rows)).collect()
    assert back.time == rows.collect()[0].time


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        (
            "'e' as id, 'x' as carrier",
            {},
            "column 'carrier' has no place in an event; it takes id, source, type",
        ),
        (
            "'x' as data",
            {"type": "t", "source": "/s"},
            "an event needs 'id'; give the rows a column, or queue and id of their message",
        ),
        ("7L as id, 'x' as data", {"type": "t", "source": "/s"}, "an event needs 'id'"),
        (
            "'e' as id",
            {"source": "/s"},
            "an event needs 'type'; say type=…, or give the rows a column",
        ),
        (
            "'e' as id, 't' as type",
            {"type": "t", "source": "/s"},
            "type is given, and the rows have a column 'type'",
        ),
    ],
)
def test_columns_that_make_no_event_are_an_error_before_anything_runs(
    spark: SparkSession, columns: str, given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        # Names of arguments
        to_events(spark.sql(f"select {columns}"), **given)  # type: ignore[arg-type]
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("'' as id", "event : its id, source or type is NULL or empty"),
        (
            "cast(null as string) as id",
            "event without an id: its id, source or type is NULL or empty",
        ),
        (
            "'e' as id, '{' as data, 'application/json' as datacontenttype",
            "the data of event e is no JSON, as its datacontenttype says",
        ),
        (
            "'e' as id, '1}, \"id\":{\"a\": 1' as data, cast(null as string) as datacontenttype",
            "the data of event e is no JSON",
        ),
        (
            "'e' as id, '1 2' as data, cast(null as string) as datacontenttype",
            "the data of event e is no JSON",
        ),
        (
            "'e' as id, map('a b', 'x') as extensions",
            "event e has an extension of a name that none can have",
        ),
        (
            "'e' as id, map('id', 'x') as extensions",
            "event e has an extension of a name that none can have",
        ),
        (
            "'e' as id, 'x' as data, cast('x' as binary) as data_base64",
            "event e has both data and data_base64",
        ),
    ],
)
def test_a_row_that_makes_no_event_ends_the_query_with_what_is_wrong(
    spark: SparkSession, columns: str, message: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        to_events(spark.sql(f"select {columns}"), type="t", source="/s").collect()
    assert f"[BUSMQ_MESSAGE_REFUSED] {message}" in str(refused.value)


def test_an_event_of_python_goes_through_spark_and_comes_back(
    spark: SparkSession, bus: Bus, queue: str
) -> None:
    bus.push(
        queue,
        *(
            Event(
                id=f"e{n}", source="/web", type="order", data={"n": n}, extensions={"x": "y"}
            ).encode()
            for n in range(3)
        ),
    )
    source = spark.read.format("busmq").options(**{"redis.url": bus.url, "subscribe": queue}).load()
    late = events(source).where("get_json_object(data, '$.n') > 0").withColumn("type", lit("late"))
    to_events(late).write.format("busmq").mode("append").options(
        **{"redis.url": bus.url, "queue": f"{queue}-out"}
    ).save()
    found = [Event.decode(value) for value in bus.stored(f"{queue}-out")]
    assert [(each.id, each.type, each.data, each.extensions) for each in found] == [
        (f"e{n}", "late", {"n": n}, {"x": "y"}) for n in (1, 2)
    ]
