"""The replies of a bulk server when a call fails."""

from __future__ import annotations

import asyncio
import logging

from websockets.asyncio.server import ServerConnection

from busmq_spark.errors import BusError, LinkLost
from busmq_spark.federation import error_codec
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame
from busmq_spark.federation.bulk.operations import encode_error
from busmq_spark.federation.send_stall_meter import unsent_bytes
from busmq_spark.redis_io.endpoint import retry_time_s
from busmq_spark.redis_io.redis_layout import RedisLayout
from busmq_spark.redis_io.retry import FAILOVER_PATIENCE_S

log = logging.getLogger("busmq_spark")


def make_error_frame(id: int, error: BusError, asked: RedisLayout) -> BulkProtocolFrame:
    """The ERROR frame. If Redis is unreachable the reply says for how long to retry: longer where
    another server may take over.
    """
    head = encode_error(error)
    if not error_codec.is_shown_to_peers(error):
        log.log(
            logging.DEBUG if isinstance(error, LinkLost) else logging.WARNING, "bulk: %s", error
        )  # a lost link is asked about again and again
    if isinstance(error, LinkLost):
        head["details"]["patience_s"] = int(
            max((retry_time_s(end, error) for end in asked.endpoints), default=FAILOVER_PATIENCE_S)
        )
    return BulkProtocolFrame(BulkFrameKind.ERROR, id, head)


async def send_or_disconnect(socket: ServerConnection, message: bytes, send_s: float) -> None:
    """Send, unless the peer takes nothing for ``send_s``: then the connection is cut, and
    ConnectionClosed raised.
    """
    sending = asyncio.ensure_future(socket.send(message))
    left = (-1, -1)
    while True:
        try:
            done, _ = await asyncio.wait((sending,), timeout=send_s)
        except asyncio.CancelledError:
            sending.cancel()  # the frame is in the transport as a whole, or not at all
            raise
        if done:
            sending.result()
            return
        if left == (left := unsent_bytes(socket)):
            log.warning("bulk: a peer took nothing for %g s and was cut off", send_s)
            socket.transport.abort()
