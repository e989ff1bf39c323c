"""What a link does next, decided without a server, a clock or a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis.exceptions as rx

from busmq_spark.errors import LinkLost, ServerRefused, TlsError, Unauthorized
from busmq_spark.queue.command_generators import RedisCall, command, script
from busmq_spark.redis_io.cluster_rules import KnownSlots, run_cluster_step
from busmq_spark.redis_io.link_rules import (
    Ask,
    Connect,
    Drop,
    FindSlots,
    Pause,
    Receive,
    Rule,
    Send,
    run_step,
)
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds, SentinelMaster
from busmq_spark.redis_io.slots import SlotMap
from busmq_spark.redis_io.urls import RedisServerAddress

ONCE, AGAIN = command("INCR", "n", idempotent=False), command("GET", "n")
SERVER = RedisServerAddress("h", 1)
CLUSTER = ClusterSeeds((SERVER,))
LOST = rx.ConnectionError("gone")
NODE = ("a", 1)
MAP = SlotMap((0,), (16_383,), (NODE,))


def play(rule: Rule, *outcomes: Any) -> tuple[list[Any], Any]:
    """Perform the actions of a rule with these outcomes in turn: the actions, and the result or the
    error that ends it. A pause needs no outcome.
    """
    actions: list[Any] = []
    resume: Callable[[Any], Any] = rule.send
    value: Any = None
    left = iter(outcomes)
    while True:
        try:
            actions.append(resume(value))
        except StopIteration as done:
            return actions, done.value
        except Exception as error:  # noqa: BLE001  # the tests look at it
            return actions, error
        value = None if isinstance(actions[-1], Pause | Drop) else next(left)
        resume = rule.throw if isinstance(value, Exception) else rule.send


def single(step: RedisCall, *outcomes: Any, moves: bool = False) -> tuple[list[type[Any]], Any]:
    endpoint = SentinelMaster((SERVER,)) if moves else SERVER
    actions, result = play(run_step(step, None, endpoint, 60.0, lambda: 0.0), *outcomes)
    return [type(action) for action in actions], result


def test_an_open_connection_is_asked_at_once() -> None:
    actions, result = play(run_step(AGAIN, "open", SERVER, None, lambda: 0.0), [b"7"])
    assert actions == [Ask("open", (AGAIN,))]
    assert result == b"7"


def test_a_connection_that_fails_is_tried_again_whatever_the_step() -> None:
    assert single(ONCE, LOST, "open", [1]) == ([Connect, Pause, Connect, Ask], 1)


def test_a_connection_that_waiting_does_not_mend_is_an_error_at_once() -> None:
    actions, error = single(AGAIN, rx.AuthenticationError("invalid password"))
    assert actions == [Connect]
    assert isinstance(error, Unauthorized)


def test_a_reply_that_was_lost_is_asked_for_again_if_the_call_is_idempotent() -> None:
    assert single(AGAIN, "one", LOST, "two", [b"7"])[0] == [Connect, Ask, Pause, Connect, Ask]
    actions, error = single(ONCE, "one", LOST)
    assert actions == [Connect, Ask]
    assert isinstance(error, LinkLost)
    assert error.__cause__ is LOST


def test_a_script_that_redis_does_not_know_goes_again_whole_on_the_same_connection() -> None:
    call = script("pop", ["l"], (1, 1, 1), idempotent=False)
    rule = run_step([ONCE, call], "open", SERVER, None, lambda: 0.0)
    actions, result = play(rule, [1, rx.NoScriptError("NOSCRIPT")], [[]])
    assert actions == [Ask("open", [ONCE, call]), Ask("open", [call], whole=True)]
    assert result == [1, []]


def test_a_master_that_puts_off_is_looked_up_anew_where_another_may_take_over() -> None:
    put_off = [rx.ReadOnlyError("You can't write against a read only replica.")]
    assert single(ONCE, "one", put_off, "two", [1], moves=True) == (
        [Connect, Ask, Drop, Pause, Connect, Ask],
        1,
    )


def test_a_refusal_is_raised_and_nothing_is_sent_again() -> None:
    actions, error = single(AGAIN, "one", [rx.ResponseError("ERR no such thing")])
    assert actions == [Connect, Ask]
    assert isinstance(error, ServerRefused)


def test_a_pause_that_took_longer_does_not_use_up_the_patience() -> None:
    now = 0.0
    rule = run_step(AGAIN, None, SERVER, 1.0, lambda: now)
    assert isinstance(next(rule), Connect)
    for _ in range(5):
        assert isinstance(rule.throw(LOST), Pause)
        now += 100.0
        assert isinstance(next(rule), Connect)


def clustered(known: KnownSlots, *outcomes: Any, step: RedisCall = ONCE) -> tuple[list[Any], Any]:
    return play(run_cluster_step(step, CLUSTER, known, 60.0, lambda: 0.0), *outcomes)


def test_a_redirected_call_follows_at_once_and_the_map_is_read_anew_at_the_end() -> None:
    known = KnownSlots()
    known.current = MAP
    moved = [rx.MovedError("11000 b:2")]
    actions, result = clustered(known, MAP, "c", "s", moved, MAP, "c", "s", [1], MAP)
    assert [type(action) for action in actions[:4]] == [FindSlots, Connect, Send, Receive]
    assert actions[4] == FindSlots()
    assert actions[-1] == FindSlots(anew=True)
    assert not any(isinstance(action, Pause) for action in actions)
    assert result == 1
    assert ("b", 2) in known.current.nodes


def test_a_node_that_is_gone_is_asked_last_for_the_map_and_waited_for() -> None:
    actions, result = clustered(
        KnownSlots(), MAP, LinkLost(url="u", reason="r"), MAP, MAP, "c", "s", [1]
    )
    assert actions[2] == FindSlots(anew=True, dead=frozenset({NODE}))
    assert isinstance(actions[3], Pause)
    assert result == 1


def test_a_failed_look_up_after_the_reply_does_not_fail_the_step() -> None:
    moved = [rx.MovedError("1 b:2")]
    refused = Unauthorized(url="u", reason="r")
    assert clustered(KnownSlots(), MAP, "c", "s", moved, MAP, "c", "s", [1], refused)[1] == 1


@pytest.mark.parametrize("step", [ONCE, AGAIN])
def test_a_connection_that_tls_breaks_while_calls_are_under_way_is_a_lost_link(
    step: RedisCall,
) -> None:
    broken = rx.ConnectionError("[SSL: BAD_RECORD_MAC] bad record mac")
    outcomes = MAP, "c", "s", broken, MAP, MAP, "c", "s", [1]
    result = clustered(KnownSlots(), *outcomes, step=step)[1]
    assert not isinstance(result, TlsError)
    assert isinstance(result, LinkLost) == (step is ONCE)
