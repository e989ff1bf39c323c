"""The bell: a push by any client wakes the waiting thread, and an unreachable server only delays that."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from busmq_spark.core import queue
from busmq_spark.core.flow import command
from busmq_spark.core.keys import QueueKeys
from busmq_spark.embedded import RedisServer
from busmq_spark.topology.link import SyncLink
from busmq_spark.topology.listen import Bell
from busmq_spark.topology.urls import Server, parse
from tests.conftest import FreshKeys, link_to
from tests.support import PATIENCE_S, wait_until


class Rung(threading.Event):
    def again(self) -> None:
        """Wait for a ring and forget it."""
        assert self.wait(PATIENCE_S)
        self.clear()


@pytest.fixture
def bell(redis_url: str) -> Iterator[tuple[Bell, Rung]]:
    rung = Rung()
    made = Bell(parse(redis_url)[0], rung)
    yield made, rung
    made.stop()


def listeners(link: SyncLink, keys: QueueKeys) -> int:
    return int(link.execute(command("PUBSUB", "NUMSUB", keys.available))[1])


def born(link: SyncLink, keys: QueueKeys) -> QueueKeys:
    link.run(queue.attach(keys, "b", ttl_s=600))
    return keys


def test_a_bell_rings_once_when_it_begins_to_listen_since_it_was_deaf_before(bell: tuple[Bell, Rung], fresh_keys: FreshKeys) -> None:
    made, rung = bell
    made.listen([fresh_keys().available])
    rung.again()


def test_a_push_rings_the_bell(bell: tuple[Bell, Rung], link: SyncLink, fresh_keys: FreshKeys) -> None:
    made, rung = bell
    keys = born(link, fresh_keys())
    made.listen([keys.available])
    rung.again()
    wait_until(lambda: listeners(link, keys) == 1)
    wait_until(lambda: not rung_by_the_subscription(rung))
    link.run(queue.push(keys, b"x"))
    rung.again()


def rung_by_the_subscription(rung: Rung) -> bool:
    """The confirmation of SUBSCRIBE is heard like a message: forget what rang until nothing does for a while."""
    heard = rung.wait(0.2)
    rung.clear()
    return heard


def test_a_push_to_another_queue_does_not_ring(bell: tuple[Bell, Rung], link: SyncLink, fresh_keys: FreshKeys) -> None:
    made, rung = bell
    mine, other = born(link, fresh_keys()), born(link, fresh_keys())
    made.listen([mine.available])
    wait_until(lambda: listeners(link, mine) == 1)
    wait_until(lambda: not rung_by_the_subscription(rung))
    link.run(queue.push(other, b"x"))
    link.run(queue.push(mine, b"x"))  # what comes behind it was heard, so the one before was not
    rung.again()
    assert not rung_by_the_subscription(rung)


def test_a_bell_listens_to_queues_that_are_added_and_no_longer_to_others(bell: tuple[Bell, Rung], link: SyncLink, fresh_keys: FreshKeys) -> None:
    made, _ = bell
    first, second = fresh_keys(), fresh_keys()
    made.listen([first.available])
    wait_until(lambda: listeners(link, first) == 1)
    made.listen([second.available])
    wait_until(lambda: (listeners(link, first), listeners(link, second)) == (0, 1))


def test_a_bell_listens_to_more_queues_than_one_call_names(bell: tuple[Bell, Rung], link: SyncLink, fresh_keys: FreshKeys) -> None:
    made, _ = bell
    many = [fresh_keys() for _ in range(1201)]
    made.listen([keys.available for keys in many])
    wait_until(lambda: listeners(link, many[0]) == listeners(link, many[600]) == listeners(link, many[-1]) == 1)


def test_a_bell_survives_the_restart_of_its_server() -> None:
    rung = Rung()
    with RedisServer() as server:
        bell, keys, link = Bell(parse(server.url)[0], rung), QueueKeys("q"), link_to(server.url)
        bell.listen([keys.available])
        wait_until(lambda: listeners(link, keys) == 1)
        server.kill()
        rung.clear()
        server.restart()
        rung.again()  # it was deaf for a while, so it rings by itself
        wait_until(lambda: listeners(link, keys) == 1)
        wait_until(lambda: not rung_by_the_subscription(rung))
        link.run(queue.push(born(link, keys), b"x"))
        rung.again()
        bell.stop()
        link.close()


def test_a_bell_without_a_server_stays_silent_and_can_be_stopped() -> None:
    rung = Rung()
    with RedisServer() as server:
        port = server.port
    bell = Bell(Server("127.0.0.1", port), rung)
    bell.listen(["c"])
    bell.stop()
    wait_until(lambda: not any(thread.name == "busmq-bell" and thread is bell._thread for thread in threading.enumerate()))
    assert not rung.is_set()


def test_a_stopped_bell_leaves_no_subscription_behind(redis_url: str, link: SyncLink, fresh_keys: FreshKeys) -> None:
    keys = fresh_keys()
    bell = Bell(parse(redis_url)[0], Rung())
    bell.listen([keys.available])
    wait_until(lambda: listeners(link, keys) == 1)
    bell.stop()
    wait_until(lambda: listeners(link, keys) == 0)
