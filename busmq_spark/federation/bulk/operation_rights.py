"""The rights that operations of ``busmq.bulk.v1`` need, from their arguments, and the keys that
they touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from busmq_spark.federation.bulk.frames import make_wire_error
from busmq_spark.federation.gate.grants import EVENT_KIND, VERBS
from busmq_spark.federation.gate.rights import RequiredRight, Verbs
from busmq_spark.groups.topic import partition_queue
from busmq_spark.queue.message import CHUNK_MESSAGES
from busmq_spark.queue.position import Range
from busmq_spark.writing.sink import StagedList
from busmq_spark.writing.sink_runs import SinkRun

BROWSE_VERBS: Verbs = ("browse",)
CONSUME_VERBS: Verbs = ("consume",)
PUSH_VERBS: Verbs = ("push",)
CREATE_VERBS: Verbs = ("create",)
ADMIN_VERBS: Verbs = ("admin",)


def rights_on_any_queue(verbs: Verbs) -> Callable[..., Iterable[RequiredRight]]:
    """Require the verbs on any queue, for an operation that names none."""
    return lambda *_: [RequiredRight(verbs, "queue", None)]


def rights_on_queues(verbs: Verbs) -> Callable[..., list[RequiredRight]]:
    """The verbs on the queues in the first argument: names or ranges, one or several."""

    def required_rights(first: Any, *_: Any) -> list[RequiredRight]:
        found = [first] if isinstance(first, str | Range) else first
        names = dict.fromkeys(each.queue if isinstance(each, Range) else each for each in found)
        return [RequiredRight(verbs, "queue", name) for name in names] or [
            RequiredRight(verbs, "queue", None)
        ]

    return required_rights


def rights_to_consume(queues: Any, name: str, *_: Any) -> list[RequiredRight]:
    """To consume the queues, and as this subscription, if it is one."""
    return [
        *rights_on_queues(CONSUME_VERBS)(queues),
        *([RequiredRight(CONSUME_VERBS, "subscription", name)] if name else []),
    ]


def rights_to_keep_alive(queues: Any, subscription: str, token: str) -> Iterable[RequiredRight]:
    """Without a token no lease is renewed: who only looks keeps its queues, too."""
    return (
        rights_to_consume(queues, subscription) if token else rights_on_queues(BROWSE_VERBS)(queues)
    )


def rights_on_topic(topic: str) -> list[RequiredRight]:
    """To push to its first partition."""
    return [RequiredRight(PUSH_VERBS, "queue", partition_queue(topic, 0))]


def rights_to_take_commands(queue: str) -> list[RequiredRight]:
    """From then on the queue takes one group only: that is a setting of it, as those that are given
    where it is made.
    """
    return [RequiredRight(PUSH_VERBS, "queue", queue), RequiredRight(CREATE_VERBS, "queue", queue)]


def rights_to_subscribe_events(
    queue: str, patterns: Sequence[str], end: bool
) -> list[RequiredRight]:
    """To push to the queue and, but to end rows of one's own, to take the events of each
    pattern.
    """
    if len(patterns) > CHUNK_MESSAGES:
        raise make_wire_error(f"{len(patterns)} patterns", f"at most {CHUNK_MESSAGES}")
    taken = [] if end else dict.fromkeys(patterns)
    return [
        RequiredRight(PUSH_VERBS, "queue", queue),
        *(RequiredRight(VERBS, EVENT_KIND, pattern) for pattern in taken),
    ]


def rights_on_lists(lists: Iterable[StagedList]) -> list[RequiredRight]:
    return rights_on_queues(PUSH_VERBS)(dict.fromkeys(part.queue for part in lists))


def rights_on_sink(name: str, *rest: Any) -> list[RequiredRight]:
    """To have the sink, and to push to the queues of the staged lists, if there are any."""
    lists = next((part for part in rest if isinstance(part, tuple)), ())
    return [RequiredRight(PUSH_VERBS, "sink", name), *(rights_on_lists(lists) if lists else [])]


def rights_to_begin(name: str, _: str, queues: Any) -> list[RequiredRight]:
    return [*rights_on_sink(name), *rights_on_queues(PUSH_VERBS)(queues)]


def rights_to_stage(queue: str, _: str, __: int, run: SinkRun) -> list[RequiredRight]:
    """To push to the queue, and to have the sink, if it is one that can be named."""
    return [
        RequiredRight(PUSH_VERBS, "queue", queue),
        *(rights_on_sink(run.sink) if run.sink else []),
    ]


def rights_to_commit(queue: str, sink: str, _: int, lists: Any) -> list[RequiredRight]:
    return [RequiredRight(PUSH_VERBS, "queue", queue), *rights_on_sink(sink, lists)]


KEYS_OF_OPERATION: dict[str, str] = {
    **dict.fromkeys(("hello", "discover", "wait"), ""),
    "attach": "metadata messages msgid toack acks sinks clock bytes",
    "states": "metadata messages msgid",
    "spans": "metadata messages msgid",
    "positions": "metadata acks owners",
    "marks": "messages",
    "counters": "msgid",
    "note_times": "metadata messages msgid acks clock bytes",
    "find_times": "metadata messages msgid acks clock bytes",
    "times": "metadata clock",
    "ages": "metadata clock",
    "ack": "metadata messages msgid acks clock bytes owners lease",
    "subscribe": "metadata messages msgid acks owners lease",
    "subscriptions": "metadata acks owners",
    "lease": "metadata acks owners lease",
    "holders": "metadata acks owners lease",
    "keep_alive": "metadata messages msgid toack acks sinks clock bytes owners lease",
    "traces": "metadata toack available",
    "bytes_until": "metadata messages",
    "read": "metadata messages",
    "read_many": "metadata messages",
    "read_with_spans": "metadata messages msgid",
    "listen": "available",
    "begin": "stages sink sink-queues",
    "renew": "stages sink sink-queues",
    "stage": "stage stages",
    "push": "metadata messages msgid toack acks clock bytes available",
    "push_from": "metadata messages msgid toack acks clock bytes senders available",
    "partitions": "topic",
    "take_commands": "metadata acks",
    "event_queues": "subscriptions metadata messages msgid",
    "subscribe_events": "subscriptions metadata messages msgid toack acks sinks clock bytes",
    "record": "stage stages sink sink-queues",
    "commit": "metadata messages msgid toack acks clock bytes sinks stage stages sink available",
    "recorded": "sink",
    "discard": "stage stages",
    "forget": "sinks stages sink sink-queues",
    "ends": "messages",
    "trim": "messages",
}
"""The keys that each operation touches in Redis: keys of the queues that it names,
``lease:<subscription>``, ``stage:<list>`` and ``stages:<sink>`` of them among these; ``sink`` and
``sink-queues`` are ``bus:sink:…`` and ``bus:sink-queues:…`` of the peer's own sinks, ``topic`` is
``bus:topic:<topic>``, and ``subscriptions`` ``bus:subscriptions``.
"""
