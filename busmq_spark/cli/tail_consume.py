"""Taking messages out of a queue, for ``busmq tail --consume`` and ``--reliable``."""

from __future__ import annotations

import time
from collections.abc import Callable

from busmq_spark.cli.lease_holders import describe_holders
from busmq_spark.cli.message_printer import MessagePrinter
from busmq_spark.cli.queue_lookup import LocatedQueue
from busmq_spark.errors import QueueBusy
from busmq_spark.queue.message import CHUNK_MESSAGES
from busmq_spark.queue.queue import ack, pop
from busmq_spark.reading.reader_operations import QueueState, keep_alive


def consume(
    writer: MessagePrinter,
    place: LocatedQueue,
    state: QueueState,
    *,
    reliable: bool,
    most: int | None,
    wait: Callable[[], None] | None,
) -> None:
    """Take messages, oldest first, until ``most`` or for ever; without ``wait`` until the queue is
    empty. Keeps the queue alive meanwhile.

    Reliable: what an earlier reliable consumer took and never acknowledged comes first, each
    message is acknowledged once it is written, and on the way out what was taken and not written
    goes back to the head of the queue.
    """
    keys, link = place.keys, place.link
    if held := describe_holders(place):
        found = (
            f"is being read by a running query ({held[0]}), which would fail if messages were taken"
            " from it"
        )
        raise QueueBusy(
            queue=keys.name,
            found=found,
            remedy="Stop that query first, or look without taking: busmq tail without --consume",
        )
    written, left, touched = 0, most, time.monotonic()
    if reliable:
        link.run(ack(keys, 0, ttl_s=state.ttl_s, restore=True))
    try:
        while left is None or left > 0:
            batch = min(CHUNK_MESSAGES, left or CHUNK_MESSAGES)
            messages = link.run(pop(keys, reliable=reliable, ttl_s=state.ttl_s, most=batch))
            if messages:
                writer.write(messages)
                written = messages[-1].id
                left = None if left is None else left - len(messages)
                if reliable:
                    link.run(ack(keys, written, ttl_s=state.ttl_s))
            elif wait is None:
                return
            else:
                wait()
            if time.monotonic() - touched > state.ttl_s / 3:
                link.run(keep_alive([keys]))
                touched = time.monotonic()
    finally:
        if reliable:
            link.run(ack(keys, written, ttl_s=state.ttl_s, restore=True))
