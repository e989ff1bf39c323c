"""The storage of a persisted object for a peer (protocol 4.2, 5.6): the fields and their meaning
are defined by the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.federation.npm_wire.dnode import encode_json
from busmq_spark.federation.serve.objects.base import (
    NEEDS_BROWSE,
    NEEDS_PUSH,
    MethodCall,
    ServedMethod,
    ServedObject,
    refused_error,
    to_storable,
)
from busmq_spark.objects import persisted
from busmq_spark.objects.persisted import PersistedFieldChanges
from busmq_spark.queue.command_generators import Flow, T
from busmq_spark.queue.keys import persisted_key
from busmq_spark.queue.message import encode_value

if TYPE_CHECKING:
    from busmq_spark.federation.npm_wire.channels import ObjectCreationMessage
    from busmq_spark.federation.serve.peer import PeerChannel

OBJECT_TTL_S = 60
"""compat: whatever ttl the client has (protocol Q19)."""


class ServedPersisted(ServedObject):
    """A hash of Redis, for one channel; no other key may be named."""

    kind = "persistify"

    def __init__(self, peer: PeerChannel, made: ObjectCreationMessage) -> None:
        super().__init__(peer, made)
        self._key = persisted_key(made.name)

    async def pread(self, call: MethodCall) -> None:
        self._check_key(call)
        async with self.peer.work.large_answer():
            most = self.peer.limits.message_bytes
            stored = await self._run_flow(persisted.load_within(self._key, most))
            if stored is None:
                limits = (
                    f"at most {most} bytes and {persisted.MOST_FIELDS} fields are allowed on the"
                    " wire"
                )
                raise MessageRefused(
                    reason=f"persisted object {self.name!r} is too large; {limits}"
                )
            self.answer(
                call,
                None,
                {name: text.decode("utf-8", "replace") for name, text in stored.items()} or None,
                self._key,
            )

    async def pwrite(self, call: MethodCall) -> None:
        self._check_key(call)
        fields = call.expect_value(1, dict, "what is to be written")
        if not fields:
            raise ConfigError(reason="nothing is to be written")
        sending = PersistedFieldChanges(
            {to_storable(name): _encode_stored(value) for name, value in fields.items()}
        )
        await self._run_flow(persisted.save(self._key, sending, OBJECT_TTL_S))
        self.answer(call, None, "OK", self._key)

    async def ptouch(self, _: MethodCall) -> None:
        await self._run_flow(persisted.touch([(self._key, OBJECT_TTL_S)]))

    def _check_key(self, call: MethodCall) -> None:
        if call.expect_value(0, str, "the key") != self._key:
            raise refused_error(
                f"this channel is for persisted object {self.name!r}, and for no other key"
            )

    async def _run_flow(self, flow: Flow[T]) -> T:
        servers = self.bus.servers
        return await servers.commands[await servers.locate(self._key)].run(flow)

    methods: ClassVar[dict[str, ServedMethod]] = {
        "pread": ServedMethod(pread, NEEDS_BROWSE),
        "pwrite": ServedMethod(pwrite, NEEDS_PUSH),
        "ptouch": ServedMethod(ptouch, NEEDS_PUSH),
    }


def _encode_stored(value: Any) -> bytes:
    """JSON of any value, text included: in a field it stands in quotes."""
    return encode_value(encode_json(value))
