"""The past of a queue: the times of its messages, and the acknowledged messages that it keeps."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from busmq_spark.arguments import check_whole
from busmq_spark.bus.queue.base_queue import BaseQueue
from busmq_spark.errors import BusError, StateError
from busmq_spark.queue import retention
from busmq_spark.queue.command_generators import Flow, T
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading import times_of_ids
from busmq_spark.starting_offsets import parse_moment

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus

log = logging.getLogger("busmq_spark")


class RetentionAndTimesMixin(BaseQueue):
    """The methods of a local queue for retention and times."""

    bus: Bus
    keys: QueueKeys
    _taken = False
    """Whether messages were taken since their time was noted."""
    _noting: asyncio.Task[None] | None = None

    @abstractmethod
    async def run(self, flow: Flow[T]) -> T:
        """Run a flow on the queue's server."""

    # -- what is kept ------------------------------------------------------------------------------

    async def retain(
        self,
        age: str | int | timedelta | None = None,
        messages: int | None = None,
        bytes: str | int | None = None,  # noqa: A002  # as its users call it
    ) -> retention.Retention | None:
        """Set the limits up to which acknowledged messages are kept, so that a reader can go back.

        The limits hold for all readers, and for this life of the queue. Without a limit no
        acknowledged message is kept.

        Args:
            age: Longest age: ``7d``, seconds, or a timedelta.
            messages: Most messages.
            bytes: Most bytes: a number, or ``10g``.

        Returns:
            The limits that hold now.

        Raises:
            ConfigError: A limit has a wrong type or value.
            QueueBusy: A reliable consumer has messages without an ack.
        """
        limits = retention.parse_limits(age, messages, bytes)
        self._need_attached("retain messages of")
        found = await self.run(retention.set_retention(self.keys, limits))
        if found and found.age_s and found.age_s > self.ttl_s:
            text = (
                "queue %r keeps messages for %d s and has a ttl of %d s, that of its creation:"
                " without anybody attached it lives for no longer"
            )
            log.warning(text, self.name, found.age_s, self.ttl_s)
        return found

    async def retention(self) -> retention.Retention | None:
        """Return the limits that ``retain`` has set, or None.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(retention.read_retention(self.keys))

    # -- its clock ---------------------------------------------------------------------------------

    async def id_at(self, time: int | str | datetime) -> int:
        """Return the last id that existed before the second of a time.

        Args:
            time: Milliseconds since 1970 (a negative number: before now), a datetime with a time
                zone, ISO 8601 with an offset, or ``-10m``.

        Raises:
            TimeUnknown: The queue has messages from before its first recorded time.
            ConfigError: The value is no time, or a time to come.
        """
        return await self.run(times_of_ids.id_at(self.keys, parse_moment(time).ms))

    async def ms_of(self, id: int) -> int | None:
        """Return a time at which a message was stored, in milliseconds since 1970, or None if
        unknown.

        Args:
            id: Id of the message.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await self.run(times_of_ids.ms_of(self.keys, check_whole("id", id, 1)))

    def note_time(self) -> None:
        """Messages were taken: their time is noted, once a second at most, since pushes of peers
        note nothing.
        """
        self._taken = True
        if self._noting is None and self.keys.has_clock:
            with suppress(StateError):  # the bus is about to end
                self._noting = self.bus.spawn(self._note_times(), f"noting times of {self.name}")

    async def _note_times(self) -> None:
        try:
            while self._taken:
                self._taken = False
                with suppress(BusError):
                    await self.run(times_of_ids.note_times_if_allowed([self.keys]))
                await asyncio.sleep(times_of_ids.NOTE_TIME_INTERVAL_S)
        finally:
            self._noting = None
