"""Reading one id range from one Redis server: Redis works ahead by a reply, broken links are mended, gone messages are told apart."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby

from busmq_spark.core.flow import Call, command
from busmq_spark.core.keys import QueueKeys
from busmq_spark.core.ranges import RangeCursor, head, seek
from busmq_spark.errors import LinkLost, QueueExpired, QueueRecreated
from busmq_spark.spark.loss import raise_removed
from busmq_spark.spark.plan import Range
from busmq_spark.spark.store import Rows
from busmq_spark.topology.link import PATIENCE_S, SyncLink

DEPTH = 2
"""Replies under way at once: Redis fills one while Spark takes the other."""
log = logging.getLogger("busmq_spark")


def read_range(link: SyncLink, part: Range, fail_on_data_loss: bool) -> Iterator[Rows]:
    """The messages of a range, in order, each once, whatever happens to the link meanwhile.

    A pure function of the range while its messages are stored. Raises DataLoss when one is gone, unless ``fail_on_data_loss`` is false: then
    what is left of the range follows. Raises LinkLost when Redis stays away.
    """
    need = part.first
    patience_until: float | None = None
    while need <= part.last:
        try:
            for rows in _read_once(link, part, need, fail_on_data_loss):
                yield rows
                need = rows.first + len(rows.values)
                patience_until = None
            return
        except LinkLost:
            now = time.monotonic()
            patience_until = patience_until or now + PATIENCE_S
            if now > patience_until:
                raise


def _read_once(link: SyncLink, part: Range, need: int, strict: bool) -> Iterator[Rows]:
    keys = QueueKeys(part.queue)
    misses = 0
    while need <= part.last:
        born, oldest = link.run(head(keys))
        _check_life(part, born, need)
        found = oldest
        if misses > 2 and 0 < oldest <= need:  # the head stands still and yet the id is not where it should be: the list has a hole
            position, exact, following = link.run(seek(keys, need))
            found, oldest = (need if exact else following), need - position if exact else following - position - 1
        if found == 0 or found > need:
            _skip(link, part, need, found, strict)
            if found == 0:
                return
            need = found
            continue
        misses += 1
        for rows in _windows(link, part, RangeCursor(keys, need, part.last, oldest), need, strict):
            yield rows
            need, misses = rows.first + len(rows.values), 0


def _skip(link: SyncLink, part: Range, need: int, found: int, strict: bool) -> None:
    """Ids from ``need`` up to ``found`` (0: to the end) are not stored: an error, or a warning."""
    if strict:
        raise_removed(link, part.queue, f"ids {need}..{part.last}", f"oldest stored id {found}" if found else "nothing after them", need, found)
    log.warning("queue %r: ids %d..%d are gone and were skipped", part.queue, need, min(part.last, found - 1) if found else part.last)


def _windows(link: SyncLink, part: Range, cursor: RangeCursor, need: int, strict: bool) -> Iterator[Rows]:
    """Replies while they fit the cursor; ends at the end of the range, or early when the head moved or the list has a hole."""

    def calls() -> Iterator[Call]:
        # The incarnation travels behind each window: if it still holds there, the window before was of the same life.
        while (call := cursor.ask()) is not None:
            yield call
            yield command("HGET", QueueKeys(part.queue).metadata, "born")

    with closing(link.stream(calls(), 2 * DEPTH)) as replies:
        for reply in replies:
            values: list[bytes] = reply[1::2]
            first, last = (int(reply[0]), int(reply[-2])) if reply else (0, 0)
            _check_life(part, (next(replies) or b"").decode(), first)
            piece = cursor.take(first, last, len(values), sum(map(len, values)))
            if piece is None:
                if last - first >= len(values) > 0:
                    yield from _runs(link, part, reply, need, strict)
                return
            whole = piece.start == 0 and piece.stop == len(values)
            yield Rows(part.queue, first + piece.start, values if whole else values[piece.start : piece.stop])
            need = first + piece.stop


def _runs(link: SyncLink, part: Range, reply: list[bytes], need: int, strict: bool) -> Iterator[Rows]:
    """A reply with holes, cut into rows that follow each other; only ids from ``need`` to the end of the range."""
    wanted = [(int(reply[i]), reply[i + 1]) for i in range(0, len(reply), 2) if need <= int(reply[i]) <= part.last]
    for _, run in groupby(enumerate(wanted), key=lambda item: item[1][0] - item[0]):
        rows = [pair for _, pair in run]
        if rows[0][0] > need:
            _skip(link, part, need, rows[0][0], strict)
        yield Rows(part.queue, rows[0][0], [value for _, value in rows])
        need = rows[-1][0] + 1


def _check_life(part: Range, born: str, need: int) -> None:
    if born == part.born:
        return
    expected = f"ids {need}..{part.last} of incarnation {part.born}"
    if not born:
        raise QueueExpired(queue=part.queue, expected=expected, found="no such queue, or one that no reader has named")
    raise QueueRecreated(queue=part.queue, expected=expected, found=f"incarnation {born}")
