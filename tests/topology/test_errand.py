"""What becomes of the calls of a step in a cluster, decided without a server: where each goes, which go again, when a step is in doubt."""

from __future__ import annotations

from typing import Any

import pytest
import redis.exceptions as rx

from busmq_spark.core.flow import Call, command, script
from busmq_spark.errors import LinkLost, ServerRefused
from busmq_spark.topology.cluster import Cluster
from busmq_spark.topology.errand import ASKING, Errand
from busmq_spark.topology.slots import SLOTS, SlotMap, slot
from busmq_spark.topology.urls import Server

A, B = ("a", 1), ("b", 2)
MAP = SlotMap.parse([[0, slot("far") - 1, [b"a", 1]], [slot("far"), SLOTS - 1, [b"b", 2]]], "x")
NEAR = "b"
assert MAP.owner(slot("far")) == B
assert MAP.owner(slot(NEAR)) == A
LOST = LinkLost(url="u", reason="r")


def once(key: str) -> Call:
    return command("INCR", key, idempotent=False)


def errand(*calls: Call) -> Errand:
    return Errand(calls, Cluster((Server("seed", 1),)))


def round_(made: Errand, *answers: Any, slot_map: SlotMap = MAP) -> None:
    """One node is asked and answers."""
    [parcel] = made.parcels(slot_map)
    made.take(parcel, answers)


def words(made: Errand, slot_map: SlotMap = MAP) -> dict[tuple[str, int], list[Any]]:
    return {parcel.node: [call.words for call in parcel.wire] for parcel in made.parcels(slot_map)}


def test_each_node_gets_its_calls_in_their_order_and_replies_stand_where_the_calls_stood() -> None:
    made = errand(command("GET", NEAR), command("GET", "far"), command("TTL", NEAR))
    near, far = made.parcels(MAP)
    assert [call.words[0] for call in near.wire] == ["GET", "TTL"]
    made.take(far, [2])
    made.take(near, [1, 3])
    made.check()
    assert made.replies == [1, 2, 3]
    assert not made.open


def test_a_call_without_a_key_goes_where_the_others_go() -> None:
    assert list(words(errand(command("DBSIZE"), command("GET", "far")))) == [B]


@pytest.mark.parametrize("error", [rx.ResponseError("MOVED 7 c:3"), rx.MovedError("7 c:3")])
def test_a_moved_call_goes_to_the_new_node_even_if_it_is_not_idempotent(error: Exception) -> None:
    made = errand(once(NEAR))
    round_(made, error)
    made.check()
    assert made.moved == {slot(NEAR): ("c", 3)}
    assert made.put_off is None
    assert words(made, MAP.told(made.moved)) == {("c", 3): [("INCR", NEAR)]}


@pytest.mark.parametrize("error", [rx.ResponseError("ASK 7 c:3"), rx.AskError("7 c:3")])
def test_an_ask_holds_for_one_try(error: Exception) -> None:
    made = errand(once(NEAR))
    round_(made, error)
    [parcel] = made.parcels(MAP)
    assert (parcel.node, parcel.wire) == (("c", 3), [ASKING, once(NEAR)])
    made.take(parcel, ["OK", rx.ResponseError("TRYAGAIN Multiple keys request during rehashing of slot")])
    assert isinstance(made.put_off, LinkLost)
    assert list(words(made)) == [A]
    assert not made.moved


def test_nodes_that_send_a_call_to_and_fro_are_given_time() -> None:
    made = errand(once(NEAR))
    for _ in range(5):
        round_(made, rx.ResponseError("MOVED 7 a:1"))
        assert made.put_off is None
    round_(made, rx.ResponseError("MOVED 7 a:1"))
    assert isinstance(made.put_off, LinkLost)


def test_a_slot_that_nobody_serves_is_waited_for() -> None:
    made = errand(command("GET", NEAR))
    assert made.parcels(SlotMap((), (), ())) == []
    assert made.stale
    assert "no node serves slot" in str(made.put_off)


def test_a_script_that_is_not_known_goes_again_whole() -> None:
    made = errand(script("pop", [NEAR], (1, 1, 1), idempotent=False))
    round_(made, rx.NoScriptError("NOSCRIPT"))
    made.check()
    [sent] = words(made)[A]
    assert sent[0] == "EVAL"


def test_scripts_that_must_keep_their_order_travel_whole_from_the_start() -> None:
    push = script("push", [NEAR], ("c", "v"), idempotent=False)
    assert [sent[0] for sent in words(errand(push, push))[A]] == ["EVAL", "EVAL"]


def test_idempotent_calls_whose_replies_were_lost_go_again_and_others_are_in_doubt() -> None:
    made = errand(command("GET", NEAR), command("GET", "far"))
    near, far = made.parcels(MAP)
    made.lost(near, LOST)
    made.take(far, [2])
    made.check()
    assert made.open == [0]
    assert made.dead == {A}

    made = errand(command("GET", NEAR), once("far"))
    near, far = made.parcels(MAP)
    made.take(near, [1])
    made.lost(far, LOST)
    with pytest.raises(LinkLost):
        made.check()


def test_calls_that_were_not_sent_go_again_whatever_they_are() -> None:
    made = errand(once(NEAR))
    [parcel] = made.parcels(MAP)
    made.unsent(parcel, LOST)
    made.check()
    assert made.open == [0]
    assert made.put_off is LOST


def test_a_step_whose_order_cannot_be_kept_is_in_doubt() -> None:
    made = errand(once(NEAR), once(NEAR))
    round_(made, rx.ResponseError("CLUSTERDOWN The cluster is down"), 1)
    with pytest.raises(LinkLost, match="between two calls of one step"):
        made.check()


def test_calls_of_other_slots_may_be_late() -> None:
    other = next(f"k{i}" for i in range(100) if MAP.owner(slot(f"k{i}")) == A)
    made = errand(once(NEAR), once(other))
    round_(made, rx.ResponseError("TRYAGAIN"), 1)
    made.check()
    assert made.open == [0]


def test_the_first_error_is_raised_when_every_call_is_answered() -> None:
    made = errand(command("GET", NEAR), command("GET", NEAR), command("GET", NEAR))
    round_(made, rx.ResponseError("WRONGTYPE first"), rx.ResponseError("TRYAGAIN"), rx.ResponseError("ERR last"))
    made.check()
    round_(made, 1)
    with pytest.raises(ServerRefused, match="first"):
        made.check()
