"""Java and Python say the same: options, error texts, scripts. Each case is put to both, so neither
can drift from the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from busmq_spark.errors import ConfigError, UnreadBacklog
from busmq_spark.option_parsing import parse
from busmq_spark.options import ReadOptions, RedisOptions, WriteOptions
from busmq_spark.queue import scripts
from busmq_spark.reading.reader_record import RECORD_BYTES, ReaderRecord, describe_reader
from busmq_spark.redis_io import urls as urls_module
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.redis_io.lease_token import describe_holder
from busmq_spark.starting_offsets import AtTime
from tests.core.test_reader_record import GOLDEN as RECORDS
from tests.jvm.contract import FILE, contract
from tests.jvm.probe import Probe, Refused
from tests.redis_io import url_table
from tests.spark.conftest import ROOT
from tests.spark.test_options import (
    BAD,
    GOOD,
    ODD,
    READ,
    STRAY,
    beside,
    option_names,
    outcome,
    required,
)

pytestmark = pytest.mark.jvm

NAMES = {
    "tls_ca": "tlsCa",
    "tls_certificate": "tlsCertificate",
    "tls_key": "tlsKey",
    "tls_check_hostname": "tlsCheckHostname",
    "max_messages": "maxMessages",
    "max_bytes": "maxBytes",
    "min_messages": "minMessages",
    "trigger_delay_s": "triggerDelayS",
    "discard": "discard",
    "min_partitions": "minPartitions",
    "max_per_partition": "maxPerPartition",
    "include_timestamp": "includeTimestamp",
    "job_fields": "jobFields",
    "fail_on_data_loss": "failOnDataLoss",
    "ttl_s": "ttlS",
    "starting_timestamp": "startingTimestamp",
    "timestamp_strategy": "timestampStrategy",
    "ending_timestamp": "endingTimestamp",
    "idle_poll_ms": "idlePollMs",
    "batch": "batch",
    "on_changed_batch": "onChangedBatch",
    "on_full": "onFull",
    "full_timeout_ms": "fullTimeoutMs",
}
SPECIAL = [
    {"subscribe": "q", "maxMessagePerTrigger": "5"},
    {"subscribe": "q", "redis.passwd": "x"},
    {"subscribe": "q", "kafka": "x"},
    {"subscribe": "q", "path": "/data"},
    {"subscribe": "q", "maxOffsetsPerTrigger": "1", "maxMessagesPerTrigger": "1"},
    {},
    {"subscribe": "a", "subscribePattern": "b"},
    {"subscribe": "a", "ack": "none", "subscription": "s"},
    {"subscribe": "a", "ack": "none", "discardBacklog": "true"},
    {"subscribe": "a", "startingOffsets": '{"b": 1}'},
    {"subscribe": "a", "endingOffsets": '{"b": 1}'},
    {"subscribe": "a", "startingOffsets": "-1h", "startingTimestamp": "1"},
    {"subscribe": "a", "endingOffsets": "-1h", "endingTimestamp": "1"},
    {"subscribe": "a", "startingOffsets": '{"local": {"it\'s": 1}}'},
    {"subscribe": "a", "startingOffsets": '{"eu": {"a": 1}}'},
    {"subscribe": "a", "minMessagesPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
    *(
        {"subscribe": "a", name: "x"}
        for name in (
            "assign",
            "kafka.bootstrap.servers",
            "kafka.security.protocol",
            "groupIdPrefix",
            "startingOffsetsByTimestamp",
        )
    ),
    {"subscribe": "a", "ttl": "1234567890123"},
    {"topic": "t", "subscribe": "q"},
    {"topic": "t", "subscribe": "q", "subscribePattern": "p"},
    {"topic": "[]"},
    {"topic": "t", "partitions": "1001"},
    {"topic": "t", "partitions": "2", "createQueue": "false"},
    {"topic": "t", "includeTopic": "yes"},
    {"subscribe": "q", "includeTopic": "true"},
    {"subscribe": "q", "partitions": "2"},
    {"topic": "t", "startingOffsets": '{"u": "latest"}'},
    {"topic": "t", "startingOffsets": '{"u/0": "latest", "t": "earliest", "t/1": 4}'},
    {"topic": "t", "endingOffsets": '{"t/01": "latest"}'},
    {"topic": "t", "startingOffsets": '{"t": 4}'},
    {"subscribe": "a", "minPartitions": "1" * 19},
    {"subscribe": "a", "minPartitions": "\u0663"},
]


def way(cls: type[Any]) -> str:
    return "read" if cls is ReadOptions else "write"


def both(probe: Probe, cls: type[Any], given: dict[str, str]) -> tuple[str, str]:
    """The error of each for the same options."""
    given = {"redis.url": "redis://h", **given}
    with pytest.raises(ConfigError) as ours:
        parse(cls, given)
    with pytest.raises(Refused) as theirs:
        probe(way(cls), "", options=given)
    return str(ours.value), str(theirs.value)


@pytest.mark.parametrize(("cls", "name", "text", "field", "value"), GOOD)
def test_an_option_means_the_same(
    probe: Probe, cls: type[Any], name: str, text: str, field: str, value: Any
) -> None:
    found = probe(way(cls), "", options={"redis.url": "redis://h", **required(cls), name: text})[
        NAMES.get(field, field)
    ]
    if field in ("starting", "ending"):
        value = value["q"] if isinstance(value, dict) else value
    if field.startswith(("starting", "ending")):
        value = str(value)
    assert found == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize(
    ("cls", "name", "text", "expected"),
    [row for row in BAD if row[1] != "subscribePattern" or not row[2]],
)
def test_a_bad_value_has_the_same_error_text(
    probe: Probe, cls: type[Any], name: str, text: str, expected: str
) -> None:
    ours, theirs = both(probe, cls, {**required(cls), name: text})
    assert ours == theirs
    assert expected in theirs


@pytest.mark.parametrize(("form", "expected"), STRAY)
def test_a_password_is_refused_with_the_same_error_text(
    probe: Probe, form: str, expected: str
) -> None:
    ours, theirs = both(
        probe, ReadOptions, {**required(ReadOptions), "redis.password": form.format("s3cret")}
    )
    assert ours == theirs
    assert expected in theirs


@pytest.mark.parametrize("given", SPECIAL)
def test_a_conflict_of_options_or_a_misspelt_one_has_the_same_error_text(
    probe: Probe, given: dict[str, str]
) -> None:
    ours, theirs = both(probe, ReadOptions, given)
    if "known are" in ours:  # federation is among them there
        ours, theirs = (said.partition("known are")[0] for said in (ours, theirs))
    assert ours == theirs


@pytest.mark.parametrize(
    "given",
    [
        {"queue": "q", "topic": "t"},
        {"queue": "q", "partitions": "2"},
        {"topic": "t", "partitions": "2", "createQueue": "false"},
    ],
)
def test_a_conflict_of_options_of_the_sink_has_the_same_error_text(
    probe: Probe, given: dict[str, str]
) -> None:
    ours, theirs = both(probe, WriteOptions, given)
    assert ours == theirs


def test_federation_is_refused_with_the_name_of_the_other_format(probe: Probe) -> None:
    with pytest.raises(Refused, match=r"BUSMQ_CONFIG.*'federation\.url'.*use format\(\"busmq\"\)"):
        probe("read", "", options={**READ, "federation.url": "wss://h/bus"})


@pytest.mark.parametrize(
    "given",
    [
        {"redis.url": ","},
        {"redis.url": "http://h"},
        {"redis.url": "redis://"},
        {"redis.url": "redis://a:b@c/@"},
        {"redis.url": "redis://h:port"},
        {"redis.url": "redis://h:70000"},
        {"redis.url": "redis://a,redis://:pass/word@b"},
        {"redis.url": "redis://[::1"},
        {"redis.url": "redis://h", "redis.tls.ca": "/no/such.pem"},
        {"redis.url": "redis://h", "redis.tls.checkHostname": "false"},
        {"redis.url": "rediss://h", "redis.tls.ca": "/no/such.pem"},
        {"redis.url": "rediss://h", "redis.tls.key": __file__},
        {"redis.url": "redis://h", "redis.sentinelMaster": "blue"},
        {"redis.url": "redis://a,rediss://b", "redis.layout": "cluster"},
    ],
)
def test_a_bad_address_has_the_same_error_text_before_anything_is_connected(
    probe: Probe, given: dict[str, str]
) -> None:
    with pytest.raises(ConfigError) as ours:
        redis_layout(parse(RedisOptions, given))
    with pytest.raises(Refused) as theirs:
        probe("open", "", options=given)
    assert str(theirs.value) == str(ours.value).replace(
        ", rediss://… or unix:///path", " or rediss://…"
    )


@pytest.mark.parametrize(("urls", "servers"), url_table.GOOD)
def test_an_address_means_the_same_servers(
    probe: Probe, urls: str, servers: list[tuple[Any, ...]]
) -> None:
    assert probe("servers", "", urls=urls) == [list(server) for server in servers]


@pytest.mark.parametrize("urls", [urls for urls, _ in url_table.BAD])
def test_an_address_is_refused_in_the_same_words(probe: Probe, urls: str) -> None:
    with pytest.raises(ConfigError) as ours:
        urls_module.parse(urls)
    with pytest.raises(Refused, match="BUSMQ_CONFIG") as theirs:
        probe("servers", "", urls=urls)
    assert str(theirs.value) == str(ours.value).replace(
        ", rediss://… or unix:///path", " or rediss://…"
    )


def test_a_unix_socket_is_refused_with_the_name_of_the_other_format(probe: Probe) -> None:
    with pytest.raises(Refused, match=r"BUSMQ_CONFIG.*unix socket"):
        probe("open", "", options={"redis.url": "unix:///tmp/s"})


def test_the_contract_in_the_jar_is_what_python_says() -> None:
    """In a process of its own: tests shorten some of the times."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.jvm.contract", "-"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    ).stdout
    assert FILE.read_text() == made, "run: python -m tests.jvm.contract"


