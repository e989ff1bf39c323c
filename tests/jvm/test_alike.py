"""Java and Python say the same: options, error texts, scripts. Each case is put to both, so neither can drift from the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from busmq_spark import errors
from busmq_spark.core import scripts
from busmq_spark.errors import BusError, ConfigError
from busmq_spark.options import ReadOptions, RedisOptions, WriteOptions, parse
from busmq_spark.topology.address import address
from tests.jvm.probe import Probe, Refused
from tests.spark.test_options import BAD, GOOD, READ, required

pytestmark = pytest.mark.jvm

NAMES = {
    "tls_ca": "tlsCa",
    "tls_certificate": "tlsCertificate",
    "tls_key": "tlsKey",
    "tls_check_hostname": "tlsCheckHostname",
    "max_messages": "maxMessages",
    "max_bytes": "maxBytes",
    "discard": "discard",
    "min_partitions": "minPartitions",
    "max_per_partition": "maxPerPartition",
    "fail_on_data_loss": "failOnDataLoss",
    "ttl_s": "ttlS",
    "idle_poll_ms": "idlePollMs",
    "batch": "batch",
    "on_changed_batch": "onChangedBatch",
    "on_full": "onFull",
    "full_timeout_ms": "fullTimeoutMs",
}
STARTS = {"earliest": -1, "latest": -2}
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
    {"subscribe": "a", "startingOffsets": '{"local": {"it\'s": 1}}'},
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
def test_an_option_means_the_same(probe: Probe, cls: type[Any], name: str, text: str, field: str, value: Any) -> None:
    found = probe(way(cls), "", options={"redis.url": "redis://h", **required(cls), name: text})[NAMES.get(field, field)]
    if field == "starting":
        value = value["q"] if isinstance(value, dict) else value
        value = STARTS.get(value, value)
    assert found == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("cls", [ReadOptions, WriteOptions])
def test_what_is_not_given_is_the_same(probe: Probe, cls: type[Any]) -> None:
    given = {"redis.url": "redis://h", **required(cls)}
    ours, theirs = parse(cls, given), probe(way(cls), "", options=given)
    for field in (row for row in NAMES if hasattr(ours, row)):
        assert theirs[NAMES[field]] == getattr(ours, field)


@pytest.mark.parametrize(("cls", "name", "text", "expected"), [row for row in BAD if row[1] != "subscribePattern"])
def test_a_bad_value_is_told_in_the_same_words(probe: Probe, cls: type[Any], name: str, text: str, expected: str) -> None:
    ours, theirs = both(probe, cls, {**required(cls), name: text})
    assert ours == theirs
    assert expected in theirs


@pytest.mark.parametrize("given", SPECIAL)
def test_a_conflict_of_options_or_a_misspelt_one_is_told_in_the_same_words(probe: Probe, given: dict[str, str]) -> None:
    ours, theirs = both(probe, ReadOptions, given)
    if "known are" in ours:  # federation is among them there
        ours, theirs = (said.partition("known are")[0] for said in (ours, theirs))
    assert ours == theirs


def test_federation_is_told_to_be_at_home_in_the_other_format(probe: Probe) -> None:
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
def test_a_bad_address_is_told_in_the_same_words_before_anything_is_connected(probe: Probe, given: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as ours:
        address(parse(RedisOptions, given))
    with pytest.raises(Refused) as theirs:
        probe("open", "", options=given)
    assert str(theirs.value) == str(ours.value).replace(", rediss://… or unix:///path", " or rediss://…")


def test_a_unix_socket_is_told_to_be_at_home_in_the_other_format(probe: Probe) -> None:
    with pytest.raises(Refused, match=r"BUSMQ_CONFIG.*unix socket"):
        probe("open", "", options={"redis.url": "unix:///tmp/s"})


KINDS: dict[str, type[BusError]] = {
    "CONFIG": errors.ConfigError,
    "LINK_LOST": errors.LinkLost,
    "UNAUTHORIZED": errors.Unauthorized,
    "TLS_FAILED": errors.TlsFailed,
    "SERVER_REFUSED": errors.ServerRefused,
    "SERVER_FULL": errors.ServerFull,
    "SERVER_READ_ONLY": errors.ServerReadOnly,
    "QUEUE_MISSING": errors.QueueMissing,
    "QUEUE_BUSY": errors.QueueBusy,
    "QUEUE_DAMAGED": errors.QueueDamaged,
    "UNREAD_BACKLOG": errors.UnreadBacklog,
    "QUEUE_FULL": errors.QueueFull,
    "STATE": errors.StateError,
    "MESSAGE_REFUSED": errors.MessageRefused,
    "DATA_LOSS": errors.DataLoss,
    "QUEUE_EXPIRED": errors.QueueExpired,
    "QUEUE_FLUSHED": errors.QueueFlushed,
    "CHECKPOINT_OLDER": errors.CheckpointOlder,
    "CONSUMED_ELSEWHERE": errors.ConsumedElsewhere,
    "QUEUE_RECREATED": errors.QueueRecreated,
    "REDIS_ROLLED_BACK": errors.RedisRolledBack,
    "IDS_REISSUED": errors.IdsReissued,
    "STAGING_LOST": errors.StagingLost,
    "STALE_BATCH": errors.StaleBatch,
    "BATCH_CHANGED": errors.BatchChanged,
    "TOOL_MISSING": errors.LocalToolMissing,
}
FOUND = [
    "url",
    "reason",
    "queue",
    "found",
    "remedy",
    "maxsize",
    "waited",
    "left",
    "count",
    "last",
    "start",
    "event",
    "what",
    "state",
    "expected",
    "sink",
    "batch",
    "key",
    "by",
    "tool",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queue", ["orders", "it's", "a\"b'", "a\nb\\\u200b\U0001f600\x07é"])
def test_an_error_has_the_same_words(probe: Probe, kind: str, queue: str) -> None:
    details = {**{name: f"<{name}>" for name in FOUND}, "queue": queue}
    assert probe("error", "", kind=kind, details=details) == str(KINDS[kind](**details))


@pytest.mark.parametrize("name", sorted(file.stem for file in (Path(scripts.__file__).parent / "lua").glob("*.lua")))
def test_a_script_has_the_same_digest_so_that_redis_keeps_it_once(probe: Probe, name: str) -> None:
    assert probe("digest", "", script=name) == scripts.load(name).digest


def test_an_empty_pattern_is_none(probe: Probe) -> None:
    assert probe("read", "", options={"redis.url": "redis://h", "subscribe": "q", "subscribePattern": ""})["subscribePattern"] is None
