"""Errors of a Redis that cannot be reached, or refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from busmq_spark.errors.base import BusError


class LinkLost(BusError, ConnectionError):
    """Redis cannot be reached, did not answer in time, or is loading its data. It is a
    ConnectionError, too.
    """

    code = "BUSMQ_LINK_LOST"
    retriable = True
    template = (
        "cannot reach Redis at {url}: {reason}. Check that the server runs and that this address is"
        " reachable from here"
    )


class WritesPaused(LinkLost):
    """Redis refuses writes for now: too few replicas, or its disk. Nothing of the call was
    executed.
    """

    code = "BUSMQ_WRITES_PAUSED"
    template = (
        "Redis at {url} refuses writes for now: {reason}. Nothing of this call was executed, and it"
        " is tried again for up to a minute. See whether its replicas are connected"
        " (min-replicas-to-write), and whether it can write its files"
    )


class Unauthorized(BusError):
    """Redis refused the credentials, or the ACL user lacks a right."""

    code = "BUSMQ_UNAUTHORIZED"
    template = (
        "Redis at {url} refused access: {reason}. Check the user and password in redis.url or"
        " redis.password, and the user's ACL"
    )


class TlsError(BusError):
    """The TLS handshake failed for a reason that waiting does not mend: a certificate that one side
    does not trust, or no TLS at all.
    """

    code = "BUSMQ_TLS"
    template = (
        "no TLS with {url}: {reason}. Check the authorities to trust (redis.tls.ca or"
        " federation.tls.ca), the certificate of this client (redis.tls.certificate or"
        " federation.tls.certificate), that the server's certificate names the host of the URL, and"
        " that this port speaks TLS"
    )


class ServerRefused(BusError):
    """Redis answered with an error of its own."""

    code = "BUSMQ_SERVER_REFUSED"
    remedy = "Read Redis' own words in the message, and its log."
    template = "Redis at {url} answered with an error: {reason}"


class ServerFull(ServerRefused):
    """Redis reached its ``maxmemory``. Nothing of the refused call was stored."""

    code = "BUSMQ_SERVER_FULL"
    retriable = True
    template = (
        "Redis at {url} is out of memory: {reason}. Nothing of this call was stored. Raise"
        " maxmemory, set a maxsize on the queues, or drain them"
    )


class ReadOnly(ServerRefused):
    """The server is a replica, and ``redis.url`` names it alone."""

    code = "BUSMQ_READ_ONLY"
    template = (
        "Redis at {url} does not accept writes: {reason}. Name the master in redis.url, or use"
        " redis.layout=sentinel"
    )


class TooFewReplicas(BusError):
    """Redis has fewer replicas than ``durability`` asks for. Nothing was executed."""

    code = "BUSMQ_TOO_FEW_REPLICAS"
    retriable = True
    template = (
        "Redis at {url} has {found} replicas that can be elected; durability={durability} with"
        " replicas={wanted} needs at least {needed}. Nothing was pushed. Add replicas, or ask for"
        " fewer with replicas, or use durability=memory"
    )


class NotReplicated(BusError):
    """Too few servers have confirmed writes in time; the master has them. ``details``: queue,
    first, last (ids; 0 where the writes are no pushes), asked, received, left. ``reason``, where
    there is one, says what came between the writes and the confirmation.
    """

    code = "BUSMQ_NOT_REPLICATED"
    template = (
        "queue {queue!r}: {received} of {asked} {servers} have confirmed {what} within"
        " {timeout_ms} ms (durability={durability}). {then}"
    )
    remedy = (
        "Wait again with `await queue.confirm(first, last)`: a repeat of the push would double the"
        " messages. See whether the replicas run and keep up."
    )

    replies: Sequence[Any] = ()
    """Replies to the calls of the step, for its caller."""

    def __init__(self, **details: Any) -> None:
        first, last, left = (details[name] for name in ("first", "last", "left"))
        what, then = "its writes", "The master has them. Repeat the call when the replicas keep up"
        unsent = f", and the last {left} messages were not sent" if left else ""
        if first:
            what = f"ids {first} to {last}"
            then = (
                f"These messages are stored on the master{unsent}. A repeat would double them; to"
                " wait again, and to check that they are still there, call await"
                f" queue.confirm({first}, {last})"
            )
        if advice := details.get("advice"):
            then = f"These messages are stored on the master. {advice}"
        if reason := details.get("reason"):
            then = (
                f"The connection broke after the reply of the master, and then: {reason}. It is"
                f" unknown whether {what} are still stored{unsent}. A repeat may double"
                " them; to find out, and to wait again, call await"
                f" queue.confirm({first}, {last})"
            )
        servers = "disks" if "disk" in details["durability"] else "replicas"
        super().__init__(**{**details, "what": what, "then": then, "servers": servers})

    def about(self, **named: Any) -> NotReplicated:
        """Return the same error with other details."""
        error = NotReplicated(**{**self.details, **named})
        error.replies = self.replies
        return error


class UnconfirmedLost(BusError):
    """Messages that were pushed and not confirmed are no longer stored. ``details``: queue, first,
    last, kind (``reissued``, ``rolled-back``, ``recreated`` or ``removed``).
    """

    code = "BUSMQ_UNCONFIRMED_LOST"
    template = (
        "queue {queue!r}: ids {first} to {last} were pushed and not confirmed, and {reason}. Push"
        " the messages again if no reader has them"
    )
