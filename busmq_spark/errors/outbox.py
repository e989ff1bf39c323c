"""Errors of an outbox on the local disk."""

from __future__ import annotations

from busmq_spark.errors.base import BusError


class OutboxBusy(BusError):
    """Another process has this outbox open; ``details`` has its ``pid`` and ``host``. Only one
    process at a time may open it.
    """

    code = "BUSMQ_OUTBOX_BUSY"
    template = (
        "the outbox {path} is open in process {pid} on {host}. Give each process a file of its own,"
        " or end that one: the lock goes with it, however it ends"
    )


class OutboxFull(BusError):
    """The disk took no more. Nothing of the refused call was stored; messages stored before are
    still there, and are forwarded.
    """

    code = "BUSMQ_OUTBOX_FULL"
    retriable = True
    template = (
        "the disk of the outbox {path} takes no more: {reason}. Nothing of this call was stored."
        " Make room, or let it forward what it has: busmq outbox status says what waits, and why"
    )


class OutboxUnusable(BusError):
    """The file of an outbox cannot be used: it is missing, may not be written to, is damaged, or is
    of another version.
    """

    code = "BUSMQ_OUTBOX_UNUSABLE"
    remedy = (
        "Correct the path, or the rights of the file and its folder; the message says which, or"
        " what to do with a file that cannot be read."
    )
    template = "the outbox {path} cannot be used: {found}; expected {expected}. {remedy}"


class OutboxWaits(BusError, TimeoutError):
    """An outbox was not drained in time. Nothing is lost: a waiting message is sent when its
    destination is there.
    """

    code = "BUSMQ_OUTBOX_WAITS"
    retriable = True
    template = (
        "the outbox {path} still has {waiting} messages to forward{why}. They go out when their"
        " destination is there; which ones wait, and why, says busmq outbox outgoing, and of events"
        " busmq outbox incoming"
    )
