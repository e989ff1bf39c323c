"""Dead letters: what a group gave up, as CloudEvents 1.0 in structured JSON (cloudevents.io), in a queue like any other.

At least once: whoever moves a message there pushes first and settles then. The id and the queue of the original recognise a repetition.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass

from busmq_spark.core.clock import shown
from busmq_spark.core.flow import Flow, script
from busmq_spark.core.group import Delivery
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.queue import LONG_TTL_S
from busmq_spark.errors import MessageRefused, QueueMissing

TYPE = "busmq.dead"
ERROR_CHARACTERS = 2000
_FIELDS = {"first": "firsttime", "last": "lasttime"}


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
    """When it was leased first, ISO 8601."""
    last: str
    """When it was given up."""


def envelope(queue: str, group: str, delivery: Delivery, error: str, now_ms: int) -> bytes:
    """The dead letter of a delivery."""
    try:
        body = {"data": delivery.value.decode(), "datacontenttype": "text/plain"}
    except UnicodeDecodeError:
        body = {"data_base64": base64.b64encode(delivery.value).decode("ascii"), "datacontenttype": "application/octet-stream"}
    event = {
        "specversion": "1.0",
        "id": f"{group}/{delivery.id}/{delivery.first_ms}",
        "source": f"/busmq/queues/{queue}",
        "type": TYPE,
        "time": shown(now_ms),
        "queue": queue,
        "originalid": delivery.id,
        "group": group,
        "tries": delivery.tries,
        "error": error[:ERROR_CHARACTERS],
        "firsttime": shown(delivery.first_ms),
        "lasttime": shown(now_ms),
        **body,
    }
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def opened(value: bytes) -> DeadLetter:
    """What a dead letter says. Raises MessageRefused for a message that is none."""
    try:
        event = json.loads(value)
        if event["type"] != TYPE:
            raise KeyError("type")
        body = base64.b64decode(event["data_base64"], validate=True) if "data_base64" in event else event["data"].encode()
        texts = {name: str(event[_FIELDS.get(name, name)]) for name in ("queue", "group", "error", "first", "last")}
        return DeadLetter(id=int(event["originalid"]), value=body, tries=int(event["tries"]), **texts)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise MessageRefused(reason=f"a message that begins with {value[:40]!r} is no dead letter; expected a CloudEvent of type {TYPE}") from None


def put_back(keys: QueueKeys, origin: str, letters: Sequence[tuple[int, bytes]]) -> Flow[int]:
    """Append originals to their queue, each once, however often it is said: ids of dead letters, rising, of the life ``origin`` of their queue.

    The result is how many of the first ones are there now: fewer than given when the queue is full. Raises QueueMissing.
    """
    words = [word for id, value in letters for word in (id, 0, value)]
    args = (keys.available, "busmq.dead", LONG_TTL_S, origin, len(letters), *words)
    _, done = yield script("push_once", (*keys.shared, keys.sinks, keys.clock), args)
    if done < 0:
        raise QueueMissing(queue=keys.name)
    return int(done)
