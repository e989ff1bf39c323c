"""The bus: the scope in which queues, channels, services and the rest live.

    async with Bus("redis://localhost") as bus:
        async with bus.queue("orders") as orders:
            await orders.push({"n": 1})
            async for message in orders.consume():
                print(message.id, message.json())

Rule 1. Nothing happens before ``async with``, and nothing is left of it afterwards: no task, no
        connection.
Rule 2. Every object belongs to one bus and is used on its loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import wraps
from os import PathLike
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    Never,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

from busmq_spark.arguments import check_items
from busmq_spark.bus.base_persisted_object import (
    DEFAULT_OBJECT_TTL_S,
    D,
    PersistedDataclass,
    PersistedDict,
)
from busmq_spark.bus.channel import Channel
from busmq_spark.bus.context import bus_not_open_error
from busmq_spark.bus.deferred_federation import (
    FederationLinks,
    MirrorHandle,
    MirrorKeywords,
    make_federation_links,
    make_mirror,
)
from busmq_spark.bus.emitter import Emitter, Handle
from busmq_spark.bus.event_routing import EventRoutingMixin
from busmq_spark.bus.handler_calls import calling_thread, calling_work, closing_callers
from busmq_spark.bus.jobs.jobs import Jobs
from busmq_spark.bus.jobs.worker import Worker, WorkerGroup
from busmq_spark.bus.keepalive import TtlKeepAlive
from busmq_spark.bus.pubsub import MAX_BUFFERED_MESSAGES, Pubsub
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.redis_server_links import RedisServerLinks
from busmq_spark.bus.service import Service
from busmq_spark.bus.topics.topic import Topic, TopicsConsumer
from busmq_spark.bus.topics.topic_jobs import TopicJobs, TopicWorker
from busmq_spark.errors import BusError, ConfigError, StateError, TlsError, Unauthorized
from busmq_spark.errors.foreign import error_text, plain_text
from busmq_spark.groups.job import OUTCOME_TTL_S
from busmq_spark.options import (
    bus_options,
    check_durability,
    default_url,
    refuse_durability_over_federation,
)
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, queue_cap_field
from busmq_spark.redis_io.event_loops import forked_error, other_loop_error
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.redis_io.lease_token import my_token

if TYPE_CHECKING:
    from busmq_spark.bus.sync_types import SyncBus
    from busmq_spark.metrics import Metrics

DETACH_TIMEOUT_S = 2.0
"""Longest wait for an object to detach when its bus is left."""
DETACH_ALL_TIMEOUT_S = 10.0
"""Longest wait for all of them; after that each gets one more moment."""
BusEvent = Literal["online", "offline", "error", "federating"]
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("busmq_spark")


DurabilityLevel = Literal["memory", "disk", "replicated", "replicated-disk"]


class QueueKeywords(TypedDict, total=False):
    """The settings of a queue; see Bus.queue."""

    server: int | None
    cap: int | None
    overflow: str | None
    durability: DurabilityLevel | None
    replicas: int | Literal["all"] | None
    durability_timeout_s: float | None


def _synchronous(
    settings: Callable[Concatenate[Bus, P], None],
) -> Callable[Concatenate[type[Bus], P], SyncBus]:
    @wraps(settings)
    def make(cls: type[Bus], /, *args: P.args, **given: P.kwargs) -> SyncBus:
        from busmq_spark.bus import sync

        make_bus: Any = cls
        return cast("SyncBus", sync.SyncBus(make_bus(*args, **given)))

    return make


class Bus(EventRoutingMixin, Emitter[BusEvent]):
    """A bus on the Redis servers of ``url`` (one, a comma list or a list, in the same order as
    every peer; default BUSMQ_REDIS_URL).

    - ``layout``: ``direct`` (independent servers), ``sentinel`` or ``cluster``; ``master`` is the
      name under which sentinels watch the servers.
    - ``user``, ``password``: of each server whose URL has none.
    - ``tls_ca``, ``tls_certificate``, ``tls_key``: paths of PEM files; ``tls_check_hostname``:
      whether the certificate must name the host.
    - ``require_no_eviction``: refuse a Redis that may evict keys.
    - ``reply_timeout_s``: a server that owes a reply for so many seconds is gone.
    - ``durability``: the servers that have a message when its push returns: ``memory`` (the
      master), ``disk``, ``replicated`` or ``replicated-disk``; ``replicas``: how many replicas, or
      ``all`` that can be elected; ``durability_timeout_s``: longest wait for them.
    - ``federate``: URLs of federation servers; ``federate_secret``: their secret, or a dictionary
      from URL to secret; ``federate_secret_in_url``: True, or the URLs of npm servers, which read
      it there only; ``federate_tls_ca``: as ``tls_ca``; ``federate_compression``: for slow links;
      ``federate_sockets``: web sockets kept open to each server.

    It is used inside ``async with``, or between ``await bus.start()`` and ``await bus.aclose()``.

    Events: ``online`` when all servers and all subscriptions are there (again), ``offline(error)``
    when the last server is gone or refuses us (None: the bus is left), ``error(error)`` when one of
    several is; ``federating(url)`` when the announcements of a federation server are listened to
    (again).

    With ``federate="wss://…"`` and ``federate_secret`` and no ``url`` the bus has no Redis
    (BUSMQ_REDIS_URL does not count then): its objects are good for ``federate`` only.
    """

    events: tuple[BusEvent, ...] = get_args(BusEvent)

    def __init__(  # noqa: PLR0913  # the settings by name, each with a default that serves
        self,
        /,
        url: str | Sequence[str] | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        layout: Literal["direct", "sentinel", "cluster"] = "direct",
        master: str = "mymaster",
        tls_ca: str | PathLike[str] | None = None,
        tls_certificate: str | PathLike[str] | None = None,
        tls_key: str | PathLike[str] | None = None,
        tls_check_hostname: bool = True,
        require_no_eviction: bool = False,
        reply_timeout_s: float = 10.0,
        durability: DurabilityLevel = "memory",
        replicas: int | Literal["all"] = "all",
        durability_timeout_s: float = 5.0,
        federate: str | Sequence[str] | None = None,
        federate_secret: str | Mapping[str, str] | None = None,
        federate_secret_in_url: bool | Collection[str] = False,
        federate_tls_ca: str | PathLike[str] | None = None,
        federate_compression: bool = False,
        federate_sockets: int = 2,
        **unknown: Never,
    ) -> None:
        given = {**locals(), **unknown}
        super().__init__(self._spawn)
        self.options = bus_options(
            {name: given[name] for name in given.keys() - {"self", "unknown", "__class__"}}
        )
        self.token = my_token()
        """Names this bus in leases."""
        self.has_redis = url is not None or self.options.federate is None
        """Whether it has a Redis of its own; without one its objects are for ``federate`` only."""
        self._servers: RedisServerLinks | None = None
        self._links: FederationLinks | None = None
        self._group: asyncio.TaskGroup | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: tuple[asyncio.Task[None], asyncio.Event, set[object]] | None = None
        """Of a bus that was started: the task that is inside it, the event that lets it leave, and
        the callers of ``aclose`` with their work in hand.
        """
        self._pid = 0
        """The process that entered the bus."""
        self._objects: dict[Any, None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refusal: Unauthorized | TlsError | None = None
        """The first Unauthorized or TlsError of any task; event ``offline`` carries it."""
        self._lease_users: dict[str, Any] = {}
        self._connected = False
        self.warned: set[str] = set()
        """Queues for which the warning about a short ttl was logged."""
        self.keep_alive = TtlKeepAlive(self._spawn, lambda: self.servers, self.token)

    sync = classmethod(_synchronous(__init__))
    """Return a bus with the same settings that works without a loop, for notebooks and scripts:
    ``with Bus.sync(...) as bus``; see sync.py.
    """

    async def start(self) -> Self:
        """Connect, as ``async with`` does, and return the bus; ``aclose`` ends it.

        An error that ends the bus meanwhile, such as a password that no longer counts, is raised by
        ``aclose`` and cancels no task of the caller.

        Raises:
            LinkLost: No server answers.
            StateError: The bus is open already.
            BusError: An error that waiting cannot mend, such as a wrong password or a bad
                certificate.

        Example:
            bus = await Bus("redis://localhost").start()
            try:
                ...
            finally:
                await bus.aclose()
        """
        entered, leave = asyncio.get_running_loop().create_future(), asyncio.Event()
        callers: set[object] = set()

        async def live() -> None:
            async with self:
                entered.set_result(None)
                await leave.wait()
                closing_callers.set(callers)

        life = asyncio.create_task(live(), name="busmq: a bus that was started")
        try:
            await asyncio.wait([life, entered], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            life.cancel()
            await asyncio.wait([life])
            raise
        if not entered.done():
            await life  # raises what entering has raised
        self._life = life, leave, callers
        return self

    async def aclose(self) -> None:
        """Leave a bus that was started: detach every object, end every task, close every
        connection.

        A bus that is closed already, or was started by the parent process, is left alone. Several
        calls at once wait for the same end. A handler of the bus may call it; the call returns at
        once then, and the bus ends after the handler. The body of a loop over ``batches()`` may
        call it, too: its unsettled messages are returned then.

        Raises:
            BusError: The error that has ended the bus, if there was one.
        """
        life = self._life
        if self._pid in (0, os.getpid()) and life is not None:
            task, leave, callers = life
            leave.set()
            if self._is_handling:
                return
            callers |= {*calling_work(), calling_thread.get()}
            try:
                await asyncio.wait([task])
            finally:  # a caller that is cancelled cuts it short
                task.cancel()
                await asyncio.wait([task])
                if self._life is life:
                    self._life = None
            if not task.cancelled():
                task.result()
        elif self._pid == os.getpid() and self._group is not None:
            raise StateError(
                event="close",
                what="the bus",
                state="open for a block",
                remedy="Leave its 'async with', or open it with start()",
            )

    async def __aenter__(self) -> Self:
        """Connect. Raises LinkLost when no server answers, and what waiting cannot mend: a wrong
        password, a bad certificate.
        """
        if self._group is not None:
            if self._pid != os.getpid():
                raise forked_error("the bus")
            raise StateError(
                event="enter",
                what="this bus",
                state="open already",
                remedy="Make another Bus for another scope",
            )
        self._pid, self._loop = os.getpid(), asyncio.get_running_loop()
        links = (
            self._federation_links() if self.options.federate else None
        )  # a bad URL is an error before anything is connected
        if self.has_redis:
            await self._connect()
        else:
            self._group = await asyncio.TaskGroup().__aenter__()
        if links is not None:
            links.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Detach every object, end every task, close every connection.

        In a forked child it does nothing: they belong to the parent.
        """
        if self._pid != os.getpid():
            return
        group, servers = self._group, self._servers
        assert group is not None
        only = None
        try:
            await self._leave_all()
            await self._emit_offline()
            if self._links is not None:
                await self._links.close()
        finally:
            self._group = None
            for task in tuple(self._tasks):
                task.cancel()
            try:
                await group.__aexit__(kind, error, trace)
            except BaseExceptionGroup as failed:
                if len({(type(each), error_text(each)) for each in failed.exceptions}) > 1:
                    raise
                only = failed.exceptions[
                    0
                ]  # one error, seen by one task or by several, is easier to catch than a group
            finally:
                if servers is not None:
                    await servers.close()
                    log.debug("bus %s: disconnected from %s", self.token, servers)
                self._servers, self._connected, self._links = None, False, None
                self._lease_users.clear()
                self._refusal = None
                self.keep_alive = TtlKeepAlive(self._spawn, lambda: self.servers, self.token)
        if only is not None and only is not error:
            raise only

    def __repr__(self) -> str:
        place = self.options.federate if not self.has_redis else self.options.url or default_url()
        return f"Bus({plain_text(place)!r})"

    @property
    def online(self) -> bool:
        """Whether every server of its own answers; a bus without Redis is never online."""
        return self._servers is not None and all(self._servers.ready)

    def queue(  # noqa: PLR0913  # the settings by name, each with a default that serves
        self,
        name: str,
        *,
        server: int | None = None,
        cap: int | None = None,
        overflow: str | None = None,
        durability: DurabilityLevel | None = None,
        replicas: int | Literal["all"] | None = None,
        durability_timeout_s: float | None = None,
    ) -> Queue:
        """Return the queue with this name. Nothing is sent before it is attached or used.

        Args:
            name: Name of the queue.
            server: Index in ``url`` of the server on which a new queue is created, if there are
                several independent ones. An existing queue is used on its server.
            cap: Number of messages after which each push from this bus drops the oldest ones; 0
                means no cap. It is set when the queue is attached. Messages that a subscription has
                not acknowledged stay.
            overflow: ``"drop-oldest"``: also drop messages that a subscription has not
                acknowledged.
            durability: The servers that have a message when its push returns; by default those
                of the bus.
            replicas: Number of replicas that must have it, or ``"all"``; by default as for the bus.
            durability_timeout_s: Longest wait for them in seconds; by default as for the bus.

        Raises:
            ConfigError: An argument has a wrong type or value.

        Example:
            async with bus.queue("orders") as orders:
                await orders.push({"n": 1})
        """
        own = (durability, replicas, durability_timeout_s)
        options = self.options
        of_bus = (options.durability, options.replicas, options.durability_timeout_s)
        if durability in ("memory", "disk"):
            of_bus = (options.durability, "all", options.durability_timeout_s)  # waits for none
        durable = check_durability(
            *(of_bus[at] if each is None else each for at, each in enumerate(own))
        )
        return Queue(self, name, server, queue_cap_field(cap, overflow), durable)

    def topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        ttl_s: int = MIN_RECORD_TTL_S,
        maxsize: int = 0,
    ) -> Topic:
        """Return the topic with this name: partition queues ``name/0``, ``name/1`` …

        The key of a message chooses its partition. An existing topic keeps its number of
        partitions, and an existing partition its ttl and size.

        Args:
            name: Name of the topic.
            partitions: Number of partitions of a new topic.
            ttl_s: Lifetime in seconds of a new partition without any program attached.
            maxsize: Most messages of a new partition; 0 means no limit.

        Raises:
            ConfigError: An argument has a wrong type or value.

        Example:
            async with bus.topic("metrics", partitions=10) as metrics:
                await metrics.push("1.5", key="host-1")
        """
        return Topic(self, name, partitions, ttl_s, maxsize)

    def consumer(
        self,
        topics: str | Sequence[str | Topic],
        *,
        group: str,
        start: str | int = "earliest",
    ) -> TopicsConsumer:
        """Return a member of one group in several topics, whose batches come in fair turns.

        Args:
            topics: Names of existing topics, or topics of this bus.
            group: Name of the group.
            start: Start of a new group, as for ``Topic.group``.

        Raises:
            ConfigError: An argument has a wrong type or value.

        Example:
            async with bus.consumer(["metrics", "events"], group="agg") as consumer:
                async for batch in consumer.batches():
                    await consumer.ack(batch)
        """
        some = [topics] if isinstance(topics, str) else check_items("topics", topics)
        found = [self.topic(each) if isinstance(each, str) else each for each in some]
        return TopicsConsumer(found, group, start)

    def channel(self, name: str, local: str = "local", remote: str = "remote") -> Channel:
        """Return the channel with this name, between two roles of your choice.

        With the default roles, one peer calls ``connect`` and the other ``listen``.

        Args:
            name: Name of the channel.
            local: Role of this end.
            remote: Role of the other end.

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        return Channel(self, name, local, remote)

    @overload
    def jobs(
        self,
        name: str,
        *,
        durable: bool = ...,
        outcome_ttl_s: float = ...,
        **options: Unpack[QueueKeywords],
    ) -> Jobs: ...
    @overload
    def jobs(self, *, topic: str, durable: bool = ..., outcome_ttl_s: float = ...) -> TopicJobs: ...
    def jobs(
        self,
        name: str | None = None,
        *,
        topic: str | None = None,
        durable: bool = False,
        outcome_ttl_s: float = OUTCOME_TTL_S,
        **options: Any,
    ) -> Jobs | TopicJobs:
        """Return the jobs of a queue, or of a topic: to create, send, wait for and work on them.

        Args:
            name: Name of the queue.
            topic: Name of an existing topic, instead of ``name``. Each job is in the partition of
                its key.
            durable: Also push each outcome to the queue ``<name>.done``.
            outcome_ttl_s: Seconds for which an outcome can be asked for.
            **options: Options of ``Bus.queue``; not together with ``topic``.

        Raises:
            ConfigError: An argument has a wrong type or value.

        Example:
            async with bus.jobs("concat") as jobs:
                job = jobs.new()
                job.set("text", "three")
                await jobs.send(job)
        """
        if unknown := sorted(options.keys() - QueueKeywords.__annotations__.keys()):
            known = ", ".join(("topic", "durable", "outcome_ttl_s", *QueueKeywords.__annotations__))
            raise ConfigError(reason=f"jobs() has no option {unknown[0]!r}; known are: {known}")
        if (name is None) == (topic is None):
            raise ConfigError(
                reason="jobs() takes the name of a queue, or topic=…; give one of them"
            )
        if topic is not None:
            if options:
                why = "of a topic's queues; make it with bus.topic(…)"
                raise ConfigError(reason=f"{next(iter(options))} cannot be said {why}")
            return self.topic(topic).jobs(durable=durable, outcome_ttl_s=outcome_ttl_s)
        assert name is not None
        return Jobs(self.queue(name, **options), durable=durable, outcome_ttl_s=outcome_ttl_s)

    def workers(self, *workers: Worker | TopicWorker, limit: int = 8) -> WorkerGroup:
        """Return workers of several queues as one: their handlers take turns.

        Args:
            *workers: Workers of ``Jobs.worker``.
            limit: Most handlers of all workers that run at once.

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        return WorkerGroup(workers, limit)

    def service(self, name: str) -> Service:
        """Return the service with this name, to serve or to ask.

        Args:
            name: Name of the service.

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        return Service(self, name)

    def pubsub(self, name: str, *, most: int = MAX_BUFFERED_MESSAGES) -> Pubsub:
        """Return the pubsub with this name.

        Args:
            name: Name of the pubsub.
            most: Most messages that wait for a slow listener. Further ones drop the oldest.

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        return Pubsub(self, name, most)

    @overload
    def persist(self, name: str, *, ttl_s: int = ...) -> PersistedDict: ...
    @overload
    def persist(self, name: str, shape: type[D], *, ttl_s: int = ...) -> PersistedDataclass[D]: ...
    @overload
    def persist(self, name: str, shape: D, *, ttl_s: int = ...) -> PersistedDataclass[D]: ...
    def persist(self, name: str, shape: Any = None, *, ttl_s: int = DEFAULT_OBJECT_TTL_S) -> Any:
        """Return the persisted object with this name, as a dictionary or in the shape of a
        dataclass.

        Args:
            name: Name of the object.
            shape: A dataclass, or an instance of one with first values.
            ttl_s: Seconds that the object lives after the last save or touch.

        Raises:
            ConfigError: An argument has a wrong type or value.
        """
        return (
            PersistedDict(self, name, ttl_s)
            if shape is None
            else PersistedDataclass(self, name, shape, ttl_s)
        )

    def federate(
        self,
        thing: T,
        url: str | None = None,
        *,
        secret: str | None = None,
        secret_in_url: bool | None = None,
    ) -> T:
        """Return the same object on the bus of a federation server, with the same methods.

        Nothing is sent before the object is attached or used. All objects of one URL share web
        sockets.

        Args:
            thing: An object of this bus, such as ``bus.queue("orders")``.
            url: URL of the server (``ws://`` or ``wss://``); by default the option ``federate``.
            secret: Secret of the server; by default the option ``federate_secret``.
            secret_in_url: Send the secret in the URL, as npm servers need it; by default the option
                ``federate_secret_in_url``.

        Raises:
            ConfigError: An argument has a wrong type or value.

        Example:
            orders = bus.federate(bus.queue("orders"), "wss://dc2.example/bus")
        """
        of_thing = thing.durability if isinstance(thing, Queue) else self.options.durable
        refuse_durability_over_federation(of_thing)
        return cast("T", self._federation_links().federate(thing, url, secret, secret_in_url))

    def mirror(
        self,
        origin: str | Sequence[str],
        *queues: str,
        metrics: Metrics | None = None,
        **options: Unpack[MirrorKeywords],
    ) -> MirrorHandle:
        """Return a mirror, which copies queues of another data centre to this bus, with the same
        ids.

        Args:
            origin: ``redis://…``, or the URL of a federation server.
            *queues: Names of queues, or patterns with ``*``.
            metrics: Metrics to count in.
            **options: ``secret`` for a federation server; ``layout``, ``user``, ``password`` and
                ``master`` for Redis, as for a bus; ``groups=True`` to copy the positions of groups;
                further fields of MirrorSettings.

        Raises:
            ConfigError: An argument has a wrong type or value.
            LinkLost: On entering: the origin cannot be reached.

        Example:
            async with bus.mirror("wss://eu.example/bus", "orders-*", secret=secret) as mirror:
                await mirror.caught_up()
        """
        return make_mirror(self, origin, queues, metrics, options)

    def _spawn(self, work: Coroutine[Any, Any, Any], what: str) -> asyncio.Task[Any]:
        """Run ``work`` as a task of this bus; an error in it ends the bus' scope."""
        try:
            self._check_loop()
        except StateError:
            work.close()
            raise
        assert self._group is not None
        try:
            task = self._group.create_task(work, name=f"busmq: {what}")
        except RuntimeError:  # something has failed, and the scope is about to end
            work.close()
            raise bus_not_open_error() from None
        self._tasks.add(task)
        task.add_done_callback(self._on_task_end)
        return task

    @property
    def servers(self) -> RedisServerLinks:
        """The servers. Raises StateError outside of ``async with``, and for a bus without Redis."""
        if self._servers is None:
            raise bus_not_open_error() if self.has_redis else _no_redis()
        if asyncio._get_running_loop() is not self._loop and self._pid != os.getpid():
            raise forked_error("the bus")
        return self._servers

    def _check_loop(self) -> None:
        """Check that the bus is open in this process, on this loop.

        Raises StateError outside of ``async with``, in a forked child, and on another loop or
        thread.
        """
        if self._group is None:
            raise bus_not_open_error()
        if asyncio._get_running_loop() is not self._loop:
            raise (
                forked_error("the bus") if self._pid != os.getpid() else other_loop_error("the bus")
            )

    def _adopt(self, thing: Any) -> None:
        """Remember an attached object, so that leaving the bus detaches it."""
        self._objects[thing] = None

    def release(self, thing: Any) -> None:
        """Forget a detached object."""
        self._objects.pop(thing, None)

    def _claim_lease(self, queue: str, consumer: object) -> bool:
        """Make ``consumer`` the one of this bus that uses its lease on a queue; False when another
        one does.
        """
        return self._lease_users.setdefault(queue, consumer) is consumer

    def _release_lease(self, queue: str, consumer: object) -> None:
        """Undo ``_claim_lease`` of this consumer."""
        if self._lease_users.get(queue) is consumer:
            del self._lease_users[queue]

    async def _connect(self) -> None:
        servers = RedisServerLinks(
            redis_layout(self.options),
            self._on_connection_change,
            self.options.reply_timeout_s,
        )
        try:
            self._servers = servers
            await servers.first_contact()
            await servers.check_eviction(required=self.options.require_no_eviction)
            self._group = await asyncio.TaskGroup().__aenter__()
            self._on_connection_change(None)
        except BaseException:
            self._servers = None
            await servers.close()
            raise
        log.debug("bus %s: connected to %s", self.token, servers)
        servers.start(self._spawn)
        self._spawn(self.keep_alive.run(), "keeping queues alive")

    def _federation_links(self) -> FederationLinks:
        if self._links is None:
            self._links = make_federation_links(self)
        return self._links

    @property
    def _is_handling(self) -> bool:
        """Whether a handler of this bus, or one of its objects, makes this call."""
        handles = (each for each in self._objects if isinstance(each, Handle))
        return not calling_work().isdisjoint(self._tasks) or any(
            each._is_handling for each in handles
        )

    async def _leave_all(self) -> None:
        """Detach in reverse order: a channel before its queues. A server that is gone must not keep
        the scope open; a handler that runs does, until it ends.
        """
        for thing in reversed(tuple(self._objects)):
            if isinstance(thing, Handle):
                try:
                    await thing.finish()
                except BusError as error:
                    log.warning("could not finish %s: %s", thing, error)
        clock = asyncio.get_running_loop().time
        until = clock() + DETACH_ALL_TIMEOUT_S
        for thing in reversed(tuple(self._objects)):
            try:
                async with asyncio.timeout(max(0.05, min(DETACH_TIMEOUT_S, until - clock()))):
                    await thing.detach()
            except TimeoutError:
                log.warning("could not detach %s: no answer", thing)
            except BusError as error:
                log.warning("could not detach %s: %s", thing, error)
        self._objects.clear()

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if self._refusal is None and isinstance(error, (Unauthorized, TlsError)):
            self._refusal = error

    async def _emit_offline(self) -> None:
        """The event of a bus that is left: its handlers still have a bus to run on."""
        if self._connected:
            self._connected = False
            before = set(self._tasks)
            self._emit("offline", self._refusal)
            if handlers := self._tasks - before:
                await asyncio.wait(handlers, timeout=DETACH_TIMEOUT_S)

    def _on_connection_change(self, error: BusError | None) -> None:
        ready = self.servers.ready
        if error is None:
            self._connected = any(ready)
            if all(ready):
                self._emit("online")
        elif any(ready):
            self._report(error)
        elif self._connected:
            self._connected = False
            log.warning("%s", error)
            self._emit("offline", error)


def _no_redis() -> StateError:
    remedy = "Give the object to bus.federate(...), or name a Redis with Bus(url=…)"
    return StateError(
        event="use",
        what="an object of this bus as it is",
        state="a bus without Redis, for federation only",
        remedy=remedy,
    )
