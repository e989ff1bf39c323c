"""``busmq tail``: follow a queue as messages come, or take its messages.

Taking messages out of a queue, for ``busmq tail --consume`` and ``--reliable``.

``busmq tail``: follow a queue as messages come.
"""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from busmq_spark.cli.options import (
    JsonOption,
    NullOption,
    QueueArgument,
    RawOption,
    check_exclusive,
)
from busmq_spark.cli.output import CliOutput, MessagePrinter, escape_control_characters
from busmq_spark.cli.queue_lookup import LocatedQueue, locate_existing, open_links, read_messages
from busmq_spark.cli.queue_overviews import describe_holders, describe_lease_holder
from busmq_spark.errors import QueueBusy
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.message import CHUNK_MESSAGES
from busmq_spark.queue.queue import ack, pop
from busmq_spark.reading.reader_operations import QueueState, keep_alive, lease, release
from busmq_spark.reading.reader_record import Announcement, lease_field
from busmq_spark.redis_io.lease_token import LEASE_MS, is_dead, my_token
from busmq_spark.redis_io.push_listener import RedisPushListenerThread
from busmq_spark.redis_io.reader_announcer import ReaderAnnouncer


def take_messages(
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
            f"is being read ({held[0]}), and that reader would fail if messages were taken from the"
            " queue"
        )
        raise QueueBusy(
            queue=keys.name,
            found=found,
            remedy="Stop that reader first, or look without taking: busmq tail without --consume",
        )
    written, left = 0, most
    held_lease = _TailLease(place, state.ttl_s) if reliable else None
    if reliable:
        link.run(ack(keys, 0, ttl_s=state.ttl_s, restore=True))
    touched = time.monotonic()
    try:
        while left is None or left > 0:
            batch = min(CHUNK_MESSAGES, left or CHUNK_MESSAGES)
            messages = link.run(pop(keys, reliable=reliable, ttl_s=state.ttl_s, most=batch))
            if messages:
                writer.write(messages)
                written = messages[-1].id
                left = None if left is None else left - len(messages)
                if held_lease:
                    link.run(ack(keys, written, ttl_s=state.ttl_s))
                    held_lease.announcer.note_committed(len(messages))
            elif wait is None:
                return
            else:
                wait()
            if held_lease:
                held_lease.renew_if_due()
            elif time.monotonic() - touched > state.ttl_s / 3:
                link.run(keep_alive([keys]))
                touched = time.monotonic()
    finally:
        if held_lease:
            if not held_lease.lost:
                link.run(ack(keys, written, ttl_s=state.ttl_s, restore=True))
            link.run(release(keys, "", held_lease.token))


class _TailLease:
    """The lease of ``busmq tail --reliable``, which other reliable consumers respect."""

    def __init__(self, place: LocatedQueue, ttl_s: int) -> None:
        """Take it. Raises QueueBusy."""
        self._place, self._interval_s = place, min(LEASE_MS / 1000, ttl_s) / 3
        self.token, self.lost = my_token(), False
        self.announcer = ReaderAnnouncer("tail", self.token)
        dead = (place.link.execute(command("GET", place.keys.lease(""))) or b"").decode()
        flow = lease(
            [place.keys], "", self.token, LEASE_MS, [dead if is_dead(dead) else ""], self._said
        )
        [holder] = place.link.run(flow)
        if holder != self.token:
            self._raise_busy(holder)
        self._renewed = time.monotonic()

    def renew_if_due(self) -> None:
        """Renew it, each third of its life. Raises QueueBusy where another reader has it."""
        if time.monotonic() - self._renewed < self._interval_s:
            return
        flow = keep_alive([self._place.keys], "", self.token, LEASE_MS, self._said)
        [alive] = self._place.link.run(flow)
        if alive < 0:
            self.lost = True
            self._raise_busy(
                (
                    self._place.link.execute(command("GET", self._place.keys.lease(""))) or b""
                ).decode()
            )
        self._renewed = time.monotonic()

    @property
    def _said(self) -> Announcement:
        return self.announcer.announcement(lease_field(""))

    def _raise_busy(self, holder: str) -> NoReturn:
        who = describe_lease_holder(self._place, "", holder)
        remedy = "Stop that one, or look without taking: busmq tail without --reliable"
        raise QueueBusy(
            queue=self._place.keys.name, found=f"is read by another ({who})", remedy=remedy
        )


POLL_S = 1.0
"""Looked at this often even when no notification came; a notification wakes sooner."""
DEFAULT_MESSAGE_COUNT = 10


