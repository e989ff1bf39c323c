"""What Redis refuses is an error of its own kind, at once, and nothing of the refused call is
stored. Both drivers.
"""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import (
    LinkLost,
    MessageRefused,
    ReadOnly,
    ServerFull,
    Unauthorized,
    WritesPaused,
)
from busmq_spark.queue import queue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import MAX_VALUE_BYTES, Message
from busmq_spark.reading import times_of_ids
from busmq_spark.redis_io.translate import translate_redis_error
from busmq_spark.redis_io.urls import RedisServerAddress, parse
from tests.redis_io.conftest import Driver, absent
from tests.redis_io.replies import REPLIES
from tests.stored import read_at
from tests.support_writes import CAUSES, pause_writes, resume_writes, writes_paused


@pytest.mark.parametrize("password", ["wrong-secret", None])
def test_a_wrong_or_missing_password_is_unauthorized_at_once_and_not_shown(
    driver: Driver, password: str | None
) -> None:
    with EmbeddedRedis(password="right-secret") as server:
        made = driver(RedisServerAddress("127.0.0.1", server.port, password=password))
        with pytest.raises(Unauthorized) as caught:
            made.execute(command("SET", "a", 1))
        assert "-secret" not in str(caught.value) + repr(caught.value.details)
        assert not caught.value.retriable


def test_the_right_password_is_taken_from_the_url(driver: Driver) -> None:
    with EmbeddedRedis(password="right@,secret") as server:
        assert driver(server.url).execute(command("PING")) == b"PONG"


def test_a_user_without_the_right_to_run_scripts_is_unauthorized(
    driver: Driver, redis_server: EmbeddedRedis
) -> None:
    redis_server.command(
        "ACL", "SETUSER", "reader", "on", ">reader-secret", "~*", "+@all", "-rpush"
    )
    made = driver(
        RedisServerAddress("127.0.0.1", redis_server.port, user="reader", password="reader-secret")
    )
    made.run(queue.attach(QueueKeys("acl"), "b", ttl_s=30))
    with pytest.raises(Unauthorized):
        made.run(queue.push(QueueKeys("acl"), b"x"))


def test_a_replica_is_read_only(driver: Driver, redis_server: EmbeddedRedis) -> None:
    with (
        EmbeddedRedis(replica_of=("127.0.0.1", redis_server.port)) as replica,
        pytest.raises(ReadOnly, match=str(replica.port)),
    ):
        driver(replica.url).run(queue.attach(QueueKeys("ro"), "b", ttl_s=30))


def test_a_replica_that_lost_its_master_and_may_not_serve_is_waited_for(driver: Driver) -> None:
    settings = {"replica-serve-stale-data": "no"}
    with (
        EmbeddedRedis(replica_of=("127.0.0.1", absent().port), settings=settings) as replica,
        pytest.raises(LinkLost, match="MASTER is down"),
    ):
        driver(replica.url, patience_s=0.05).execute(command("GET", "a"))


@pytest.mark.parametrize("cause", CAUSES)
def test_a_master_that_pauses_writes_is_waited_for(
    driver: Driver, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedRedis() as server:
        keys, made = QueueKeys("q"), driver(server.url, None)
        made.run(queue.attach(keys, "b", ttl_s=600))
        with writes_paused(server, cause):
            assert made.run(queue.push(keys, b"one")) == 1
        with writes_paused(server, cause):
            assert made.run(queue.push_many(keys, [b"two", b"three"])) == 2
        assert made.run(read_at(keys, 0, 9)) == [
            Message(1, b"one"),
            Message(2, b"two"),
            Message(3, b"three"),
        ]
    assert caplog.text.count("BUSMQ_WRITES_PAUSED") == 1


@pytest.mark.parametrize("cause", CAUSES)
def test_what_a_paused_master_refuses_was_not_executed(driver: Driver, cause: str) -> None:
    with EmbeddedRedis() as server:
        keys, made = QueueKeys("q"), driver(server.url, 0.05)
        made.run(queue.attach(keys, "b", ttl_s=600))
        made.run(queue.push(keys, b"one"))
        pause_writes(server, cause)
        for flow in (
            queue.push(keys, b"two"),
            queue.pop(keys, reliable=False, ttl_s=600, most=9),
            queue.attach(QueueKeys("new"), "b", ttl_s=30),
        ):
            with pytest.raises(WritesPaused, match="refuses writes for now") as caught:
                made.run(flow)
            assert caught.value.retriable
        made.run(times_of_ids.note_times_if_allowed([keys]))  # what is left out is not waited for
        resume_writes(server)
        assert made.run(queue.push(keys, b"two")) == 2


def test_each_reply_of_redis_has_its_error(redis_url: str) -> None:
    """tests/jvm/test_alike.py holds Java to the same."""
    endpoint = parse(redis_url)[0]
    for text, kind in REPLIES.items():
        found = translate_redis_error(ResponseError(text), endpoint)
        assert type(found) is kind, text
        assert found.retriable is issubclass(kind, (LinkLost, ServerFull))


def test_a_server_out_of_memory_is_full_and_has_stored_nothing_of_the_call(driver: Driver) -> None:
    with EmbeddedRedis() as server:
        made, keys = driver(server.url), QueueKeys("q")
        made.run(queue.attach(keys, "b", ttl_s=600))
        made.run(queue.push(keys, b"one"))
        server.command("CONFIG", "SET", "maxmemory", "1")
        for flow in (queue.push(keys, b"two"), queue.push_many(keys, [b"two", b"three"])):
            with pytest.raises(ServerFull, match="out of memory"):
                made.run(flow)
        with pytest.raises(ServerFull):
            made.execute(command("RPUSH", "stage", "row"))
        assert (
            made.run(queue.pop(keys, reliable=True, ttl_s=600, most=9))[0].value == b"one"
        )  # what makes room works
        made.run(queue.ack(keys, 0, ttl_s=600, restore=True))
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert made.run(queue.push(keys, b"next")) == 2
        assert [m.value for m in made.run(read_at(keys, 0, 9))] == [b"one", b"next"]


class Huge(bytes):
    """A value that says it is over 512 MB; the check needs no more than its word."""

    def __len__(self) -> int:
        return MAX_VALUE_BYTES + 1


def test_a_value_over_512_mb_is_refused_before_a_byte_is_sent(driver: Driver) -> None:
    with pytest.raises(MessageRefused, match="512 MB"):
        driver(absent(), 0.1).run(queue.push(QueueKeys("q"), Huge()))
    with pytest.raises(MessageRefused, match="512 MB"):
        driver(absent(), 0.1).run(queue.push_many(QueueKeys("q"), [b"a", Huge()]))
