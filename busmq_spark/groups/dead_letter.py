"""Dead letters: messages that a group gave up, as CloudEvents 1.0 in structured JSON
(cloudevents.io), in an ordinary queue.

At least once: the dead letter is pushed first, and the message settled after that. A repeated dead
letter has the same id and queue.

Any program that may push to a dead-letter queue can write a letter that names any queue as its
origin. So the bus records the ids of the letters that its groups write (push_letters.lua), and only
those are put back where they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

from busmq_spark.errors import MessageRefused, QueueMissing
from busmq_spark.errors.foreign import error_text
from busmq_spark.groups.shared_group import GROUP_RECORD_TTL_S, LeasedMessage
from busmq_spark.queue.command_generators import Arg, Flow, command, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from busmq_spark.reading.times_of_ids import format_time
from busmq_spark.routing.cloud_event import Event

DEAD_LETTER_TYPE = "busmq.dead"
SOURCE_PREFIX = "/busmq/queues/"
LINKED_SOURCE_FORMAT = "/busmq/links/{link}/queues/"
"""The source of a letter whose query read the queue over a federation link: two links may have
queues of one name.
"""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up."""

    queue: str
    group: str
    id: int
    """Of the original."""
    value: bytes
    tries: int
    error: str
    first: str
    """The time of the first lease, ISO 8601."""
    last: str
    """The time at which it was given up."""
    link: str = ""
    """Name of the federation link over which a query read the queue."""


def make_dead_letter(  # the fields of a letter
    queue: str,
    group: str,
    delivery: LeasedMessage,
    error: str,
    now_ms: int,
    attempt: str | None = None,
) -> bytes:
    """The dead letter of a delivery. ``attempt``: the last part of its id, by default the time of
    the first lease. A letter that is written again has the same id.
    """
    data: str | bytes = delivery.value
    with suppress(UnicodeDecodeError):
        data = delivery.value.decode()
    event = Event(
        id=f"{group}/{delivery.id}/{attempt or delivery.first_ms}",
        source=SOURCE_PREFIX + quote(queue, safe=""),
        type=DEAD_LETTER_TYPE,
        time=format_time(now_ms),
        datacontenttype="text/plain" if isinstance(data, str) else "application/octet-stream",
        extensions={
            "queue": queue,
            "originalid": str(delivery.id),  # a number of an attribute has up to 32 bits
            "group": group,
            "tries": delivery.tries,
            "error": error_text(error),
            "firsttime": format_time(delivery.first_ms),
            "lasttime": format_time(now_ms),
        },
        data=data,
    )
    return event.encode()


def decode_letter(value: bytes) -> DeadLetter:
    """Decode a dead letter. Raises MessageRefused for a message that is none."""
    try:
        event = Event.decode(value)
        said = event.extensions
        link = str(said.get("link", ""))
        if event.type != DEAD_LETTER_TYPE or not isinstance(event.data, str | bytes):
            raise ValueError
        queue, group, error, first, last = (
            str(said[name]) for name in ("queue", "group", "error", "firsttime", "lasttime")
        )
        body = event.data.encode() if isinstance(event.data, str) else event.data
        return DeadLetter(
            queue,
            group,
            int(said["originalid"]),
            body,
            int(said["tries"]),
            error,
            first,
            last,
            link,
        )
    except (ValueError, KeyError, MessageRefused):
        wanted = f"expected a CloudEvent of type {DEAD_LETTER_TYPE}"
        raise MessageRefused(
            reason=f"a message that begins with {value[:40]!r} is no dead letter; {wanted}"
        ) from None


def push_letters(keys: QueueKeys, letters: Sequence[bytes]) -> Flow[tuple[int, int]]:
    """Append one chunk of dead letters of a group, and record them: the first id, and how many were
    stored. Raises QueueMissing.
    """
    names = (*keys.peer_keys, keys.letters, *keys.appending[len(keys.peer_keys) :])
    args: list[Arg] = [keys.available, GROUP_RECORD_TTL_S, *letters]
    first, stored = yield script("push_letters", names, args, idempotent=False)
    if stored < 0:
        raise QueueMissing(queue=keys.name)
    return first, stored


def recorded_runs(keys: QueueKeys, born: str, first: int) -> Flow[list[range]]:
    """Return the ids from ``first`` on of the letters that groups wrote into this life of a
    dead-letter queue.
    """
    reply = yield command("ZRANGEBYSCORE", keys.letters, first, "+inf", "WITHSCORES")
    runs = []
    for name, last in zip(reply[0::2], reply[1::2], strict=True):
        its_born, _, its_first = name.decode("utf-8", "replace").rpartition(":")
        if its_born == born:
            runs.append(range(int(its_first), int(float(last)) + 1))
    return runs


def put_back(keys: QueueKeys, origin: str, letters: Sequence[tuple[int, bytes]]) -> Flow[int]:
    """Append original values to their queue, each once, however often this is called.

    ``letters``: the id in the dead-letter queue and the original value of each, ids rising;
    ``origin``: ``born`` of that queue. The result is how many of the first ones are there now:
    fewer than given when the queue is full. Raises QueueMissing.
    """
    words = [word for id, value in letters for word in (id, 0, value)]
    args = (keys.available, "busmq.dead", MIN_RECORD_TTL_S, origin, len(letters), *words)
    _, done = yield script(
        "push_once", (*keys.peer_keys, keys.sinks, keys.clock, keys.acks, keys.bytes), args
    )
    if done < 0:
        raise QueueMissing(queue=keys.name)
    return int(done)
