"""Every option of the Spark source and sink, and the settings of a bus: one table each.

Names follow Spark's Kafka source where the meaning is equal. Look-up is case-blind, as everywhere
in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from busmq_spark.arguments import check_number, check_path, join_urls, show
from busmq_spark.environment import misspelt_variables, read_variable
from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import (
    LINK_SECRETS,
    LOCAL_SOURCE,
    duration_s,
    ending,
    federation_urls,
    flag,
    flag_or_names,
    from_keywords,
    integer,
    links,
    names,
    one_name,
    one_of,
    option,
    pattern,
    redis_url,
    secret_text,
    size,
    starting,
    subscription,
)
from busmq_spark.starting_offsets import AtTime, OffsetBound, timestamp

WEEK_S = 7 * 24 * 3600
MAX_REPLICAS = 1000
MAX_PARTITIONS = 1000
"""Partitions of a topic."""
PARTITION_COUNT_PARSER = integer(1, MAX_PARTITIONS)
"""The parser of the number of them."""


def default_url() -> str | None:
    """The address every option table falls back to."""
    return read_variable("BUSMQ_REDIS_URL")


PARTITIONS_UNUSED_REASON = (
    "createQueue=false creates nothing, so option 'partitions' has no meaning with it; leave one of"
    " them out"
)
LAYOUTS = ("direct", "sentinel", "cluster")
"""The arrangements of servers; redis_io/layout.py makes endpoints of each."""


DURABILITY_LEVELS = ("memory", "disk", "replicated", "replicated-disk")
"""The promises about a confirmed message: see :class:`Durability`."""


@dataclass(frozen=True, slots=True)
class Durability:
    """The servers that must have a message before its push returns.

    ``memory``: the master. ``disk``: its disk. ``replicated``: also ``replicas`` replicas.
    ``replicated-disk``: the disks of all these. ``replicas`` of None means all replicas that can be
    elected.
    """

    level: str = "memory"
    replicas: int | None = None
    timeout_ms: int = 5000

    @property
    def on(self) -> bool:
        """Whether Redis must confirm more than its reply says."""
        return self.level != "memory"

    @property
    def on_disk(self) -> bool:
        """Whether servers must have written messages to disk."""
        return self.level.endswith("disk")

    @property
    def on_replicas(self) -> bool:
        """Whether replicas must have the messages."""
        return self.level.startswith("replicated")


MEMORY = Durability()
"""The default."""


def check_durability(
    level: object, replicas: object = "all", timeout_s: object = 5.0
) -> Durability:
    """Return the durability of keyword arguments. Raises ConfigError."""
    if level not in DURABILITY_LEVELS:
        expected = f"{', '.join(DURABILITY_LEVELS[:-1])} or {DURABILITY_LEVELS[-1]}"
        raise ConfigError(reason=f"durability is {show(level)}; expected {expected}")
    if replicas != "all" and (type(replicas) is not int or not 1 <= replicas <= MAX_REPLICAS):
        raise ConfigError(
            reason=f"replicas is {show(replicas)}; expected 'all', or 1 to {MAX_REPLICAS}"
        )
    timeout_s = check_number("durability_timeout_s", timeout_s, 0.001, WEEK_S, "seconds")
    found = Durability(
        str(level), replicas if isinstance(replicas, int) else None, round(timeout_s * 1000)
    )
    if found.replicas is not None and not found.on_replicas:
        raise ConfigError(
            reason=(
                f"replicas is {found.replicas}, but durability={found.level} waits for none; set"
                " durability=replicated, or leave replicas out"
            )
        )
    return found


def refuse_durability_over_federation(durability: Durability) -> None:
    """Raise ConfigError for a durability that a federation server cannot be asked for."""
    if durability.on:
        raise ConfigError(
            reason=(
                f"durability={durability.level} cannot be said over federation. Set it in the Bus"
                " of the federation server, which then confirms pushes before it answers (not the"
                " rows of Spark queries), and use durability=memory here"
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """The address and the credentials of Redis."""

    url: str | None = option(
        "redis.url",
        redis_url,
        None,
        doc="one Redis URL or a comma list, in the same order as every peer; else BUSMQ_REDIS_URL",
    )
    user: str | None = option(
        "redis.username",
        one_name,
        None,
        doc="ACL user for every server whose URL has no credentials",
    )
    password: str | None = option(
        "redis.password", secret_text, None, doc="password for every server whose URL has none"
    )
    layout: str = option(
        "redis.layout",
        one_of(*LAYOUTS),
        "direct",
        doc="direct: independent servers; else the URLs are sentinels, or nodes of a cluster",
    )
    master: str = option(
        "redis.sentinelMaster",
        one_name,
        "mymaster",
        doc="the name under which the sentinels watch the servers",
    )
    tls_ca: str | None = option(
        "redis.tls.ca",
        one_name,
        None,
        doc="PEM file of the authority to trust with rediss://, instead of the system's",
    )
    tls_certificate: str | None = option(
        "redis.tls.certificate", one_name, None, doc="PEM file of the client certificate to show"
    )
    tls_key: str | None = option(
        "redis.tls.key",
        one_name,
        None,
        doc="PEM file of its private key; not needed when the certificate's file holds it",
    )
    tls_check_hostname: bool = option(
        "redis.tls.checkHostname",
        flag,
        True,
        doc="whether the server's certificate must name the host of the URL",
    )
    require_no_eviction: bool = option(
        "requireNoEviction",
        flag,
        False,
        doc="true: refuse a Redis whose maxmemory-policy is not noeviction",
    )

    @property
    def address(self) -> str:
        """The URL list; raises ConfigError when neither the option nor the environment has one."""
        url = default_url() if self.url is None else self.url
        if not url:
            near = "".join(
                f"; {name} is set, did you mean {ours}?" for name, ours in misspelt_variables()
            )
            raise ConfigError(
                reason=(
                    "no Redis is named: set option 'redis.url' (redis://host:port) or the"
                    f" environment variable BUSMQ_REDIS_URL{near}"
                )
            )
        return url

    @property
    def cluster(self) -> bool:
        """Whether key names carry hash tags."""
        return self.layout == "cluster"


def redis_options(options: RedisOptions) -> RedisOptions:
    """Only what says how to reach Redis: equal for every query of the same address."""
    return RedisOptions(**{row.name: getattr(options, row.name) for row in fields(RedisOptions)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(RedisOptions):
    """The place of the messages: Redis, federation servers, or both."""

    links: tuple[tuple[str, str], ...] = option(
        "federation.url",
        links,
        (),
        doc=(
            "federation servers, beside redis.url or instead of it: wss://host/bus, or several with"
            " names: eu=wss://…,us=wss://…"
        ),
    )
    secret: str | None = option(
        "federation.secret",
        secret_text,
        None,
        doc="the secret they ask for; else BUSMQ_FEDERATION_SECRET",
    )
    link_secrets: tuple[tuple[str, str], ...] = option(
        LINK_SECRETS, secret_text, (), doc="the secret of one of them"
    )
    secret_in_url: bool | tuple[str, ...] = option(
        "federation.secretInUrl",
        flag_or_names,
        False,
        doc=(
            "for npm servers, which take the secret from the URL only: true, or names of those"
            " links"
        ),
    )
    link_ca: str | None = option(
        "federation.tls.ca",
        one_name,
        None,
        doc="PEM file of the authority to trust with wss://, instead of the system's",
    )
    link_certificate: str | None = option(
        "federation.tls.certificate",
        one_name,
        None,
        doc="PEM file of the client certificate to show",
    )
    link_key: str | None = option(
        "federation.tls.key",
        one_name,
        None,
        doc="PEM file of its private key, unless that is in the certificate's file",
    )
    link_check_hostname: bool = option(
        "federation.tls.checkHostname",
        flag,
        True,
        doc="whether the server's certificate must name the host of the URL",
    )
    on_unavailable: str = option(
        "onUnavailable",
        one_of("wait", "fail"),
        "wait",
        doc=(
            "an unreachable federation server: its queues wait, the others go on; or the query"
            " fails"
        ),
    )

    engine: str = option(
        "engine",
        one_of("auto", "java", "python"),
        "auto",
        doc=(
            "auto: Java where its jar is on the class path and can do it, else Python; java or"
            " python: that one, or an error that says why not"
        ),
    )

    def __post_init__(self) -> None:
        names = [link for link, _ in self.links]
        if strange := [link for link, _ in self.link_secrets if link not in names]:
            reason = (
                f"option 'federation.{strange[0]}.secret' is for a link that federation.url does"
                f" not name; it names: {', '.join(names) or 'none'}"
            )
            raise ConfigError(reason=reason)
        given = [
            row.metadata["name"]
            for row in fields(StoreOptions)
            if "federation." in row.metadata["name"] and getattr(self, row.name) != row.default
        ]
        if given and not self.links:
            raise ConfigError(
                reason=(
                    f"option {given[0]!r} is given without federation.url, the address of the"
                    " server it is for"
                )
            )
        if not isinstance(self.secret_in_url, bool) and not {*self.secret_in_url} <= {*names}:
            raise ConfigError(
                reason=(
                    "option 'federation.secretInUrl' has a link that federation.url does not name;"
                    f" it names: {', '.join(names)}"
                )
            )
        files = {"ca": self.link_ca, "certificate": self.link_certificate, "key": self.link_key}
        tls = [word for word, path in files.items() if path] + (
            [] if self.link_check_hostname else ["checkHostname"]
        )
        if tls and not any(url.lower().startswith("wss:") for _, url in self.links):
            raise ConfigError(
                reason=(
                    f"federation.tls.{tls[0]} is set, but no address in federation.url speaks TLS;"
                    " write wss:// instead of ws://"
                )
            )
        if self.link_key and not self.link_certificate:
            raise ConfigError(
                reason=(
                    "federation.tls.key is set without federation.tls.certificate, the certificate"
                    " it belongs to; set both"
                )
            )

    @property
    def has_redis(self) -> bool:
        """Whether a Redis takes part. Beside links only one that is named in the options does: a
        query must not read from a default address.
        """
        return self.url is not None or not self.links

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all places: '' is Redis, the others are links."""
        return (*([""] if self.has_redis else []), *(link for link, _ in self.links))

    def in_url(self, link: str) -> bool:
        """Whether the secret may stand in the URL of a link's server."""
        return (
            self.secret_in_url
            if isinstance(self.secret_in_url, bool)
            else link in self.secret_in_url
        )

    def secret_of(self, link: str) -> str | None:
        """The secret a link's server asks for."""
        return dict(self.link_secrets).get(
            link, self.secret or read_variable("BUSMQ_FEDERATION_SECRET")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(StoreOptions):
    """Options of ``spark.readStream.format("busmq")`` and ``spark.read.format("busmq")``."""

    subscribe: tuple[str, ...] = option(
        "subscribe",
        names,
        (),
        doc='queues to read, comma separated, or a JSON list: ["orders", "a,b"]',
    )
    subscribe_pattern: str | None = option(
        "subscribePattern",
        pattern,
        None,
        doc=(
            "read every queue whose whole name matches, also later ones: within 2 s, and 50 s more"
            " for each million keys of a server"
        ),
    )
    topic: tuple[str, ...] = option(
        "topic",
        names,
        (),
        doc="topics to read, every partition of each, also later ones; as in subscribe",
    )
    include_topic: bool = option(
        "includeTopic",
        flag,
        False,
        doc="true: columns topic and partition, too, which say where of a topic a row is from",
    )
    partitions: int | None = option(
        "partitions",
        PARTITION_COUNT_PARSER,
        None,
        doc="create a topic that does not exist, with so many partitions",
    )
    starting: OffsetBound | dict[str, Any] | None = option(
        "startingOffsets",
        starting,
        None,
        doc="earliest, latest, -10m, a time, or JSON by queue, also of ids; new checkpoints only",
        unsaid="earliest",
    )
    starting_timestamp: AtTime | None = option(
        "startingTimestamp",
        timestamp,
        None,
        doc=(
            "instead: begin with what came in the second of this time; ISO 8601 with its offset, or"
            " epoch ms"
        ),
    )
    timestamp_strategy: str = option(
        "startingOffsetsByTimestampStrategy",
        one_of("error", "earliest", "latest"),
        "error",
        doc="where to begin when a queue's clock does not reach back to a time",
    )
    ending: OffsetBound | dict[str, Any] | None = option(
        "endingOffsets",
        ending,
        None,
        doc=(
            "batch reads: latest, -10m, -1000 messages, or JSON from queue to one of them or the"
            " last id that is read"
        ),
        unsaid="latest",
    )
    ending_timestamp: AtTime | None = option(
        "endingTimestamp",
        timestamp,
        None,
        doc="batch reads, instead: end before what came in the second of this time",
    )
    max_messages: int | None = option(
        "maxMessagesPerTrigger",
        integer(1),
        None,
        doc="most messages in one micro-batch, shared fairly over queues",
        alias="maxOffsetsPerTrigger",
    )
    max_bytes: int | None = option(
        "maxBytesPerTrigger",
        size,
        None,
        doc=(
            "most bytes of values in one micro-batch, such as 64k, 10m, 1g (at least one message is"
            " read; estimated beyond 1 MB)"
        ),
    )
    min_messages: int | None = option(
        "minMessagesPerTrigger",
        integer(1),
        None,
        doc=(
            "with fewer new messages than these a micro-batch waits for more, until maxTriggerDelay"
            " has passed since the last one"
        ),
        alias="minOffsetsPerTrigger",
    )
    trigger_delay_s: int = option(
        "maxTriggerDelay",
        duration_s,
        15 * 60,
        doc="how long minMessagesPerTrigger may hold back a micro-batch: seconds, or 30s, 15m",
    )
    discard: bool = option(
        "discardBacklog",
        flag,
        False,
        doc=(
            "true: a new query may delete unread messages before its startingOffsets; else that is"
            " an error"
        ),
    )
    min_partitions: int | None = option(
        "minPartitions",
        integer(1),
        None,
        doc="split queues by id ranges until there are so many tasks",
    )
    max_per_partition: int | None = option(
        "maxMessagesPerPartition",
        integer(1),
        None,
        doc="split queues by id ranges of at most so many messages",
        alias="maxRecordsPerPartition",
    )
    include_timestamp: bool = option(
        "includeTimestamp",
        flag,
        False,
        doc="true: a column timestamp, the second by which a message was stored; NULL if not known",
    )
    job_fields: tuple[str, ...] = option(
        "jobFields",
        names,
        (),
        doc=(
            "a column fields, a map with these fields of the jobs that messages name, as they are"
            " when a task reads them"
        ),
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        flag,
        True,
        doc="stop when planned messages are gone; false: go on from the oldest stored",
    )
    ack: str = option(
        "ack",
        one_of("commit", "none"),
        "commit",
        doc=(
            "commit: messages leave when their batch is committed, also those of a query without"
            " checkpointLocation; none: nothing is removed"
        ),
    )
    subscription: str = option(
        "subscription",
        subscription,
        "",
        doc="a name; several queries then read one queue, each with its own acks",
    )
    create: bool = option(
        "createQueue", flag, True, doc="create a queue named in subscribe that does not exist"
    )
    ttl_s: int = option(
        "ttl",
        duration_s,
        WEEK_S,
        doc=(
            "lifetime without readers or writers of a queue that is created: seconds, or 30s,"
            " 12h, 7d"
        ),
    )
    idle_poll_ms: int = option(
        "idlePollMs",
        integer(1),
        50,
        doc="an idle query asks Redis this often at most; a push wakes it sooner",
    )

    def __post_init__(self) -> None:
        StoreOptions.__post_init__(
            self
        )  # slots and super() without arguments do not go together in a dataclass
        given = [
            n
            for n, v in (
                ("subscribe", self.subscribe),
                ("subscribePattern", self.subscribe_pattern),
                ("topic", self.topic),
            )
            if v
        ]
        if len(given) != 1:
            found = " and ".join(given) + " are" if given else "none is"
            raise ConfigError(
                reason=(
                    "exactly one of 'subscribe', 'subscribePattern' and 'topic' names the queues"
                    f" to read; {found} given"
                )
            )
        if not self.topic and (self.include_topic or self.partitions):
            name = "includeTopic" if self.include_topic else "partitions"
            raise ConfigError(
                reason=(
                    f"option {name!r} is for topics, and none is named: set option 'topic', or"
                    " leave it out"
                )
            )
        if self.partitions and not self.create:
            raise ConfigError(reason=PARTITIONS_UNUSED_REASON)
        if self.ack == "none" and self.subscription:
            raise ConfigError(
                reason=(
                    "ack=none acknowledges nothing, so option 'subscription' has no meaning with"
                    " it; leave one of them out"
                )
            )
        if self.ack == "none" and self.discard:
            raise ConfigError(
                reason=(
                    "ack=none removes nothing, so discardBacklog=true has no meaning with it; leave"
                    " one of them out"
                )
            )
        if self.job_fields and self.links:
            raise ConfigError(
                reason=(
                    "jobFields asks the Redis of the queues for fields, and a federation server has"
                    " no jobs; leave one of them out"
                )
            )
        if self.starting and self.starting_timestamp:
            raise ConfigError(
                reason=(
                    "startingOffsets and startingTimestamp both say where to begin; leave one of"
                    " them out"
                )
            )
        if self.ending and self.ending_timestamp:
            raise ConfigError(
                reason=(
                    "endingOffsets and endingTimestamp both say where to end; leave one of them out"
                )
            )
        if self.max_messages is not None and (self.min_messages or 0) > self.max_messages:
            limits = (
                f"minMessagesPerTrigger is {self.min_messages} and maxMessagesPerTrigger is"
                f" {self.max_messages}"
            )
            raise ConfigError(
                reason=(
                    f"{limits}: a batch would wait for messages that it may not have; lower the"
                    " former, or raise the latter"
                )
            )
        self._check_queues("startingOffsets", self.starting)
        self._check_queues("endingOffsets", self.ending)

    def _check_queues(self, name: str, starts: OffsetBound | dict[str, Any] | None) -> None:
        if not isinstance(starts, dict):
            return
        nested = {source: own for source, own in starts.items() if isinstance(own, dict)}
        places = [source or LOCAL_SOURCE for source in self.sources]
        if strange := set(nested) - set(places):
            raise ConfigError(
                reason=(
                    f"{name} names {sorted(strange)[0]!r}, which is none of the sources"
                    f" {', '.join(places)}"
                )
            )
        queues = {
            *(set(starts) - set(nested)),
            *(queue for own in nested.values() for queue in own),
        }
        if self.subscribe and (strange := queues - set(self.subscribe)):
            raise ConfigError(
                reason=f"{name} names {sorted(strange)[0]!r}, which is not in subscribe"
            )
        if self.topic and (
            strange := {
                queue
                for queue in queues
                if queue not in self.topic and _topic_of(queue) not in self.topic
            }
        ):
            raise ConfigError(
                reason=(
                    f"{name} names {sorted(strange)[0]!r}, which is neither in topic nor a"
                    " partition queue of it"
                )
            )
        plain = [
            {queue: start for queue, start in starts.items() if queue not in nested},
            *nested.values(),
        ]
        if ids := sorted(
            queue
            for own in plain
            for queue, start in own.items()
            if queue in self.topic and isinstance(start, int)
        ):
            raise ConfigError(
                reason=(
                    f"{name} has an id for topic {ids[0]!r}, and an id is one of a queue: name"
                    f" partition queues, such as {ids[0]}/0"
                )
            )

    def start_of(self, source: str, queue: str) -> OffsetBound:
        """Return the start of reading in a queue."""
        found = self.asked_start(source, queue)
        return "earliest" if found is None else found

    def asked_start(self, source: str, queue: str) -> OffsetBound | None:
        """Return the start that the user has given; return None when the user has given none for
        the queue.
        """
        return self.starting_timestamp or self._of(self.starting, source, queue)

    def shown_start(self, source: str, queue: str) -> str:
        """The option that says where reading begins in a queue, for people."""
        name = "startingTimestamp" if self.starting_timestamp else "startingOffsets"
        return f"{name}={self.start_of(source, queue)}"

    def end_of(self, source: str, queue: str) -> OffsetBound:
        """Return the end of a batch read in a queue; an id is inclusive."""
        found = self.ending_timestamp or self._of(self.ending, source, queue)
        return "latest" if found is None else found

    def _of(
        self, starts: OffsetBound | dict[str, Any] | None, source: str, queue: str
    ) -> OffsetBound | None:
        """Return the bound that an option gives for a queue, else for its topic."""
        found = _start_in(starts, source, queue)
        topic = _topic_of(queue)
        return _start_in(starts, source, topic) if found is None and topic in self.topic else found


def _topic_of(queue: str) -> str | None:
    """The topic that the name of a partition queue begins with (groups/topic.py)."""
    topic, _, partition = queue.rpartition("/")
    return topic if topic and re.fullmatch("0|[1-9][0-9]{0,2}", partition) else None


def _start_in(
    starts: OffsetBound | dict[str, Any] | None, source: str, queue: str
) -> OffsetBound | None:
    """Return the bound that an option gives for a queue."""
    if not isinstance(starts, dict):
        return starts
    own = starts.get(source or LOCAL_SOURCE)
    found = own.get(queue) if isinstance(own, dict) else None
    found = starts.get(queue) if found is None else found
    return None if isinstance(found, dict) else found  # a queue with the name of a source


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(StoreOptions):
    """Options of ``df.writeStream.format("busmq")`` and ``df.write.format("busmq")``."""

    queue: str | None = option(
        "queue", one_name, None, doc="queue for every row; needed when there is no column queue"
    )
    topic: str | None = option(
        "topic",
        one_name,
        None,
        doc="topic for every row, instead of a queue; or rows have a column topic",
    )
    partitions: int | None = option(
        "partitions",
        PARTITION_COUNT_PARSER,
        None,
        doc="create a topic that does not exist, with so many partitions",
    )
    settle: str = option(
        "settle",
        subscription,
        "",
        doc=(
            "rows are outcomes of jobs in the group of this name: columns job or value, outcome,"
            " error, fields, id"
        ),
    )
    delivery: str = option(
        "delivery",
        one_of("exactly-once", "at-least-once"),
        "exactly-once",
        doc="exactly-once, or at-least-once (faster)",
    )
    sink: str = option(
        "sinkId",
        one_name,
        "",
        doc="name under which committed batches are remembered; default: the query's id",
    )
    batch: int | None = option(
        "batchId",
        integer(0),
        None,
        doc="with sinkId, on a batch write: the batch of this number is appended once",
    )
    on_changed_batch: str = option(
        "onChangedBatch",
        one_of("fail", "keep"),
        "fail",
        doc=(
            "a recorded batch comes again with other rows, its offsets unknown: fail, or keep the"
            " first"
        ),
    )
    on_full: str = option(
        "onFull",
        one_of("block", "fail"),
        "block",
        doc="a queue at its maxsize: block until there is room, or fail at once",
    )
    full_timeout_ms: int = option(
        "fullTimeoutMs", integer(0), 60_000, doc="how long to block on a full queue before failing"
    )
    create: bool = option("createQueue", flag, True, doc="create a queue that does not exist")
    ttl_s: int = option(
        "ttl",
        duration_s,
        WEEK_S,
        doc=(
            "lifetime without readers or writers of a queue that is created: seconds, or 30s,"
            " 12h, 7d"
        ),
    )
    maxsize: int = option(
        "maxsize", integer(0), 0, doc="most messages in a queue that is created; 0: no limit"
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        flag,
        True,
        doc=(
            "stop when the Redis of the sink is older than the checkpoint; false: log it and go on"
        ),
    )
    truncate: bool = option(
        "truncate",
        flag,
        False,
        doc="batch write with mode overwrite: delete what the queue holds first",
    )

    def __post_init__(self) -> None:
        StoreOptions.__post_init__(self)
        if len(self.sources) > 1:
            places = ", ".join(source or "redis.url" for source in self.sources)
            raise ConfigError(
                reason=(
                    f"a sink writes to one place, and these are named: {places}; leave one of them,"
                    " or write one stream to each"
                )
            )
        if self.queue and (self.topic or self.partitions):
            name = "topic" if self.topic else "partitions"
            raise ConfigError(
                reason=(
                    f"option 'queue' names a queue for every row, and option {name!r} is for"
                    " topics; leave one of them out"
                )
            )
        if self.partitions and not self.create:
            raise ConfigError(reason=PARTITIONS_UNUSED_REASON)
        if self.batch is not None and (not self.sink or self.delivery != "exactly-once"):
            raise ConfigError(
                reason=(
                    "batchId numbers the batches of a sink: it needs sinkId, the name of the sink,"
                    " and delivery=exactly-once"
                )
            )


def _check_secrets(name: str, value: object) -> str | Mapping[str, str]:
    """Check a secret, or a dictionary from URL to secret."""
    secrets = value if isinstance(value, Mapping) else {"": value}
    if not all(isinstance(each, str) for pair in secrets.items() for each in pair):
        raise ConfigError(
            reason=(
                f"{name} is or holds no text; expected a secret, or a dictionary from URL to secret"
            )
        )
    return value  # type: ignore[return-value]  # of texts, as was checked


def _check_urls(name: str, value: object) -> object:
    """True or False, as they are or as text, one URL, or several."""
    if isinstance(value, bool | str):
        return value
    if (
        isinstance(value, Collection)
        and not isinstance(value, bytes | Mapping)
        and all(isinstance(url, str) for url in value)
    ):
        return tuple(value)
    raise ConfigError(
        reason=f"{name} is a {type(value).__name__}; expected True, False, or a list of URLs"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BusOptions(RedisOptions):
    """Settings of ``Bus(...)``; there the names in Python count: ``layout``, ``password``,
    ``tls_ca`` …
    """

    reply_timeout_s: float = option(
        "replyTimeoutS", float, 10.0, doc="a server that owes a reply for so many seconds is gone"
    )
    durability: str = option(
        "durability",
        str,
        "memory",
        doc="which servers have a message when its push returns",
    )
    replicas: int | str = option(
        "replicas",
        str,
        "all",
        doc="replicas that must confirm: all that can be elected, or so many",
    )
    durability_timeout_s: float = option(
        "durabilityTimeoutMs", float, 5.0, doc="longest wait for their confirmations"
    )
    federate: str | None = option(
        "federation.url",
        federation_urls,
        None,
        doc="URLs of federation servers, comma separated; without url the bus has no Redis",
    )
    federate_secret: str | Mapping[str, str] | None = option(
        "federation.secret",
        secret_text,
        None,
        doc="their secret, or a dictionary from URL to secret; else BUSMQ_FEDERATION_SECRET",
    )
    federate_secret_in_url: bool | Collection[str] = option(
        "federation.secretInUrl",
        flag_or_names,
        False,
        doc="for npm servers, which take the secret from the URL only: True, or their URLs",
    )
    federate_tls_ca: str | None = option(
        "federation.tls.ca",
        one_name,
        None,
        doc="PEM file of the authority to trust with wss://, not the system's",
    )
    federate_compression: bool = option(
        "federation.compression",
        flag,
        False,
        doc="whether messages may be compressed: for slow links",
    )
    federate_sockets: int = option(
        "federation.sockets", integer(1), 2, doc="web sockets kept open to each federation server"
    )

    @property
    def durable(self) -> Durability:
        """Return the durability of pushes."""
        return check_durability(self.durability, self.replicas, self.durability_timeout_s)

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ConfigError(
                reason=(
                    f"layout is {self.layout!r}; expected {', '.join(LAYOUTS[:-1])} or"
                    f" {LAYOUTS[-1]}"
                )
            )
        check_durability(self.durability, self.replicas, self.durability_timeout_s)


_KEYWORD_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    **dict.fromkeys(("url", "federate"), join_urls),
    **dict.fromkeys(("tls_ca", "tls_certificate", "tls_key", "federate_tls_ca"), check_path),
    **dict.fromkeys(("durability", "replicas"), lambda _, value: value),
    "durability_timeout_s": partial(check_number, least=0.001, most=WEEK_S, unit="seconds"),
    "reply_timeout_s": partial(check_number, least=0.01, most=WEEK_S, unit="seconds"),
    "federate_secret": _check_secrets,
    "federate_secret_in_url": _check_urls,
}
"""Of the settings whose values may be something else than text, a number or a bool."""


def bus_options(given: Mapping[str, Any]) -> BusOptions:
    """The options of ``Bus(...)`` for its keyword arguments. Raises ConfigError."""
    return from_keywords(BusOptions, given, _KEYWORD_CHECKS)
