"""Errors of a program that uses a bus: services, events, federation, jobs and outboxes.

Errors of services, events and pubsub.

Errors of federation servers and their peers.

Errors of jobs.

Errors of an outbox on the local disk.
"""

from __future__ import annotations

from typing import Any

from busmq_spark.errors.base import BusError, ConfigError
from busmq_spark.errors.queue import ProtocolError
from busmq_spark.errors.redis import LinkLost


class RequestFailed(BusError):
    """A service's provider answered a request with an error."""

    code = "BUSMQ_REQUEST_FAILED"
    remedy = "Read the provider's own words in the message."
    template = "service {service!r}: the provider answered with an error: {reason}"


class RequestTimeout(BusError, TimeoutError):
    """No provider answered a request in time. It is a TimeoutError, too."""

    code = "BUSMQ_REQUEST_TIMEOUT"
    retriable = True
    template = (
        "service {service!r}: no answer within {timeout_s} s. Is a provider serving? A longer"
        " timeout_s waits longer"
    )


class PublishIncomplete(BusError):
    """An event is not in each of its queues, or not known to be. ``details``: event (its id),
    stored (queues), missing (queue → why).
    """

    code = "BUSMQ_PUBLISH_INCOMPLETE"
    retriable = True
    template = (
        "event {event!r} is stored in {stored}, and is not, or not known to be, in {missing}."
        " Publish it again with the same id: a reader that gets it twice recognises it by id and"
        " source"
    )


class TooFewDestinations(BusError):
    """Fewer queues are subscribed to the keys of an event than ``require`` says. Nothing was
    pushed.
    """

    code = "BUSMQ_TOO_FEW_DESTINATIONS"
    template = (
        "{found} queues are subscribed to {keys}; expected at least {wanted}. Nothing was pushed."
        " Subscribe a queue with bus.subscribe(…, into=…) or busmq events subscribe, or leave out"
        " require"
    )


class MessagesMissed(BusError):
    """A pubsub listener took longer than the publishers, and the oldest messages that waited for it
    were dropped.
    """

    code = "BUSMQ_MESSAGES_MISSED"
    template = (
        "pubsub {pubsub!r}: its listener is slower than its publishers, and {dropped} messages that"
        " waited for it were dropped so far. Listen faster, let more wait with bus.pubsub(name,"
        " most=…), or use a queue, which drops none"
    )


class FederationLost(LinkLost):
    """A federation server cannot be reached, or did not answer in time."""

    code = "BUSMQ_FEDERATION_LOST"
    template = (
        "cannot reach the federation server at {url}: {reason}. Check that it runs and that this"
        " address is reachable from here"
    )


class FederationRefused(BusError):
    """A federation server refused the secret, or what was asked goes beyond what the secret may
    do.
    """

    code = "BUSMQ_FEDERATION_REFUSED"
    template = (
        "the federation server at {url} refused: {reason}. Check the secret, and what its name may"
        " do there"
    )


class RemoteError(BusError):
    """A federation server answered with an error that this version has no class for;
    ``details["remote"]`` is its code.
    """

    code = "BUSMQ_REMOTE"
    remedy = (
        "Look up that code in the documentation of the server's version, or install that version"
        " here."
    )
    template = "the federation server answered with {remote}: {reason}"


class WireError(ProtocolError):
    """A federation peer sent bytes that are no packet, creation message or RPC line. Its channel
    ends.
    """

    code = "BUSMQ_WIRE"
    template = (
        "a federation peer sent {found}; expected {expected}. Its channel is closed. See which"
        " program connects here"
    )


MAX_DELAY_S = 7 * 86_400
"""Longest delay of a job that is handed back, as of a lease."""


class JobFailed(BusError):
    """A group gave up a job that is waited for; ``details["errors"]``: group → its error."""

    code = "BUSMQ_JOB_FAILED"
    remedy = (
        "Read the worker's own words in the message. The dead-letter queue has the message; `busmq"
        " dead replay` sends it again."
    )
    template = (
        "job {job} of queue {queue!r} is given up by {errors}. Its message is a dead letter;"
        " fail_fast=False returns outcomes instead"
    )

    @property
    def errors(self) -> dict[str, str]:
        """Group → why it gave up."""
        return dict(self.details["errors"])


class JobsNotSent(BusError):
    """A call that sends many jobs has not sent all of them. ``details``, in their order: how many
    are ``sent``, of how many it is ``unknown``, as the connection broke, and how many are ``left``,
    which are not sent. Jobs that are sent go on.
    """

    code = "BUSMQ_JOBS_NOT_SENT"
    retriable = True
    template = (
        "the first {sent} jobs are sent to queue {queue!r}, of the next {unknown} it is unknown,"
        " and the last {left} are not sent: {reason}. Send the last ones again; those that are"
        " unknown may be done twice if they are sent again"
    )


class JobTimeout(BusError, TimeoutError):
    """The groups that jobs are waited for have not all finished in time. They go on, and waiting
    can, too. ``details["jobs"]``: ids of those jobs. It is a TimeoutError, too.
    """

    code = "BUSMQ_JOB_TIMEOUT"
    retriable = True
    template = (
        "job {job} of queue {queue!r}{others}: no outcome of {missing} within {timeout_s} s. Is a"
        " worker there? jobs.get(id).wait(…) waits on"
    )

    def __init__(self, **details: Any) -> None:
        others = len(details.get("jobs", ())) - 1
        super().__init__(**{"others": f", and {others} others" if others > 0 else "", **details})


class WorkTimeout(BusError, TimeoutError):
    """A worker was not done in time: a handler was at work for longer than ``deadline_s``, or
    handlers still were when a pause had to have begun.
    """

    code = "BUSMQ_WORK_TIMEOUT"
    retriable = True
    template = (
        "{what} of group {group!r} of queue {queue!r}: not done within {timeout_s} s. {remedy}"
    )
    remedy = "Do less at once, or give it more time."

    def __init__(self, **details: Any) -> None:
        super().__init__(**{"remedy": self.remedy, **details})


class Rejected(BusError):
    """Raised by a handler: the job is given up at once, without another try, and its message
    becomes a dead letter.
    """

    code = "BUSMQ_REJECTED"
    remedy = "Read the handler's own words in the message."

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason=reason)


class Released(BusError):
    """Raised by a handler: the job is handed back, and may begin again in ``delay_s``. It is no
    try.
    """

    code = "BUSMQ_RELEASED"
    remedy = "Raise it inside a handler of jobs only: the worker hands the job back."

    def __init__(self, reason: str = "handed back", *, delay_s: float = 0) -> None:
        # What users give
        if not isinstance(delay_s, int | float) or not 0 <= delay_s <= MAX_DELAY_S:  # type: ignore[redundant-expr]
            wanted = f"expected 0 to {MAX_DELAY_S} seconds"
            raise ConfigError(reason=f"delay_s is {delay_s!r}; {wanted}")
        super().__init__(reason=reason, delay_s=delay_s)


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
