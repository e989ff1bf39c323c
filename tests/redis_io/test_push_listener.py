"""The push listener: a push by any client wakes the waiting thread, and an unreachable server only
delays that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.push_listener import RedisPushListenerThread
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import RedisServerAddress, parse
from tests.conftest import FreshKeys, link_to
from tests.support import PATIENCE_S, wait_until


class Notified(threading.Event):
    def again(self) -> None:
        """Wait for a notification and forget it."""
        assert self.wait(PATIENCE_S)
        self.clear()


Started = tuple[RedisPushListenerThread, Notified]


@pytest.fixture
def listener(redis_url: str) -> Iterator[Started]:
    notified = Notified()
    made = RedisPushListenerThread(parse(redis_url)[0], notified)
    yield made, notified
    made.stop()


def listeners(link: SyncLink, keys: QueueKeys) -> int:
    return int(link.execute(command("PUBSUB", "NUMSUB", keys.available))[1])


def born(link: SyncLink, keys: QueueKeys) -> QueueKeys:
    link.run(queue.attach(keys, "b", ttl_s=600))
    return keys


def test_a_listener_notifies_once_when_it_has_subscribed(
    listener: Started, fresh_keys: FreshKeys
) -> None:
    made, notified = listener
    made.listen([fresh_keys().available])
    notified.again()


def test_a_push_notifies(listener: Started, link: SyncLink, fresh_keys: FreshKeys) -> None:
    made, notified = listener
    keys = born(link, fresh_keys())
    made.listen([keys.available])
    notified.again()  # the confirmation of SUBSCRIBE, which is heard like a message
    link.run(queue.push(keys, b"x"))
    notified.again()


def test_a_push_to_another_queue_does_not_notify(
    listener: Started, link: SyncLink, fresh_keys: FreshKeys
) -> None:
    made, notified = listener
    mine, other = born(link, fresh_keys()), born(link, fresh_keys())
    made.listen([mine.available])
    notified.again()
    link.run(queue.push(other, b"x"))
    link.run(queue.push(mine, b"x"))  # what comes behind it was heard, so the one before was not
    notified.again()
    assert not notified.wait(0.2)


def test_a_listener_listens_to_queues_that_are_added_and_no_longer_to_others(
    listener: Started, link: SyncLink, fresh_keys: FreshKeys
) -> None:
    made, _ = listener
    first, second = fresh_keys(), fresh_keys()
    made.listen([first.available])
    wait_until(lambda: listeners(link, first) == 1)
    made.listen([second.available])
    wait_until(lambda: (listeners(link, first), listeners(link, second)) == (0, 1))


def test_a_listener_listens_to_more_queues_than_one_call_names(
    listener: Started, link: SyncLink, fresh_keys: FreshKeys
) -> None:
    made, _ = listener
    many = [fresh_keys() for _ in range(1201)]
    made.listen([keys.available for keys in many])
    wait_until(
        lambda: (
            listeners(link, many[0]) == listeners(link, many[600]) == listeners(link, many[-1]) == 1
        )
    )


def test_a_push_listener_survives_the_restart_of_its_server() -> None:
    notified = Notified()
    with EmbeddedRedis() as server:
        listener, keys, link = (
            RedisPushListenerThread(parse(server.url)[0], notified),
            QueueKeys("q"),
            link_to(server.url),
        )
        listener.listen([keys.available])
        notified.again()
        server.kill()
        server.restart()
        notified.again()  # it was deaf for a while, so it rings by itself
        link.run(queue.push(born(link, keys), b"x"))
        notified.again()
        listener.stop()
        link.close()


def test_a_push_listener_without_a_server_signals_nothing_and_can_be_stopped() -> None:
    notified = Notified()
    with EmbeddedRedis() as server:
        port = server.port
    listener = RedisPushListenerThread(RedisServerAddress("127.0.0.1", port), notified)
    listener.listen(["c"])
    listener.stop()
    wait_until(
        lambda: (
            not any(
                thread.name == "busmq-push-listener" and thread is listener._thread
                for thread in threading.enumerate()
            )
        )
    )
    assert not notified.is_set()


def test_a_stopped_push_listener_leaves_no_subscription_behind(
    redis_url: str, link: SyncLink, fresh_keys: FreshKeys
) -> None:
    keys = fresh_keys()
    listener = RedisPushListenerThread(parse(redis_url)[0], Notified())
    listener.listen([keys.available])
    wait_until(lambda: listeners(link, keys) == 1)
    listener.stop()
    wait_until(lambda: listeners(link, keys) == 0)
