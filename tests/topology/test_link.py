"""Links: what is sent again and what never, when they give up, and what they say then. Both drivers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from busmq_spark.core import queue
from busmq_spark.core.flow import Call, Flow, Step, command, script
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.message import MAX_VALUE_BYTES
from busmq_spark.embedded import RedisServer
from busmq_spark.errors import LinkLost, MessageRefused, ServerFull, ServerReadOnly, ServerRefused, Unauthorized
from busmq_spark.topology import connect
from busmq_spark.topology import link as link_module
from busmq_spark.topology.async_link import AsyncLink
from busmq_spark.topology.link import SyncLink
from busmq_spark.topology.urls import Server, parse
from tests.conftest import FreshKeys, link_to
from tests.topology.fakes import CLOSE, FakeRedis, says

ONCE = command("INCR", "n", idempotent=False)
AGAIN = command("GET", "n")
MAX_PATIENCE_S = 30.0


class Driver:
    """A link, called from plain code."""

    def __init__(self, way: str) -> None:
        self.way = way
        self._runner = asyncio.Runner() if way == "async" else None
        self._links: list[Any] = []

    def __call__(self, server: Server | str, patience_s: float = MAX_PATIENCE_S) -> Driver:
        kind = AsyncLink if self._runner else SyncLink
        self._links.append(kind(parse(server)[0] if isinstance(server, str) else server, patience_s))
        return self

    def execute(self, step: Step) -> Any:
        return self._wait(self._links[-1].execute(step))

    def run(self, flow: Flow[Any]) -> Any:
        return self._wait(self._links[-1].run(flow))

    def close(self) -> None:
        for each in self._links:
            self._wait(each.close())
        if self._runner:
            self._runner.close()

    def breathe(self) -> None:
        """Let the loop see what came in meanwhile, as it would in a program that lives on it."""
        if self._runner:
            for _ in range(3):
                self._runner.run(asyncio.sleep(0))

    def _wait(self, made: Any) -> Any:
        return self._runner.run(made) if self._runner else made


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    made = Driver(request.param)
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply may take 0.2 s: a server that is stopped need not be waited for."""
    monkeypatch.setattr(connect, "REPLY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT_S", 0.2)


def absent() -> Server:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return Server("127.0.0.1", held.getsockname()[1], password="hidden-secret")


# What is sent again


def test_an_idempotent_call_whose_reply_was_lost_is_sent_again(driver: Driver) -> None:
    with FakeRedis(says(CLOSE, CLOSE, b"$1\r\n7\r\n")) as fake:
        assert driver(fake.server).execute(AGAIN) == b"7"
        assert len(fake.seen) == 3


def test_a_call_that_is_not_idempotent_is_sent_once_when_its_reply_was_lost(driver: Driver) -> None:
    with FakeRedis(says(CLOSE, b":1\r\n")) as fake:
        with pytest.raises(LinkLost):
            driver(fake.server).execute(ONCE)
        assert len(fake.seen) == 1


def test_a_step_with_one_call_that_is_not_idempotent_is_not_sent_again_as_a_whole(driver: Driver) -> None:
    with FakeRedis(says(b"$1\r\n7\r\n", CLOSE, b":1\r\n")) as fake:
        with pytest.raises(LinkLost):
            driver(fake.server).execute([AGAIN, ONCE])
        assert len(fake.seen) == 2


@pytest.mark.parametrize("code", ["LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN"])
@pytest.mark.parametrize("call", [ONCE, AGAIN], ids=["once", "again"])
def test_a_call_that_redis_put_off_is_sent_again(driver: Driver, code: str, call: Call) -> None:
    put_off = f"-{code} not now, please\r\n".encode()
    with FakeRedis(says(put_off, put_off, b":5\r\n")) as fake:
        assert driver(fake.server).execute(call) == 5
        assert len(fake.seen) == 3


def test_a_server_that_never_stops_loading_is_lost_when_patience_is(driver: Driver) -> None:
    with FakeRedis(says(b"-LOADING Redis is loading the dataset in memory\r\n")) as fake:
        with pytest.raises(LinkLost, match="loading the dataset"):
            driver(fake.server, patience_s=0.2).execute(AGAIN)
        assert len(fake.seen) > 1


