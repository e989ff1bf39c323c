"""The outbox of a program: its calls return when the disk has their messages.

    async with Outbox("outbox.db", to="redis://localhost") as outbox:
        await outbox.push("orders", {"n": 1})  # on the disk; it arrives, whatever is down

Rule 1. A stored message is forwarded: at once, when the other side is back, or when the outbox is
        opened again. A call that raised has stored nothing; a call that was cancelled, interrupted
        by a signal, or under way when the process died, may or may not have stored its messages.
Rule 2. To each queue in the order of the calls, once (towards npm servers: at least once).
Rule 3. Only one process has an outbox open; a process forked from it has not. ``Outbox.sync(...)``
        is the same without a loop, for any number of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self, TypeVar, Unpack

from busmq_spark.arguments import MAX_WHOLE, check_items, check_number, check_path
from busmq_spark.bus.event_routing import EventAttributes, event_of, keys_of
from busmq_spark.errors import ConfigError
from busmq_spark.outbox import editing
from busmq_spark.outbox.editing import WaitingMessage, read_messages
from busmq_spark.outbox.outbox_engine import OutboxEngine, OutboxReceipt, OutboxWriteRequest
from busmq_spark.outbox.report import OutboxStatus
from busmq_spark.outbox.target_opener import OutboxKeywords
from busmq_spark.routing.cloud_event import Event
from busmq_spark.routing.event_routing import check_queue

T = TypeVar("T")
DRAINED_POLL_S = 0.02
"""``wait_drained`` looks so often."""


class Outbox:
    """An outbox in the file ``path`` that forwards ``to`` Redis (as for Bus; default
    BUSMQ_REDIS_URL) or a federation server (``ws://``, ``wss://``).

    ``settings`` are those of Bus: ``layout``, ``password``, ``tls_ca``, ``federate_secret`` …
    Raises ConfigError for a bad one.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        to: str | Sequence[str] | None = None,
        **settings: Unpack[OutboxKeywords],
    ) -> None:
        self._engine = OutboxEngine(Path(check_path("the path of the outbox", path)), to, settings)

    @classmethod
    def sync(
        cls,
        path: str | PathLike[str],
        to: str | Sequence[str] | None = None,
        **settings: Unpack[OutboxKeywords],
    ) -> SyncOutbox:
        """Return an outbox for programs without a loop: ``with Outbox.sync(...) as outbox``.

        Args:
            path: File of the outbox.
            to: Redis or federation server, as for Outbox.
            **settings: Settings of Bus.

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        return SyncOutbox(path, to, **settings)

    def __repr__(self) -> str:
        return f"Outbox({str(self._engine.path)!r})"

    async def __aenter__(self) -> Self:
        """Open the store, or make it, and begin to forward. Raises OutboxBusy, OutboxUnusable,
        OutboxFull.
        """
        await asyncio.to_thread(self._engine.open)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Messages that are not forwarded yet stay in the store."""
        await asyncio.to_thread(self._engine.close)

    async def start(self) -> Self:
        """Open it without a block; ``aclose`` ends it."""
        return await self.__aenter__()

    async def aclose(self) -> None:
        """Do what leaving ``async with`` does."""
        await self.__aexit__(None, None, None)

    async def push(self, queue: str, *values: object) -> OutboxReceipt:
        """Store messages for one queue, together or not at all.

        Args:
            queue: Name of the queue.
            *values: Messages, as for ``Queue.push``.

        Returns:
            A receipt with the numbers of the stored messages.

        Raises:
            OutboxFull: The disk is full.
            OutboxUnusable: The file cannot be used.
            MessageRefused: A value cannot be stored.
            ConfigError: An argument has a wrong type or value.
            StateError: The outbox is not open.

        Example:
            await outbox.push("orders", {"n": 1})
        """
        return await self._engine.store_async(self._engine.push_request(queue, values))

    async def publish(
        self, keys: str | Sequence[str], data: object = None, **about: Unpack[EventAttributes]
    ) -> OutboxReceipt:
        """Store an event for every queue that is subscribed to one of its keys when it is
        forwarded.

        Args:
            keys: Keys of the event.
            data: As for ``Bus.publish``.
            **about: Attributes of the event.

        Returns:
            A receipt with the id of the event.

        Raises:
            BusError: As for ``push``; then nothing was stored.
        """
        return await self._engine.store_async(_publish_request(self._engine, keys, [data], about))

    async def publish_many(
        self, keys: str | Sequence[str], data: Sequence[object]
    ) -> OutboxReceipt:
        """Store several events, together or not at all.

        Args:
            keys: Keys of each event.
            data: The data of each event.

        Returns:
            A receipt with the ids of the events.

        Raises:
            BusError: As for ``push``; then nothing was stored.
        """
        return await self._engine.store_async(_publish_request(self._engine, keys, data, {}))

    async def send(
        self, queue: str, data: object = None, **about: Unpack[EventAttributes]
    ) -> OutboxReceipt:
        """Store a command for one queue, as for ``Bus.send``.

        Args:
            queue: Name of the queue.
            data: As for ``Bus.send``.
            **about: Attributes of the command.

        Returns:
            A receipt with the id of the command.

        Raises:
            BusError: As for ``push``; then nothing was stored.
        """
        return await self._engine.store_async(_send_request(self._engine, queue, data, about))

    async def subscribe(self, patterns: str | Sequence[str], *, into: str) -> OutboxReceipt:
        """Subscribe a queue to events that this outbox publishes after the call.

        Args:
            patterns: Pattern of keys, or a list, as for ``Bus.subscribe``.
            into: Name of the queue.

        Raises:
            BusError: As for ``push``; then nothing was stored.
        """
        return await self._engine.store_async(
            self._engine.subscribe_request(patterns, into, end=False)
        )

    async def unsubscribe(self, patterns: str | Sequence[str], *, into: str) -> OutboxReceipt:
        """End subscriptions of a queue for events that this outbox publishes after the call.

        Args:
            patterns: Pattern that ends, or a list of patterns.
            into: Name of the queue.

        Raises:
            BusError: As for ``push``; then nothing was stored.
        """
        return await self._engine.store_async(
            self._engine.subscribe_request(patterns, into, end=True)
        )

    async def waiting(self, queue: str | None = None, most: int = 1000) -> list[WaitingMessage]:
        """Return the oldest waiting messages: number, id and contents.

        Args:
            queue: Name of a queue, or None for all.
            most: Most messages.

        Raises:
            OutboxUnusable: The file cannot be read.
        """
        return await asyncio.to_thread(read_messages, self._engine.path, queue, most)

    async def remove(self, *numbers: int) -> int:
        """Delete waiting messages, events and subscriptions. A message on its way may still arrive.

        Args:
            *numbers: Numbers of ``waiting``.

        Returns:
            The number of deleted entries.

        Raises:
            OutboxUnusable: The file cannot be written.
        """
        return await asyncio.to_thread(self._engine.edit, lambda c: editing.remove(c, numbers))

    async def replace(self, number: int, data: object) -> bool:
        """Replace the contents of a waiting message. A message on its way may arrive unchanged.

        An event or a command keeps its id and its keys.

        Args:
            number: Number of ``waiting``.
            data: The new contents.

        Returns:
            Whether the message was waiting.

        Raises:
            MessageRefused: The contents cannot be stored.
            ConfigError: The number is not valid.
        """
        return await asyncio.to_thread(self._engine.edit, editing.replacement(number, data))

    async def purge(self, queue: str | None = None) -> int:
        """Delete everything that waits, or everything that waits for one queue.

        Args:
            queue: Name of a queue, or None for all.

        Returns:
            The number of deleted entries.

        Raises:
            OutboxUnusable: The file cannot be written.
        """
        return await asyncio.to_thread(self._engine.edit, lambda c: editing.purge(c, queue))

    async def status(self) -> OutboxStatus:
        """Return the number of waiting messages, their age, and the reason why they wait.

        Raises:
            OutboxUnusable: The file cannot be read.
        """
        return await asyncio.to_thread(self._engine.status)

    async def wait_drained(self, timeout_s: float | None = None) -> None:
        """Wait until everything is forwarded and confirmed.

        Args:
            timeout_s: Longest wait in seconds, or None for no end.

        Raises:
            OutboxWaits: Messages still wait after that time.
        """
        until = _deadline(timeout_s)
        while not await self._engine.is_empty_async():
            if monotonic() >= until:
                raise self._engine.not_drained_error()
            await asyncio.sleep(DRAINED_POLL_S)


