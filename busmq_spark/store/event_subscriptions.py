"""Subscriptions of queues to events, as a store changes them and routes by them.

The table of subscriptions to events, as several threads of one process use it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from busmq_spark.queue.command_generators import Flow, command, slices
from busmq_spark.queue.keys import EVENT_SUBSCRIPTIONS_KEY, QueueKeys, server_index
from busmq_spark.reading.reader_operations import QueueState
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.routing import event_routing
from busmq_spark.routing.event_patterns import LOCAL_OWNER
from busmq_spark.routing.event_routing import EventRoutingTable, read_subscribers

EVENTS_PER_STEP = 100
"""Events that are looked up before another thread has its turn."""


class EventTableCache:
    """The table, brought up to date with each use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: EventRoutingTable | None = None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every pattern with a queue that is subscribed with it, as it was when last used."""
        with self._lock:
            return self._table.pairs if self._table is not None else []

    def is_of_peers(self, queue: str, run: Callable[[Any], EventRoutingTable]) -> bool:
        """Whether the queue is subscribed, and by peers alone."""
        with self._lock:
            self._table = run(read_subscribers(self._table))
            return self._table.is_of_peers(queue)

    def owners_by_queue(
        self, events: Sequence[Sequence[str]], run: Callable[[Any], EventRoutingTable]
    ) -> list[dict[str, frozenset[str]]]:
        """For each event, with its keys, the queues it goes to and who has subscribed them."""
        with self._lock:
            self._table = run(read_subscribers(self._table))
        found: list[dict[str, frozenset[str]]] = []
        for some in slices(events, EVENTS_PER_STEP):
            with self._lock:
                found += [self._table.owners_by_queue(keys) for keys in some]
        return found


class EventSubscriptionsMixin:
    """The methods of a RedisStore for subscriptions to events."""

    keys: Callable[[str], QueueKeys]
    event_tables: EventTableCache
    """The table of subscriptions; several stores may share one."""
    _links: list[Link]

    def states(self, wanted: Mapping[str, int]) -> Mapping[str, QueueState]:
        """Return the states, like the store."""
        raise NotImplementedError

    def _run_per_server(
        self, queues: Sequence[str], flow: Callable[[Sequence[str]], Flow[list[Any]]]
    ) -> dict[str, Any]:
        """Run a flow for each server, like the store."""
        raise NotImplementedError

    def event_subscriptions(self) -> list[tuple[str, str]]:
        """Every pattern with a queue that is subscribed with it."""
        return self._link_of_subscription_table().run(event_routing.read_table())

    def route_events(
        self,
        events: Sequence[Sequence[str]],
        may: Callable[[str], bool] = lambda _: True,
        owner: str = LOCAL_OWNER,
    ) -> list[list[str]]:
        """The queues for events with such keys, of those that ``may`` names.

        A queue that is full or gone is left out where peers alone have subscribed it,
        ``owner`` not among them.
        """
        found = self.event_tables.owners_by_queue(events, self._link_of_subscription_table().run)
        allowed = {queue for queue in set().union(*found) if may(queue)}

        def is_foreign(owners: frozenset[str]) -> bool:
            return event_routing.is_of_peers(owners) and owner not in owners

        found = [{queue: who for queue, who in each.items() if queue in allowed} for each in found]
        foreign = {queue for each in found for queue, owners in each.items() if is_foreign(owners)}
        closed = self._closed_queues(sorted(foreign))
        return [
            [q for q, who in each.items() if not (q in closed and is_foreign(who))]
            for each in found
        ]

    def is_of_peers(self, queue: str) -> bool:
        """Whether peers alone have subscribed the queue, to whatever."""
        return self.event_tables.is_of_peers(queue, self._link_of_subscription_table().run)

    def _closed_queues(self, queues: Sequence[str]) -> set[str]:
        """Return the queues that take no message now."""
        if not queues:
            return set()
        states = self.states(dict.fromkeys(queues, -1))

        def origins(part: Sequence[str]) -> Flow[list[bytes | None]]:
            metadata = [self.keys(queue).metadata for queue in part]
            found: list[bytes | None] = yield [
                command("HGET", key, "mirror_of") for key in metadata
            ]
            return found

        mirrored = self._run_per_server(queues, origins)
        full = {
            queue
            for queue, state in states.items()
            if state.maxsize and state.waiting >= state.maxsize
        }
        return full | {queue for queue in queues if mirrored[queue] or not states[queue].exists}

    def subscribe_events(self, queue: str, patterns: Sequence[str], end: bool) -> None:
        """Subscribe a queue to what the patterns take, or end that."""
        change = event_routing.unsubscribe if end else event_routing.subscribe
        self._link_of_subscription_table().run(change(patterns, queue, new_token()))

    def subscribe_events_as_peer(
        self, queue: str, patterns: Sequence[str], owner: str, most: int
    ) -> bool:
        """Subscribe for a peer of a federation server. Whether the rows are there."""
        flow = event_routing.subscribe_as_peer(patterns, queue, new_token(), owner, most)
        return self._link_of_subscription_table().run(flow)

    def unsubscribe_events_as_peer(self, queue: str, patterns: Sequence[str], owner: str) -> None:
        """End the peer's own rows."""
        flow = event_routing.unsubscribe_as_peer(patterns, queue, new_token(), owner)
        self._link_of_subscription_table().run(flow)

    def _link_of_subscription_table(self) -> Link:
        """The server that has the table of subscriptions to events."""
        return self._links[server_index(EVENT_SUBSCRIPTIONS_KEY, len(self._links))]