def test_options_that_source_and_sink_share_are_the_same_in_both() -> None:
    read, write = contract()["options"].values()
    different = {name for name in read.keys() & write.keys() if read[name] != write[name]}
    assert different == {"topic"}, "a source takes several topics, a sink one"


@pytest.mark.parametrize("queue", ["orders", "it's", "a\"b'", "a\nb\\\u200b\U0001f600\x07é"])
def test_details_are_put_into_a_template_in_the_same_way(probe: Probe, queue: str) -> None:
    """The templates are those of the contract."""
    details = {"queue": queue, "count": "3", "last": "7", "start": "latest"}
    assert probe("error", "", kind="UNREAD_BACKLOG", details=details) == str(
        UnreadBacklog(**details)
    )


@pytest.mark.parametrize("case", RECORDS, ids=[case["what"] for case in RECORDS])
def test_a_reader_has_the_same_record_and_the_same_description(
    probe: Probe, case: dict[str, dict[str, Any]]
) -> None:
    found = probe("record", "", facts=case["facts"])
    assert json.loads(found) == case["json"]
    assert len(found.encode()) <= RECORD_BYTES
    record, token = ReaderRecord(**case["facts"], app="app-1"), "ab|elsewhere|7.1"
    stored = f"1:2:3:;4:5:6 {record.encode()}"
    mine = ReaderRecord.decode(record.encode())
    known = mine if mine is not None and mine.id == "ab" else None
    expected = describe_reader(token, known, describe_holder)
    assert probe("reader", token, stored=stored) == expected


