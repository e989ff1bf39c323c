"""Links: what is sent again and what never, when they give up, and what they say then. Both
drivers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost, ServerRefused, Unauthorized
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import RedisCall, command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io import async_link as async_link_module
from busmq_spark.redis_io import connection_factory
from busmq_spark.redis_io import sync_link as link_module
from busmq_spark.redis_io.async_link import AsyncLink
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.link_rules import Action, Pause
from busmq_spark.redis_io.retry import PATIENCE_S
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import RedisServerAddress
from tests.redis_io.conftest import Driver, absent
from tests.redis_io.fakes import CLOSE, FakeRedis, answered, says

ONCE = command("INCR", "n", idempotent=False)
AGAIN = command("GET", "n")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply may take 0.2 s: a server that is stopped need not be waited for."""
    monkeypatch.setattr(connection_factory, "REPLY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connection_factory, "CONNECT_TIMEOUT_S", 0.2)


@dataclass
class Clock:
    """Stands where nobody moves it: what a busy machine takes in real time does not count."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which links have patience."""
    made = Clock()
    for module in (link_module, async_link_module):
        monkeypatch.setattr(module, "time", made)
    return made


# What is sent again


def test_an_idempotent_call_whose_reply_was_lost_is_sent_again(driver: Driver) -> None:
    with FakeRedis(says(CLOSE, CLOSE, b"$1\r\n7\r\n")) as fake:
        assert driver(fake.server).execute(AGAIN) == b"7"
        assert len(fake.seen) == 3


def test_a_reply_that_is_waited_for_longer_than_all_patience_is_asked_for_again(
    driver: Driver, impatient: None, clock: Clock
) -> None:
    """Else a connection that a firewall forgot, or a moment in which Redis stood still, would end a
    query: 10 s are more than 8.
    """
    asked = 0

    def answer(_: int, words: list[bytes]) -> bytes:
        nonlocal asked
        if words[0] != b"GET":
            return b"+OK\r\n"
        asked += 1
        if asked > 1:
            return b"$1\r\n7\r\n"
        clock.now += 10 * PATIENCE_S
        return b""

    with FakeRedis(answer) as fake:
        made = driver(fake.server, patience_s=PATIENCE_S)
        answered(lambda: made.execute(command("ECHO", "connected")))
        assert made.execute(AGAIN) == b"7"
        assert asked >= 2


def test_a_host_that_drops_packets_is_given_up_when_connecting_has_taken_all_patience(
    driver: Driver, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[RedisEndpoint] = []
    for module, name in ((link_module, "dial"), (async_link_module, "dial_async")):
        monkeypatch.setattr(module, name, counted(getattr(module, name), dialled))
    with deaf() as url, pytest.raises(LinkLost):
        driver(url, patience_s=0.1).execute(AGAIN)
    assert len(dialled) == 1


def counted(dial: Callable[..., Any], dialled: list[RedisEndpoint]) -> Callable[..., Any]:
    def wrapper(endpoint: RedisEndpoint, *rest: Any) -> Any:
        dialled.append(endpoint)
        return dial(endpoint, *rest)

    return wrapper


@contextmanager
def deaf() -> Iterator[str]:
    """A host that answers no attempt to connect: the line of those that wait to be accepted is
    full.
    """
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"redis://127.0.0.1:{server.getsockname()[1]}"


def test_a_call_that_is_not_idempotent_is_sent_once_when_its_reply_was_lost(driver: Driver) -> None:
    with FakeRedis(says(CLOSE, b":1\r\n")) as fake:
        with pytest.raises(LinkLost):
            driver(fake.server).execute(ONCE)
        assert len(fake.seen) == 1


def test_a_step_with_one_call_that_is_not_idempotent_is_not_sent_again_as_a_whole(
    driver: Driver,
) -> None:
    with FakeRedis(says(b"$1\r\n7\r\n", CLOSE, b":1\r\n")) as fake:
        with pytest.raises(LinkLost):
            driver(fake.server).execute([AGAIN, ONCE])
        assert len(fake.seen) == 2


@pytest.mark.parametrize("code", ["LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN"])
@pytest.mark.parametrize("call", [ONCE, AGAIN], ids=["once", "again"])
def test_a_call_that_redis_put_off_is_sent_again(
    driver: Driver, code: str, call: RedisCall
) -> None:
    put_off = f"-{code} not now, please\r\n".encode()
    with FakeRedis(says(put_off, put_off, b":5\r\n")) as fake:
        assert driver(fake.server).execute(call) == 5
        assert len(fake.seen) == 3


def test_a_server_that_never_stops_loading_is_lost_when_patience_is(
    driver: Driver, clock: Clock
) -> None:
    def load(_: int, __: list[bytes]) -> bytes:
        clock.now += 0.4 * PATIENCE_S
        return b"-LOADING Redis is loading the dataset in memory\r\n"

    with FakeRedis(load) as fake:
        with pytest.raises(LinkLost, match="loading the dataset"):
            driver(fake.server, patience_s=PATIENCE_S).execute(AGAIN)
        assert len(fake.seen) == 3


def test_a_script_that_redis_does_not_know_is_sent_with_its_text_even_if_not_idempotent(
    driver: Driver,
) -> None:
    with FakeRedis(
        says(b"-NOSCRIPT No matching script. Please use EVAL.\r\n", b"*2\r\n:1\r\n:1\r\n")
    ) as fake:
        assert driver(fake.server).run(queue.push(QueueKeys("q"), b"v")) == 1
        assert [words[0] for words in fake.seen] == [b"EVALSHA", b"EVAL"]
        assert fake.seen[0][2:] == fake.seen[1][2:]


def test_replies_stand_where_their_calls_stood_when_some_scripts_were_unknown(
    driver: Driver,
) -> None:
    with EmbeddedRedis() as server:
        made = driver(server.url)
        known, unknown = (
            script("lease", ["known-lease"], ("me", 1000, "")),
            script("pop", ["no-such-list"], (1, 1, 1)),
        )
        made.execute(known)
        assert made.execute([command("ECHO", "a"), unknown, known, command("ECHO", "b")]) == [
            b"a",
            [],
            b"me",
            b"b",
        ]


def test_a_refusal_by_redis_is_not_repeated(driver: Driver) -> None:
    with FakeRedis(says(b"-ERR no such thing\r\n")) as fake:
        with pytest.raises(ServerRefused, match="no such thing"):
            driver(fake.server).execute(AGAIN)
        assert len(fake.seen) == 1


def test_after_a_refused_call_the_replies_of_the_step_do_not_reach_the_next(
    driver: Driver, redis_url: str
) -> None:
    made = driver(redis_url)
    with pytest.raises(ServerRefused):
        made.execute([command("ECHO", "a"), command("NOSUCHCOMMAND"), command("ECHO", "b")])
    assert made.execute(command("ECHO", "c")) == b"c"


def test_no_calls_need_no_server(driver: Driver) -> None:
    assert driver(absent()).execute([]) == []


# Servers that are away


@pytest.mark.parametrize("user", ["user", "username"])
def test_words_of_redis_that_look_like_the_user_stay_whole(
    driver: Driver, redis_server: EmbeddedRedis, user: str
) -> None:
    with pytest.raises(Unauthorized) as caught:
        driver(
            RedisServerAddress("127.0.0.1", redis_server.port, user=user, password="word-of-mine")
        ).execute(AGAIN)
    assert "invalid username-password pair or user is disabled" in str(caught.value)
    assert "word-of-mine" not in str(caught.value)


def test_a_server_that_is_not_there_is_lost_with_its_address_and_not_its_password(
    driver: Driver,
) -> None:
    server = absent()
    with pytest.raises(LinkLost) as caught:
        driver(server, patience_s=0.1).execute(AGAIN)
    assert f"redis://***@127.0.0.1:{server.port}" in str(caught.value)
    assert "hidden-secret" not in str(caught.value) + repr(caught.value.details)
    assert caught.value.retriable


@pytest.mark.parametrize("patience_s", [0.0, 1.0, 8.0])
def test_a_link_tries_until_its_patience_is_over_and_not_beyond(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, patience_s: float
) -> None:
    pauses: list[float] = []

    def pause(pause_s: float) -> None:
        assert 0 < pause_s <= 1.0
        clock.now += pause_s
        pauses.append(pause_s)

    link = SyncLink(absent(), patience_s)
    monkeypatch.setattr(link._stopped, "wait", pause)
    with pytest.raises(LinkLost):
        link.execute(AGAIN)
    assert patience_s - 1.0 < clock.now - 100.0 <= patience_s
    assert len(pauses) <= 5 + 2 * patience_s


def test_patience_and_one_connect_stay_under_ten_seconds() -> None:
    assert PATIENCE_S + connection_factory.CONNECT_TIMEOUT_S / 2 < 10
    assert 0 < connection_factory.REPLY_TIMEOUT_S <= 10


@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_does_not_reply_is_lost_and_its_late_reply_is_dropped(
    driver: Driver, impatient: None, connected: bool
) -> None:
    with EmbeddedRedis() as server:
        made = driver(server.url, patience_s=0.1)
        if connected:
            assert answered(lambda: made.execute(command("SET", "a", "late"))) == b"OK"
        server.pause()
        with pytest.raises(LinkLost, match=f"127.0.0.1:{server.port}"):
            made.execute(command("GET", "a"))
        server.resume()
        assert answered(lambda: made.execute(command("ECHO", "fresh"))) == b"fresh"


def test_a_server_that_went_away_and_came_back_between_calls_is_no_reason_to_lose_a_push(
    driver: Driver,
) -> None:
    with EmbeddedRedis(aof=True) as server:
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
    with EmbeddedRedis(aof=True) as server:
        made = driver(server.url)
        made.execute(command("SET", "a", 1))
        server.kill()
        with pytest.MonkeyPatch.context() as patch:
            at_a_pause(patch, driver.way, server.restart)
            assert made.execute(command("GET", "a")) == b"1"


def at_a_pause(patch: pytest.MonkeyPatch, way: str, act: Callable[[], object]) -> None:
    """Do ``act`` when the link pauses before its next try."""
    kind: type[Any] = AsyncLink if way == "async" else SyncLink
    perform = kind.perform

    def act_and_perform(self: Any, action: Action) -> Any:
        if isinstance(action, Pause):
            act()
        return perform(self, action)

    patch.setattr(kind, "perform", act_and_perform)