def test_a_script_that_redis_does_not_know_is_sent_with_its_text_even_if_not_idempotent(driver: Driver) -> None:
    with FakeRedis(says(b"-NOSCRIPT No matching script. Please use EVAL.\r\n", b"*2\r\n:1\r\n:1\r\n")) as fake:
        assert driver(fake.server).run(queue.push(QueueKeys("q"), b"v")) == 1
        assert [words[0] for words in fake.seen] == [b"EVALSHA", b"EVAL"]
        assert fake.seen[0][2:] == fake.seen[1][2:]


def test_replies_stand_where_their_calls_stood_when_some_scripts_were_unknown(driver: Driver, redis_url: str) -> None:
    made = driver(redis_url)
    made.execute(command("SCRIPT", "FLUSH"))
    known, unknown = script("lease", ["known-lease"], ("me", 1000, "")), script("pop", ["no-such-list"], (1, 1, 1))
    made.execute(known)
    assert made.execute([command("ECHO", "a"), unknown, known, command("ECHO", "b")]) == [b"a", [], b"me", b"b"]


def test_a_refusal_by_redis_is_not_repeated(driver: Driver) -> None:
    with FakeRedis(says(b"-ERR no such thing\r\n")) as fake:
        with pytest.raises(ServerRefused, match="no such thing"):
            driver(fake.server).execute(AGAIN)
        assert len(fake.seen) == 1


def test_after_a_refused_call_the_replies_of_the_step_do_not_reach_the_next(driver: Driver, redis_url: str) -> None:
    made = driver(redis_url)
    with pytest.raises(ServerRefused):
        made.execute([command("ECHO", "a"), command("NOSUCHCOMMAND"), command("ECHO", "b")])
    assert made.execute(command("ECHO", "c")) == b"c"


def test_no_calls_need_no_server(driver: Driver) -> None:
    assert driver(absent()).execute([]) == []


# Servers that are away


def test_a_server_that_is_not_there_is_lost_with_its_address_and_not_its_password(driver: Driver) -> None:
    server = absent()
    with pytest.raises(LinkLost) as caught:
        driver(server, patience_s=0.1).execute(AGAIN)
    assert f"redis://***@127.0.0.1:{server.port}" in str(caught.value)
    assert "hidden-secret" not in str(caught.value) + repr(caught.value.details)
    assert caught.value.retriable


@pytest.mark.parametrize("patience_s", [0.0, 1.0, 8.0])
def test_a_link_tries_until_its_patience_is_over_and_not_beyond(monkeypatch: pytest.MonkeyPatch, patience_s: float) -> None:
    class Clock:
        now = 100.0
        tries = 0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, pause_s: float) -> None:
            assert 0 < pause_s <= 1.0
            self.now += pause_s
            self.tries += 1

    clock = Clock()
    monkeypatch.setattr(link_module, "time", clock)
    with pytest.raises(LinkLost):
        SyncLink(absent(), patience_s).execute(AGAIN)
    assert patience_s - 1.0 < clock.now - 100.0 <= patience_s
    assert clock.tries <= 5 + 2 * patience_s


def test_patience_and_one_connect_stay_under_ten_seconds() -> None:
    assert link_module.PATIENCE_S + connect.CONNECT_TIMEOUT_S / 2 < 10
    assert 0 < connect.REPLY_TIMEOUT_S <= 10


@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_says_nothing_is_lost_and_its_late_reply_is_nobodys(driver: Driver, impatient: None, connected: bool) -> None:
    with RedisServer() as server:
        made = driver(server.url, patience_s=0.1)
        if connected:
            made.execute(command("SET", "a", "late"))
        server.pause()
        with pytest.raises(LinkLost, match=f"127.0.0.1:{server.port}"):
            made.execute(command("GET", "a"))
        server.resume()
        assert made.execute(command("ECHO", "fresh")) == b"fresh"


def test_a_server_that_went_away_and_came_back_between_calls_is_no_reason_to_lose_a_push(driver: Driver) -> None:
    with RedisServer(aof=True) as server:
        made, keys = driver(server.url), QueueKeys("q")
        made.run(queue.attach(keys, "b", ttl_s=600))
        made.run(queue.push(keys, b"one"))
        server.restart()
        made.breathe()
        assert made.run(queue.push(keys, b"two")) == 2
        server.kill()
        server.restart()
        assert made.run(queue.count(keys)) == 2


def test_a_call_waits_for_a_server_that_is_restarting(driver: Driver) -> None:
    with RedisServer(aof=True) as server:
        made = driver(server.url)
        made.execute(command("SET", "a", 1))
        server.kill()
        with pytest.MonkeyPatch.context() as patch:
            at_a_pause(patch, driver.way, server.restart)
            assert made.execute(command("GET", "a")) == b"1"


