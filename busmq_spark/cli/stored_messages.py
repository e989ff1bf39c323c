"""Reading stored messages by id for people: nothing is removed, and ids that are no longer stored
are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator

from busmq_spark.cli.queue_lookup import LocatedQueue
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.message import Message
from busmq_spark.reading.range_reader import RangeCursor, find_id


def read_messages(place: LocatedQueue, first: int, last: int) -> Iterator[list[Message]]:
    """The stored ones of the messages ``first..last``, in order and in parts."""
    need = first
    while need <= last:
        start = _find_first_stored(place, need)
        if start is None or start[0] > last:
            return
        need, oldest = start
        cursor = RangeCursor(place.keys, need, last, oldest)
        while (call := cursor.ask()) is not None:
            reply = place.link.execute(call)
            messages = [Message(int(reply[i]), reply[i + 1]) for i in range(0, len(reply), 2)]
            ids = (messages[0].id, messages[-1].id) if messages else (0, 0)
            window = cursor.take(
                *ids, len(messages), sum(len(message.value) for message in messages)
            )
            # Messages that npm peers or an interrupted consumer put back may leave holes: then take
            # the stored ones and look again after them.
            part = (
                messages[window.start : window.stop]
                if window
                else [message for message in messages if need <= message.id <= last]
            )
            if part:
                yield part
                need = part[-1].id + 1
            if window is None:
                break


def _find_first_stored(place: LocatedQueue, need: int) -> tuple[int, int] | None:
    """The first stored id from ``need`` on, and the id the head would have if ids had no holes;
    return None when there is none.
    """
    oldest = int(place.link.execute(command("LINDEX", place.keys.messages, 0)) or 0)
    if oldest == 0:
        return None
    if need <= oldest:
        return oldest, oldest
    position, exact, following = place.link.run(find_id(place.keys, need))
    if exact:
        return need, need - position
    return (following, following - position - 1) if following else None
