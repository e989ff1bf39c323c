"""The store whose messages are in Redis servers that this machine can reach. Only one thread may
use a store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeVar

from busmq_spark.errors import (
    BatchChanged,
    BusError,
    LinkLost,
    QueueMissing,
    StagingLost,
    StaleRun,
    TopicMissing,
)
from busmq_spark.extras import DeferredImport
from busmq_spark.groups import topic as topics_
from busmq_spark.options import MEMORY, Durability, RedisOptions, redis_options
from busmq_spark.queue import queue as queues_
from busmq_spark.queue.caching import MemoizedFunction, ProcessLocalCache
from busmq_spark.queue.command_generators import Flow, command, group_by, run_flows_together
from busmq_spark.queue.keys import QueueKeys, TopicKeys, server_index, sink_queues, sink_record
from busmq_spark.queue.message import Position, Range
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, AttachResult
from busmq_spark.reading import reader_operations as states_
from busmq_spark.reading import times_of_ids
from busmq_spark.reading.range_reader import TARGET_REPLY_BYTES
from busmq_spark.reading.reader_operations import AckResult, CumulativeAckRequest, QueueState
from busmq_spark.reading.reader_record import Announcement
from busmq_spark.reading.readers import describe_holder_of
from busmq_spark.reading.skipping import skipped_ids
from busmq_spark.reading.times_of_ids import TimeLookupResult, TimesOfIds
from busmq_spark.redis_io import optional_commands
from busmq_spark.redis_io.durability import DurableSyncLink
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.layout import Link, RedisLayout, redis_layout, sync_links
from busmq_spark.redis_io.lease_token import LEASE_MS, describe_holder
from busmq_spark.redis_io.queue_location import discover_queues, locate, new_token, no_pause
from busmq_spark.routing import event_routing
from busmq_spark.store.event_subscriptions import EventSubscriptionsMixin, EventTableCache
from busmq_spark.store.loss_errors import read_traces
from busmq_spark.store.protocol import (
    ConsecutiveMessages,
    FailureDomain,
    LossCauseEvidence,
    QueueCreateOptions,
    RowStream,
)
from busmq_spark.store.redis_append import RedisSinkAppender, append, stage_at
from busmq_spark.writing import idempotent_push as senders
from busmq_spark.writing import mirror as mirrors
from busmq_spark.writing import sink as sinks
from busmq_spark.writing import sink_rollback, sink_runs
from busmq_spark.writing.mirror import OriginQueueState, Positions
from busmq_spark.writing.sink import BatchProgressConflict, CommitStoppedAtMaxsize, StagedList
from busmq_spark.writing.sink_rollback import SinkState
from busmq_spark.writing.sink_runs import SinkRun

if TYPE_CHECKING:
    from busmq_spark.store.redis_range import RangeReadLinks

T = TypeVar("T")
MAX_CACHED_LOCATIONS = 100_000
"""Queues whose server is cached; when there are more, all are looked up again."""
# With numpy and pyarrow; the driver's half of a sink reads no ranges.
_open_range_links: DeferredImport[Callable[..., list[RangeReadLinks]]] = DeferredImport(
    "store.redis_range", "open_range_links"
)
_read_range: DeferredImport[Callable[..., Iterator[ConsecutiveMessages]]] = DeferredImport(
    "store.redis_range", "read_range"
)
_read_ranges: DeferredImport[Callable[..., RowStream]] = DeferredImport(
    "store.redis_range", "read_ranges"
)
# Planning spells the keys of every queue several times a batch.
_queue_keys_of = {
    cluster: MemoizedFunction(partial(QueueKeys, cluster=cluster), 100_000)
    for cluster in (False, True)
}


class RedisStore(EventSubscriptionsMixin):
    """Reads and writes of named queues, each on the server that owns it. Satisfies PlanningStore
    and WriteStore.
    """

    unavailable: Collection[str] = ()
    listed_sources: Collection[str] = ()
    unanswered_count = 0

    def __init__(
        self,
        layout: RedisLayout,
        patience_s: float | None = None,
        reply_bytes: int = TARGET_REPLY_BYTES,
        durability: Durability = MEMORY,
    ) -> None:
        """``patience_s``: how long one step is retried while Redis is unreachable; a ``patience_s``
        of None suits the endpoint (redis_io/endpoint.py). ``reply_bytes``: what one reply of Redis
        to a range read aims at.
        """
        self._reply_bytes = reply_bytes
        self.keys: Callable[[str], QueueKeys] = _queue_keys_of[layout.cluster]
        self._cluster = layout.cluster
        self._links = sync_links(layout, patience_s)
        self._durable_links = [DurableSyncLink(link, durability) for link in self._links]
        self._patience_s = patience_s
        self._range_links: list[RangeReadLinks] = []
        self._places: dict[str, int] = {}
        self.event_tables = EventTableCache()
        self.announcement: Callable[[], Announcement] | None = None
        """Makes the record that is stored with each renewal of a lease."""

    @property
    def endpoints(self) -> list[RedisEndpoint]:
        """The servers in the order of the URL list."""
        return [link.endpoint for link in self._links]

    def eviction_policies(self) -> Mapping[str, str]:
        """The ``maxmemory-policy`` of every server, by its masked address."""
        nodes = [node for link in self._links for node in link.master_links]
        return {
            node.endpoint.masked_url: node.run(optional_commands.read_eviction_policy())
            for node in nodes
        }

    def skipped_ids(self, queues: Sequence[str], reader: str) -> dict[str, tuple[int, ...]]:
        """Return the ids of each queue that a reader passes over."""
        return self._run_per_server(
            queues, lambda part: skipped_ids([self.keys(queue) for queue in part], reader)
        )

    def locate(self, queues: Sequence[str]) -> Mapping[str, int]:
        if len(self._places) > MAX_CACHED_LOCATIONS:
            self._places = {}  # a server looks up arbitrary names for its peers
        if unknown := [queue for queue in queues if queue not in self._places]:
            self._places.update(
                zip(
                    unknown,
                    locate([self.keys(queue) for queue in unknown], self._links),
                    strict=True,
                )
            )
        return {queue: self._places[queue] for queue in queues}

    def run(self, queue: str, flow: Flow[T]) -> T:
        """Run a flow on the server of a queue."""
        return self._links[self.locate([queue])[queue]].run(flow)

    def failure_domains(self, queues: Collection[str]) -> Mapping[str, FailureDomain]:
        return {
            queue: ("", server, self._node_of_queue(queue))
            for queue, server in self.locate(list(queues)).items()
        }

    def set_failure_domain(self, queues: Collection[str], domain: FailureDomain) -> None:
        self._places.update(dict.fromkeys(queues, domain[1]))

    def discover(
        self, accept: Callable[[str], bool], pace: Callable[[], object] = no_pause
    ) -> list[str]:
        found = [
            (queue, server) for queue, server in discover_queues(self._links, pace) if accept(queue)
        ]
        self._places.update(found)
        return [queue for queue, _ in found]

    def partitions(self, topic: str, create: int | None = None) -> int:
        """Return the number of partitions of a topic and touch the topic; one that does not exist
        is made with so many. Raises TopicMissing.
        """
        keys = TopicKeys(topic, self._cluster)
        link = self._links[server_index(keys.base, len(self._links))]
        found = link.run(topics_.open_or_read_topic(keys, create, new_token()))
        if found is None:
            raise TopicMissing(topic=topic)
        queues = topics_.partition_queues(topic, found.partitions)
        if len(self._links) > 1 and (
            unknown := {q: at for at, q in enumerate(queues) if q not in self._places}
        ):
            # Missing partitions are made on the servers in turn, and not where their names hash to.
            homes = [topics_.partition_home(at, len(self._links)) for at in unknown.values()]
            self._places.update(
                zip(
                    unknown,
                    locate([self.keys(queue) for queue in unknown], self._links, homes),
                    strict=True,
                )
            )
        return found.partitions

    def topic_queues(self, topics: Sequence[str], partitions: int | None = None) -> list[str]:
        return [
            queue
            for topic in topics
            for queue in topics_.partition_queues(topic, self.partitions(topic, partitions))
        ]

    def attach(
        self, queues: Sequence[str], creation: QueueCreateOptions
    ) -> Mapping[str, AttachResult]:
        settings: dict[str, Any] = {
            "ttl_s": creation.ttl_s,
            "maxsize": creation.maxsize,
            "create": creation.allowed,
        }
        return self._run_per_server(
            queues,
            lambda part: queues_.attach_all(
                [self.keys(q) for q in part], [new_token() for _ in part], **settings
            ),
        )

    def states(self, wanted: Mapping[str, int]) -> Mapping[str, QueueState]:
        return self._run_per_server(
            list(wanted),
            lambda part: states_.states([(self.keys(queue), wanted[queue]) for queue in part]),
        )

    def intact(
        self, wanted: Mapping[str, tuple[Position, int]]
    ) -> Mapping[str, tuple[int, str] | None]:
        return self._run_per_server(
            list(wanted),
            lambda part: states_.intact([(self.keys(queue), *wanted[queue]) for queue in part]),
        )

    def marks(self, ids: Mapping[str, int]) -> Mapping[str, str]:
        return self._run_per_server(
            list(ids),
            lambda part: states_.marks([(self.keys(queue), ids[queue]) for queue in part]),
        )

    def counters(self, queues: Sequence[str]) -> Sequence[object]:
        found = self._run_per_server(
            queues, lambda part: states_.counters([self.keys(queue) for queue in part])
        )
        return [found[queue] for queue in queues]

    def note_times(self, queues: Sequence[str]) -> Mapping[str, int]:
        return self._run_per_server(
            queues, lambda part: times_of_ids.note_times([self.keys(queue) for queue in part])
        )

    def find_times(self, wanted: Mapping[str, int]) -> Mapping[str, TimeLookupResult]:
        return self._run_per_server(
            list(wanted),
            lambda part: times_of_ids.find_times(
                [(self.keys(queue), wanted[queue]) for queue in part]
            ),
        )

    def times(self, ids: Mapping[str, tuple[int, int]]) -> Mapping[str, TimesOfIds]:
        return self._run_per_server(
            list(ids),
            lambda part: times_of_ids.ask_times_of_ids(
                [(self.keys(queue), ids[queue]) for queue in part]
            ),
        )

    def ages(self, ids: Mapping[str, int]) -> Mapping[str, int]:
        return self._run_per_server(
            list(ids),
            lambda part: times_of_ids.ages([(self.keys(queue), ids[queue]) for queue in part]),
        )

    def ack(self, positions: Mapping[str, Position], subscription: str) -> Mapping[str, AckResult]:
        def flow(part: Sequence[str]) -> Flow[list[AckResult]]:
            acks = [
                CumulativeAckRequest(
                    self.keys(q), positions[q].last, positions[q].born, positions[q].mark
                )
                for q in part
            ]
            return states_.ack_to(acks, subscription)

        return self._run_per_server(list(positions), flow)

    def subscribe(self, starts: Mapping[str, str | int], subscription: str) -> Mapping[str, int]:
        at = {
            queue: start if isinstance(start, str) else f"={start}"
            for queue, start in starts.items()
        }
        return self._run_per_server(
            list(starts),
            lambda part: states_.subscribe(
                [self.keys(q) for q in part], subscription, [at[q] for q in part]
            ),
        )

    def subscriptions(self, queues: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        return self._run_per_server(
            queues, lambda part: states_.subscriptions([self.keys(q) for q in part])
        )

    def spans(self, wanted: Mapping[str, tuple[int, int]]) -> Mapping[str, OriginQueueState]:
        """Each queue as a mirror of it must know it: with each the id copied last, and that up to
        which it reads next.
        """
        return self._run_per_server(
            list(wanted), lambda part: mirrors.read_spans([(self.keys(q), wanted[q]) for q in part])
        )

    def read_with_spans(
        self, parts: Sequence[Range]
    ) -> tuple[Mapping[str, OriginQueueState], RowStream]:
        spans, servers = (
            self.spans(mirrors.spans_to_ask_for(parts)),
            self.locate([part.queue for part in parts]),
        )
        return spans, self.read_many(
            [
                part._replace(server=servers[part.queue])
                for part in mirrors.stored_ranges(parts, spans)
            ],
            False,
        )

    def positions(self, queues: Sequence[str]) -> Mapping[str, tuple[str, Positions]]:
        """The groups of each queue, and the life they belong to."""
        return self._run_per_server(
            queues, lambda part: mirrors.read_group_positions([self.keys(q) for q in part])
        )

    def claim_subscriptions(
        self, queues: Sequence[str], subscription: str, owner: str, most: int, most_of_secret: int
    ) -> dict[str, tuple[str, str]]:
        """Return the owner of the subscription in each queue (reading/reader_operations.py)."""

        def flow(part: Sequence[str]) -> Flow[list[tuple[str, str]]]:
            return states_.claim_subscriptions(
                [self.keys(q) for q in part], subscription, owner, most, most_of_secret
            )

        return self._run_per_server(queues, flow)

    def subscription_owners(self, queues: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the owners of the subscriptions of each queue that federation servers have
        registered.
        """
        return self._run_per_server(
            queues, lambda part: states_.subscription_owners([self.keys(q) for q in part])
        )

    def lease(
        self,
        queues: Sequence[str],
        subscription: str,
        token: str,
        dead: Mapping[str, str],
        said: Announcement | None = None,
    ) -> Mapping[str, str]:
        said = said or (self.announcement() if self.announcement else None)
        return self._run_per_server(
            queues,
            lambda part: states_.lease(
                [self.keys(q) for q in part],
                subscription,
                token,
                LEASE_MS,
                [dead.get(q, "") for q in part],
                said,
            ),
        )

    def holders(self, queues: Sequence[str], subscription: str) -> Mapping[str, str]:
        """The token of each queue's lease holder; empty when there is no lease."""

        def flow(part: Sequence[str]) -> Flow[list[str]]:
            replies = yield [command("GET", self.keys(queue).lease(subscription)) for queue in part]
            return [(reply or b"").decode() for reply in replies]

        return self._run_per_server(queues, flow)

    def describe_holder(self, queue: str, subscription: str, token: str) -> str:
        """Return a description of the holder of a lease, for people."""
        flow = describe_holder_of(self.keys(queue), subscription, token, describe_holder)
        try:
            return self._run(queue, flow)
        except BusError:  # its token says who it is, too
            return describe_holder(token)

    def keep_alive(
        self,
        queues: Sequence[str],
        subscription: str,
        token: str,
        said: Announcement | None = None,
    ) -> Mapping[str, int]:
        """Every server is asked, also after one that does not answer; then that error is raised."""
        alive: dict[str, int] = {}
        if token and said is None and self.announcement:
            said = self.announcement()
        lost: LinkLost | None = None
        for server, part in self._queues_by_server(queues).items():
            try:
                found = self._links[server].run(
                    states_.keep_alive(
                        [self.keys(q) for q in part], subscription, token, LEASE_MS, said
                    )
                )
                alive.update(zip(part, found, strict=True))
            except LinkLost as error:
                lost = error
        if lost is not None:
            raise lost
        return alive

    def traces(self, queue: str) -> LossCauseEvidence:
        return read_traces(self._link_of_queue(queue), self.keys(queue))

    def bytes_until(self, queue: str, first: int, last: int, budget: int) -> tuple[int, int]:
        return self._run(queue, states_.bytes_until(self.keys(queue), first, last, budget))

    def read(self, part: Range, fail_on_data_loss: bool) -> Iterator[ConsecutiveMessages]:
        return _read_range.get()(self._range_links_to(part.server), part, fail_on_data_loss)

    def read_many(self, parts: Sequence[Range], fail_on_data_loss: bool) -> RowStream:
        for server, own in groupby(parts, key=lambda part: part.server):
            yield from _read_ranges.get()(
                self._range_links_to(server), list(own), fail_on_data_loss
            )

    def appender(self) -> RedisSinkAppender:
        return RedisSinkAppender(self._links, self.locate, self.keys)

    def stage_at(
        self, queue: str, key: str, before: int, values: Sequence[bytes], run: SinkRun | None = None
    ) -> tuple[int, int]:
        """Append one piece to a staged list, numbered by the caller so that it may be resent.
        Result: the rows up to and with it, and the server.
        """
        server = self.locate([queue])[queue]
        noted = (self.keys(queue).stages(run.sink), run.epoch) if run else ()
        return (
            stage_at(
                self._links[server], StagedList(queue, server, key, ()), before, values, *noted
            ),
            server,
        )

    def push(self, queue: str, values: Sequence[bytes]) -> tuple[int, int]:
        """Append to the queue, at least once: how many were stored, and the maxsize that was in the
        way (0: none).
        """
        return append(self._link_of_queue(queue), self.keys(queue), values)

    def push_from(
        self, queue: str, sender: str, sequences: Sequence[int], values: Sequence[bytes]
    ) -> tuple[int, int]:
        """Append what a sender has not sent before (writing/idempotent_push.py): how many are there
        now, and the maxsize in the way (0: none).
        """
        link = self._durable_links[self.locate([queue])[queue]]
        return link.run(senders.push_from(self.keys(queue), sender, sequences, values), queue)

    def take_commands(self, queue: str) -> None:
        """Let the queue take one group only, as a queue of commands does. Raises QueueMissing, and
        QueueBusy where it has several.
        """
        self._run(queue, event_routing.make_command_queue(self.keys(queue)))

    def begin(self, sink: str, run: str, queues: Sequence[str]) -> SinkRun:
        home = self._link_of_sink_record(sink)
        epoch, held = home.run(sink_runs.begin(sink, run, queues))
        found = SinkRun(sink, epoch, tuple(dict.fromkeys(part.queue for part in held or ())))
        if held is not None:
            before = list(home.run(sink_runs.staged_queues(sink)))
            self._run_per_server(
                before,
                lambda part: sink_runs.sweep([self.keys(queue) for queue in part], found, held),
            )
            home.run(sink_runs.forget_swept(sink, run, before))
        return found

    def renew(self, run: SinkRun) -> None:
        home = self._link_of_sink_record(run.sink)
        home.execute(
            [
                command("EXPIRE", key, MIN_RECORD_TTL_S)
                for key in (sink_record(run.sink), sink_queues(run.sink))
            ]
        )
        queues = list(home.run(sink_runs.staged_queues(run.sink)))
        self._run_per_server(
            queues, lambda part: sink_runs.renew([self.keys(queue) for queue in part], run)
        )

    def record(  # noqa: PLR0913  # as WriteStore.record
        self,
        sink: str,
        batch: int,
        staged: Sequence[StagedList],
        query: str = "",
        span: str = "",
        epoch: int = 0,
        *,
        least: int = -1,
    ) -> tuple[StagedList, ...]:
        home = self._link_of_sink_record(sink)
        try:
            for server, part in _staged_by_server(staged).items():
                self._links[server].run(sinks.keep_staged(sink, batch, part))
        except StagingLost:
            if epoch < int(home.execute(command("HGET", sink_record(sink), "epoch")) or 0):
                raise StaleRun(sink=sink, batch=batch) from None
            raise
        recorded = home.run(sinks.record(sink, batch, staged, query, span, epoch, least=least))
        if len({part.queue for part in staged}) > 1:
            home.execute(
                command("UNLINK", sink_queues(sink))
            )  # tasks name them anew with the next batch; names that no row has any more end here
        return recorded

    def sink_state(self, sink: str, queues: Sequence[str]) -> SinkState:
        state = self._link_of_sink_record(sink).run(sink_rollback.read_sink_state(sink))
        progress = self._run_per_server(
            queues,
            lambda part: sink_rollback.read_progress([self.keys(queue) for queue in part], sink),
        )
        return replace(state, progress=tuple(progress[queue] for queue in queues))

    def commit(
        self, queue: str, sink: str, batch: int, staged: Sequence[StagedList]
    ) -> CommitStoppedAtMaxsize | None:
        link, keys = self._links[staged[0].server], self.keys(queue)
        self._places[queue] = staged[0].server  # should it be missing, it is made anew there
        found = link.run(sinks.commit(keys, sink, batch, staged))
        if isinstance(found, BatchProgressConflict):
            void = int(
                self._link_of_sink_record(sink).execute(command("HGET", sink_record(sink), "void"))
                or 0
            )
            found = link.run(sinks.commit(keys, sink, batch, staged, void))
        if isinstance(found, BatchProgressConflict):
            raise BatchChanged(sink=sink, batch=batch, **sinks.other_record_details(queue, staged))
        return found

    def commit_many(
        self, sink: str, batch: int, staged: Sequence[StagedList]
    ) -> dict[str, CommitStoppedAtMaxsize | QueueMissing | None]:
        found: dict[str, CommitStoppedAtMaxsize | QueueMissing | None] = {}
        for server, part in _staged_by_server(staged).items():
            for group in sinks.commit_groups(part):
                flows = [
                    sinks.commit(self.keys(queue), sink, batch, own) for queue, own in group.items()
                ]
                for (queue, own), result in zip(
                    group.items(), self._links[server].run(run_flows_together(flows)), strict=True
                ):
                    if isinstance(result, BusError) and not isinstance(result, QueueMissing):
                        raise result
                    found[queue] = (
                        self.commit(queue, sink, batch, own)
                        if isinstance(result, BatchProgressConflict)
                        else result
                    )
        return found

    def discard(self, staged: Sequence[StagedList]) -> None:
        for server, part in _staged_by_server(staged).items():
            self._links[server].run(sinks.discard([s.key for s in part]))

    def forget(self, sink: str, staged: Sequence[StagedList]) -> None:
        for server, part in _staged_by_server(staged).items():
            self._links[server].run(
                sinks.forget(
                    [self.keys(queue) for queue in dict.fromkeys(s.queue for s in part)], sink
                )
            )
        self._link_of_sink_record(sink).execute(
            [command("DEL", key) for key in (sink_record(sink), sink_queues(sink))]
        )

    def recorded(self, sink: str, batch: int) -> tuple[StagedList, ...]:
        return self._link_of_sink_record(sink).run(sinks.recorded_lists(sink, batch))

    def ends(self, queues: Sequence[str]) -> dict[str, int]:
        """The id of the newest message of each; 0 when it has none."""
        return {queue: self._run(queue, queues_.newest_id(self.keys(queue))) for queue in queues}

    def trim(self, ends: Mapping[str, int]) -> None:
        """Delete the messages of each up to an id. However late this reaches Redis, messages that
        are pushed meanwhile stay.
        """
        for queue, last in ends.items():
            self._run(queue, queues_.trim(self.keys(queue), last))

    def truncate(self, queues: Sequence[str]) -> None:
        self.trim(self.ends(queues))

    def stop(self) -> None:
        """From any thread: nothing is sent to Redis from now on, not even by a call under way. Then
        ``close``.
        """
        for link in self._links:
            link.stop()

    def close(self) -> None:
        for link in self._links:
            link.close()
        for links in self._range_links:
            links.many.drop()

    def _range_links_to(self, server: int) -> RangeReadLinks:
        if not self._range_links:
            self._range_links = _open_range_links.get()(
                self._links, self._patience_s, self._reply_bytes
            )
        return self._range_links[server]

    def _link_of_sink_record(self, sink: str) -> Link:
        """The server that has the record of a sink."""
        return self._links[server_index(sink_record(sink), len(self._links))]

    def _node_of_queue(self, queue: str) -> str:
        """The node of a cluster that has the queue; '' of another layout."""
        return self._link_of_queue(queue).node_of(self.keys(queue).metadata)

    def _link_of_queue(self, queue: str) -> Link:
        return self._links[self.locate([queue])[queue]]

    def _run(self, queue: str, flow: Flow[T]) -> T:
        return self._link_of_queue(queue).run(flow)

    def _run_per_server(
        self, queues: Sequence[str], flow: Callable[[Sequence[str]], Flow[list[T]]]
    ) -> dict[str, T]:
        """Run one flow per server over the queues it owns; every answer under its queue."""
        parts = self._queues_by_server(queues).items()
        return dict(
            chain.from_iterable(
                zip(part, self._links[server].run(flow(part)), strict=True)
                for server, part in parts
            )
        )

    def _queues_by_server(self, queues: Sequence[str]) -> dict[int, list[str]]:
        if len(self._links) == 1:
            return {0: list(dict.fromkeys(queues))}
        return group_by(servers := self.locate(queues), servers.__getitem__)


def _staged_by_server(staged: Sequence[StagedList]) -> dict[int, list[StagedList]]:
    return group_by(staged, lambda each: each.server)


def open_store(options: RedisOptions) -> RedisStore:
    """A new store for the options; nothing is connected yet."""
    return RedisStore(redis_layout(options))


_shared_stores = ProcessLocalCache()


def shared_store(options: RedisOptions) -> RedisStore:
    """The store of this process for these options: tasks that follow each other in one worker share
    its connections.
    """
    key = (os.getpid(), redis_options(options))
    if key not in _shared_stores:
        _shared_stores[key] = open_store(options)
    found: RedisStore = _shared_stores[key]
    return found
