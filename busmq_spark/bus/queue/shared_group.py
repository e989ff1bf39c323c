"""A shared group: many holders, in many processes, divide the messages of a queue. Each message is
leased to one of them and settled by itself.

    async with bus.queue("mail") as mail, mail.group("send", shared=True, tries=3) as group:
        async for batch in group.batches(most=100):
            for delivery in batch:
                await group.ack(delivery)  # or retry, reject, extend, release

    await group.each(send_mail)  # or call a handler with each message

Rule 1. A message that is not settled before its lease ends is leased again; the late answer to the
        earlier lease is refused.
Rule 2. A message whose tries are used up goes to the dead-letter queue, and then is settled: at
        least once.
Rule 3. Stopping takes no more messages, waits for handlers and for bodies of loops, whose leases
        are extended meanwhile, and gives back the rest without counting the try. An exception that
        leaves ``async with`` counts as a try of all that was handed out and is not settled.
Rule 4. ``each`` acknowledges a message when its handler has returned. An exception of the handler
        is a try of the message. Leases are extended while handlers run; leases of a process that
        dies end by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from operator import ge
from typing import Any, TypeAlias, TypedDict, cast

from busmq_spark.arguments import check_items, check_number, check_whole
from busmq_spark.bus.handler_calls import call_handler, calling_work, is_coroutine_function
from busmq_spark.bus.queue.base_group import GROUP_POLL_S, BaseGroup, check_batch_size
from busmq_spark.bus.queue.local_queue import LocalQueue
from busmq_spark.errors import BusError, ConfigError, QueueFull, Rejected, StateError
from busmq_spark.errors.foreign import error_text, exc_info
from busmq_spark.groups import dead_letter
from busmq_spark.groups import shared_group as flows
from busmq_spark.groups.job import forget_outcomes
from busmq_spark.groups.shared_group import Action, LeasedMessage, MessageLeaseResult
from busmq_spark.queue.command_generators import Flow, slices
from busmq_spark.queue.keys import check_name, is_subscription
from busmq_spark.queue.message import CHUNK_MESSAGES, chunks
from busmq_spark.queue.queue import clock_ms
from busmq_spark.reading.reader_record import Announcement, shared_field
from busmq_spark.reading.reader_subscriptions import register
from busmq_spark.redis_io.lease_token import LEASE_MS, is_dead, my_token
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.reader_announcer import ReaderAnnouncer
from busmq_spark.redis_io.retry import Pauses

TRIES_USED_UP_REASON = "its lease ended, and so did its tries"
MAX_LEASE_S = 7 * 24 * 3600
DEAD_LETTER_RETRY_S = 5.0
"""Seconds until the next try of a dead letter that could not be stored."""
log = logging.getLogger("busmq_spark")


class SharedGroupKeywords(TypedDict, total=False):
    """The options of a shared group; see SharedGroupOptions."""

    lease_s: float
    tries: int
    limit: int
    dead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGroupOptions:
    """The options of leases. They belong to the group: a given value counts for all holders that
    enter from then on; None keeps the value of the group.
    """

    lease_s: float | None = None
    """Seconds until a message that is not settled is leased again; 30 by default."""
    tries: int | None = None
    """The most leases of a message before it becomes a dead letter; 3 by default."""
    limit: int | None = None
    """Most messages in flight, over all holders; 0, the default: as many as they ask
    for.
    """
    dead: str | None = None
    """The dead-letter queue; by default the name of the queue and ``.dead``."""

    def __post_init__(self) -> None:
        if self.lease_s is not None:
            check_seconds("lease_s", self.lease_s, 1)
        for name, value, least in (("tries", self.tries, 1), ("limit", self.limit, 0)):
            if value is not None:
                check_whole(name, value, least)
        if self.dead is not None:
            check_name("dead-letter queue", self.dead)

    def to_fields(self) -> dict[str, str | int]:
        """Return the options as fields of the group in Redis."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        if "lease_s" in found:
            found["lease_ms"] = round(found.pop("lease_s") * 1000)
        return found


