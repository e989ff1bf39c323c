"""The option tables: every option, good and bad; no connection is made for any of it."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import KAFKA_OPTION_HINTS, parse, rows
from busmq_spark.options import (
    WEEK_S,
    BusOptions,
    ReadOptions,
    RedisOptions,
    StoreOptions,
    WriteOptions,
)
from busmq_spark.redis_io.urls import parse_servers
from busmq_spark.starting_offsets import AtTime, NewestMessages

SECRET = "hunter2"
READ = {"redis.url": "redis://h", "subscribe": "q"}

GOOD: list[tuple[type[Any], str, str, str, Any]] = [
    (ReadOptions, "redis.url", "redis://a,redis://b", "url", "redis://a,redis://b"),
    (ReadOptions, "redis.password", SECRET, "password", SECRET),
    (ReadOptions, "redis.username", "u v", "user", "u v"),
    (ReadOptions, "redis.layout", "DIRECT", "layout", "direct"),
    (ReadOptions, "redis.layout", "Sentinel", "layout", "sentinel"),
    (ReadOptions, "redis.layout", "cluster", "layout", "cluster"),
    (ReadOptions, "redis.sentinelMaster", "blue", "master", "blue"),
    (ReadOptions, "redis.tls.ca", "ca.pem", "tls_ca", "ca.pem"),
    (ReadOptions, "redis.tls.certificate", "own.pem", "tls_certificate", "own.pem"),
    (ReadOptions, "redis.tls.key", "own.key", "tls_key", "own.key"),
    (ReadOptions, "redis.tls.checkHostname", "FALSE", "tls_check_hostname", False),
    (ReadOptions, "jobFields", "inbound, meta", "job_fields", ("inbound", "meta")),
    (WriteOptions, "settle", "enrich", "settle", "enrich"),
    (ReadOptions, "subscribe", "b, a ,b", "subscribe", ("b", "a")),
    (ReadOptions, "startingOffsets", "LATEST", "starting", "latest"),
    (ReadOptions, "startingOffsets", '{"q": 41}', "starting", {"q": 41}),
    (ReadOptions, "startingOffsets", '{"q": "latest"}', "starting", {"q": "latest"}),
    (ReadOptions, "startingOffsets", " -10M ", "starting", AtTime(-600_000, "-10M")),
    (ReadOptions, "startingOffsets", "- 5 ms", "starting", AtTime(-5, "- 5 ms")),
    (ReadOptions, "startingOffsets", "-1000 messages", "starting", NewestMessages(1000)),
    (
        ReadOptions,
        "startingOffsets",
        "-999999999999d",
        "starting",
        AtTime(-253_402_300_800_000 + 86_400_000, "-999999999999d"),
    ),
    (
        ReadOptions,
        "startingOffsets",
        '{"q": "-2d"}',
        "starting",
        {"q": AtTime(-172_800_000, "-2d")},
    ),
    (
        ReadOptions,
        "startingTimestamp",
        " 1777636800000 ",
        "starting_timestamp",
        AtTime(1_777_636_800_000, "1777636800000"),
    ),
    (
        ReadOptions,
        "startingTimestamp",
        "2026-05-01T12:00:00Z",
        "starting_timestamp",
        AtTime(1_777_636_800_000, "2026-05-01T12:00:00Z"),
    ),
    (
        ReadOptions,
        "startingTimestamp",
        "2026-05-01 14:00:00.01+02:00",
        "starting_timestamp",
        AtTime(1_777_636_800_010, "2026-05-01 14:00:00.01+02:00"),
    ),
    (ReadOptions, "startingOffsetsByTimestampStrategy", "Latest", "timestamp_strategy", "latest"),
    (ReadOptions, "endingOffsets", '{"q": 7}', "ending", {"q": 7}),
    (ReadOptions, "endingOffsets", "-1h", "ending", AtTime(-3_600_000, "-1h")),
    (
        ReadOptions,
        "endingTimestamp",
        "2026-05-01T12:00Z",
        "ending_timestamp",
        AtTime(1_777_636_800_000, "2026-05-01T12:00Z"),
    ),
    (
        ReadOptions,
        "startingOffsets",
        "2026-05-01T12:00:00Z",
        "starting",
        AtTime(1_777_636_800_000, "2026-05-01T12:00:00Z"),
    ),
    (
        ReadOptions,
        "startingOffsets",
        '{"q": "2026-05-01 12:00+02:00"}',
        "starting",
        {"q": AtTime(1_777_629_600_000, "2026-05-01 12:00+02:00")},
    ),
    (
        ReadOptions,
        "endingOffsets",
        '{"q": "2026-05-01T12:00:00Z"}',
        "ending",
        {"q": AtTime(1_777_636_800_000, "2026-05-01T12:00:00Z")},
    ),
    (ReadOptions, "minMessagesPerTrigger", "7", "min_messages", 7),
    (ReadOptions, "minOffsetsPerTrigger", "7", "min_messages", 7),
    (ReadOptions, "maxTriggerDelay", "15m", "trigger_delay_s", 900),
    (ReadOptions, "maxRecordsPerPartition", "7", "max_per_partition", 7),
    (ReadOptions, "maxMessagesPerTrigger", " 1 ", "max_messages", 1),
    (ReadOptions, "maxOffsetsPerTrigger", "7", "max_messages", 7),
    (ReadOptions, "subscribe", ' ["a,b", "c d", "a,b"]', "subscribe", ("a,b", "c d")),
    (ReadOptions, "maxBytesPerTrigger", "1048576", "max_bytes", 1048576),
    (ReadOptions, "maxBytesPerTrigger", "10m", "max_bytes", 10 << 20),
    (ReadOptions, "maxBytesPerTrigger", " 64 KB ", "max_bytes", 64 << 10),
    (ReadOptions, "maxBytesPerTrigger", "1G", "max_bytes", 1 << 30),
    (ReadOptions, "minPartitions", "8", "min_partitions", 8),
    (ReadOptions, "maxMessagesPerPartition", "100", "max_per_partition", 100),
    (ReadOptions, "includeTimestamp", "TRUE", "include_timestamp", True),
    (ReadOptions, "failOnDataLoss", "False", "fail_on_data_loss", False),
    (ReadOptions, "ack", "NONE", "ack", "none"),
    (ReadOptions, "subscription", "s", "subscription", "s"),
    (ReadOptions, "discardBacklog", "True", "discard", True),
    (ReadOptions, "createQueue", "false", "create", False),
    (ReadOptions, "ttl", "12h", "ttl_s", 12 * 3600),
    (ReadOptions, "ttl", "30", "ttl_s", 30),
    (ReadOptions, "ttl", "2 D", "ttl_s", 2 * 24 * 3600),
    (ReadOptions, "idlePollMs", "1000", "idle_poll_ms", 1000),
    (WriteOptions, "queue", "q r", "queue", "q r"),
    (WriteOptions, "topic", "t", "topic", "t"),
    (WriteOptions, "partitions", "1000", "partitions", 1000),
    (WriteOptions, "delivery", "At-Least-Once", "delivery", "at-least-once"),
    (WriteOptions, "sinkId", "s", "sink", "s"),
    (WriteOptions, "batchId", "7", "batch", 7),
    (WriteOptions, "onChangedBatch", "Keep", "on_changed_batch", "keep"),
    (WriteOptions, "onFull", "fail", "on_full", "fail"),
    (WriteOptions, "fullTimeoutMs", "0", "full_timeout_ms", 0),
    (WriteOptions, "createQueue", "FALSE", "create", False),
    (WriteOptions, "ttl", "15m", "ttl_s", 900),
    (WriteOptions, "maxsize", "0", "maxsize", 0),
    (WriteOptions, "failOnDataLoss", "false", "fail_on_data_loss", False),
    (WriteOptions, "truncate", "true", "truncate", True),
]

BLANK, BREAK = "begins or ends with a blank", "ends with a line break"
BAD = [
    *(
        (ReadOptions, name, " x", BLANK)
        for name in (
            "subscribe",
            "topic",
            "jobFields",
            "subscription",
            "redis.username",
            "redis.sentinelMaster",
        )
    ),
    *((ReadOptions, f"redis.tls.{file}", "x\n", BREAK) for file in ("ca", "certificate", "key")),
    *((WriteOptions, name, "x ", BLANK) for name in ("queue", "topic", "sinkId", "settle")),
    *((WriteOptions, name, "x\r\n", BREAK) for name in ("queue", "topic", "sinkId", "settle")),
    *(
        (WriteOptions, name, "x\x00y", "control character")
        for name in ("queue", "topic", "sinkId", "settle")
    ),
    *(
        (ReadOptions, "subscribe", text, "looks like a list, tuple or bytes of Python")
        for text in ("('a', 'b')", "('a',)", '("a", "b")', "{'a'}", "b'a'")
    ),
    *(
        (WriteOptions, name, "('a', 'b')", "looks like a list, tuple or bytes of Python")
        for name in ("queue", "topic", "sinkId", "settle")
    ),
    (ReadOptions, "subscribe", "['a', 'b']", "JSON list"),
    (ReadOptions, "subscribe", '["\\ud800"]', "JSON list"),
    (ReadOptions, "subscribe", "a,b ", BLANK),
    (ReadOptions, "subscribe", "a,b\n", BREAK),
    (ReadOptions, "subscribe", "a,,b", "one of the names is empty"),
    (ReadOptions, "subscribe", "a,", "one of the names is empty"),
    (ReadOptions, "subscribe", "a\tb", "control character"),
    (ReadOptions, "subscribe", "", "one of the names is empty"),
    (ReadOptions, "subscribePattern", "", "a regular expression, and this one is empty"),
    (ReadOptions, "startingOffsets", '{"q": 1, "q": 2}', "earliest, latest, -10m"),
    (ReadOptions, "maxMessagesPerTrigger", "5\n", "whole number of at least 1"),
    (ReadOptions, "maxMessagesPerTrigger", "\u00a05", "whole number of at least 1"),
    (ReadOptions, "maxMessagesPerTrigger", "NaN", "whole number of at least 1"),
    (ReadOptions, "maxMessagesPerTrigger", "1_000", "whole number of at least 1"),
    (ReadOptions, "maxMessagesPerTrigger", "9" * 19, "whole number of at least 1"),
    (ReadOptions, "failOnDataLoss", "true\n", "true or false"),
    (ReadOptions, "failOnDataLoss", "", "true or false"),
    (ReadOptions, "ack", "none\n", "one of commit, none"),
    (ReadOptions, "ttl", "7d\n", "seconds, or a number with s, m, h or d"),
    (ReadOptions, "maxBytesPerTrigger", "-1", "bytes, or a number with k, m or g"),
    (ReadOptions, "redis.layout", "ring", "one of direct, sentinel, cluster"),
    (ReadOptions, "redis.username", " ", "a name"),
    (ReadOptions, "redis.sentinelMaster", "", "a name"),
    (ReadOptions, "redis.tls.ca", "", "a name"),
    (ReadOptions, "redis.tls.certificate", "", "a name"),
    (ReadOptions, "redis.tls.key", "", "a name"),
    (ReadOptions, "redis.tls.checkHostname", "no", "true or false"),
    (ReadOptions, "subscribe", " , ", "queue names with commas between them"),
    (ReadOptions, "subscribePattern", "(", "regular expression"),
    (ReadOptions, "startingOffsets", "yesterday", "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", "[" * 100_000, "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", '{"q": Infinity}', "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", '{"q": 1e308}', "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", '["q"]', "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", '{"q": -1}', "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", '{"q": 1.5}', "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", '{"q": true}', "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", '{"q": [1]}', "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", f'{{"q": {2**53}}}', "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", "-10x", "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", "-0m", "earliest, latest, -10m"),
    (ReadOptions, "startingOffsets", '{"q": "-10"}', "earliest, latest, -10m"),
    (ReadOptions, "startingTimestamp", "-10m", "a time such as"),
    (ReadOptions, "startingTimestamp", "2026-13-01T12:00:00Z", "a time such as"),
    (ReadOptions, "startingTimestamp", "2026-05-01T25:00:00Z", "a time such as"),
    (
        ReadOptions,
        "startingTimestamp",
        "2026-05-01T12:00:00",
        "without Z or an offset from UTC a time is none",
    ),
    (
        ReadOptions,
        "startingTimestamp",
        "2026-05-01",
        "without Z or an offset from UTC a time is none",
    ),
    (ReadOptions, "startingTimestamp", "1" * 16, "a time such as"),
    (ReadOptions, "startingOffsetsByTimestampStrategy", "none", "one of error, earliest, latest"),
    (ReadOptions, "endingOffsets", "earliest", "an id is the last one that is read"),
    (ReadOptions, "endingOffsets", "tomorrow", "an id is the last one that is read"),
    (ReadOptions, "endingTimestamp", "tomorrow", "a time such as"),
    (ReadOptions, "startingOffsets", "2026-05-01T12:00:00", "a time such as 2026-05-01T12:00:00Z"),
    (
        ReadOptions,
        "startingOffsets",
        '{"q": "2026-13-01T12:00:00Z"}',
        "a time such as 2026-05-01T12:00:00Z",
    ),
    (ReadOptions, "minMessagesPerTrigger", "0", "whole number of at least 1"),
    (ReadOptions, "maxTriggerDelay", "0", "seconds, or a number with s, m, h or d"),
    (ReadOptions, "maxTriggerDelay", "0m", "seconds, or a number with s, m, h or d"),
    (ReadOptions, "maxMessagesPerTrigger", "0", "whole number of at least 1"),
    (ReadOptions, "subscribe", "[]", "queue names with commas between them"),
    (ReadOptions, "subscribe", '["a", 1]', "JSON list"),
    (ReadOptions, "subscribe", '["a", ""]', "JSON list"),
    (ReadOptions, "subscribe", '["a"', "JSON list"),
    (ReadOptions, "maxBytesPerTrigger", "0k", "bytes, or a number with k, m or g"),
    (ReadOptions, "maxBytesPerTrigger", "10 pages", "bytes, or a number with k, m or g"),
    (ReadOptions, "subscription", ":born", "a name that does not begin with a colon"),
    (ReadOptions, "minPartitions", "-1", "whole number of at least 1"),
    (ReadOptions, "maxMessagesPerPartition", "1e3", "whole number of at least 1"),
    (ReadOptions, "maxMessagesPerPartition", "²", "whole number of at least 1"),
    (ReadOptions, "includeTimestamp", "yes", "true or false"),
    (ReadOptions, "failOnDataLoss", "no", "true or false"),
    (ReadOptions, "ack", "later", "one of commit, none"),
    (ReadOptions, "subscription", " ", "a name"),
    (ReadOptions, "createQueue", "1", "true or false"),
    (ReadOptions, "ttl", "0", "seconds, or a number with s, m, h or d"),
    (ReadOptions, "ttl", "forever", "seconds, or a number with s, m, h or d"),
    (ReadOptions, "idlePollMs", "0", "whole number of at least 1"),
    (WriteOptions, "settle", ":x", "a name that does not begin with a colon"),
    (WriteOptions, "queue", "", "a name"),
    (WriteOptions, "topic", " ", "a name"),
    (WriteOptions, "partitions", "1001", "a whole number from 1 to 1000"),
    (WriteOptions, "delivery", "exactly once", "one of exactly-once, at-least-once"),
    (WriteOptions, "sinkId", "", "a name"),
    (WriteOptions, "onFull", "drop", "one of block, fail"),
    (WriteOptions, "fullTimeoutMs", "-1", "whole number of at least 0"),
    (WriteOptions, "maxsize", "many", "whole number of at least 0"),
    (WriteOptions, "failOnDataLoss", "maybe", "true or false"),
    (WriteOptions, "truncate", "maybe", "true or false"),
]


ODD = (
    *("", " ", " a", "a ", "\ta", "a\n", "a\u00a0", "\x1ca", "a,,b", "a,b,", ",a", "a ,b", "a, b"),
    *(
        "('a', 'b')",
        "('a',)",
        "(1, 2)",
        "()",
        "['a', 'b']",
        "[]",
        "{'a': 1}",
        "{'a'}",
        "set()",
        "b'a'",
        "<object object at 0x7f1>",
    ),
    *("None", "true", " TRUE ", "7", " 7 ", "7.0", "-1", "a"),
)
"""Texts that a program gives by mistake, and some that are right for one option or another."""


def beside(cls: type[Any], name: str) -> dict[str, str]:
    """What the option needs beside it."""
    if cls is not ReadOptions:
        more = {"batchId": {"sinkId": "s"}, "partitions": {"topic": "t"}}
    else:
        names = "subscribePattern" if name == "subscribePattern" else "topic"
        more = {each: {names: "t"} for each in ("subscribePattern", *OF_TOPICS)}
    place = (
        {"federation.url": "wss://h"}
        if name.startswith("federation.")
        else {"redis.url": "redis://h"}
    )
    return {**place, **more.get(name, {"subscribe": "q"} if cls is ReadOptions else {})}


WORDS = ("none", "commit", "earliest", "latest", "error", "fail", "keep", "block", "wait", "direct")
"""Values of options that take one word of a few."""


def is_kept(text: str, value: Any) -> bool:
    """Whether a value says the whole text: nothing of it is cut off or left out."""
    if isinstance(value, bool):
        return text.strip().lower() == str(value).lower()
    if isinstance(value, (int, AtTime)) or value in WORDS:
        return text.strip().lower() == str(value)
    if isinstance(value, tuple):
        return tuple(re.split(r"[ \t]*,[ \t]*", text)) == value
    return bool(value == text)


def outcome(cls: type[Any], given: dict[str, str]) -> tuple[str, Any]:
    """The error, or the options."""
    try:
        return "", parse(cls, given)
    except ConfigError as error:
        return str(error), None


def option_names(cls: type[Any]) -> list[str]:
    return [
        row.metadata["name"]
        for row in fields(cls)
        if row.metadata["name"] not in ("federation.<name>.secret", "engine")
    ]


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("cls", [ReadOptions, WriteOptions])
def test_each_option_takes_a_text_as_it_is_or_refuses_it(cls: type[Any], text: str) -> None:
    field_of = {row.metadata["name"]: row.name for row in fields(cls)}
    for name in option_names(cls):
        said, found = outcome(cls, {**beside(cls, name), name: text})
        assert name in said if found is None else is_kept(text, getattr(found, field_of[name])), (
            name,
            text,
        )


OF_TOPICS = ("topic", "includeTopic", "partitions")
"""Of the source: not beside ``subscribe``, so in test_topics.py."""


def required(cls: type[Any]) -> dict[str, str]:
    return dict(READ) if cls is ReadOptions else {"sinkId": "any"}


@pytest.mark.parametrize(("cls", "name", "text", "field", "value"), GOOD)
def test_an_option_is_understood(
    cls: type[Any], name: str, text: str, field: str, value: Any
) -> None:
    assert getattr(parse(cls, {**required(cls), name: text}), field) == value


STRAY = [
    ("{}\n", "no line break at its end"),
    ("{}\r\n", "no line break at its end"),
    ("\r{}", "no line break at its beginning"),
    ("\ufeff{}", "no byte-order mark at its beginning"),
    (" {}", "no blank at its beginning"),
    ("{}\u00a0", "no blank at its end"),
    ("{}\u2028", "no blank at its end"),
    ("\t{}", "no control character at its beginning"),
    ("{}\x00", "no control character at its end"),
    ('"{}"', "no quotes around it"),
    ("'{}'", "no quotes around it"),
    ("\n", "no line break at its beginning"),
]
"""What files and shells leave at the ends of a password."""


@pytest.mark.parametrize(("form", "expected"), STRAY)
@pytest.mark.parametrize("name", ["redis.password", "federation.secret", "federation.eu.secret"])
def test_a_password_or_secret_is_taken_as_it_is_or_refused(
    name: str, form: str, expected: str
) -> None:
    given = {
        **READ,
        name: form.format(SECRET),
        **({"federation.url": "eu=ws://h/bus"} if name.startswith("fed") else {}),
    }
    with pytest.raises(
        ConfigError, match=f"option '{name}' is \\*\\*\\*; expected {expected}"
    ) as failed:
        parse(ReadOptions, given)
    assert SECRET not in str(failed.value)
    for good in (f"{SECRET}\tx", f'{SECRET}"', "'", f"a {SECRET}"):
        assert parse(ReadOptions, {**given, name: good}) is not None


@pytest.mark.parametrize(("form", "expected"), STRAY)
def test_a_program_or_the_environment_gives_no_other_password(form: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"redis.password is \\*\\*\\*; expected {expected}"):
        parse_servers(BusOptions(url="redis://h", password=form.format(SECRET)))


@pytest.mark.parametrize(("cls", "name", "text", "expected"), BAD)
def test_a_bad_value_says_the_option_the_value_and_what_was_expected(
    cls: type[Any], name: str, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as failed:
        parse(cls, {**required(cls), name: text})
    assert f"option {name!r} is {text!r}; expected" in str(failed.value)
    assert expected in str(failed.value)


@pytest.mark.parametrize("cls", [ReadOptions, WriteOptions])
def test_every_option_of_the_table_is_tested_above(cls: type[Any]) -> None:
    tested = {name for kind, name, *_ in GOOD if kind is cls} | {
        name for kind, name, *_ in GOOD if kind is ReadOptions and name.startswith("redis.")
    }
    links = {row.metadata["name"] for row in fields(StoreOptions)}  # in test_federation_options.py
    assert {row.metadata["name"] for row in fields(cls)} <= tested | links | {
        "subscribePattern",
        *OF_TOPICS,
    }


def test_a_pattern_is_a_python_regular_expression() -> None:
    assert (
        parse(ReadOptions, {"subscribePattern": r"orders-\d+"}).subscribe_pattern == r"orders-\d+"
    )


def test_names_are_looked_up_whatever_their_case() -> None:
    assert parse(ReadOptions, {"SUBSCRIBE": "q", "MaxmessagesPERtrigger": "3"}).max_messages == 3


@pytest.mark.parametrize(
    ("cls", "given", "nearest"),
    [
        (ReadOptions, "maxMessagePerTrigger", "maxMessagesPerTrigger"),
        (ReadOptions, "subscribepatern", "subscribePattern"),
        (ReadOptions, "startingOffset", "startingOffsets"),
        (ReadOptions, "failOnDataLos", "failOnDataLoss"),
        (ReadOptions, "redis.passwd", "redis.password"),
        (WriteOptions, "que", "queue"),
        (WriteOptions, "sink.id", "sinkId"),
        (WriteOptions, "trunc", "truncate"),
    ],
)
def test_a_misspelt_option_names_the_nearest_one(cls: type[Any], given: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{given}'; did you mean '{nearest}'"):
        parse(cls, {**required(cls), given: "1"})


def test_an_option_like_no_other_gets_the_list() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown option 'kafka'; known are: ack, createQueue, .*ttl"
    ):
        parse(ReadOptions, {**READ, "kafka": "h:9092"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka.bootstrap.servers", "the address of the bus is option 'redis.url'"),
        ("Kafka.Group.Id", "the name of a group is option 'subscription'"),
        (
            "kafka.ssl.keystore.password",
            "mean nothing here; docs/kafka.md says what is there instead",
        ),
        ("assign", "name the queues in option 'subscribe'"),
        ("endingOffsetsByTimestamp", "option 'endingOffsets' takes a time for each queue"),
        ("fetchOffset.numRetries", "it is not needed here"),
    ],
)
def test_an_option_of_kafkas_source_gets_the_name_of_ours(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{name}'; .*{hint}"):
        parse(ReadOptions, {**READ, name: SECRET})


def test_every_option_that_stands_for_one_of_kafkas_exists() -> None:
    known = {row.metadata["name"] for row in fields(ReadOptions)}
    assert {
        name
        for hint in KAFKA_OPTION_HINTS.values()
        for name in re.findall(r"option '([^']+)'", hint)
    } <= known


@pytest.mark.parametrize("name", ["queue", "delivery", "maxsize", "sinkId"])
def test_an_option_of_the_sink_is_unknown_to_the_source(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{name}'"):
        parse(ReadOptions, {**READ, name: "x"})


def test_a_path_says_where_queues_are_named() -> None:
    with pytest.raises(ConfigError, match=r"option 'subscribe' .source. or 'queue' .sink."):
        parse(WriteOptions, {"path": "/data"})


def test_what_spark_takes_from_the_same_options_is_left_to_it() -> None:
    parse(WriteOptions, {"checkpointLocation": "c", "queryName": "n"})
    parse(ReadOptions, {**READ, "checkpointlocation": "c"})


def test_an_option_and_its_alias_cannot_both_be_given() -> None:
    with pytest.raises(
        ConfigError, match="'maxMessagesPerTrigger' is given twice, also as 'maxOffsetsPerTrigger'"
    ):
        parse(ReadOptions, {**READ, "maxOffsetsPerTrigger": "1", "maxMessagesPerTrigger": "1"})


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (("queue", "Queue"), "queue"),
        (("QUEUE", "queUE"), "QUEUE"),
        (("federation.EU.secret", "Federation.eu.secret"), ""),
    ],
)
def test_an_option_is_given_once_whatever_the_case_of_its_letters(
    names: tuple[str, str], first: str
) -> None:
    given = {"redis.url": "redis://h"} if first else {"federation.url": "eu=wss://h", "queue": "q"}
    with pytest.raises(
        ConfigError, match=f"option '{first or names[1]}' is given twice, also as '"
    ):
        parse(WriteOptions, {**given, **dict.fromkeys(names, "q")})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {},
            (
                "exactly one of 'subscribe', 'subscribePattern' and 'topic' names the queues to"
                " read; none is given"
            ),
        ),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern are given"),
        (
            {"subscribe": "a", "ack": "none", "subscription": "s"},
            "'subscription' has no meaning with it",
        ),
        (
            {"subscribe": "a", "minMessagesPerTrigger": "5", "maxMessagesPerTrigger": "4"},
            "a batch would wait for messages that it may not have",
        ),
        (
            {"subscribe": "a", "startingOffsets": '{"b": 1}'},
            "startingOffsets names 'b', which is not in subscribe",
        ),
    ],
)
def test_a_conflict_of_options_is_an_error(given: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(ReadOptions, given)


def test_a_pattern_may_meet_any_queue_of_starting_offsets() -> None:
    assert parse(
        ReadOptions, {"subscribePattern": "a.*", "startingOffsets": '{"b": 1}'}
    ).starting == {"b": 1}


def test_the_address_comes_from_the_option_then_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUSMQ_REDIS_URL", "redis://environment")
    assert RedisOptions(url="redis://option").address == "redis://option"
    assert RedisOptions().address == "redis://environment"


@pytest.mark.parametrize("text", [None, ""])
def test_without_any_address_the_error_says_both_ways_to_give_one(
    monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.delenv("BUSMQ_REDIS_URL", raising=False)
    if text is not None:
        monkeypatch.setenv("BUSMQ_REDIS_URL", text)
    with pytest.raises(
        ConfigError,
        match=(
            r"option 'redis.url' \(redis://host:port\) or the environment variable BUSMQ_REDIS_URL"
        ),
    ):
        _ = RedisOptions().address


def test_no_secret_shows_in_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"redis.url": f"redis://user:{SECRET}@h", "redis.password": SECRET}
    for bad in (
        {"ack": "x"},
        {"subscribePattern": "p"},
        {"nonsense": "1"},
        {"ttl": "0"},
        {"redis.pasword": SECRET},
        {"redis.ur": f"redis://{SECRET}@h"},
    ):
        with pytest.raises(ConfigError) as failed:
            parse(ReadOptions, {**READ, **secrets, **bad})
        assert SECRET not in str(failed.value) + repr(failed.value) + str(failed.value.details)


def test_the_options_object_does_not_show_its_secrets() -> None:
    found = parse(
        ReadOptions,
        {**READ, "redis.url": f"redis://u:{SECRET}@h,redis://i", "redis.password": SECRET},
    )
    assert SECRET not in repr(found)
    assert SECRET not in str(found)


def test_the_table_for_people_has_every_option_with_its_default_and_a_sentence() -> None:
    table = {name: (default, doc) for name, default, doc in rows(ReadOptions)}
    assert table["startingOffsets"][0] == "earliest"
    assert table["failOnDataLoss"][0] == "true"
    assert table["redis.url"][0] == table["subscribe"][0] == table["maxMessagesPerTrigger"][0] == ""
    assert table["idlePollMs"][0] == "50"
    assert table["ttl"][0] in (str(WEEK_S), "7d")
    assert all(doc and not doc.endswith(".") for _, doc in table.values())
    redis = [
        "redis.url",
        "redis.username",
        "redis.password",
        "redis.layout",
        "redis.sentinelMaster",
    ]
    tls = ["redis.tls.ca", "redis.tls.certificate", "redis.tls.key", "redis.tls.checkHostname"]
    assert [name for name, _, _ in rows(WriteOptions)][:11] == [
        *redis,
        *tls,
        "requireNoEviction",
        "federation.url",
    ]
