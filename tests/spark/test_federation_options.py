"""The options that name other data centres; no connection is made for any of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType

from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import parse
from busmq_spark.options import ReadOptions, RedisOptions, StoreOptions, WriteOptions
from busmq_spark.spark.data_source import BusmqDataSource
from busmq_spark.spark.schema import LINKED_SCHEMA

SECRET = "hunter2"
ONE = {"federation.url": "wss://h/bus"}
TWO = {"federation.url": "eu=wss://h:7/bus,us-2=ws://i/bus"}

GOOD: list[tuple[str, str, str, Any]] = [
    ("federation.url", "wss://h/bus", "links", (("federation", "wss://h/bus"),)),
    (
        "federation.url",
        "eu=wss://h:7/bus, us-2=wss://i",
        "links",
        (("eu", "wss://h:7/bus"), ("us-2", "wss://i")),
    ),
    ("federation.secret", SECRET, "secret", SECRET),
    ("federation.Federation.Secret", SECRET, "link_secrets", (("federation", SECRET),)),
    ("federation.secretInUrl", "True", "secret_in_url", True),
    ("federation.tls.ca", "ca.pem", "link_ca", "ca.pem"),
    ("federation.tls.certificate", "own.pem", "link_certificate", "own.pem"),
    ("federation.tls.checkHostname", "false", "link_check_hostname", False),
    ("onUnavailable", "FAIL", "on_unavailable", "fail"),
]


@pytest.mark.parametrize("cls", [ReadOptions, WriteOptions])
@pytest.mark.parametrize(("name", "text", "field", "value"), GOOD)
def test_an_option_is_understood_by_source_and_sink(
    cls: type[Any], name: str, text: str, field: str, value: Any
) -> None:
    if cls is WriteOptions and text.count("=") > 1:
        text, value = text.partition(",")[0], value[:1]
    required = {"subscribe": "q"} if cls is ReadOptions else {}
    assert getattr(parse(cls, {**required, **ONE, name: text}), field) == value


def test_every_option_for_links_is_tested_above() -> None:
    own = {row.metadata["name"] for row in fields(StoreOptions)} - {
        row.metadata["name"] for row in fields(RedisOptions)
    }
    own -= {"engine"}  # tests/spark/test_one_format.py
    assert own == {name for name, *_ in GOOD if not name.endswith(".Secret")} | {
        "federation.<name>.secret",
        "federation.tls.key",
    }


def test_a_private_key_goes_with_its_certificate() -> None:
    given = {
        **ONE,
        "subscribe": "q",
        "federation.tls.certificate": "c.pem",
        "federation.tls.key": "k.pem",
    }
    assert parse(ReadOptions, given).link_key == "k.pem"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://h/bus", "wss://host:port/path"),
        ("wss://", "wss://host:port/path"),
        ("wss://h:99999/bus", "wss://host:port/path"),
        ("wss://[h/bus", "wss://host:port/path"),
        (f"wss://user:{SECRET}@h/bus", "without user, query or fragment"),
        (f"eu=wss://{SECRET}@h/bus", "without user, query or fragment"),
        (f"wss://h/bus?secret={SECRET}", "without user, query or fragment"),
        (f"wss://h/bus#{SECRET}", "without user, query or fragment"),
        (f"wss://{SECRET}@h", "without user, query or fragment"),
        ("wss://h/bus?", "without user, query or fragment"),
        ("wss://h/bus#", "without user, query or fragment"),
        ("wss://@h/bus", "without user, query or fragment"),
        (" wss://h/bus", "begins or ends with a blank"),
        ("wss://h/bus ", "begins or ends with a blank"),
        ("wss://h/bus\n", "ends with a line break"),
        ("eu=wss://h/bus,us=wss://i\r\n", "of the address of 'us': it ends with a line break"),
        ("wss://h/my bus", "has a blank in it"),
        ("wss://h:/bus", "its port"),
        ("wss://h:0/bus", "its port"),
        ("wss://h:-1/bus", "its port"),
        ("wss://::1/bus", "an IPv6 address is written"),
        ("wss://[h]/bus", "no IPv6 address"),
        ("wss://h%20i/bus", "its host is none"),
        ("wss:h/bus", "wss://host:port/path"),
        ("h:80/bus", "wss://host:port/path"),
        ("wss://h,", "an item of the list is empty"),
        ("eu=wss://h,,us=wss://i", "an item of the list is empty"),
        ("eu=", "an item of the list is empty"),
        (" eu=wss://h", "names of small letters"),
        ("eu =wss://h", "names of small letters"),
        ("eu= wss://h", "begins or ends with a blank"),
        ("eu=us=wss://h", "wss://host:port/path"),
        ("eu=wss://h/bus,us=wss://h/bus", "and each address once"),
        (" , ", "one address, or several with a name of its own each"),
        ("eu=wss://h,eu=wss://i", "one address, or several with a name of its own each"),
        ("wss://h,wss://i", "one address, or several with a name of its own each"),
        ("eu=wss://h,wss://i", "one address, or several with a name of its own each"),
        ("EU=wss://h", "names of small letters"),
        ("=wss://h", "names of small letters"),
        ("local=wss://h", "not 'local', which is Redis itself"),
    ],
)
def test_a_bad_address_says_what_was_expected_and_shows_none_of_it(
    text: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as failed:
        parse(ReadOptions, {"subscribe": "q", "federation.url": text})
    assert "option 'federation.url' is ***; expected" in str(failed.value)
    assert expected in str(failed.value)
    assert SECRET not in str(failed.value) + str(failed.value.details)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"federation.secret": SECRET}, "'federation.secret' is given without federation.url"),
        ({"federation.tls.ca": "c"}, "'federation.tls.ca' is given without federation.url"),
        (
            {**TWO, "federation.asia.secret": SECRET},
            (
                "'federation.asia.secret' is for a link that federation.url does not name; it"
                " names: eu, us-2"
            ),
        ),
        (
            {"federation.url": "ws://h", "federation.tls.ca": "c"},
            "federation.tls.ca is set, but no address in federation.url speaks TLS",
        ),
        (
            {"federation.url": "ws://h", "federation.tls.checkHostname": "false"},
            "federation.tls.checkHostname is set, but no address",
        ),
        (
            {"federation.secretInUrl": "true"},
            "'federation.secretInUrl' is given without federation.url",
        ),
        (
            {**TWO, "federation.secretInUrl": "eu,asia"},
            (
                "'federation.secretInUrl' has a link that federation.url does not name; it names:"
                " eu, us-2"
            ),
        ),
        ({**TWO, "federation.secretInUrl": ","}, "expected true, false, or names, comma separated"),
        (
            {**ONE, "federation.tls.key": "k"},
            "federation.tls.key is set without federation.tls.certificate",
        ),
        (
            {**ONE, "onUnavailable": "pause"},
            "'onUnavailable' is 'pause'; expected one of wait, fail",
        ),
        (
            {**ONE, "federation.sekret": SECRET},
            "unknown option 'federation.sekret'; did you mean 'federation.secret'",
        ),
        ({**ONE, "federation.<name>.secret": SECRET}, "unknown option 'federation.<name>.secret'"),
        (
            {**TWO, "startingOffsets": '{"asia": {"q": 1}}'},
            "startingOffsets names 'asia', which is none of the sources eu, us-2",
        ),
        (
            {**TWO, "startingOffsets": '{"eu": {"r": 1}}'},
            "startingOffsets names 'r', which is not in subscribe",
        ),
        ({**TWO, "startingOffsets": '{"eu": {"q": -1}}'}, "expected earliest, latest, -10m"),
        ({**TWO, "startingOffsets": '{"eu": {"q": {"q": 1}}}'}, "expected earliest, latest, -10m"),
    ],
)
def test_a_conflict_is_an_error(given: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as failed:
        parse(ReadOptions, {"subscribe": "q", **given})
    assert reason in str(failed.value)
    assert SECRET not in str(failed.value) + str(failed.value.details)


def test_redis_takes_part_when_it_is_named_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUSMQ_REDIS_URL", "redis://from-the-environment")
    assert parse(ReadOptions, {**TWO, "subscribe": "q"}).sources == ("eu", "us-2")
    assert parse(ReadOptions, {**TWO, "subscribe": "q", "redis.url": "redis://h"}).sources == (
        "",
        "eu",
        "us-2",
    )
    assert parse(ReadOptions, {"subscribe": "q"}).sources == ("",)


@pytest.mark.parametrize(
    "more", [{"redis.url": "redis://h"}, {"federation.url": "eu=wss://h,us=wss://i"}]
)
def test_a_sink_writes_to_one_place(more: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"a sink writes to one place, and these are named: .*; leave one of them"
    ):
        parse(WriteOptions, {**ONE, **more})


def test_each_link_has_its_own_secret_or_the_common_one_or_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUSMQ_FEDERATION_SECRET", "environment")
    found = parse(ReadOptions, {**TWO, "subscribe": "q", "federation.eu.secret": "own"})
    assert (found.secret_of("eu"), found.secret_of("us-2")) == ("own", "environment")
    found = parse(
        ReadOptions,
        {**TWO, "subscribe": "q", "federation.eu.secret": "own", "federation.secret": "common"},
    )
    assert (found.secret_of("eu"), found.secret_of("us-2")) == ("own", "common")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("false", (False, False)),
        ("TRUE", (True, True)),
        ("us-2", (False, True)),
        ("eu , us-2", (True, True)),
    ],
)
def test_the_secret_may_stand_in_the_url_of_all_links_of_some_or_of_none(
    text: str, found: tuple[bool, bool]
) -> None:
    made = parse(ReadOptions, {**TWO, "subscribe": "q", "federation.secretInUrl": text})
    assert (made.in_url("eu"), made.in_url("us-2")) == found


def test_the_options_object_does_not_show_its_secrets() -> None:
    found = parse(
        ReadOptions,
        {**TWO, "subscribe": "q", "federation.eu.secret": SECRET, "federation.secret": SECRET},
    )
    assert SECRET not in repr(found) + str(found)


def test_starting_offsets_are_common_or_of_one_source() -> None:
    text = '{"q": "latest", "local": {"q": 1}, "eu": {"q": 7}}'
    found = parse(
        ReadOptions, {**TWO, "redis.url": "redis://h", "subscribe": "q,r", "startingOffsets": text}
    )
    assert [found.start_of(source, "q") for source in ("", "eu", "us-2")] == [1, 7, "latest"]
    assert found.start_of("eu", "r") == "earliest"


def test_a_column_source_is_there_with_links_and_only_then() -> None:
    wanted = StructType().add("source", StringType())
    linked = BusmqDataSource({"Federation.Url": "wss://h", "subscribe": "q"})
    assert linked.schema() == LINKED_SCHEMA == "queue string, id long, value binary, source string"
    linked.streamReader(wanted)
    with pytest.raises(ConfigError, match="column 'source' does not exist"):
        BusmqDataSource({"redis.url": "redis://h", "subscribe": "q"}).streamReader(
            wanted
        ).initialOffset()
