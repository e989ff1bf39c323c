"""Each argument of the embedded servers is taken as it is, or refused with ConfigError before a
server starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from busmq_spark.embedded import (
    EmbeddedCluster,
    EmbeddedRedis,
    EmbeddedSentinel,
    EmbeddedStandaloneServers,
)
from busmq_spark.errors import ConfigError

NO_NUMBERS: list[Any] = [True, "1", "", None, -1, 1.5, math.nan, math.inf, b"1", [1], object()]
NO_SECONDS = [each for each in NO_NUMBERS if each != 1.5]
NO_TEXTS: list[Any] = [True, 1, "", b"x", ["x"], object(), "\ud800"]
NO_FLAGS: list[Any] = [None, 0, 1, "false", "", b"", []]
ROWS: list[tuple[str, Callable[[Any], object], list[Any]]] = [
    ("port", lambda v: EmbeddedRedis(port=v), [*NO_NUMBERS, 65536]),
    ("folder", EmbeddedRedis, [True, 1, "", b"x", ["x"], "a\x00b"]),
    ("aof", lambda v: EmbeddedRedis(aof=v), NO_FLAGS),
    ("unix_socket", lambda v: EmbeddedRedis(unix_socket=v), NO_FLAGS),
    ("fsync", lambda v: EmbeddedRedis(fsync=v), ["never", "", None, True, ["always"]]),
    ("password", lambda v: EmbeddedRedis(password=v), NO_TEXTS),
    (
        "maxmemory",
        lambda v: EmbeddedRedis(maxmemory=v),
        [*NO_TEXTS, "-1", "many", "1 gb", "1tb", "NaN", "10mb\n"],
    ),
    (
        "replica_of",
        lambda v: EmbeddedRedis(replica_of=v),
        ["h:1", ("h",), ("h", "1"), ("", 1), ("h", 0), ("h", 1, 2), {"h": 1}],
    ),
    (
        "settings",
        lambda v: EmbeddedRedis(settings=v),
        [None, "x", [("a", "b")], {"hz": 10}, {"hz": "1\n"}, {"": "1"}, {1: "x"}, {"hz": "1\r"}],
    ),
    ("count", EmbeddedStandaloneServers, [*NO_NUMBERS, 0]),
    ("replicas", EmbeddedSentinel, NO_NUMBERS),
    ("sentinels", lambda v: EmbeddedSentinel(1, v), [*NO_NUMBERS, 0]),
    ("name", lambda v: EmbeddedSentinel(name=v), [*NO_TEXTS, None]),
    ("down_after_s", lambda v: EmbeddedSentinel(down_after_s=v), [*NO_SECONDS, 0]),
    ("masters", EmbeddedCluster, [*NO_NUMBERS, 0]),
    ("node_timeout_s", lambda v: EmbeddedCluster(node_timeout_s=v), [*NO_SECONDS, 0]),
]


@pytest.mark.parametrize(("name", "make", "bad"), ROWS, ids=[row[0] for row in ROWS])
def test_a_bad_argument_is_refused(
    name: str, make: Callable[[Any], object], bad: list[Any]
) -> None:
    for value in bad:
        with pytest.raises(ConfigError):
            make(value)


def test_good_arguments_are_taken() -> None:
    for memory in ("1048576", "10mb", "1G", "64k"):
        EmbeddedRedis(maxmemory=memory)
    EmbeddedRedis(
        replica_of=("127.0.0.1", 6379), port=65535, settings={"hz": "10"}, password="a\nb"
    )
