"""Durable steps on a real master with a replica, between which a cutter stands: confirmed is only
what the replica has.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from busmq_spark.embedded.layouts import EmbeddedCluster, EmbeddedSentinel
from busmq_spark.embedded.server import EmbeddedRedis
from busmq_spark.errors import ConfigError, NotReplicated, ReadOnly, TooFewReplicas
from busmq_spark.options import Durability, RedisOptions
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io import moving_endpoints
from busmq_spark.redis_io.durability import (
    DurableAsyncLink,
    DurableSyncLink,
    Unconfirmed,
    parse_cluster_nodes,
    settled_key,
)
from busmq_spark.redis_io.layout import redis_layout, sync_links
from busmq_spark.redis_io.slots import slot_of_key
from tests.moves import Move
from tests.replicated import LONG, SOON, Pair, count, info, running_pair
from tests.support import PATIENCE_S, wait_until

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with running_pair() as pair:
        yield pair


@pytest.fixture
def pair(servers: Pair) -> Pair:
    servers.heal()
    servers.master.command("FLUSHALL")
    return servers


@pytest.fixture
def orders(pair: Pair) -> QueueKeys:
    keys = QueueKeys("orders", False)
    pair.link().run(flows.attach(keys, "life", ttl_s=100))
    return keys


def knows_waitaof(server: EmbeddedRedis) -> bool:
    return server.command("COMMAND", "INFO", "WAITAOF") != [None]


def durable(pair: Pair, *about: Any) -> DurableSyncLink:
    return DurableSyncLink(pair.link(), Durability(*about))


def test_a_confirmed_push_is_on_the_replica(pair: Pair, orders: QueueKeys) -> None:
    link = durable(pair, "replicated", None, LONG)
    for done in range(1, 50):
        link.run(flows.append(orders, [b"x"]), "orders")
        assert count(pair.replica, "orders") == done


def test_a_push_that_no_replica_has_is_not_confirmed(pair: Pair, orders: QueueKeys) -> None:
    link = durable(pair, "replicated", 1, SOON)
    link.run(flows.append(orders, [b"x"]), "orders")
    pair.between.hush()
    with pytest.raises(NotReplicated) as caught:
        link.run(flows.append(orders, [b"x"]), "orders")
    assert caught.value.details["asked"] == 1
    assert caught.value.details["received"] == 0
    assert (count(pair.master, "orders"), count(pair.replica, "orders")) == (2, 1)


def test_work_found_done_is_confirmed_only_when_the_replica_has_it(
    pair: Pair, orders: QueueKeys
) -> None:
    """A repeated call writes nothing, and WAIT alone would wait for nothing."""
    pair.between.hush()
    pair.link().execute(command("SET", "bus:step", "done"))
    again = command("SETNX", "bus:step", "done")
    with pytest.raises(NotReplicated):
        durable(pair, "replicated", 1, SOON).execute(again, "orders")
    pair.heal()
    assert durable(pair, "replicated", 1, LONG).execute(again, "orders") == 0
    assert pair.replica.command("GET", "bus:step") == "done"


def test_too_few_replicas_are_refused_before_anything_is_pushed(
    pair: Pair, orders: QueueKeys
) -> None:
    with pytest.raises(TooFewReplicas, match="has 1 replicas"):
        durable(pair, "replicated", 2, LONG).run(flows.append(orders, [b"x"]), "orders")
    with EmbeddedRedis() as alone:
        [link] = sync_links(redis_layout(RedisOptions(url=alone.url)))
        with pytest.raises(TooFewReplicas, match="has 0 replicas"):
            DurableSyncLink(link, Durability("replicated")).execute(command("INCR", "n"), "n")
        assert alone.command("EXISTS", "n") == 0
    assert count(pair.master, "orders") == 0


def test_a_replica_is_refused_as_what_it_is(pair: Pair) -> None:
    """It refuses WAIT, too; in a cluster this says that a fail-over is under way."""
    [link] = sync_links(redis_layout(RedisOptions(url=pair.replica.url)))
    with pytest.raises(ReadOnly, match="is a replica now"):
        DurableSyncLink(link, Durability("replicated")).execute(command("INCR", "n"), "n")


@pytest.mark.parametrize("level", ["disk", "replicated-disk"])
def test_disk_needs_a_server_that_can(pair: Pair, orders: QueueKeys, level: str) -> None:
    expected = "append-only file is off" if knows_waitaof(pair.master) else "Redis 7.2 or newer"
    with pytest.raises(ConfigError, match=expected):
        durable(pair, level).run(flows.append(orders, [b"x"]), "orders")
    assert count(pair.master, "orders") == 0


def test_disk_confirms_what_the_append_only_file_has() -> None:
    with EmbeddedRedis(aof=True) as master:
        if not knows_waitaof(master):
            pytest.skip("this Redis knows no WAITAOF")
        own = {"repl-diskless-sync-delay": "0"}
        to = ("127.0.0.1", master.port)
        with EmbeddedRedis(replica_of=to, settings=own, aof=True) as replica:
            wait_until(lambda: "state=online" in info(master))
            [link] = sync_links(redis_layout(RedisOptions(url=master.url)))
            for level in ("disk", "replicated-disk"):
                done = DurableSyncLink(link, Durability(level, None, LONG))
                assert done.execute(command("INCR", level), "n") == 1
            assert replica.command("GET", "replicated-disk") == "1"
            replica.pause()
            short = DurableSyncLink(link, Durability("replicated-disk", 1, SOON))
            with pytest.raises(NotReplicated) as caught:
                short.execute(command("INCR", "n"), "n")
            assert (caught.value.details["asked"], caught.value.details["received"]) == (2, 1)
            replica.resume()


def test_a_failover_there_and_back_is_noticed(pair: Pair, orders: QueueKeys) -> None:
    """The connection survives it, the answer of WAIT would be that of another history."""
    endpoint = redis_layout(RedisOptions(url=pair.master.url)).endpoints[0]

    async def run() -> list[str]:
        link = DurableAsyncLink(endpoint, Durability("replicated", 1, LONG))
        try:
            await link.run(flows.append(orders, [b"x"]))
            pair.fail_over_and_back()
            with pytest.raises(Unconfirmed) as caught:
                await link.run(flows.append(orders, [b"y"]))
            # An idempotent step is run again, and its answer counts.
            await link.execute(command("SET", "bus:step", "done"))
            return [str(reply) for reply in caught.value.replies[0]]
        finally:
            await link.close()

    assert asyncio.run(run()) == ["2", "1"]
    assert count(pair.replica, "orders") == 2


def test_tasks_share_one_wait(pair: Pair, orders: QueueKeys) -> None:
    endpoint = redis_layout(RedisOptions(url=pair.master.url)).endpoints[0]

    async def run() -> None:
        link = DurableAsyncLink(endpoint, Durability("replicated", 1, LONG))
        try:
            await asyncio.gather(*(link.run(flows.append(orders, [b"x"])) for _ in range(100)))
        finally:
            await link.close()

    pair.master.command("CONFIG", "RESETSTAT")
    asyncio.run(run())
    stats = str(pair.master.command("INFO", "commandstats"))
    calls = next(line for line in stats.split() if line.startswith("cmdstat_wait:"))
    assert int(calls.partition("calls=")[2].partition(",")[0]) < 10
    assert count(pair.replica, "orders") == 100


def test_each_task_gets_the_error_of_its_own_call(pair: Pair, orders: QueueKeys) -> None:
    endpoint = redis_layout(RedisOptions(url=pair.master.url)).endpoints[0]

    async def run() -> list[Any]:
        link = DurableAsyncLink(endpoint, Durability("replicated", 1, SOON))
        try:
            await link.execute(command("SET", "text", "no number"))
            pair.between.hush()
            tasks = [link.execute(command("INCR", key)) for key in ("text", "n", "m")]
            return await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await link.close()

    wrong, *short = asyncio.run(run())
    assert "not an integer" in str(wrong)
    assert [type(each) for each in short] == [NotReplicated, NotReplicated]


def test_a_refused_call_gets_its_own_error_whatever_the_flush(
    pair: Pair, orders: QueueKeys
) -> None:
    """Its flush has other calls, which no replica has."""
    endpoint = redis_layout(RedisOptions(url=pair.master.url)).endpoints[0]

    async def run() -> list[Any]:
        link = DurableAsyncLink(endpoint, Durability("replicated", 1, SOON))
        try:
            await link.execute(command("SET", "text", "no number"))
            pair.between.hush()
            # The first call goes alone; the others share the flush after it.
            tasks = [
                link.execute(command("INCR", key, idempotent=False)) for key in ("n", "text", "m")
            ]
            return await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await link.close()

    first, wrong, short = asyncio.run(run())
    assert "not an integer" in str(wrong)
    assert [type(first), type(short)] == [NotReplicated, NotReplicated]


def test_a_task_that_is_cancelled_takes_no_other_with_it(pair: Pair) -> None:
    endpoint = redis_layout(RedisOptions(url=pair.master.url)).endpoints[0]

    async def run() -> list[Any]:
        link = DurableAsyncLink(endpoint, Durability("replicated", 1, LONG))

        def increment(key: str) -> asyncio.Task[Any]:
            return asyncio.create_task(link.execute(command("INCR", key, idempotent=False)))

        try:
            await increment("first")
            pair.between.hush()
            async with link._gatherings[None].lock:
                leader, other, late = tasks = [increment(key) for key in ("a", "b", "c")]
                await asyncio.to_thread(
                    wait_until, lambda: len(link._gatherings[None].waiting) == len(tasks)
                )
                late.cancel()
            await asyncio.to_thread(wait_until, lambda: pair.master.command("GET", "b") == "1")
            leader.cancel()
            await asyncio.wait([leader, late])
            assert not other.done()
            await asyncio.to_thread(pair.heal)
            return await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await link.close()

    leader, other, late = asyncio.run(run())
    assert (type(leader), other, type(late)) == (
        asyncio.CancelledError,
        1,
        asyncio.CancelledError,
    )
    assert [pair.replica.command("GET", key) for key in "abc"] == ["1", "1", None]


def test_a_full_server_confirms_what_it_has(pair: Pair, orders: QueueKeys) -> None:
    pair.link().execute(command("SET", "bus:step", "done"))
    again = command("GET", "bus:step")
    pair.between.hush()
    pair.master.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(NotReplicated):
            durable(pair, "replicated", 1, SOON).execute(again, "orders")
        pair.heal()
        assert durable(pair, "replicated", 1, LONG).execute(again, "orders") == b"done"
        assert pair.replica.command("GET", "bus:step") == "done"
    finally:
        pair.master.command("CONFIG", "SET", "maxmemory", "0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2, 1, settings={"repl-diskless-sync-delay": "0"}) as group:
        yield group


def cluster_link(group: EmbeddedCluster) -> Any:
    options = RedisOptions(url=",".join(group.urls), layout="cluster")
    [link] = sync_links(redis_layout(options))
    return link


async def test_the_sentinels_are_asked_for_replicas_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A silent one would hold up the flush for each other one."""
    both, count_of_asked, all_asked = threading.Barrier(2), 0, asyncio.Event()
    ask, ask_async = moving_endpoints._ask, moving_endpoints._ask_async

    def ask_together(question: moving_endpoints.Question) -> Any:
        both.wait(PATIENCE_S)
        return ask(question)

    async def ask_together_async(question: moving_endpoints.Question) -> Any:
        nonlocal count_of_asked
        count_of_asked += 1
        if count_of_asked == 2:
            all_asked.set()
        async with asyncio.timeout(PATIENCE_S):
            await all_asked.wait()
        return await ask_async(question)

    monkeypatch.setattr(moving_endpoints, "_ask", ask_together)
    monkeypatch.setattr(moving_endpoints, "_ask_async", ask_together_async)
    with EmbeddedSentinel(1, 2) as servers:
        options = RedisOptions(url=",".join(servers.urls), layout="sentinel")
        [endpoint] = redis_layout(options).endpoints
        assert isinstance(endpoint, moving_endpoints.SentinelMaster)
        expected = {("127.0.0.1", servers.replicas[0].port)}, set()
        assert await asyncio.to_thread(endpoint.list_replicas) == expected
        assert await endpoint.list_replicas_async() == expected


