"""The channels of a web socket: their packets, and the first message of each.

The packets that carry many channels over one web socket (protocol 5.3).

The first message of a channel: which object to open, and the methods that the client will call
(protocol 5.4).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from busmq_spark.errors import WireError
from busmq_spark.federation.npm_wire.dnode import UNSAFE_KEYS, decode_json, encode_json

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


ObjectType = Literal["queue", "channel", "pubsub", "persistify", "service"]
MAX_CREATION_BYTES = 64 * 1024
MAX_NAME_CHARACTERS = 1024
CHANNEL_ROLES = ("local", "remote")

# Type -> its methods in the order of npm busmq 3.1.0. Old clients send some of them; the order in
# the message counts, not this one.
_METHOD_NAMES: dict[ObjectType, str] = {
    "queue": (
        "on once find isAttached attach detach ttl maxsize metadata close exists count flush push"
        " pushed consumed stop isConsuming consume ack promisify"
    ),
    "channel": (
        "on once connect attach listen send sendTo disconnect detach end isAttached ack promisify"
    ),
    "pubsub": "on once subscribe attach unsubscribe isSubscribed publish detach promisify",
    "persistify": "pread pwrite ptouch",
    "service": (
        "on once serve connect disconnected disconnecting disconnect isServing isConnected request"
        " promisify"
    ),
}
METHODS_OF_TYPE: dict[ObjectType, tuple[str, ...]] = {
    kind: tuple(names.split()) for kind, names in _METHOD_NAMES.items()
}
MAX_METHODS = 64
_METHOD = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")


@dataclass(frozen=True, slots=True)
class ObjectCreationMessage:
    """An object of a bus: its type, the methods in the order that gives them numbers, and its
    arguments as they travel.

    A service of an npm client comes without arguments, so without a name (protocol Q17); ours sends
    ``[name]``.
    """

    type: ObjectType
    methods: tuple[str, ...]
    args: list[Any] | None = field(default_factory=list)

    def encode(self) -> bytes:
        """The body of the packet; no line feed."""
        members = {"type": self.type, "methods": self.methods}
        return encode_json(members if self.args is None else {**members, "args": self.args})

    @classmethod
    def decode(cls, body: bytes) -> ObjectCreationMessage:
        """Read the body. Raises WireError for anything but one of the five types with sound
        arguments.

        Unknown methods are kept, since the numbers depend on them; calling them does nothing.
        """
        if len(body) > MAX_CREATION_BYTES:
            raise WireError(
                found=f"a creation message of {len(body)} bytes",
                expected=f"at most {MAX_CREATION_BYTES}",
            )
        members = decode_json(body, "a creation message")
        if not isinstance(members, dict) or members.get("type") not in get_args(ObjectType):
            raise WireError(
                found="a creation message of no known type",
                expected=", ".join(get_args(ObjectType)),
            )
        made = cls(members["type"], _check_methods(members.get("methods")), members.get("args"))
        made._check_args()
        return made

    @property
    def name(self) -> str:
        """The name of the object; empty for a service of an npm client."""
        return str(self.args[0]) if self.args else ""

    @property
    def roles(self) -> tuple[str, str]:
        """The roles of a channel: the one that it reads as, and the one that it sends to."""
        given = [str(role) for role in (self.args or [])[1:3]]
        local, remote, *_ = [*given, *CHANNEL_ROLES[len(given) :]]
        return local, remote

    def _check_args(self) -> None:
        args = self.args
        if args is None and self.type == "service":
            return
        if not isinstance(args, list) or not args or len(args) > 3 or not _is_name(args[0]):
            raise WireError(
                found=f"a creation message for a {self.type} without a name",
                expected="args that begin with a name",
            )
        if self.type == "channel" and not all(map(_is_role, args[1:])):
            raise WireError(
                found="a channel whose roles are no names", expected="two names without a colon"
            )
        if self.type == "persistify" and not _are_attributes(args[1:]):
            raise WireError(
                found="a persisted object whose attributes are no names",
                expected="[name, {}, [attribute, …]]",
            )


def make_creation(kind: ObjectType, name: str, *more: Any) -> ObjectCreationMessage:
    """Return the creation message that an npm client of 3.1.0 sends for this object."""
    return ObjectCreationMessage(kind, METHODS_OF_TYPE[kind], [name, *more])


def _check_methods(found: Any) -> tuple[str, ...]:
    if (
        not isinstance(found, list)
        or len(found) > MAX_METHODS
        or not all(isinstance(name, str) and _METHOD.fullmatch(name) for name in found)
    ):
        raise WireError(
            found="a creation message whose methods are no list of names",
            expected=f"at most {MAX_METHODS} names",
        )
    if len({*found}) < len(found) or UNSAFE_KEYS & {*found}:
        raise WireError(
            found="a creation message that names a method twice, or one that no object has",
            expected="each method once",
        )
    return tuple(found)


def _is_name(found: Any) -> bool:
    """Text that can be part of a key."""
    return (
        isinstance(found, str)
        and 0 < len(found) <= MAX_NAME_CHARACTERS
        and not any("\ud800" <= letter <= "\udfff" for letter in found)
    )


def _is_role(found: Any) -> bool:
    """A role ends at the colon before the name in its queue's key: one with a colon would reach the
    queues of other channels.
    """
    return _is_name(found) and ":" not in found


def _are_attributes(rest: list[Any]) -> bool:
    match rest:
        case [] | [dict()]:
            return True
        case [dict(), list() as names]:
            return all(isinstance(name, str) for name in names)
    return False
