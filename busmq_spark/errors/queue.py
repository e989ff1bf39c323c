"""Errors of queues, topics and their messages."""

from __future__ import annotations

from busmq_spark.errors.base import BusError


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


class MirrorTimeout(BusError, TimeoutError):
    """A mirror has not caught up in time. It goes on. It is a TimeoutError, too."""

    code = "BUSMQ_MIRROR_TIMEOUT"
    retriable = True
    template = (
        "the mirror of {origin} has not caught up within {timeout_s} s. It goes on; wait longer, or"
        " see its status()"
    )


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


class CheckpointUnusable(BusError):
    """A folder is not the checkpoint of a query that reads busmq queues, or cannot be used for what
    was asked. Nothing was changed.
    """

    code = "BUSMQ_CHECKPOINT_UNUSABLE"
    remedy = (
        "Name the folder of option `checkpointLocation` of the query. The message says what was"
        " found in it."
    )
    template = "checkpoint {folder!r}: found {found}; expected {expected}{remedy}"


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


class TimeUnknown(BusError):
    """The clock of a queue does not reach back to a time that was asked for, and messages of before
    it may be stored.
    """

    code = "BUSMQ_TIME_UNKNOWN"
    template = (
        "what queue {queue!r} held at {asked} is not known; of its times {known}. Name a later"
        " time, an id, `earliest` or `latest`"
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
