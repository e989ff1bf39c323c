"""A pubsub of another bus: subscriptions and handlers are those of ``bus/pubsub.py``, only the
messages come from a remote object.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from busmq_spark.bus.pubsub import Pubsub
from busmq_spark.errors import BusError
from busmq_spark.federation.client import checked_values
from busmq_spark.federation.client.push_pipeline import decode_utf8
from busmq_spark.federation.client.remote_object_connection import error_from_event
from busmq_spark.federation.client.remote_reconnector import RemoteObjectListener, RemoteReconnector
from busmq_spark.federation.npm_wire.creation_message import make_creation
from busmq_spark.queue.message import encode_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from busmq_spark.bus.context import BusContext
    from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
    from busmq_spark.federation.client.web_socket_pool import WebSocketPool


class RemotePubsub(Pubsub, RemoteObjectListener):
    """A pubsub on a federated bus. While the link is down no message is received; ``subscribed`` is
    emitted again when it is back.

    Further events: ``reconnecting(error)`` and ``reconnected``.
    """

    events = (*Pubsub.events, "reconnecting", "reconnected")

    def __init__(self, bus: BusContext, name: str, most: int, pool: WebSocketPool) -> None:
        super().__init__(bus, name, most)
        self._handle = RemoteReconnector(
            pool, make_creation("pubsub", name), bus.spawn, self, self._restore
        )
        self._on_message: Callable[[bytes | None], None] | None = None
        self._failing: asyncio.Future[list[Any]] | None = None

    def __repr__(self) -> str:
        return f"RemotePubsub({self.name!r}, {self._handle.url!r})"

    async def publish(self, value: object) -> None:
        """Publish, like Pubsub.publish. Raises FederationLost when the link broke and it is unknown
        whether the message was published.
        """
        await self._handle.call_for_result("publish", decode_utf8(encode_value(value)), again=False)

    async def _start_receiving(self, on_message: Callable[[bytes | None], None]) -> None:
        self._handle.close()  # a remote object that has only published
        self._on_message = on_message
        try:
            await self._handle.wait_open()
        except BaseException:
            self._stop_receiving(on_message)
            raise
        self._handle.keep_open = True

    # There is one
    def _stop_receiving(self, on_message: Callable[[bytes | None], None]) -> None:  # noqa: ARG002
        self._on_message = None
        self._handle.close()

    def on_remote_lost(self, why: BusError) -> None:
        """See remote_reconnector.RemoteObjectListener."""
        if self.subscribed:
            self._emit("reconnecting", why)

    def on_remote_restored(self) -> None:
        """Subscribed again."""
        if self._on_message is not None:
            self._on_message(None)
        self._emit("reconnected")

    def on_remote_failed(self, error: BusError) -> None:
        """Report an error that no caller awaits."""
        self._report(error)

    async def _restore(self, remote: RemoteObjectConnection) -> None:
        remote.on(
            "error", self._on_remote_error
        )  # first: an error event without a listener ends a Node server
        if (on_message := self._on_message) is None:
            return
        answered = self._failing = remote.next_event("subscribed")
        remote.on(
            "message",
            lambda text=None, *_: on_message(
                checked_values.expect_text_as_bytes(text, "a message")
            ),
        )
        remote.call_without_reply("subscribe")
        await answered
        self._failing = None

    def _on_remote_error(self, found: Any = None, *_: Any) -> None:
        error = error_from_event(found)
        if self._failing is not None and not self._failing.done():
            self._failing.set_exception(error)
        else:
            self._report(error)