@pytest.mark.parametrize("name", sorted(scripts.script_names()))
def test_a_script_has_the_same_digest_so_that_redis_keeps_it_once(probe: Probe, name: str) -> None:
    assert probe("digest", "", script=name) == scripts.load(name).digest


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("cls", [ReadOptions, WriteOptions])
def test_each_option_takes_the_same_texts_as_they_are_and_refuses_the_same(
    probe: Probe, cls: type[Any], text: str
) -> None:
    field_of = {row.metadata["name"]: row.name for row in fields(cls)}
    for name in option_names(cls):
        is_pattern_of_one_language = name == "subscribePattern" and text.startswith(("[", "{"))
        if name.startswith("federation.") or name == "onUnavailable" or is_pattern_of_one_language:
            continue
        given = {**beside(cls, name), name: text}
        said, ours = outcome(cls, given)
        if ours is None:
            with pytest.raises(Refused) as theirs:
                probe(way(cls), "", options=given)
            assert str(theirs.value) == said, (name, text)
            continue
        expected = getattr(ours, field_of[name])
        found = probe(way(cls), "", options=given)[
            NAMES.get(field_of[name], camel_case(field_of[name]))
        ]
        assert found == (
            list(expected)
            if isinstance(expected, tuple)
            else str(expected)
            if isinstance(expected, AtTime)
            else expected
        ), (name, text)


def camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@pytest.mark.parametrize("names", [("queue", "Queue"), ("QUEUE", "queUE")])
def test_an_option_that_is_given_twice_has_the_same_error_text(
    probe: Probe, names: tuple[str, str]
) -> None:
    ours, theirs = both(probe, WriteOptions, dict.fromkeys(names, "q"))
    assert ours == theirs
