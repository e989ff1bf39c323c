"""What a queue holds, read by position: for tests only, beside every reader."""

from __future__ import annotations

from busmq_spark.queue.command_generators import Flow, command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import Message


def read_at(keys: QueueKeys, position: int, count: int = 1) -> Flow[list[Message]]:
    """Read ``count`` messages from ``position`` (0 is the oldest; a position, not an id). Nothing
    is removed.
    """
    reply = yield command("LRANGE", keys.messages, 2 * position, 2 * (position + count) - 1)
    return [Message(int(id_), value) for id_, value in zip(reply[0::2], reply[1::2], strict=True)]