def test_a_slot_on_the_move_is_confirmed_by_another(cluster: EmbeddedCluster) -> None:
    """The key of a fence that is not there yet would be refused with ASK."""
    link = cluster_link(cluster)
    link.execute(command("SET", "{moving}:step", "done"))
    Move(cluster, "{moving}").begin()
    again = command("GET", "{moving}:step")
    assert DurableSyncLink(link, Durability("replicated", 1, LONG)).execute(again, "q") == b"done"
    link.close()


@pytest.mark.parametrize("timeout_ms", [LONG, SOON])
def test_a_push_to_a_slot_that_is_imported(cluster: EmbeddedCluster, timeout_ms: int) -> None:
    link, source = cluster_link(cluster), cluster.owner("bus:fence")
    names = (f"list {timeout_ms} {n}" for n in range(100))
    name = next(name for name in names if cluster.owner(name) is source)
    move = Move(cluster, name)
    move.begin()
    [replica] = [
        node for node in cluster.replicas if f"master_port:{move.target.port}" in info(node)
    ]
    if timeout_ms == SOON:
        replica.pause()
    durably = DurableSyncLink(link, Durability("replicated", 1, timeout_ms))
    try:
        found = [durably.execute(command("RPUSH", name, "x", idempotent=False), "orders")]
    except NotReplicated as error:
        found = list(error.replies)
    finally:
        replica.resume()
        link.close()
    assert found == [1]