def at_a_pause(patch: pytest.MonkeyPatch, way: str, act: Callable[[], object]) -> None:
    """Do ``act`` when the link pauses before its next try."""
    kind: type[Any] = AsyncLink if way == "async" else SyncLink
    pause = kind._pause_or_raise

    def sync_pause(self: Any, *args: Any) -> None:
        act()
        pause(self, *args)

    async def async_pause(self: Any, *args: Any) -> None:
        act()
        await pause(self, *args)

    patch.setattr(kind, "_pause_or_raise", async_pause if way == "async" else sync_pause)


# Servers that refuse


@pytest.mark.parametrize("password", ["wrong-secret", None])
def test_a_wrong_or_missing_password_is_unauthorized_at_once_and_not_shown(driver: Driver, password: str | None) -> None:
    with RedisServer(password="right-secret") as server:
        made = driver(Server("127.0.0.1", server.port, password=password))
        with pytest.raises(Unauthorized) as caught:
            made.execute(command("SET", "a", 1))
        assert "-secret" not in str(caught.value) + repr(caught.value.details)
        assert not caught.value.retriable


def test_the_right_password_is_taken_from_the_url(driver: Driver) -> None:
    with RedisServer(password="right@,secret") as server:
        assert driver(server.url).execute(command("PING")) == b"PONG"


def test_a_user_without_the_right_to_run_scripts_is_unauthorized(driver: Driver, redis_server: RedisServer) -> None:
    redis_server.command("ACL", "SETUSER", "reader", "on", ">reader-secret", "~*", "+@all", "-rpush")
    made = driver(Server("127.0.0.1", redis_server.port, user="reader", password="reader-secret"))
    made.run(queue.attach(QueueKeys("acl"), "b", ttl_s=30))
    with pytest.raises(Unauthorized):
        made.run(queue.push(QueueKeys("acl"), b"x"))


def test_a_replica_is_read_only(driver: Driver, redis_server: RedisServer) -> None:
    with RedisServer(replica_of=("127.0.0.1", redis_server.port)) as replica, pytest.raises(ServerReadOnly, match=str(replica.port)):
        driver(replica.url).run(queue.attach(QueueKeys("ro"), "b", ttl_s=30))


def test_a_replica_that_lost_its_master_and_may_not_serve_is_waited_for(driver: Driver) -> None:
    settings = {"replica-serve-stale-data": "no"}
    with RedisServer(replica_of=("127.0.0.1", absent().port), settings=settings) as replica, pytest.raises(LinkLost, match="MASTER is down"):
        driver(replica.url, patience_s=0.05).execute(command("GET", "a"))


def test_a_master_without_its_replicas_does_not_take_writes(driver: Driver) -> None:
    with RedisServer(settings={"min-replicas-to-write": "1"}) as server, pytest.raises(ServerReadOnly):
        driver(server.url).run(queue.attach(QueueKeys("q"), "b", ttl_s=30))


def test_a_server_out_of_memory_is_full_and_has_stored_nothing_of_the_call(driver: Driver) -> None:
    with RedisServer() as server:
        made, keys = driver(server.url), QueueKeys("q")
        made.run(queue.attach(keys, "b", ttl_s=600))
        made.run(queue.push(keys, b"one"))
        server.command("CONFIG", "SET", "maxmemory", "1")
        for flow in (queue.push(keys, b"two"), queue.push_many(keys, [b"two", b"three"])):
            with pytest.raises(ServerFull, match="out of memory"):
                made.run(flow)
        with pytest.raises(ServerFull):
            made.execute(command("RPUSH", "stage", "row"))
        assert made.run(queue.pop(keys, reliable=True, ttl_s=600, most=9))[0].value == b"one"  # what makes room works
        made.run(queue.ack(keys, 0, ttl_s=600, restore=True))
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert made.run(queue.push(keys, b"next")) == 2
        assert [m.value for m in made.run(queue.index(keys, 0, 9))] == [b"one", b"next"]


class Huge(bytes):
    """A value that says it is over 512 MB; the check needs no more than its word."""

    def __len__(self) -> int:
        return MAX_VALUE_BYTES + 1


