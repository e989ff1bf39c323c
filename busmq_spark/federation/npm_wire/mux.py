"""The packets that carry many channels over one web socket (protocol 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

from busmq_spark.errors import WireError

CHANNEL_ID_BYTES = 16
PACKET_HEAD_BYTES = CHANNEL_ID_BYTES + 1
DATA_PACKET, CLOSE_PACKET = ord("1"), ord("2")


@dataclass(frozen=True, slots=True)
class MuxPacket:
    """Sixteen ASCII characters of channel id, one digit, the body. Without a body (None) it closes
    the channel.
    """

    channel: str
    body: bytes | None

    def encode(self) -> bytes:
        """The bytes of one web socket message."""
        if self.body is None:
            return self.channel.encode("ascii") + b"2"
        return b"%b1%b" % (self.channel.encode("ascii"), self.body)

    @classmethod
    def decode(cls, message: bytes) -> MuxPacket:
        """Read one web socket message. Raises WireError; a close packet's bytes after its
        digit are ignored, as by Node.
        """
        head = message[:CHANNEL_ID_BYTES]
        if (
            len(message) < PACKET_HEAD_BYTES
            or not head.isascii()
            or not head.decode("ascii").isprintable()
        ):
            raise WireError(
                found=f"a packet of {len(message)} bytes without a channel id",
                expected="16 ASCII characters, then 1 or 2",
            )
        channel, kind = head.decode("ascii"), message[CHANNEL_ID_BYTES]
        if kind == CLOSE_PACKET:
            return cls(channel, None)
        if kind != DATA_PACKET:
            raise WireError(
                found=f"a packet of type {bytes([kind])!r}", expected="1 (data) or 2 (close)"
            )
        if len(message) == PACKET_HEAD_BYTES:
            raise WireError(found="a data packet without a body", expected="at least one byte")
        return cls(channel, message[PACKET_HEAD_BYTES:])
