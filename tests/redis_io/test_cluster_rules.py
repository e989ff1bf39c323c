"""What becomes of the calls of a step in a cluster, decided without a server: where each goes,
which go again, when a step is in doubt.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis.exceptions as rx

from busmq_spark.embedded.layouts import SLOTS
from busmq_spark.errors import LinkLost, ServerRefused
from busmq_spark.queue.command_generators import RedisCall, command, script
from busmq_spark.redis_io.cluster_rules import ASKING_COMMAND, ClusterPipeline, _as_link_lost
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds
from busmq_spark.redis_io.slots import SlotMap, slot_of_key
from busmq_spark.redis_io.urls import RedisServerAddress

A, B = ("a", 1), ("b", 2)
MAP = SlotMap.parse(
    [[0, slot_of_key("far") - 1, [b"a", 1]], [slot_of_key("far"), SLOTS - 1, [b"b", 2]]], "x"
)
NEAR = "b"
assert MAP.owner(slot_of_key("far")) == B
assert MAP.owner(slot_of_key(NEAR)) == A
LOST = LinkLost(url="u", reason="r")


def once(key: str) -> RedisCall:
    return command("INCR", key, idempotent=False)


def cluster_pipeline(*calls: RedisCall) -> ClusterPipeline:
    return ClusterPipeline(calls, ClusterSeeds((RedisServerAddress("seed", 1),)))


def round_(made: ClusterPipeline, *answers: Any, slot_map: SlotMap = MAP) -> None:
    """One node is asked and answers."""
    [batch] = made.batches(slot_map)
    made.add_replies(batch, answers)


def words(made: ClusterPipeline, slot_map: SlotMap = MAP) -> dict[tuple[str, int], list[Any]]:
    return {batch.node: [call.words for call in batch.wire] for batch in made.batches(slot_map)}


def test_each_node_gets_its_calls_in_their_order_and_replies_stand_where_the_calls_stood() -> None:
    made = cluster_pipeline(command("GET", NEAR), command("GET", "far"), command("TTL", NEAR))
    near, far = made.batches(MAP)
    assert [call.words[0] for call in near.wire] == ["GET", "TTL"]
    made.add_replies(far, [2])
    made.add_replies(near, [1, 3])
    made.raise_if_failed()
    assert made.replies == [1, 2, 3]
    assert not made.pending


def test_a_call_without_a_key_goes_where_the_others_go() -> None:
    assert list(words(cluster_pipeline(command("DBSIZE"), command("GET", "far")))) == [B]


@pytest.mark.parametrize("error", [rx.ResponseError("MOVED 7 c:3"), rx.MovedError("7 c:3")])
def test_a_moved_call_goes_to_the_new_node_even_if_it_is_not_idempotent(error: Exception) -> None:
    made = cluster_pipeline(once(NEAR))
    round_(made, error)
    made.raise_if_failed()
    assert made.moved == {slot_of_key(NEAR): ("c", 3)}
    assert made.retry_reason is None
    assert words(made, MAP.with_moved(made.moved)) == {("c", 3): [("INCR", NEAR)]}


@pytest.mark.parametrize("error", [rx.ResponseError("ASK 7 c:3"), rx.AskError("7 c:3")])
def test_an_ask_holds_for_one_try(error: Exception) -> None:
    made = cluster_pipeline(once(NEAR))
    round_(made, error)
    [batch] = made.batches(MAP)
    assert (batch.node, batch.wire) == (("c", 3), [ASKING_COMMAND, once(NEAR)])
    made.add_replies(
        batch, ["OK", rx.ResponseError("TRYAGAIN Multiple keys request during rehashing of slot")]
    )
    assert isinstance(made.retry_reason, LinkLost)
    assert list(words(made)) == [A]
    assert not made.moved


def test_nodes_that_send_a_call_to_and_fro_are_given_time() -> None:
    made = cluster_pipeline(once(NEAR))
    for _ in range(5):
        round_(made, rx.ResponseError("MOVED 7 a:1"))
        assert made.retry_reason is None
    round_(made, rx.ResponseError("MOVED 7 a:1"))
    assert isinstance(made.retry_reason, LinkLost)


def test_a_slot_without_a_node_is_waited_for() -> None:
    made = cluster_pipeline(command("GET", NEAR))
    assert made.batches(SlotMap((), (), ())) == []
    assert made.stale
    assert "no node serves slot" in str(made.retry_reason)


def test_a_script_that_is_not_known_goes_again_whole() -> None:
    made = cluster_pipeline(script("pop", [NEAR], (1, 1, 1), idempotent=False))
    round_(made, rx.NoScriptError("NOSCRIPT"))
    made.raise_if_failed()
    [sent] = words(made)[A]
    assert sent[0] == "EVAL"


def test_scripts_that_must_keep_their_order_travel_whole_from_the_start() -> None:
    push = script("push", [NEAR], ("c", "v"), idempotent=False)
    assert [sent[0] for sent in words(cluster_pipeline(push, push))[A]] == ["EVAL", "EVAL"]


def test_idempotent_calls_whose_replies_were_lost_go_again_and_others_are_in_doubt() -> None:
    made = cluster_pipeline(command("GET", NEAR), command("GET", "far"))
    near, far = made.batches(MAP)
    made.on_connection_lost(near, LOST)
    made.add_replies(far, [2])
    made.raise_if_failed()
    assert made.pending == [0]
    assert made.dead == {A}

    made = cluster_pipeline(command("GET", NEAR), once("far"))
    near, far = made.batches(MAP)
    made.add_replies(near, [1])
    made.on_connection_lost(far, LOST)
    with pytest.raises(LinkLost):
        made.raise_if_failed()


def test_calls_that_were_not_sent_go_again_whatever_they_are() -> None:
    made = cluster_pipeline(once(NEAR))
    [batch] = made.batches(MAP)
    made.on_node_unreachable(batch, LOST)
    made.raise_if_failed()
    assert made.pending == [0]
    assert made.retry_reason is LOST


def test_a_step_whose_order_cannot_be_kept_is_in_doubt() -> None:
    made = cluster_pipeline(once(NEAR), once(NEAR))
    round_(made, rx.ResponseError("CLUSTERDOWN The cluster is down"), 1)
    with pytest.raises(LinkLost, match="between two calls of one step"):
        made.raise_if_failed()


def test_calls_of_other_slots_may_be_late() -> None:
    other = next(f"k{i}" for i in range(100) if MAP.owner(slot_of_key(f"k{i}")) == A)
    made = cluster_pipeline(once(NEAR), once(other))
    round_(made, rx.ResponseError("TRYAGAIN"), 1)
    made.raise_if_failed()
    assert made.pending == [0]


def test_the_first_error_is_raised_when_every_call_is_answered() -> None:
    made = cluster_pipeline(command("GET", NEAR), command("GET", NEAR), command("GET", NEAR))
    round_(
        made,
        rx.ResponseError("WRONGTYPE first"),
        rx.ResponseError("TRYAGAIN"),
        rx.ResponseError("ERR last"),
    )
    made.raise_if_failed()
    round_(made, 1)
    with pytest.raises(ServerRefused, match="first"):
        made.raise_if_failed()


def test_a_connection_that_tls_breaks_under_way_is_a_lost_link() -> None:
    found = _as_link_lost(
        rx.ConnectionError("[SSL: BAD_RECORD_MAC] bad record mac"), RedisServerAddress("node", 1)
    )
    assert isinstance(found, LinkLost)
    assert "redis://node:1" in str(found)