def tail(  # noqa: PLR0913  # the options of a command
    queue: QueueArgument,
    *,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            "-n",
            min=0,
            metavar="N",
            help=f"Begin with the N newest messages stored.  [default: {DEFAULT_MESSAGE_COUNT}]",
        ),
    ] = None,
    first_id: Annotated[
        int | None, typer.Option("--from", min=1, metavar="ID", help="Begin with this id instead.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--count", "-c", min=1, metavar="N", help="End after N messages.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--no-follow", help="Wait for more, or end when everything stored was shown."
        ),
    ] = True,
    consume: Annotated[
        bool,
        typer.Option(
            "--consume",
            help="Take every message out of the queue, oldest first. One lost on the way is gone.",
        ),
    ] = False,
    reliable: Annotated[
        bool,
        typer.Option(
            "--reliable",
            help=(
                "Like --consume, but a message leaves only after it was written; interrupted ones"
                " come again."
            ),
        ),
    ] = False,
    raw: RawOption = False,
    null: NullOption = False,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Show messages as they come, until Ctrl-C.

    Nothing is removed from the queue, unless --consume or --reliable says so.

    ```
    busmq tail orders
    busmq tail orders -n 0 --json | jq .value
    busmq tail orders --reliable --raw > orders.jsonl
    ```
    """
    out = CliOutput(as_json)
    removing = consume or reliable
    check_exclusive(
        **{
            "last": last is not None,
            "from": first_id is not None,
            "reliable" if reliable else "consume": removing,
        }
    )
    writer = MessagePrinter(out, queue, raw, null)
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        waiter = _PushWaiter(place) if follow else None
        try:
            if removing:
                take_messages(writer, place, state, reliable=reliable, most=most, wait=waiter)
            else:
                QueueTailPrinter(
                    writer, place, state, first_id, DEFAULT_MESSAGE_COUNT if last is None else last
                ).follow(most, waiter)
        finally:
            if waiter:
                waiter.stop()


class _PushWaiter:
    """Waits for a push to one queue."""

    def __init__(self, place: LocatedQueue) -> None:
        self._notified = threading.Event()
        self._listener = RedisPushListenerThread(place.link.endpoint, self._notified)
        self._listener.listen([place.keys.available])

    def __call__(self) -> None:
        """Returns at a push, and after POLL_S in any case. Raises BrokenPipeError when the reader
        of stdout has closed it.

        Without that, ``busmq tail quiet | head -1`` would stay until the next message is written.
        """
        self._notified.wait(POLL_S)
        self._notified.clear()
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
        if any(event & select.POLLERR for _, event in watched.poll(0)):
            raise BrokenPipeError

    def stop(self) -> None:
        """Stop listening for pushes."""
        self._listener.stop()


class QueueTailPrinter:
    """Shows each id once, in order, and says on stderr what it could not show."""

    def __init__(
        self,
        writer: MessagePrinter,
        place: LocatedQueue,
        state: QueueState,
        first_id: int | None,
        last: int,
    ) -> None:
        self._writer, self._place, self._note = writer, place, writer.out.note
        self._name = escape_control_characters(place.keys.name)
        self._born = state.born
        self._shown = (first_id or state.last_id - last + 1) - 1
        """The last id shown, or passed over."""
        if first_id is None:
            self._shown = max(self._shown, state.floor)
        self._gone = False

    def follow(self, most: int | None, wait: _PushWaiter | None) -> None:
        """Until ``most`` messages were shown, or for ever; without ``wait`` until everything stored
        was shown.
        """
        left = most
        while True:
            shown_now = self._show(self._check_state(), left)
            left = None if left is None else left - shown_now
            if left == 0 or (wait is None and not shown_now):
                return
            if wait and not shown_now:
                wait()

    def _check_state(self) -> QueueState:
        """The queue now; notices that it went, or began a new life."""
        state = self._place.read_state()
        if not state.exists:
            if not self._gone:
                self._note(f"queue {self._name} expired or was closed; waiting for it to come back")
            self._gone = True
        elif (
            self._gone
            or state.last_id < self._shown
            or (self._born and state.born and state.born != self._born)
        ):
            self._note(f"queue {self._name} was created again, its ids began at 1")
            self._gone, self._born, self._shown = False, state.born, 0
        self._born = self._born or state.born
        return state

    def _show(self, state: QueueState, left: int | None) -> int:
        first, last = self._shown + 1, state.newest
        if not (state.exists and state.count and first <= last):
            return 0
        if first < state.oldest:
            self._note(
                f"ids {first}..{state.oldest - 1} had left the queue before they could be shown"
            )
            first = state.oldest
        if left is not None:
            last = min(last, first + left - 1)
        shown_now = 0
        for messages in read_messages(self._place, first, last):
            self._writer.write(messages)
            self._shown = messages[-1].id
            shown_now += len(messages)
        return shown_now
