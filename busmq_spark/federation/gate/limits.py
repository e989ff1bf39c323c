"""The limits of one peer: one table, with defaults for a server that strangers can reach.

Memory of one connection: once the bytes that it has sent and the bytes that wait for it come to
``in_flight_bytes``, nothing more is read; at most two messages more are under way
(``serve/connection.py``), and the system's buffers hold ``kernel_bytes`` each way. Fixed are 8 MiB
of pubsub messages and 4 MiB of pushes to queues that are not attached (``serve/objects/``), and 64
bulk calls (``bulk/server.py``). All connections of a secret together: ``bytes_per_secret``, and
eight range reads of 18 MB at one Redis.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from busmq_spark.errors import ConfigError

MIB = 1024 * 1024


def limit_field(default: float, doc: str) -> Any:
    """Declare a row of the table."""
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """The limits of one peer. Values are inclusive; above one of them the connection is closed,
    unless its text says otherwise.
    """

    message_bytes: int = limit_field(16 * MIB, "longest web-socket message in either direction")
    fragments: int = limit_field(4_096, "frames of one message")
    in_flight_messages: int = limit_field(
        1_000,
        "messages taken from a connection and not yet worked off; a peer that sends more is read"
        " more slowly",
    )
    in_flight_bytes: int = limit_field(
        32 * MIB,
        "their bytes together, and those waiting to be sent to it; reached, nothing more is read or"
        " taken for it",
    )
    kernel_bytes: int = limit_field(
        256 * 1024,
        "what the operating system may keep in each direction for a peer of busmq's own protocol;"
        " Linux takes it twice",
    )
    channels_per_socket: int = limit_field(
        1_000, "federated objects on one web socket; a further one is refused"
    )
    listeners_per_channel: int = limit_field(
        100, "listeners of events of one object; a further one closes its channel"
    )
    callbacks_per_channel: int = limit_field(
        100_000, "functions of the peer that one object remembers; npm clients never free any"
    )
    name_bytes: int = limit_field(1_024, "longest name of an event that is listened to")
    depth: int = limit_field(64, "deepest nesting of an argument")
    subscriptions: int = limit_field(
        200, "subscriptions of a queue, beyond which no further one is registered"
    )
    subscriptions_per_secret: int = limit_field(
        50, "of them of one secret; a further one is refused, and others keep their places"
    )
    event_patterns_per_secret: int = limit_field(
        200, "patterns of events, each with its queue, of one secret; a further one is refused"
    )
    event_pattern_words: int = limit_field(
        16, "words of a pattern of events that a peer subscribes a queue to"
    )
    senders_per_secret: int = limit_field(
        1_000, "outboxes of one secret that a queue remembers; a further one is refused"
    )
    sinks_per_secret: int = limit_field(
        1_000, "sinks of one secret that a queue remembers; a further one is refused"
    )
    staged_lists_per_secret: int = limit_field(
        10_000, "lists of rows that one secret has staged for a queue; a further one is refused"
    )
    connections: int = limit_field(
        2_000, "open connections in all; a further one is answered with 503"
    )
    connections_per_address: int = limit_field(
        500, "open connections of one address (64 bits of an IPv6 one)"
    )
    handshakes: int = limit_field(
        2_000,
        "connections that are not let in yet; a further one ends the oldest of the address that has"
        " most of them",
    )
    backlog: int = limit_field(
        1_024, "connections that the operating system keeps until they are accepted"
    )
    connections_per_secret: int = limit_field(
        1_000, "open connections of the peers of one secret; a further one is answered with 503"
    )
    channels_per_secret: int = limit_field(
        20_000, "federated objects of theirs; a further one is refused"
    )
    pubsubs_per_secret: int = limit_field(
        4_000, "pubsubs among these, since a message goes to each"
    )
    listeners_per_secret: int = limit_field(200_000, "listeners of events of theirs")
    bytes_per_secret: int = limit_field(
        256 * MIB,
        "bytes held for them, unfinished messages and those that wait to be sent too; reached,"
        " nothing more is read or taken",
    )
    threads_per_secret: int = limit_field(
        16, "bulk calls of theirs that are worked off at once, of 128; further ones wait"
    )
    reads_per_secret: int = limit_field(
        8, "range reads of theirs at one Redis at once, of 64, 18 MB each; further ones wait"
    )
    head_bytes: int = limit_field(
        32 * 1024, "what a peer may send before it is let in: a request line and headers"
    )
    handshake_s: float = limit_field(30.0, "time from connecting to a complete HTTP request")
    idle_s: float = limit_field(
        120.0,
        "time without a byte, and without an answer to our ping, until a connection counts as dead",
    )
    unfinished_s: float = limit_field(
        5.0,
        "time in which 16 KiB more of an unfinished message must come while its secret has no more"
        " room; else it is cut off",
    )
    send_s: float = limit_field(
        20.0, "time in which a peer takes not one byte of what waits for it, until it is cut off"
    )
    drain_s: float = limit_field(
        5.0,
        "time at a graceful stop for calls under way to be answered; new connections are refused"
        " meanwhile",
    )
    close_s: float = limit_field(
        5.0, "time for a closing handshake, and for objects to detach at a graceful stop"
    )

    def __post_init__(self) -> None:
        for row in fields(self):
            value = getattr(self, row.name)
            kinds = (int,) if type(row.default) is int else (int, float)
            if type(value) not in kinds or not 0 < value < inf:
                wanted = f"{'whole ' if len(kinds) == 1 else ''}number above 0"
                found = f"limit {row.name} is {value!r}; expected a {wanted}"
                raise ConfigError(reason=f"{found} ({row.metadata['doc']})")