def test_the_key_of_a_fence_is_in_a_slot_that_stays() -> None:
    text = "a1 127.0.0.1:1@11 myself,master - 0 0 1 connected 0-2 4 [1->-b1] [9-<-b1]\n"
    name = settled_key(text)
    assert name is not None
    assert slot_of_key(name) in {0, 2, 4}
    assert settled_key("a1 127.0.0.1:1@11 myself,master - 0 0 1 connected 1 [1->-b1]") is None


def test_replicas_of_a_node_are_those_that_can_be_elected() -> None:
    text = (
        "a1 127.0.0.1:1@11 myself,master - 0 0 1 connected 0-5460\n"
        "b1 127.0.0.1:2@12 master - 0 0 2 connected 5461-16383\n"
        "a2 127.0.0.1:3@13 slave a1 0 0 1 connected\n"
        "a3 127.0.0.1:4@14 slave,fail a1 0 0 1 disconnected\n"
        "a4 127.0.0.1:5@15,host slave,nofailover a1 0 0 1 connected\n"
        "b2 127.0.0.1:6@16 slave b1 0 0 2 connected\n"
    )
    assert parse_cluster_nodes(text) == (
        {("127.0.0.1", 3), ("127.0.0.1", 4)},
        {("127.0.0.1", 5)},
    )


def test_another_replica_does_not_confirm_for_one_that_can_be_elected() -> None:
    """The master has as many confirmations as listed replicas, from a server in no list."""
    settings = {"repl-diskless-sync-delay": "0"}
    with EmbeddedCluster(1, 1, settings=settings) as cluster:
        [master], [listed] = cluster.masters, cluster.replicas
        to = ("127.0.0.1", master.port)
        with EmbeddedRedis(replica_of=to, settings=settings) as unlisted:
            wait_until(lambda: "master_link_status:up" in info(unlisted))
            options = RedisOptions(url=",".join(cluster.urls), layout="cluster")
            [link] = sync_links(redis_layout(options))
            try:
                durably = DurableSyncLink(link, Durability("replicated", None, LONG))
                assert durably.execute(command("INCR", "n"), "n") == 1
                listed.kill()
                wait_until(lambda: f"port={listed.port}" not in info(master))
                short = DurableSyncLink(link, Durability("replicated", None, SOON))
                with pytest.raises(NotReplicated) as caught:
                    short.execute(command("INCR", "n"), "n")
            finally:
                link.close()
    assert (caught.value.details["asked"], caught.value.details["received"]) == (2, 1)