def test_a_value_over_512_mb_is_refused_before_a_byte_is_sent(driver: Driver) -> None:
    with pytest.raises(MessageRefused, match="512 MB"):
        driver(absent(), 0.1).run(queue.push(QueueKeys("q"), Huge()))
    with pytest.raises(MessageRefused, match="512 MB"):
        driver(absent(), 0.1).run(queue.push_many(QueueKeys("q"), [b"a", Huge()]))


# The blocking link's streams


def test_a_stream_gives_replies_in_order_with_calls_under_way(link: SyncLink) -> None:
    taken: list[int] = []

    def calls() -> Iterator[Call]:
        for n in range(50):
            taken.append(n)
            yield command("ECHO", n)

    for n, reply in enumerate(link.stream(calls(), 3)):
        assert reply == b"%d" % n
        assert len(taken) == min(50, n + 3)


def test_a_stream_survives_a_script_cache_flushed_in_its_middle(link: SyncLink, redis_url: str, fresh_keys: FreshKeys) -> None:
    keys, other = fresh_keys(), link_to(redis_url)
    link.run(queue.attach(keys, "b", ttl_s=60))
    calls = [script("push", keys.shared, (keys.available, b"%d" % n), idempotent=False) for n in range(1, 40)]
    for first, stored in link.stream(calls, 3):
        assert stored == 1
        assert first
        other.execute(command("SCRIPT", "FLUSH"))
    assert [m.value for m in link.run(queue.index(keys, 0, 99))] == [b"%d" % n for n in range(1, 40)]
    other.close()


def test_replies_of_a_stream_closed_early_reach_nobody(link: SyncLink) -> None:
    stream = link.stream([command("ECHO", n) for n in range(9)], 4)
    assert next(stream) == b"0"
    stream.close()
    assert link.execute(command("ECHO", "mine")) == b"mine"


def test_a_call_in_the_middle_of_a_stream_is_a_mistake_and_takes_no_reply_of_it(link: SyncLink) -> None:
    stream = link.stream([command("ECHO", n) for n in range(9)], 4)
    next(stream)
    with pytest.raises(AssertionError):
        link.execute(command("ECHO", "mine"))
    assert list(stream) == [b"%d" % n for n in range(1, 9)]


def test_an_error_in_a_stream_is_translated_and_the_link_is_usable_again(link: SyncLink) -> None:
    stream = link.stream([command("ECHO", "a"), command("NOSUCHCOMMAND"), command("ECHO", "b")], 3)
    assert next(stream) == b"a"
    with pytest.raises(ServerRefused):
        next(stream)
    assert link.execute(command("ECHO", "mine")) == b"mine"


def test_a_stream_repeats_nothing_when_the_link_breaks() -> None:
    with FakeRedis(says(b":1\r\n", CLOSE, b":3\r\n")) as fake:
        made = SyncLink(fake.server)
        stream = made.stream([AGAIN] * 3, 1)
        assert next(stream) == 1
        with pytest.raises(LinkLost):
            next(stream)
        assert len(fake.seen) == 2
        made.close()


def test_posted_calls_are_answered_in_order(link: SyncLink) -> None:
    for n in range(5):
        link.post(command("ECHO", n))
    assert [link.fetch() for _ in range(5)] == [b"%d" % n for n in range(5)]


# The asyncio link's cancellation


@pytest.mark.parametrize("connected", [True, False])
def test_a_cancelled_call_leaves_no_reply_for_the_next(connected: bool) -> None:
    async def scenario(server: RedisServer) -> Any:
        link = AsyncLink(parse(server.url)[0])
        if connected:
            await link.execute(command("PING"))
        server.pause()
        task = asyncio.create_task(link.execute(command("ECHO", "cancelled")))
        await turns(lambda: link._connection.is_connected)
        await asyncio.wait([task], timeout=0.05)  # on to where it waits for a reply that does not come
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.resume()
        try:
            return await link.execute(command("ECHO", "mine"))
        finally:
            await link.close()

    async def turns(condition: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if condition():
                return
            await asyncio.sleep(0)  # a turn of the loop, no time

    with RedisServer() as server:
        assert asyncio.run(scenario(server)) == b"mine"


def test_tasks_that_share_a_link_get_their_own_replies(redis_url: str) -> None:
    async def scenario() -> list[Any]:
        link = AsyncLink(parse(redis_url)[0])
        try:
            return await asyncio.gather(*(link.execute([command("ECHO", n), command("ECHO", -n)]) for n in range(50)))
        finally:
            await link.close()

    assert asyncio.run(scenario()) == [[b"%d" % n, b"%d" % -n] for n in range(50)]