def check_seconds(name: str, value: object, least: float, most: float = MAX_LEASE_S) -> None:
    """Raises ConfigError for what is no such time."""
    check_number(name, value, least, most, "seconds")


class SharedGroup(BaseGroup):
    """A holder of a shared group."""

    def __init__(
        self, queue: LocalQueue, name: str, start: str | int, options: SharedGroupOptions
    ) -> None:
        super().__init__(queue, name, start)
        if not is_subscription(name):
            raise ConfigError(
                reason=(
                    f"the name of the shared group is {name!r}, with which its keys could be those"
                    " of another queue or group"
                )
            )
        if options.dead == queue.name:
            raise ConfigError(
                reason=(
                    f"the dead-letter queue of {queue.name!r} is that queue itself; name another"
                    " with dead=…"
                )
            )
        self._options = options
        self.tries = options.tries or flows.DEFAULT_TRIES
        """The most leases of a message; the value of the group, once entered."""
        self.dead = options.dead or f"{queue.name}.dead"
        """Name of the dead-letter queue; as the group has it, once entered."""
        self.lease_s = options.lease_s or flows.DEFAULT_LEASE_MS / 1000
        """Seconds until a message that is not settled is leased again; as the group has it, once
        entered.
        """
        self._held: dict[int, LeasedMessage] = {}
        self._announcer = ReaderAnnouncer("shared", my_token())
        self._announce_at = float("-inf")
        self._unanswered = ""  # the token of a lease call whose reply was not had
        self._dead_queue: LocalQueue | None = None
        self._attaching = asyncio.Lock()
        self._handlings: set[MessageHandling] = set()
        self._warned = False
        # Whether messages were last settled one by one, and not as they came: then each is leased
        # by itself
        self._apart = False

    async def batches(self, most: int = 100) -> AsyncIterator[list[LeasedMessage]]:
        """Lease messages to this holder, in lists: messages to be tried again first, then new ones.

        A list is leased at once, so ask for no more than are handled within the lease. Ends at
        ``stop``.

        Args:
            most: Most messages of a list, up to 1,000.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        check_batch_size(most)
        self._need_entered("read")
        pauses = Pauses()
        while self._running:
            found = await self._run_unless_unreachable(lambda: self.take(most), pauses)
            if found and found[0] and self._running:
                with self._in_hand.hand_out(found[0]):
                    yield found[0]
            elif found:
                await self._sleep_unless_woken(found[1])

    async def each(
        self,
        handler: MessageHandler,
        *,
        at_once: int = 8,
        delay_s: float = 1.0,
        most: int | None = None,
    ) -> int:
        """Call a function with each message until ``stop``. A handler that returns acknowledges its
        message.

        An exception of the handler is a try, and the message becomes a dead letter after the last
        one. ``Rejected`` makes it a dead letter at once. Leases are extended meanwhile.

        Args:
            handler: A coroutine function, or a plain function, which runs in a thread.
            at_once: Most handlers that run at once.
            delay_s: Seconds until the next try.
            most: Most messages, or None for no end.

        Returns:
            The number of handled messages.

        Raises:
            ConfigError: An argument has a wrong type or value.
            LinkLost: The server cannot be reached in time.
        """
        return await MessageHandling(self, handler, at_once, delay_s).run(most)

    async def take(self, most: int) -> tuple[list[LeasedMessage], float]:
        """Return a list, which may be empty, and the seconds to wait before the next call when it
        is. Raises LinkLost.
        """
        leased = await self._lease(most)
        if leased is None:
            return [], 0
        if leased.gone and not self._warned:
            self._warned = True
            log.warning(
                "%d messages left queue %r before group %r had settled them: another takes them",
                leased.gone,
                *self._log_names,
            )
        spent = [
            each._replace(tries=each.tries - 1)
            for each in leased.deliveries
            if each.tries > self.tries
        ]  # this lease is no try
        if spent:
            await self._write_dead_letters(spent)
            return [each for each in leased.deliveries if each.tries <= self.tries], 0
        return list(leased.deliveries), (
            min(GROUP_POLL_S, leased.wait_ms / 1000) if leased.wait_ms >= 0 else GROUP_POLL_S
        )

    async def ack(self, deliveries: LeasedMessage | Sequence[LeasedMessage]) -> list[LeasedMessage]:
        """Acknowledge messages.

        Args:
            deliveries: A message, or a list of messages, of ``batches``.

        Returns:
            The messages that were refused, because another holder has, or had, their lease.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        self._need_entered("settle messages of", finishing=True)
        return await self._settle(_as_list(deliveries), "ack")

    async def retry(
        self,
        deliveries: LeasedMessage | Sequence[LeasedMessage],
        *,
        delay_s: float = 0,
        error: object = "",
    ) -> list[LeasedMessage]:
        """Try messages again. A message without a try left becomes a dead letter.

        Args:
            deliveries: A message, or a list of messages, of ``batches``.
            delay_s: Fewest seconds until the next try.
            error: Reason in the dead letter.

        Returns:
            The messages that were refused, because another holder has, or had, their lease.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        self._need_entered("settle messages of", finishing=True)
        check_seconds("delay_s", delay_s, 0)
        return await self._retry_or_reject(_as_list(deliveries), round(delay_s * 1000), error)

    async def reject(
        self, deliveries: LeasedMessage | Sequence[LeasedMessage], error: object = "rejected"
    ) -> list[LeasedMessage]:
        """Move messages to the dead-letter queue.

        Args:
            deliveries: A message, or a list of messages, of ``batches``.
            error: Reason in the dead letter.

        Returns:
            The messages that were refused, because another holder has, or had, their lease.

        Raises:
            QueueFull: The dead-letter queue is full.
        """
        self._need_entered("settle messages of", finishing=True)
        return await self._reject(_as_list(deliveries), error)

    async def extend(
        self, deliveries: LeasedMessage | Sequence[LeasedMessage], *, lease_s: float = 30
    ) -> list[LeasedMessage]:
        """Extend the leases of messages.

        Args:
            deliveries: A message, or a list of messages, of ``batches``.
            lease_s: Seconds from now until the leases end.

        Returns:
            The messages that were refused, because another holder has, or had, their lease.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        self._need_entered("settle messages of", finishing=True)
        check_seconds("lease_s", lease_s, 0)
        return await self._settle(_as_list(deliveries), "extend", round(lease_s * 1000))

    async def release(
        self,
        deliveries: LeasedMessage | Sequence[LeasedMessage],
        *,
        delay_s: float = 0,
    ) -> list[LeasedMessage]:
        """Return messages as if they had not been leased.

        Args:
            deliveries: A message, or a list of messages, of ``batches``.
            delay_s: Fewest seconds until they are leased again.

        Returns:
            The messages that were refused, because another holder has, or had, their lease.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        self._need_entered("settle messages of", finishing=True)
        check_seconds("delay_s", delay_s, 0)
        return await self._settle(_as_list(deliveries), "release", round(delay_s * 1000))

    async def seek(self, where: str | int, *, again: bool = False) -> int:
        """Move the group to another place, while no message is leased.

        The group is paused meanwhile, and stays paused if the call dies; then call ``resume``.

        Args:
            where: As for an ordered group.
            again: Forget the outcomes of jobs after that place, so that their handlers run once
                more.

        Returns:
            The last id that counts as read now.

        Raises:
            QueueBusy: Messages are leased.
            ConfigError: The place is not valid.
            TimeUnknown: The queue does not know that time.
        """
        if not again:
            return await super().seek(where)
        settings = await self.queue.run(flows.read_settings(self.queue.keys, self.name))
        await self._pause(paused=True)
        try:
            position = await super().seek(where)
            forget = forget_outcomes(self.queue.keys, self.name, settings.get("born", ""), position)
            await self.queue.run(forget)
        finally:
            if "paused" not in settings:
                await self._pause(paused=False)
        return position

    async def pause(self) -> None:
        """Lease no more messages to any holder until ``resume``. Leased messages can be settled.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        await self._pause(paused=True)

    async def resume(self) -> None:
        """End a pause.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        await self._pause(paused=False)

    async def wait_drained(self) -> None:
        """Wait until no message is leased.

        Raises:
            LinkLost: The server cannot be reached in time.
            StateError: A handler of this group calls it: its own message is leased.
        """
        await self._wait_until(lambda found: not found.in_flight)

    # -- leasing -----------------------------------------------------------------------------------

    async def _register(self) -> None:
        keys = self.queue.keys
        await self.queue.run(
            register(keys, self.name, self._start, is_dead, self._options.to_fields())
        )
        self._start = "earliest"  # in a later life of the queue
        stored = await self.queue.run(flows.read_settings(keys, self.name))
        self._born, self.tries, self.dead = (
            stored.get("born", ""),
            int(stored.get("tries", flows.DEFAULT_TRIES)),
            stored.get("dead", self.dead),
        )
        self.lease_s = int(stored.get("lease_ms", flows.DEFAULT_LEASE_MS)) / 1000
        self._held.clear()
        dead = LocalQueue(self.queue.bus, self.dead)
        if self._dead_queue is None and await dead.exists():
            self._dead_queue = dead
            await dead.attach()  # so that waiting letters do not expire while the group is read

    async def _lease(self, most: int) -> MessageLeaseResult | None:
        """Return None once it is stopped."""
        async with self._lock:
            if not self._running:
                return None
            self.queue._need_attached(f"read as group {self.name!r} from")
            again, self._unanswered = bool(self._unanswered), self._unanswered or new_token()
            leased = await self._run(
                flows.lease(
                    self.queue.keys,
                    self.name,
                    self._unanswered,
                    most,
                    again=again,
                    apart=self._apart,
                    said=self._announcement_if_due(),
                )
            )
            self._unanswered = ""
            if leased.deliveries:
                self._announcer.note_planned(len(leased.deliveries))
            if leased.status == "no_group":
                await self._register_anew()
            self._held.update({each.id: each for each in leased.deliveries})
        return leased

    def _announcement_if_due(self) -> Announcement | None:
        """The record of this holder, as often as other readers renew a lease."""
        now = time.monotonic()
        if now < self._announce_at:
            return None
        self._announce_at = now + LEASE_MS / 3000
        return self._announcer.announcement(shared_field(self.name, self._announcer.id), LEASE_MS)

    async def _register_anew(self) -> None:
        if (await self.queue.metadata()).get("born") == self._born:
            remedy = "Enter queue.group(…) again to make it anew"
            raise StateError(
                event="read",
                what=f"group {self.name!r} of queue {self.queue.name!r}",
                state="dropped",
                remedy=remedy,
            )
        log.warning(
            "queue %r was made anew; group %r begins at its oldest message", *self._log_names
        )
        await self._register()

    def _recover_unanswered(self) -> Flow[None]:
        """Recover the messages of a lease call whose reply was lost."""
        leased = yield from flows.lease(
            self.queue.keys, self.name, self._unanswered, 1, again=True, apart=self._apart
        )
        self._unanswered = ""
        self._held.update({each.id: each for each in leased.deliveries})

    # -- settling ----------------------------------------------------------------------------------

    async def _settle(
        self, deliveries: Sequence[LeasedMessage], action: Action, ms: int = 0
    ) -> list[LeasedMessage]:
        some, refused, ids = deliveries, [], [each.id for each in deliveries]
        if any(map(ge, ids, ids[1:])):  # else none is there twice
            some = list({(each.id, each.token): each for each in some}.values())
        for chunk in slices(some, CHUNK_MESSAGES):
            refused += await self._settle_chunk(chunk, action, ms)
        return refused

    async def _settle_chunk(
        self, some: Sequence[LeasedMessage], action: Action, ms: int
    ) -> list[LeasedMessage]:
        settlements, before = flows.settlements_of(some, action, ms), False
        self._apart = 2 * len(settlements) > len(some)

        async def send(again: bool) -> list[int] | None:
            nonlocal before
            before = again
            return await self._run(
                flows.settle(self.queue.keys, self.name, self._born, settlements, again=again)
            )

        found = await self._run_with_retries(send)
        results = found or [0] * len(some)
        if action == "ack":
            self._announcer.note_committed(results.count(1))
        for each in some if action != "extend" else ():
            if self._holds(each):
                del self._held[each.id]
                self._in_hand.changed.set()
        if log.isEnabledFor(logging.DEBUG):
            names = (*self._log_names, action, len(some), some[0].id, some[-1].id)
            log.debug("queue %r, group %r: %s of %d messages, ids %d to %d", *names)
        if results.count(1) == len(results):
            return []
        # Where the call may have been executed before, Redis says -1 only of what this holder
        # settled.
        refused = [
            each
            for each, result in zip(some, results, strict=True)
            if result == 0 or (result < 0 and not before)
        ]
        if refused:
            why = (
                "its lease had ended, and another settles it"
                if found
                else "the queue or the group is gone, or was made anew"
            )
            log.warning(
                "queue %r, group %r: %s of id %d is refused: %s",
                *self._log_names,
                action,
                refused[0].id,
                why,
            )
        return refused

    async def _retry_or_reject(
        self, some: Sequence[LeasedMessage], ms: int, error: object
    ) -> list[LeasedMessage]:
        refused = await self._settle(
            [each for each in some if each.tries < self.tries], "retry", ms
        )
        spent = [each for each in some if each.tries >= self.tries]
        why = (
            error_text("" if error is None else error)
            or "a retry was asked for, and its tries are used up"
        )
        return refused + (await self._reject(spent, why) if spent else [])

    async def _reject(self, some: Sequence[LeasedMessage], error: object) -> list[LeasedMessage]:
        # A message that another holder has leased by now is refused here, and gets no dead letter.
        refused = await self._settle(some, "extend", round(self.lease_s * 1000))
        ours = list({each.id: each for each in some if each not in refused}.values())
        if not ours:
            return refused
        async with self._attaching:
            if self._dead_queue is None:
                dead = LocalQueue(self.queue.bus, self.dead)
                await dead.attach()
                self._dead_queue = dead
        letters_to, now = (
            self._dead_queue,
            await self._run_with_retries(lambda _: self._run(clock_ms(self.queue.keys))),
        )
        why = error_text(error)
        letters = [
            dead_letter.make_dead_letter(self.queue.name, self.name, each, why, now)
            for each in ours
        ]
        await self._push_letters(letters_to, letters)
        await self._on_given_up(ours, why)
        return refused + await self._settle(ours, "ack")

    async def _push_letters(self, dead: LocalQueue, letters: Sequence[bytes]) -> None:
        left = len(letters)
        for chunk in chunks(letters):

            async def push(_: bool, chunk: Sequence[bytes] = chunk) -> tuple[int, int]:
                return await dead._push_call(chunk, dead_letter.push_letters)

            _, stored = await self._run_with_retries(push)
            left -= stored
            if stored < len(chunk):
                raise QueueFull(queue=dead.name, maxsize=await dead.maxsize(), left=left, waited="")

    async def _on_given_up(self, some: Sequence[LeasedMessage], error: str) -> None:
        """Handle messages that have their dead letters and are about to be settled."""

    async def _without_outcome(self, spent: Sequence[LeasedMessage]) -> Sequence[LeasedMessage]:
        """Return the messages that were not handled after all, before their leases ended."""
        return spent

    async def _write_dead_letters(self, spent: Sequence[LeasedMessage]) -> None:
        """Dead letters of messages whose last lease has ended."""
        try:
            await self._reject(await self._without_outcome(spent), TRIES_USED_UP_REASON)
        # Whatever it is: the other messages of the call are leased, and their tries would be used
        # up unseen
        except BusError as error:
            log.warning(
                "queue %r, group %r: no dead letter of id %d now: %s",
                *self._log_names,
                spent[0].id,
                error,
            )
            with suppress(BusError):  # then their leases end by themselves, and count as tries
                await self._settle(spent, "release", round(DEAD_LETTER_RETRY_S * 1000))

    async def _pause(self, *, paused: bool) -> None:
        if not await self.queue.run(flows.pause(self.queue.keys, self.name, paused=paused)):
            raise ConfigError(
                reason=(
                    f"queue {self.queue.name!r} has no shared group {self.name!r}; it is made when"
                    " it is entered"
                )
            )

    def _holds(self, message: LeasedMessage) -> bool:
        held = self._held.get(message.id)
        return held is not None and held.token == message.token

    def _messages_in_bodies(self) -> list[LeasedMessage]:
        batches = self._in_hand.others()
        return [each for batch in batches for each in batch if self._holds(each)]

    def _count_in_work(self) -> int:
        handled = sum(each.running for each in self._handlings)
        return handled + len(self._messages_in_bodies())

    async def finish(self) -> None:
        """See BaseGroup. The leases of bodies of loops are extended meanwhile."""
        extending = asyncio.create_task(self._extend_regularly(self._messages_in_bodies))
        try:
            await super().finish()
        finally:
            extending.cancel()

    @property
    def _is_handling(self) -> bool:
        """Return whether the caller is one of its handlers."""
        return any(each.is_caller for each in self._handlings)

    async def _extend_regularly(self, messages: Callable[[], Sequence[LeasedMessage]]) -> None:
        """Extend the leases of messages that are in work."""
        while True:
            if some := messages():
                try:
                    await self.extend(some, lease_s=self.lease_s)
                except BusError as error:
                    log.warning("leases of group %r are not extended for now: %s", self.name, error)
            await asyncio.sleep(self.lease_s / 3)

    def _forget(self, messages: Sequence[LeasedMessage]) -> None:
        """Let the leases of messages end by themselves."""
        for each in messages:
            self._held.pop(each.id, None)

    async def _give_back_held(self, error: Exception | None) -> None:
        try:
            if self._unanswered:
                await self._run_with_retries(lambda _: self._run(self._recover_unanswered()))
            held = list(self._held.values())
            if held and error is not None:
                try:
                    await self._retry_or_reject(held, 0, error_text(error))
                except BusError as refusal:  # the caller must see the error of the reader
                    log.warning(
                        "queue %r, group %r: no dead letters now, leases end by themselves: %s",
                        *self._log_names,
                        refusal,
                    )
            elif held:
                await self._settle(held, "release")
        finally:
            self._held.clear()
            dead, self._dead_queue = self._dead_queue, None
            if dead is not None:
                await dead.detach()


def _as_list(deliveries: LeasedMessage | Sequence[LeasedMessage]) -> Sequence[LeasedMessage]:
    if isinstance(deliveries, LeasedMessage):
        return [deliveries]
    return check_items("messages", deliveries, LeasedMessage)


MessageHandler: TypeAlias = Callable[[LeasedMessage], Any]
"""A coroutine function, or a plain function, which is called in a thread."""


class MessageHandling:
    """A call of ``group.each``."""

    def __init__(
        self, group: SharedGroup, handler: MessageHandler, at_once: int, delay_s: float
    ) -> None:
        if not callable(handler):
            raise ConfigError(
                reason=(
                    f"the handler is {handler!r}; expected a function of one argument, the message"
                )
            )
        # What users give
        if not isinstance(at_once, int) or not 1 <= at_once <= 1000:  # type: ignore[redundant-expr]
            raise ConfigError(
                reason=f"at_once is {at_once!r}; expected a whole number from 1 to 1000"
            )
        self._group, self._handler, self._at_once, self._delay_s = group, handler, at_once, delay_s
        if not isinstance(delay_s, int | float) or not 0 <= delay_s < math.inf:  # type: ignore[redundant-expr]
            raise ConfigError(reason=f"delay_s is {delay_s!r}; expected seconds, at least 0")
        self._running: dict[asyncio.Task[None], LeasedMessage] = {}
        self._room = asyncio.Event()
        self._runner: asyncio.Task[Any] | None = None
        self._failed: BaseException | None = None
        """The error of settling a message, which ends the call."""
        self._over = False

    async def run(self, most: int | None) -> int:
        """Handle messages until the group stops, or until there were ``most``. Returns how many.

        Raises what settling a message raised.
        """
        if most is not None and (type(most) is not int or most < 1):
            raise ConfigError(reason=f"most is {most!r}; expected a whole number of at least 1")
        handled, self._runner = 0, asyncio.current_task()
        extending = asyncio.create_task(
            self._group._extend_regularly(lambda: [*self._running.values()])
        )
        self._group._handlings.add(self)
        try:
            source = cast("AsyncGenerator[list[LeasedMessage], None]", self._group.batches(most=1))
            async with aclosing(source) as batches:
                async for batch in batches:
                    for message in batch:
                        task = asyncio.create_task(self._handle(message))
                        self._running[task] = message
                        task.add_done_callback(self._on_done)
                        handled += 1
                    if handled == most:
                        break
                    await self._wait_for_room(self._at_once - 1)
            await self._wait_for_room(0)
        except asyncio.CancelledError:
            if self._failed is None or self._runner is None or self._runner.uncancel():
                raise
            raise self._failed from None
        finally:
            try:
                await self._end_handlers()
            finally:
                extending.cancel()
                self._group._handlings.discard(self)
        return handled

    async def _wait_for_room(self, running: int) -> None:
        """Wait until at most so many handlers run."""
        while len(self._running) > running:
            self._room.clear()
            await self._room.wait()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._room.set()
        self._group._in_hand.changed.set()
        if task.cancelled() or (error := task.exception()) is None or self._over:
            return
        if self._failed is None and self._runner is not None:
            self._failed = error
            self._runner.cancel()  # it may wait for a message that never comes

    async def _handle(self, message: LeasedMessage) -> None:
        try:
            await call_handler(self._handler, message)
        except Rejected as error:
            await self._group.reject(message, error.details["reason"])
        except BaseException as error:  # whatever the handler raises is a try
            if isinstance(error, asyncio.CancelledError) and self._is_ending():
                raise  # else the handler cancelled itself
            names = (self._group.queue.name, self._group.name, message.id, message.tries)
            log.warning(
                "queue %r, group %r: the handler of message %d failed in try %d",
                *names,
                exc_info=exc_info(error),
            )
            await self._group.retry(message, delay_s=self._delay_s, error=error)
        else:
            await self._group.ack(message)

    def _is_ending(self) -> bool:
        return self._over or (self._runner is not None and self._runner.cancelling() > 0)

    @property
    def running(self) -> int:
        """Return the number of running handlers."""
        return len(self._running)

    @property
    def is_caller(self) -> bool:
        """Return whether one of its handlers makes this call."""
        return not calling_work().isdisjoint(self._running)

    async def _end_handlers(self) -> None:
        """Cancel handlers and wait for them. A function in a thread goes on to its end, so it is
        waited for; a second cancellation leaves it to its lease.
        """
        self._over = True
        if is_coroutine_function(self._handler):
            for task in self._running:
                task.cancel()
        try:
            while self._running:
                await asyncio.wait(self._running)
        except asyncio.CancelledError:
            self._group._forget([*self._running.values()])
            for task in self._running:
                task.cancel()
            raise
