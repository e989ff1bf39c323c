"""Each argument of the bus and its objects is taken as it is, or refused with ConfigError before
any connection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from busmq_spark import Bus
from busmq_spark.arguments import MAX_WHOLE
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import ConfigError
from busmq_spark.federation.address import FederationAddress
from busmq_spark.mirror.settings import MirrorSettings
from busmq_spark.outbox.outbox import Outbox
from busmq_spark.redis_io.layout import redis_layout

URL, FAR = "redis://h", "ws://h/bus"
VALUES: list[Any] = [
    *(
        True,
        False,
        None,
        -1,
        0,
        1,
        10**30,
        1.5,
        math.nan,
        math.inf,
        b"x",
        ("a", "b"),
        ["a"],
        {"a": 1},
        object(),
    ),
    *(
        "",
        " ",
        " x",
        "x ",
        "x\n",
        "x\r\n",
        "a\x00b",
        "\ud800",
        "NaN",
        "1",
        "true",
        "FALSE",
        "('a', 'b')",
    ),
]
TEXTS = {" ", " x", "x ", "x\n", "x\r\n", "a\x00b", "NaN", "1", "true", "FALSE", "('a', 'b')"}
"""What names of queues and the like may be: they are obeyed as they are."""
NAMES = {"NaN", "1", "true", "FALSE"}
"""What names of topics, groups and users may be."""
NAMES_OF_READERS = NAMES | {"('a', 'b')"}
SECRETS = TEXTS | {"", "\ud800"}
FLAGS = {"true", "FALSE"}
NONE: frozenset[Any] = frozenset()


def bus(**settings: Any) -> Bus:
    made = Bus(**{"url": URL, **settings})
    redis_layout(made.options)
    return made


def queue() -> Queue:
    return bus().queue("q")


Row = tuple[Callable[[Any], object], set[str] | frozenset[Any], tuple[Any, ...]]
"""The call, the texts and the other values that are obeyed."""
ROWS: dict[str, Row] = {
    "Bus url": (lambda v: bus(url=v), NONE, ()),
    "Bus user": (lambda v: bus(user=v), NAMES, (None,)),
    "Bus layout": (lambda v: bus(layout=v), NONE, ()),
    "Bus master": (lambda v: bus(master=v), NONE, ()),
    "Bus tls_ca": (lambda v: bus(tls_ca=v), NONE, (None,)),
    "Bus tls_certificate": (lambda v: bus(tls_certificate=v), NONE, (None,)),
    "Bus tls_key": (lambda v: bus(tls_key=v), NONE, (None,)),
    "Bus tls_check_hostname": (lambda v: bus(tls_check_hostname=v), {"true"}, (True,)),
    "Bus require_no_eviction": (lambda v: bus(require_no_eviction=v), FLAGS, (True, False)),
    "Bus reply_timeout_s": (lambda v: bus(reply_timeout_s=v), NONE, (1, 1.5)),
    "Bus durability": (lambda v: bus(durability=v), NONE, ()),
    "Bus replicas": (lambda v: bus(durability="replicated", replicas=v), NONE, (1,)),
    "Bus durability_timeout_s": (lambda v: bus(durability_timeout_s=v), NONE, (1, 1.5)),
    "Bus federate": (lambda v: bus(federate=v), NONE, (None,)),
    "Bus federate_compression": (lambda v: bus(federate_compression=v), FLAGS, (True, False)),
    "Bus federate_sockets": (lambda v: bus(federate_sockets=v), {"1"}, (1,)),
    "Bus federate_tls_ca": (lambda v: bus(federate_tls_ca=v), NAMES, (None,)),
    "queue": (lambda v: bus().queue(v), TEXTS, ()),
    "queue server": (lambda v: bus().queue("q", server=v), NONE, (None, 0, 1)),
    "queue cap": (lambda v: bus().queue("q", cap=v), NONE, (None, 0, 1)),
    "queue overflow": (lambda v: bus().queue("q", cap=1, overflow=v), NONE, (None,)),
    "topic": (lambda v: bus().topic(v, 2), NAMES_OF_READERS, ()),
    "topic partitions": (lambda v: bus().topic("t", v), NONE, (None, 1)),
    "topic ttl_s": (lambda v: bus().topic("t", 2, ttl_s=v), NONE, (1,)),
    "topic maxsize": (lambda v: bus().topic("t", 2, maxsize=v), NONE, (0, 1)),
    "topic group": (lambda v: bus().topic("t", 2).group(v), NAMES, ()),
    "channel": (lambda v: bus().channel(v), TEXTS, ()),
    "channel local": (lambda v: bus().channel("c", v, "far"), TEXTS, ()),
    "channel remote": (lambda v: bus().channel("c", "near", v), TEXTS, ()),
    "jobs": (lambda v: bus().jobs(v), TEXTS, ()),
    "jobs durable": (lambda v: bus().jobs("j", durable=v), NONE, (True, False)),
    "jobs outcome_ttl_s": (lambda v: bus().jobs("j", outcome_ttl_s=v), NONE, (1,)),
    "workers": (lambda v: bus().workers(v), NONE, ()),
    "service": (lambda v: bus().service(v), TEXTS, ()),
    "pubsub": (lambda v: bus().pubsub(v), TEXTS, ()),
    "pubsub most": (lambda v: bus().pubsub("p", most=v), NONE, (1,)),
    "persist": (lambda v: bus().persist(v), TEXTS, ()),
    "persist shape": (lambda v: bus().persist("p", v), NONE, (None,)),
    "persist ttl_s": (lambda v: bus().persist("p", ttl_s=v), NONE, (1,)),
    "federate": (lambda v: bus().federate(v, FAR, secret="s"), NONE, ()),
    "federate secret": (lambda v: bus().federate(queue(), FAR, secret=v), NAMES | {"1"}, ()),
    "federate secret_in_url": (
        lambda v: bus().federate(queue(), FAR, secret="s", secret_in_url=v),
        NONE,
        (True, False, None),
    ),
    "group": (lambda v: queue().group(v), NAMES, ()),
    "group shared": (lambda v: queue().group("g", shared=v), NONE, (True, False)),
    "shared group": (lambda v: queue().group(v, shared=True), NAMES, ()),
    "shared group lease_s": (
        lambda v: queue().group("g", shared=True, lease_s=v),
        NONE,
        (None, 1, 1.5),
    ),
    "shared group tries": (lambda v: queue().group("g", shared=True, tries=v), NONE, (None, 1)),
    "shared group limit": (lambda v: queue().group("g", shared=True, limit=v), NONE, (None, 0, 1)),
    "shared group dead": (lambda v: queue().group("g", shared=True, dead=v), TEXTS, (None,)),
    "worker": (lambda v: bus().jobs("j").worker(v), NAMES, ()),
    "worker limit": (lambda v: bus().jobs("j").worker("g", limit=v), NONE, (1, 10**30)),
    "worker deadline_s": (
        lambda v: bus().jobs("j").worker("g", deadline_s=v),
        NONE,
        (None, 1, 1.5),
    ),
    "mirror origin": (lambda v: bus().mirror(v, "q"), NONE, ()),
    "mirror queue": (lambda v: bus().mirror(URL, v), TEXTS, ()),
    "mirror user": (lambda v: bus().mirror(URL, "q", user=v), TEXTS | {""}, (None,)),
    "mirror layout": (lambda v: bus().mirror(URL, "q", layout=v), NONE, ()),
    "mirror tls_ca": (lambda v: bus().mirror(URL, "q", tls_ca=v), NONE, (None,)),
    "mirror groups": (lambda v: bus().mirror(URL, "q", groups=v), NONE, (True, False)),
    "mirror replace": (lambda v: bus().mirror(URL, "q", replace=v), NONE, (True, False)),
    "mirror retention": (lambda v: bus().mirror(URL, "q", retention=v), NONE, ()),
    "mirror new_life": (lambda v: bus().mirror(URL, "q", new_life=v), NONE, ()),
    "mirror bytes_per_s": (lambda v: bus().mirror(URL, "q", bytes_per_s=v), NONE, (0, 1)),
    "outbox to": (lambda v: Outbox("x.db", v), NONE, ()),
}


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """None falls back to the environment, which names nothing here."""
    monkeypatch.delenv("BUSMQ_REDIS_URL", raising=False)


@pytest.mark.parametrize("argument", ROWS)
def test_an_argument_is_obeyed_or_refused(argument: str) -> None:
    call, texts, others = ROWS[argument]
    for value in VALUES:
        obeyed = (
            value in texts
            if isinstance(value, str)
            else any(type(value) is type(each) and value == each for each in others)
        )
        if obeyed:
            call(value)
            continue
        with pytest.raises(ConfigError) as refused:
            call(value)
        assert refused.value.code == "BUSMQ_CONFIG", value


@pytest.mark.parametrize("value", VALUES)
def test_the_path_of_an_outbox_is_a_path(value: Any) -> None:
    if isinstance(value, str) and value and "\x00" not in value:
        Outbox(value, URL)
    else:
        with pytest.raises(ConfigError):
            Outbox(value, URL)


def test_the_name_is_kept_as_it_is() -> None:
    for name in TEXTS:
        assert bus().queue(name).name == name
        assert bus().queue(name).keys.base == f"bus:queue:{name}"


def test_a_list_of_addresses_is_a_list_of_servers(tmp_path: Path) -> None:
    several = ["redis://a", "redis://b:7"]
    assert [each.port for each in redis_layout(Bus(several).options).servers] == [6379, 7]
    assert [each.port for each in redis_layout(Bus(tuple(several)).options).servers] == [6379, 7]
    assert (
        Bus(federate=["ws://a/bus", "ws://b/bus"], federate_secret="s").options.federate
        == "ws://a/bus,ws://b/bus"
    )
    assert MirrorSettings(origin=several, patterns=("q",)).origin == "redis://a,redis://b:7"  # type: ignore[arg-type]
    Outbox(tmp_path / "o.db", several)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (["redis://a", 7], "holds a int"),
        ([], "holds a list"),
        (["redis://a,redis://b", "redis://c"], "has a comma"),
        (["redis://a", "redis://a"], "names the server of URL 1 again"),
        (["redis://a", ""], "is empty"),
    ],
)
def test_a_bad_list_of_addresses_is_refused(url: list[Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        redis_layout(Bus(url).options)


@pytest.mark.parametrize(
    ("made", "nearest"),
    [
        (lambda: Bus(URL, pasword="x"), "did you mean 'password'"),
        (lambda: Outbox("x.db", URL, layuot="x"), "did you mean 'layout'"),  # type: ignore[call-arg]
        (lambda: bus().mirror(URL, "q", group=True), "did you mean 'groups'"),  # type: ignore[call-arg]
        (lambda: bus().jobs("j").worker("g", lease=3), "did you mean 'lease_s'"),  # type: ignore[call-arg]
        (lambda: queue().group("g", shared=True, lease=3), "has no option 'lease'"),
    ],
)
def test_a_misspelt_argument_is_refused_with_the_nearest(
    made: Callable[[], object], nearest: str
) -> None:
    with pytest.raises(ConfigError, match=nearest):
        made()


def test_no_secret_shows_in_a_refusal() -> None:
    for settings in (
        {"url": b"redis://:hunter2@h"},
        {"url": "redis://:hunter2@h/5"},
        {"password": b"hunter2"},
        {"federate": "ws://h/bus?secret=hunter2"},
        {"federate": ["ws://hunter2@h/bus", "ws://i/bus"]},
        {"federate_secret": b"hunter2"},
    ):
        with pytest.raises(ConfigError) as refused:
            bus(**settings)
        assert "hunter2" not in str(refused.value)


def test_a_federation_address_refuses_what_is_no_web_socket_url() -> None:
    for url in (
        "",
        " ws://h",
        "ws://h\n",
        "ws://h?x",
        "ws://u@h",
        "ws://h#",
        "ws://h:0",
        "redis://h",
        "ws://",
    ):
        with pytest.raises(ConfigError):
            FederationAddress(url, "s").parse_url()


def test_the_highest_ttl_is_one_that_redis_can_hold() -> None:
    assert bus().persist("p", ttl_s=MAX_WHOLE).ttl_s == MAX_WHOLE
