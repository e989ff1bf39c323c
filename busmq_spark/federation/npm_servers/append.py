"""Writes of a task to a server that speaks busmq's own protocol only: at least once, in order, one
push a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from busmq_spark.errors import MessageRefused
from busmq_spark.store.protocol import FullQueueWait, SinkAppender
from busmq_spark.writing.sink import StagedList
from busmq_spark.writing.sink_runs import SinkRun

if TYPE_CHECKING:
    from busmq_spark.federation.npm_servers.store import FederationNpmStore


class FederationNpmSinkAppender(SinkAppender):
    """Writes of one task to a server of npm busmq."""

    def __init__(self, store: FederationNpmStore) -> None:
        self._store = store

    def stage(
        self,
        queue: str,  # noqa: ARG002  # as the protocol has it
        key: str,  # noqa: ARG002
        values: Sequence[bytes],  # noqa: ARG002
        run: SinkRun | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """Refuse: exactly-once delivery needs more than the wire has."""
        self._store.refuse_exactly_once()

    def push(self, queue: str, values: Sequence[bytes], full: FullQueueWait) -> None:
        """Append values to the queue. Pushes under way when the link breaks are sent again, since
        it is unknown whether they are stored.
        """
        left = [expect_text_value(queue, value) for value in values]
        while left:
            before = len(left)
            maxsize = self._store.push(queue, left)
            if len(left) < before:
                full.restart_deadline()
            if left:
                full.wait_for_room(queue, maxsize, len(left))

    def wait_until_stored(self) -> None:
        """Nothing is under way between calls."""

    def finish(self) -> list[StagedList]:
        """Nothing is staged."""
        return []

    def discard(self) -> None:
        """Nothing is staged."""

    def abandon(self) -> None:
        """Nothing is under way between calls."""


def expect_text_value(queue: str, value: bytes) -> str:
    """A value as the wire carries it. Raises MessageRefused for what is no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        reason = (
            f"a message for queue {queue!r} is no UTF-8 at byte {error.start}, and the protocol of"
            " npm busmq carries text only; encode it"
        )
        raise MessageRefused(reason=reason) from None
