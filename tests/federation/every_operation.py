"""Every operation of ``busmq.bulk.v1`` with arguments that make sense, for tests of all of them and
for the table of rights.
"""

from __future__ import annotations

from typing import Any

from busmq_spark.federation.bulk.operations import OPERATIONS


def staged_key(queue: str) -> str:
    """The key of a staged list of a queue."""
    return f"bus:queue:{queue}:stage:batch:0:0:{'0' * 16}"


def arguments(
    queue: str, *, sink: str = "sink", subscription: str = "", topic: str = "", born: str = "5f"
) -> dict[str, list[Any]]:
    """The arguments of each operation, as they are in JSON."""
    key = staged_key(queue)
    staged = [[queue, 0, key, [[1, 1]], None, 0]]
    found: dict[str, list[Any]] = {
        "hello": [1, "client"],
        "discover": [],
        "attach": [[queue], [True, 60, 0]],
        "states": [{queue: -1}],
        "spans": [{queue: [-1, 0]}],
        "positions": [[queue]],
        "marks": [{queue: 1}],
        "note_times": [[queue]],
        "find_times": [{queue: -1000}],
        "times": [{queue: [1, 3]}],
        "ages": [{queue: 1}],
        "counters": [[queue]],
        "ack": [{queue: [born, 1, "", None, 0]}, subscription],
        "subscribe": [{queue: "earliest"}, subscription or "s"],
        "subscriptions": [[queue]],
        "traces": [queue],
        "lease": [[queue], subscription, "me", {}],
        "holders": [[queue], subscription],
        "keep_alive": [[queue], subscription, ""],
        "bytes_until": [queue, 1, 3, 100],
        "read": [[queue, born, 1, 9, 0], True, 4096],
        "read_many": [[[queue, born, 1, 9, 0], [queue, born, 2, 3, 0]], False, 4096],
        "read_with_spans": [[[queue, born, 1, 0, 0]], 4096],
        "listen": [[queue]],
        "wait": [1],
        "recorded": [sink, 0],
        "sink_state": [sink, [queue]],
        "ends": [[queue]],
        "trim": [{queue: 1}],
        "begin": [sink, "run", [queue]],
        "renew": [[sink, 1, []]],
        "stage": [queue, key, 0, [sink, 1, []]],
        "push": [queue],
        "push_from": [queue, "sender", [1, 2]],
        "partitions": [topic or queue],
        "take_commands": [queue],
        "event_queues": [[["a.key"], ["b", "c"]]],
        "subscribe_events": [queue, ["a.*"], False],
        "record": [sink, 0, staged, "q", "", 0],
        "commit": [queue, sink, 0, staged],
        "discard": [staged],
        "forget": [sink, staged],
    }
    assert {*found} == {*OPERATIONS}, (
        "an operation without arguments here: add it, and its row in docs/federation.md"
    )
    return found


def variants(queue: str, *, subscription: str = "") -> dict[str, tuple[str, list[Any]]]:
    """Operations that need other rights with other arguments."""
    return {
        "keep_alive, with a token": ("keep_alive", [[queue], subscription, "me"]),
        "stage, without a sink": ("stage", [queue, staged_key(queue), 0, ["", 0, []]]),
        "subscribe_events, to end it": ("subscribe_events", [queue, ["a.*"], True]),
    }


def calls(
    queue: str, *, subscription: str = "", topic: str = "", born: str = "5f"
) -> dict[str, tuple[str, list[Any]]]:
    """All of these, by what the table of rights calls them."""
    found = {
        name: (name, args)
        for name, args in arguments(
            queue, subscription=subscription, topic=topic, born=born
        ).items()
    }
    return {**found, **variants(queue, subscription=subscription)}
