"""What a store answers, asked of Redis itself and of a federation server in front of it: a reader or writer must not see which it has."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from busmq_spark.core.sink import Staged
from busmq_spark.embedded import RedisServer
from busmq_spark.federation.store import FederatedStore, open_federated
from busmq_spark.options import RedisOptions
from busmq_spark.store.position import Range
from busmq_spark.store.protocol import Creation, FullPolicy
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.conftest import Fresh
from tests.federation.bulk_site import Site, site

pytestmark = pytest.mark.redis
HOUR = Creation(allowed=True, ttl_s=3600)
NEVER = FullPolicy(0)
Store = RedisStore | FederatedStore


@pytest.fixture(scope="module")
def here(redis_server: RedisServer) -> Iterator[Site]:
    with site(redis_server.url) as made:
        yield made


@pytest.fixture
def direct(redis_url: str) -> Iterator[RedisStore]:
    made = open_store(RedisOptions(url=redis_url))
    yield made
    made.close()


@pytest.fixture(params=["redis", "federated"])
def store(request: pytest.FixtureRequest, redis_url: str, here: Site) -> Iterator[Store]:
    made: Store = open_store(RedisOptions(url=redis_url)) if request.param == "redis" else open_federated(here.address())
    yield made
    made.close()


def filled(store: Store, queue: str, values: list[bytes], creation: Creation = HOUR) -> Range:
    """A queue with these values, and the range of all of them."""
    there = store.attach([queue], creation)[queue]
    store.appender().push(queue, values, NEVER)
    return Range(queue, there.born, 1, len(values))


def read(store: Store, part: Range, *, strict: bool = True) -> list[tuple[int, bytes]]:
    return [(piece.first + i, value) for piece in store.read(part, strict) for i, value in enumerate(piece.values.to_pylist())]


def attempt(query: str = "batch", batch: int = 0) -> str:
    return f"{query}:{batch}:0:{secrets.token_hex(8)}"


def staged(store: Store, queue: str, values: list[bytes], batch: int = 0) -> Staged:
    appender = store.appender()
    appender.stage(queue, store.keys(queue).stage(attempt(batch=batch)), values)
    [found] = appender.finish()
    return found


def test_a_range_is_read_in_order_and_whole(store: Store, fresh: Fresh) -> None:
    values = [b"%d" % i for i in range(5000)]
    part = filled(store, fresh(), values)
    assert read(store, part) == list(enumerate(values, 1))
    assert read(store, replace(part, first=17, last=4711)) == list(enumerate(values, 1))[16:4711]


def test_values_of_every_kind_come_through(store: Store, fresh: Fresh) -> None:
    values = [b"", b"\x00\xff", b"x" * 3_000_000, "ü€".encode(), b"y" * 70_000]
    assert read(store, filled(store, fresh(), values)) == list(enumerate(values, 1))
