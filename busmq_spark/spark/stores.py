"""Which store the options mean: Redis itself, links to federation servers, or both under one
roof.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from math import inf
from threading import Event
from typing import TYPE_CHECKING, Any

from busmq_spark.extras import DeferredImport
from busmq_spark.options import ReadOptions, RedisOptions, StoreOptions, WriteOptions, redis_options
from busmq_spark.queue.caching import ProcessLocalCache
from busmq_spark.queue.keys import by_source
from busmq_spark.redis_io import optional_commands
from busmq_spark.redis_io.retry import PATIENCE_S
from busmq_spark.store.multi_source_store import (
    MultiSourceStore,
    SameThreadStoreCaller,
    StoreCaller,
    ThreadedStoreCaller,
)
from busmq_spark.store.protocol import (
    FullQueueWait,
    PlanningStore,
    PushListeners,
    QueueCreateOptions,
    ReadStore,
    WriteStore,
)
from busmq_spark.store.redis_push_listeners import RedisPushListeners
from busmq_spark.store.redis_store import RedisStore
from busmq_spark.store.redis_store import open_store as open_redis
from busmq_spark.store.redis_store import shared_store as shared_redis

if TYPE_CHECKING:
    from busmq_spark.federation.address import FederationAddress
    from busmq_spark.federation.npm_servers.store import FederationStore


PLANNING_PATIENCE_S = 1.0
"""Seconds for which a planner's link is tried before it counts as away: one that broke is opened
again in less.
"""
DRIVER_PATIENCE_S = 30.0
"""Seconds for which it is tried with onUnavailable=wait on the driver, where Spark cannot interrupt
the waiting thread: stopping a query would wait, too.
"""


# Few queries have links, which take a package of their own.
_LINKS = "federation.url (on the driver and on executors)"
_federation_address: DeferredImport[type[FederationAddress]] = DeferredImport(
    "federation.address", "FederationAddress", needed_by=_LINKS
)
_open_detected: DeferredImport[Callable[..., FederationStore]] = DeferredImport(
    "federation.npm_servers.store", "open_detected", needed_by=_LINKS
)


def link_address(
    options: StoreOptions, link: str, patience_s: float = PATIENCE_S
) -> FederationAddress:
    """Return the address of a link, with the secret for it. Raises ToolMissing where the
    package for web sockets is not installed.
    """
    trust = (
        options.link_ca,
        options.link_certificate,
        options.link_key,
        options.link_check_hostname,
    )
    return _federation_address.get()(
        dict(options.links)[link],
        options.secret_of(link) or "",
        *trust,
        patience_s,
        options.in_url(link),
    )


def open_link(options: StoreOptions, link: str, patience_s: float = PATIENCE_S) -> FederationStore:
    """Return a new store of a federation server; nothing is connected yet."""
    return _open_detected.get()(link_address(options, link, patience_s))


def check_links(options: StoreOptions) -> None:
    """Raises ConfigError for what can be known to be wrong with addresses, secrets and TLS files
    before anything is connected.
    """
    for link, _ in options.links:
        address = link_address(options, link)
        address.parse_url()
        if options.link_ca or options.link_certificate:
            address.make_ssl_context()


def planning_store(options: ReadOptions, *, quiet: bool = False) -> PlanningStore:
    """A new store for the driver of a stream. With onUnavailable=wait an unreachable link is left
    out; ``quiet`` does not log it.
    """
    if not options.links:
        return open_redis(options)
    if options.on_unavailable == "fail":
        return _multi_source_store(options, 0.0)
    callers: dict[str, StoreCaller] = {
        link: ThreadedStoreCaller(
            link, partial(open_link, options, link, PLANNING_PATIENCE_S), quiet=quiet
        )
        for link, _ in options.links
    }
    return MultiSourceStore({**_redis_caller(options), **callers})


def patient_store(options: StoreOptions, patience_s: float = DRIVER_PATIENCE_S) -> ReadStore:
    """A new store for a caller that needs all its sources: a batch read, a task. With
    onUnavailable=wait it waits so long for links.
    """
    return (
        _multi_source_store(options, patience_s if options.on_unavailable == "wait" else 0.0)
        if options.links
        else open_redis(options)
    )


def _multi_source_store(options: StoreOptions, patience_s: float) -> MultiSourceStore:
    # The caller waits, and logs once when that begins and once when it ends; the link underneath
    # shall not do so, too.
    link_s = PLANNING_PATIENCE_S if patience_s else PATIENCE_S
    callers = {
        link: SameThreadStoreCaller(link, open_link(options, link, link_s), patience_s)
        for link, _ in options.links
    }
    return MultiSourceStore({**_redis_caller(options), **callers})


def _redis_caller(options: StoreOptions) -> dict[str, StoreCaller]:
    return {"": SameThreadStoreCaller("", open_redis(options))} if options.has_redis else {}


class MultiSourcePushListeners:
    """The push listeners of every source. Satisfies PushListeners."""

    def __init__(self, listeners: Mapping[str, Sequence[PushListeners]]) -> None:
        self._listeners = listeners

    def listen(self, queues: Sequence[str]) -> None:
        """Listen to exactly these queues from now on."""
        parts = by_source(queues)
        for source, listeners in self._listeners.items():
            for listener in listeners if source in parts else ():
                listener.listen(parts[source])

    def stop(self) -> None:
        """End the threads; returns at once."""
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.stop()


def push_listeners(options: ReadOptions, store: PlanningStore, notified: Event) -> PushListeners:
    """Listeners for the queues of a stream, not started."""
    if isinstance(store, RedisStore):
        return RedisPushListeners(store, notified)
    assert isinstance(store, MultiSourceStore)
    own = (
        {"": [RedisPushListeners(store.redis_store, notified)]}
        if store.redis_store is not None
        else {}
    )
    return MultiSourcePushListeners(
        {
            **own,
            **{
                link: open_link(options, link).push_listeners(notified) for link, _ in options.links
            },
        }
    )


_shared_stores = ProcessLocalCache()


def task_store(options: StoreOptions) -> ReadStore:
    """The store of this process for a source with these options: tasks that follow each other in
    one worker share its connections.
    """
    if not options.links:
        return shared_redis(options)
    found: ReadStore = _shared_store("source", options, lambda: patient_store(options, inf))
    return found


def sink_store(options: WriteOptions, *, task: bool = False) -> WriteStore:
    """The store of this process for a sink: it writes to one place, which must not evict where the
    options say so.

    With onUnavailable=wait a ``task`` waits for its link as long as it takes.
    """
    if not options.links:
        return _check_eviction_once(shared_redis(options), options)
    [(link, _)] = options.links
    patience_s = (
        (inf if task else DRIVER_PATIENCE_S) if options.on_unavailable == "wait" else PATIENCE_S
    )
    found: WriteStore = _shared_store(
        "task" if task else "sink", options, lambda: open_link(options, link, patience_s)
    )
    return found


def new_sink_store(options: WriteOptions) -> WriteStore:
    """A new store for a thread beside the one that writes; nothing is connected yet."""
    return open_link(options, options.links[0][0]) if options.links else open_redis(options)


_eviction_checked: set[tuple[int, RedisOptions]] = set()


def _check_eviction_once(store: RedisStore, options: WriteOptions) -> RedisStore:
    """The store, once this process has looked whether its servers evict."""
    key = (os.getpid(), redis_options(options))
    if key not in _eviction_checked:
        optional_commands.check_eviction_policies(
            store.eviction_policies(), required=options.require_no_eviction
        )
        _eviction_checked.add(key)
    return store


def _shared_store(use: str, options: StoreOptions, make: Callable[[], Any]) -> Any:
    key = (
        os.getpid(),
        use,
        StoreOptions(**{row.name: getattr(options, row.name) for row in fields(StoreOptions)}),
    )
    if key not in _shared_stores:
        _shared_stores[key] = make()
    return _shared_stores[key]


def queue_creation(options: WriteOptions) -> QueueCreateOptions:
    """Return the settings of a queue that a sink creates."""
    return QueueCreateOptions(options.create, options.ttl_s, options.maxsize)


def full_queue_wait(options: WriteOptions) -> FullQueueWait:
    """Return the wait of a sink for a full queue."""
    return FullQueueWait(options.full_timeout_ms if options.on_full == "block" else 0)
