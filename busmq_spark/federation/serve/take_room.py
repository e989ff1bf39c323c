"""Room for messages that are taken from Redis for one object of a peer: asked for before they are
taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from busmq_spark.queue.message import CHUNK_BYTES

if TYPE_CHECKING:
    from busmq_spark.federation.serve.connection import NpmProtocolServerConnection


class TakeRoom:
    """The bytes of one consumption; they count for its connection and for its secret."""

    def __init__(self, connection: NpmProtocolServerConnection) -> None:
        self._connection = connection
        self._budgets = connection.taken, connection.quota
        self._reserved = CHUNK_BYTES + connection.limits.message_bytes  # what one take may bring

    async def reserve(self) -> None:
        """Return once there is room for what one take may bring, and to send something."""
        await self._connection.send_buffer.wait_room()
        connection, secret = self._budgets
        await connection.reserve(self._reserved)
        try:
            await secret.reserve(self._reserved)
        except BaseException:
            connection.replace_reservation(self._reserved, 0)
            raise

    def hold(self, size: int) -> None:
        """A take has ended: it brought ``size`` bytes."""
        for budget in self._budgets:
            budget.replace_reservation(self._reserved, size)

    def release(self, size: int) -> None:
        """So many of these bytes are handed over, or dropped."""
        for budget in self._budgets:
            budget.count_bytes(-size)
