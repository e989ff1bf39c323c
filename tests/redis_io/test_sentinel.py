"""The endpoint behind sentinels: who is master now, whatever some sentinels say or do not say. Both
drivers ask.
"""

from __future__ import annotations

import asyncio

import pytest

from busmq_spark.embedded import EmbeddedSentinel
from busmq_spark.errors import BusError, ConfigError, LinkLost, Unauthorized
from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io.endpoint import NoServerReachable, retry_time_s
from busmq_spark.redis_io.moving_endpoints import SentinelMaster
from busmq_spark.redis_io.retry import FAILOVER_PATIENCE_S, PATIENCE_S
from busmq_spark.redis_io.urls import DefaultCredentials, RedisServerAddress, parse
from tests.redis_io.conftest import Driver, absent
from tests.redis_io.fakes import FakeRedis, says

NAMED = b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n7001\r\n"
UNKNOWN = b"*-1\r\n"
MASTER = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"
REPLICA = b"*5\r\n$5\r\nslave\r\n$1\r\na\r\n:1\r\n$9\r\nconnected\r\n:0\r\n"


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def find(master: SentinelMaster, way: str) -> RedisServerAddress:
    return master.resolve() if way == "sync" else asyncio.run(master.resolve_async())


def test_the_first_sentinel_that_knows_the_name_is_believed(way: str) -> None:
    with FakeRedis(says(UNKNOWN)) as ignorant, FakeRedis(says(NAMED)) as knows:
        found = find(
            SentinelMaster(
                (absent(), ignorant.server, knows.server), "blue", DefaultCredentials("u", "p")
            ),
            way,
        )
    assert (found.host, found.port, found.user, found.password) == ("127.0.0.1", 7001, "u", "p")
    assert knows.seen == [[b"SENTINEL", b"get-master-addr-by-name", b"blue"]]


def test_a_name_that_no_sentinel_knows_is_an_error_of_the_options_even_if_others_are_down(
    way: str,
) -> None:
    with (
        FakeRedis(says(UNKNOWN)) as fake,
        pytest.raises(ConfigError, match=r"no master 'blue'.*redis\.sentinelMaster"),
    ):
        find(SentinelMaster((fake.server, absent()), "blue"), way)


def test_sentinels_that_are_all_down_are_unreachable_and_no_secret_shows(way: str) -> None:
    with pytest.raises(NoServerReachable) as caught:
        find(
            SentinelMaster(
                (absent(), absent()), login=DefaultCredentials(password="hidden-secret")
            ),
            way,
        )
    assert "hidden-secret" not in str(caught.value)
    assert "no sentinel answers" in str(caught.value)


def test_a_sentinel_that_requires_a_password_is_named_as_such(way: str) -> None:
    with (
        FakeRedis(says(b"-NOAUTH Authentication required.\r\n")) as fake,
        pytest.raises(Unauthorized),
    ):
        find(SentinelMaster((absent(), fake.server)), way)


@pytest.mark.parametrize(
    ("moves", "error", "expected"),
    [
        (False, LinkLost(url="", reason=""), PATIENCE_S),
        (True, LinkLost(url="", reason=""), FAILOVER_PATIENCE_S),
        (True, NoServerReachable(url="", reason=""), PATIENCE_S),
    ],
)
def test_a_failover_is_waited_for_only_while_a_server_answers(
    moves: bool, error: LinkLost, expected: float
) -> None:
    assert (
        retry_time_s(SentinelMaster(()) if moves else RedisServerAddress("h", 1), error) == expected
    )


class Elsewhere(RedisServerAddress):
    """A server that stands for whichever is master, as SentinelMaster does without sentinels."""

    may_move = True


def elsewhere(server: RedisServerAddress) -> RedisServerAddress:
    return Elsewhere(server.host, server.port)


def test_a_server_that_is_not_master_any_more_is_not_used(driver: Driver) -> None:
    with FakeRedis(says(REPLICA)) as fake:
        with pytest.raises(LinkLost, match="is a slave now"):
            driver(elsewhere(fake.server), patience_s=0.2).execute(command("GET", "a"))
        assert {words[0] for words in fake.seen} == {b"ROLE"}


def test_a_write_that_a_demoted_master_refuses_goes_to_the_next_master_even_if_it_is_not_idempotent(
    driver: Driver,
) -> None:
    with FakeRedis(
        says(
            MASTER, b"-READONLY You can't write against a read only replica.\r\n", MASTER, b":1\r\n"
        )
    ) as fake:
        assert driver(elsewhere(fake.server)).execute(command("INCR", "n", idempotent=False)) == 1
        assert [words[0] for words in fake.seen] == [b"ROLE", b"INCR", b"ROLE", b"INCR"]


@pytest.mark.parametrize(
    "driver", ["async"], indirect=True
)  # tests/faults has the blocking link follow one
def test_a_link_follows_the_master_through_a_failover(driver: Driver) -> None:
    with EmbeddedSentinel(password="right") as group:
        made = driver(
            SentinelMaster(
                parse(",".join(group.urls)), group.name, DefaultCredentials(password="right")
            ),
            patience_s=60,
        )
        made.execute(command("SET", "a", "before"))
        assert made.execute(command("WAIT", 1, 10_000)) == 1
        dead = group.kill_master()
        assert made.execute(command("GET", "a")) == b"before"
        assert group.master is not dead


def test_credentials_that_the_master_refuses_end_the_call_at_once(driver: Driver) -> None:
    with EmbeddedSentinel(replicas=0, sentinels=1, password="right") as group:
        made = driver(
            SentinelMaster(
                parse(",".join(group.urls)), group.name, DefaultCredentials(password="wrong-one")
            ),
            patience_s=60,
        )
        with pytest.raises(BusError) as caught:
            made.execute(command("GET", "a"))
        assert isinstance(caught.value, Unauthorized)
        assert "wrong-one" not in str(caught.value)
