"""The driver's half of the sink over a federation server: a batch over many queues takes as many
round trips as one over a few.
"""

from __future__ import annotations

import secrets

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.option_parsing import parse
from busmq_spark.options import RedisOptions, WriteOptions
from busmq_spark.spark.write.committer import SinkCommitter
from busmq_spark.store.redis_store import open_store
from busmq_spark.writing.sink import attempt_name
from tests.conftest import Fresh
from tests.federation.bulk_queues import HOUR
from tests.federation.bulk_site import site

pytestmark = pytest.mark.redis


def test_a_batch_over_many_queues_is_committed_with_all_calls_under_way(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    names = [fresh() for _ in range(40)]
    with site(redis_server.url) as here:
        store, direct = (
            FederationBulkStore(here.address()),
            open_store(RedisOptions(url=redis_server.url)),
        )
        store.attach(names[1:], HOUR)
        appender = store.appender()
        for name in names:
            appender.stage(
                name,
                store.keys(name).stage(attempt_name("", "0", 0, secrets.token_hex(8))),
                [b"a", b"b"],
            )
        answered = list[str]()
        result, post, most = store._link.wait_for_result, store._link.send_call, 0
        under_way = 0

        def posted(name: str, *rest: object, **more: object) -> int:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            return post(name, *rest, **more)  # type: ignore[arg-type]

        def answer(id: int, name: str) -> object:
            nonlocal under_way
            under_way -= 1
            answered.append(name)
            return result(id, name)

        staged = appender.finish()
        store._link.send_call, store._link.wait_for_result = posted, answer  # type: ignore[method-assign,assignment]
        SinkCommitter(
            parse(WriteOptions, {"redis.url": redis_server.url, "queue": "q"}), store
        ).commit(fresh(), 0, staged)
        assert most == len(names)
        assert (
            answered.count("commit") == len(names) + 2
        )  # the queue that was missing is asked for again, made, and has its turn
        assert {state.newest for state in direct.states(dict.fromkeys(names, -1)).values()} == {2}
        store.close()
        direct.close()
