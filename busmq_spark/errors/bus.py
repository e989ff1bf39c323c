"""Errors of services, events and pubsub."""

from __future__ import annotations

from busmq_spark.errors.base import BusError


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
