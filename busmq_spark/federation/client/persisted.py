"""Persisted objects of another bus: changes are found as by ``bus/base_persisted_object.py``,
reading and writing are calls (protocol 5.6).

Rule 1. The server gives every object 60 s at each touch, whatever ttl was asked for (protocol Q19).
        So it is touched at least every 20 s.
Rule 2. A touch is not answered. Whether the object is there is found by reading it.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from busmq_spark.bus.base_persisted_object import (
    BasePersistedObject,
    D,
    PersistedDataclass,
    PersistedDict,
)
from busmq_spark.errors import BusError
from busmq_spark.federation.client import remote_object_connection
from busmq_spark.federation.client.remote_reconnector import RemoteObjectListener, RemoteReconnector
from busmq_spark.federation.npm_wire.channels import make_creation

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.federation.client.remote_object_connection import RemoteObjectConnection
    from busmq_spark.federation.client.web_socket_pool import WebSocketPool
    from busmq_spark.objects.persisted import PersistedFieldChanges

SERVER_TTL_S = 60
"""The ttl that the server gives at each touch."""


class _RemotePersistable(RemoteObjectListener, BasePersistedObject):
    """The storage of both kinds. All state is here, and the waiting calls raise errors: an Owner
    has nothing to do.
    """

    _handle: RemoteReconnector
    _task: asyncio.Task[None] | None = None

    def __init__(self, bus: BusContext, pool: WebSocketPool, *args: Any) -> None:
        super().__init__(bus, *args)
        self._handle = RemoteReconnector(
            pool, make_creation("persistify", self.name, {}, []), bus._spawn, self, _restore_nothing
        )

    async def persist(self, ttl_s: int | None = None) -> None:
        """Persist as at home, except that the server gives it 60 s, whatever is asked for; touched
        as often as the shorter of both needs.
        """
        self._set_ttl(ttl_s)
        await self.touch()
        if not self.is_kept_alive:
            self.is_kept_alive = True
            self.bus._adopt(self)
            self._task = self.bus._spawn(self._touch_regularly(), f"keeping {self.name} alive")

    async def _write(self, sending: PersistedFieldChanges) -> int:
        fields = dict(sending.fields)
        if sending.missing:
            there = await self._read()
            fields |= {name: text for name, text in sending.missing.items() if name not in there}
        if fields:
            await self._handle.call_for_result(
                "pwrite", self.key, {name: json.loads(text) for name, text in fields.items()}
            )
        return 0  # the wire does not say which of them are new

    async def _read(self) -> dict[str, bytes]:
        found = remote_object_connection.expect_texts_by_name(
            await self._handle.call_for_result("pread", self.key), "a persisted object"
        )
        return {name: text.encode("utf-8", "replace") for name, text in found.items()}

    async def _touch(self) -> bool:
        (await self._handle.wait_open()).call_without_reply("ptouch")
        return bool(await self._read())

    def _leave(self) -> bool:
        kept, self.is_kept_alive = self.is_kept_alive, False
        if kept:
            if self._task is not None:
                self._task.cancel()
            self.bus.release(self)
        self._handle.close()
        return kept

    async def _touch_regularly(self) -> None:
        while True:
            await asyncio.sleep(min(self.ttl_s, SERVER_TTL_S) / 3)
            try:
                await self.touch()
            except BusError as error:
                self._not_touched(error)


class RemotePersistedDict(_RemotePersistable, PersistedDict):
    """A persisted dictionary on a federated bus."""


class RemotePersistedDataclass(_RemotePersistable, PersistedDataclass[D]):
    """A persisted dataclass on a federated bus."""


async def _restore_nothing(remote: RemoteObjectConnection) -> None:
    """Such an object has no state over there, and emits no events."""