class SyncOutbox:
    """The calls of an Outbox, which wait. For any number of threads: those that call at the same
    time share an fsync.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        to: str | Sequence[str] | None = None,
        **settings: Unpack[OutboxKeywords],
    ) -> None:
        self._engine = OutboxEngine(Path(check_path("the path of the outbox", path)), to, settings)

    def __repr__(self) -> str:
        return f"Outbox({str(self._engine.path)!r}) (synchronous)"

    def __enter__(self) -> Self:
        """Enter, like Outbox."""
        self._engine.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Exit, like Outbox."""
        self._engine.close()

    def start(self) -> Self:
        """Open it without a block; ``close`` ends it."""
        return self.__enter__()

    def close(self) -> None:
        """Do what leaving ``with`` does."""
        self.__exit__(None, None, None)

    def push(self, queue: str, *values: object) -> OutboxReceipt:
        """Do what ``Outbox.push`` does, and wait for the disk."""
        return self._engine.store_and_wait(self._engine.push_request(queue, values))

    def publish(
        self, keys: str | Sequence[str], data: object = None, **about: Unpack[EventAttributes]
    ) -> OutboxReceipt:
        """Do what ``Outbox.publish`` does, and wait for the disk."""
        return self._engine.store_and_wait(_publish_request(self._engine, keys, [data], about))

    def publish_many(self, keys: str | Sequence[str], data: Sequence[object]) -> OutboxReceipt:
        """Do what ``Outbox.publish_many`` does, and wait for the disk."""
        return self._engine.store_and_wait(_publish_request(self._engine, keys, data, {}))

    def send(
        self, queue: str, data: object = None, **about: Unpack[EventAttributes]
    ) -> OutboxReceipt:
        """Do what ``Outbox.send`` does, and wait for the disk."""
        return self._engine.store_and_wait(_send_request(self._engine, queue, data, about))

    def subscribe(self, patterns: str | Sequence[str], *, into: str) -> OutboxReceipt:
        """Do what ``Outbox.subscribe`` does, and wait for the disk."""
        return self._engine.store_and_wait(
            self._engine.subscribe_request(patterns, into, end=False)
        )

    def unsubscribe(self, patterns: str | Sequence[str], *, into: str) -> OutboxReceipt:
        """Do what ``Outbox.unsubscribe`` does, and wait for the disk."""
        return self._engine.store_and_wait(self._engine.subscribe_request(patterns, into, end=True))

    def waiting(self, queue: str | None = None, most: int = 1000) -> list[WaitingMessage]:
        """Return the waiting messages, like ``Outbox.waiting``."""
        return read_messages(self._engine.path, queue, most)

    def remove(self, *numbers: int) -> int:
        """Delete waiting entries, like ``Outbox.remove``."""
        return self._engine.edit(lambda c: editing.remove(c, numbers))

    def replace(self, number: int, data: object) -> bool:
        """Replace the contents of a waiting message, like ``Outbox.replace``."""
        return self._engine.edit(editing.replacement(number, data))

    def purge(self, queue: str | None = None) -> int:
        """Delete everything that waits, like ``Outbox.purge``."""
        return self._engine.edit(lambda c: editing.purge(c, queue))

    def status(self) -> OutboxStatus:
        """Return the state of the outbox, like ``Outbox.status``."""
        return self._engine.status()

    def wait_drained(self, timeout_s: float | None = None) -> None:
        """Wait until everything is forwarded, like ``Outbox.wait_drained``."""
        until = _deadline(timeout_s)
        while not self._engine.is_empty():
            if monotonic() >= until:
                raise self._engine.not_drained_error()
            sleep(DRAINED_POLL_S)


def _publish_request(
    engine: OutboxEngine, keys: str | Sequence[str], data: Sequence[object], about: EventAttributes
) -> OutboxWriteRequest:
    wanted = keys_of(keys)
    events = [event_of(wanted, each, about) for each in check_items("data", data)]
    if not events:
        raise ConfigError(reason="no data is given to publish; expected at least one")
    return engine.publish_request(
        wanted, [event.encode() for event in events], tuple(event.id for event in events)
    )


def _send_request(
    engine: OutboxEngine, queue: str, data: object, about: EventAttributes
) -> OutboxWriteRequest:
    event: Event = event_of([check_queue(queue)], data, about)
    return engine.send_request(queue, [event.encode()], (event.id,))


def _deadline(timeout_s: float | None) -> float:
    if timeout_s is None:
        return float("inf")
    return monotonic() + check_number("timeout_s", timeout_s, 0, MAX_WHOLE, "seconds")
