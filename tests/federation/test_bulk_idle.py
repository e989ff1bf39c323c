"""An idle query over a federation server: a few calls a second at most, and a push wakes it at
once.
"""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from busmq_spark.federation.bulk import server as bulk_server
from busmq_spark.options import RedisOptions
from busmq_spark.spark.read import planning
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import open_store
from tests.conftest import Fresh
from tests.federation.bulk_site import SECRET, site
from tests.spark.engine import Engine
from tests.support import wait_until

pytestmark = pytest.mark.redis


def test_an_idle_query_asks_about_once_a_second_and_is_woken_by_a_push(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    plain = bulk_server._BulkSession._decode_call

    def counted(session: Any, frame: Any) -> Any:
        asked[frame.head["op"]] += 1
        return plain(session, frame)

    monkeypatch.setattr(bulk_server._BulkSession, "_decode_call", counted)
    queue, direct = fresh(), open_store(RedisOptions(url=redis_url))
    direct.attach([queue], QueueCreateOptions(allowed=True, ttl_s=3600))
    direct.push(queue, [b"1"])
    with site(redis_url) as there:
        query = Engine(
            {
                "federation.url": there.url,
                "federation.secret": SECRET,
                "subscribe": queue,
                "idlePollMs": "50",
            }
        )
        query.drain()
        wait_until(lambda: query.step() is None and asked["wait"], what="the listener waits")
        for _ in range(100):  # 10 ms and more each, as Spark does
            assert query.step() is None
        before, now, tenths = asked.copy(), time.monotonic(), 0
        monkeypatch.setattr(
            planning,
            "time",
            SimpleNamespace(monotonic=lambda: now + tenths * planning.LINK_POLL_S / 10),
        )
        while asked["wait"] < before["wait"] + 2:  # two waits of 2 s have passed
            assert query.step() is None
            tenths += 1
        assert asked["counters"] - before["counters"] <= tenths / 10 + 2
        monkeypatch.setattr(planning, "LINK_POLL_S", 600.0)
        for value in (
            b"2",
            b"3",
            b"4",
        ):  # the first may be found by asking; after that only the listener can show
            direct.push(queue, [value])
            assert next_value(query) == value
        query.reader.stop()
    direct.close()


def next_value(query: Engine) -> bytes:
    """The value of the next row that comes."""
    rows: list[Any] = []
    wait_until(lambda: rows.extend(query.step() or []) or rows, what="a row")
    found: bytes = rows[0][2]
    return found
