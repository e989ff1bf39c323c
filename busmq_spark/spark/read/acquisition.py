"""Taking hold of the queues of a streaming read: select them, check them against the checkpoint,
create, lease, subscribe, share them with the other readers of the query."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from busmq_spark.errors import ConfigError, QueueBusy, QueueMissing, UnreadBacklog
from busmq_spark.groups.topic import topic_partition
from busmq_spark.options import ReadOptions
from busmq_spark.queue.keys import display_name, qualified_name, split_name
from busmq_spark.queue.message import Position
from busmq_spark.queue.retention import MESSAGES_TAKEN_WARNING
from busmq_spark.reading.batch_planner import (
    AcquiredQueues,
    first_start,
    starts_after,
    without_times,
)
from busmq_spark.reading.loss import Loss, count_messages_to_delete, loss_between
from busmq_spark.reading.reader_operations import UNKNOWN_ID, AckResult
from busmq_spark.reading.reader_record import lease_field
from busmq_spark.redis_io import optional_commands
from busmq_spark.redis_io.lease_token import (
    LEASE_MS,
    describe_holder,
    is_alive,
    is_dead,
    my_token,
    process_name,
    this_machine,
)
from busmq_spark.redis_io.queue_location import no_pause
from busmq_spark.redis_io.reader_announcer import ReaderAnnouncer
from busmq_spark.spark.read.reader_threads import QueueDiscoveryThread, ReaderKeepAlive
from busmq_spark.spark.stores import planning_store
from busmq_spark.starting_offsets import OffsetBound
from busmq_spark.store.loss_errors import loss_error
from busmq_spark.store.multi_source_store import MultiSourceStore
from busmq_spark.store.protocol import (
    LossCauseEvidence,
    PlanningStore,
    PushListeners,
    QueueCreateOptions,
    ReadStore,
)
from busmq_spark.store.redis_store import RedisStore

log = logging.getLogger("busmq_spark")

SHORT_TTL_S = 3600
"""An existing queue whose ttl is shorter is warned about: a query that is down for longer loses
what is in it.
"""


def warn_queues_differ_from_checkpoint(
    checkpoint: Mapping[str, bool], named: Sequence[str]
) -> None:
    """A warning when the options name other queues than the checkpoint. ``checkpoint``: its queues,
    and whether the query still reads each.
    """
    left_out = ", ".join(display_name(queue) for queue, wanted in checkpoint.items() if not wanted)
    added = ", ".join(display_name(queue) for queue in named if queue not in checkpoint)
    if left_out or added:
        log.warning(
            "the checkpoint is of other queues than the options name: dropped %s, added %s. This"
            " query neither reads nor acknowledges the former, and reads the latter from their"
            " oldest stored message on. If the checkpoint is another query's, stop this one and"
            " give it its own",
            left_out or "none",
            added or "none",
        )


GOING_ON_WARNING = "%s; going on from the oldest stored message"


class StreamQueueAcquirer:
    """The queues a streaming reader holds, and the checks between them and its checkpoint."""

    def __init__(
        self, options: ReadOptions, store: PlanningStore, push_listeners: PushListeners
    ) -> None:
        self.store = store
        self.queues: list[str] = []
        self.paused: set[str] = set()
        """The queues that the last ``acquire`` left out since their source is unreachable."""
        self._entering: dict[str, Position] = {}
        """The starts of queues that startingOffsets applies to. Decided once: with ``latest``,
        messages pushed since then are read.
        """
        self._options = options
        self._push_listeners = push_listeners
        self._token = my_token(with_parent=True) if options.ack == "commit" else ""
        self.announcer = ReaderAnnouncer("query", self._token)
        self._announce_with(store)
        self._keep_alive = ReaderKeepAlive(
            lambda: self._announce_with(planning_store(options, quiet=True)),
            options.subscription,
            self._token,
        )
        self.siblings = SelfJoinReaders(options, self._token)
        self.siblings.register()
        self.skipped: dict[str, tuple[int, ...]] = {}
        """The ids of each queue that an operator has marked for this reader to pass over."""
        self._warned: set[tuple[str, Position]] = set()
        """Queues of the checkpoint that do not exist any more, with their positions."""
        self._shared_leases: set[str] = set()
        """Queues whose lease another reader of this query holds."""

    def acquire(
        self,
        names: Sequence[str],
        known: Mapping[str, Position],
        sources: Collection[str],
        *,
        done: Mapping[str, int] = MappingProxyType({}),
        start_unknown: bool = False,
    ) -> None:
        """Take hold of queues not held yet. ``known`` are positions of the checkpoint: such a queue
        is compared before it is touched. ``sources`` are those of the checkpoint: startingOffsets
        counts for queues of others. ``done``: the last ids before a batch that is read again, where
        ``known`` has its end: a new subscription is registered there. ``start_unknown``: there may
        be an unread checkpoint; then nothing is decided here that the checkpoint decides.

        A queue whose source goes away at any step of it is not held, and tried again with the next
        call: every step may be repeated.
        """
        held = set(self.queues)
        new = [queue for queue in names if queue not in held]
        self.paused = set()
        if not new:
            return
        if not self.queues:
            self._check_eviction_policies()
        losses = self.find_losses([queue for queue in new if queue in known], known)
        self.paused = {queue for queue in new if queue in known} - set(losses)
        ttls = self._attach_queues([queue for queue in new if queue not in self.paused], known)
        found = list(ttls)
        if self._options.subscription:  # before the lease, which would outlive the error
            self._check_acked_by_others(
                [
                    q
                    for q in found
                    if q not in known and first_start(self._options, q, sources) == "earliest"
                ],
                sources,
            )
        if self._token and found:
            found = self._refuse_mixed_readers(found)
            # Before the leases, which a query that is refused would keep as long as its process
            # lives
            if not start_unknown:
                self._decide_entry_positions(
                    {
                        queue: first_start(self._options, queue, sources)
                        for queue in found
                        if queue not in known
                    }
                )
            self.siblings.find_new_siblings()
            found = acquire_leases(
                self.store, found, self._options.subscription, self._token, self.siblings.others
            )
        if self._options.subscription and found:
            starts = {
                q: (
                    done.get(q, known[q].last)
                    if q in known and not losses[q]
                    else self._subscription_start(q)
                )
                for q in found
            }
            subscribed = self.store.subscribe(starts, self._options.subscription)
            found = [queue for queue in found if queue in subscribed]
        self.paused |= set(ttls) - set(found)
        if found:
            self.queues = sorted({*self.queues, *found})
            self._find_skipped_ids(found)
            if self.siblings.others:
                holders = self.store.holders(found, self._options.subscription)
                self._shared_leases.update(
                    queue for queue, holder in holders.items() if holder in self.siblings.others
                )
            self._add_to_keep_alive({queue: ttls[queue] for queue in found})
            self._push_listeners.listen(self.queues)

    def _find_skipped_ids(self, queues: Sequence[str]) -> None:
        """Look for marks, which stay as they are while this reader holds the leases, and end with
        the life of their queue.
        """
        redis = redis_store_of(self.store)
        own = [queue for queue in queues if not split_name(queue)[0]]
        if not (self._token and own and redis is not None):
            return
        found = redis.skipped_ids(own, self._options.subscription)
        for queue, ids in found.items():
            self.skipped[queue] = ids
            if ids:
                log.warning(
                    "queue %r: this reader passes over ids %s, which busmq skip has marked",
                    queue,
                    ", ".join(map(str, ids)),
                )

    def _add_to_keep_alive(self, ttls: Mapping[str, int]) -> None:
        """Keep these alive; also those whose lease another reader renews."""
        own = {queue: ttl_s for queue, ttl_s in ttls.items() if queue not in self._shared_leases}
        self._keep_alive.add_queues(own, self.store.failure_domains(own))

    def _announce_with(self, store: PlanningStore) -> PlanningStore:
        """Let the store say with each renewal of a lease who reads."""
        if self._token and (own := redis_store_of(store)):
            field = lease_field(self._options.subscription)
            own.announcement = lambda: self.announcer.announcement(field)
        return store

    def _check_eviction_policies(self) -> None:
        if own := redis_store_of(self.store):
            optional_commands.check_eviction_policies(
                own.eviction_policies(), required=self._options.require_no_eviction
            )

    def find_losses(
        self, queues: Sequence[str], known: Mapping[str, Position]
    ) -> dict[str, Loss | None]:
        """Return the losses of the queues after their position in the checkpoint; queues of an
        unreachable source are left out.

        Raises DataLoss for the first, unless that is allowed.
        """
        states = self.store.states({queue: known[queue].last for queue in queues}) if queues else {}
        losses = {queue: loss_between(known[queue], state) for queue, state in states.items()}
        for queue, loss in losses.items():
            if loss and self._options.fail_on_data_loss:
                raise self._loss_error(queue, loss, known[queue])
            if not loss and (done := states[queue].done) > (last := known[queue].last):
                text = (
                    "queue %r: what was acknowledged up to id %d is kept, and is read again from id"
                    " %d on, where this checkpoint is"
                )
                log.warning(text, display_name(queue), done, last + 1)
        return losses

    def warn_of_loss(self, queue: str, loss: Loss, at: Position) -> None:
        """failOnDataLoss=false: say what was lost after a position."""
        log.warning(GOING_ON_WARNING, self._loss_error(queue, loss, at))

    def _warn_of_missing_queues(self, gone: Mapping[str, Position]) -> None:
        """Of queues that do not exist any more and are not created again: no planning comes upon
        what they lost.
        """
        for queue, loss in self.find_losses(
            [queue for queue, at in gone.items() if (queue, at) not in self._warned], gone
        ).items():
            self._warned.add((queue, gone[queue]))
            if loss:
                self.warn_of_loss(queue, loss, gone[queue])

    def raise_if_taken(self) -> None:
        """Raises QueueBusy when another query has taken a queue over (this one was cut off from
        Redis for longer than its lease).
        """
        if queue := self._keep_alive.taken_queue:
            holder = self._other_holder(queue)
            raise busy_error(self.store, queue, holder, self._options.subscription)

    def held_queues(self, sources: Collection[str]) -> AcquiredQueues:
        """Return the facts about the queues for the planner. ``sources`` are those of the
        checkpoint.
        """
        return AcquiredQueues(self.queues, self.paused, self._entering, sources)

    def handle_loss(self, queue: str, at: Position | None, loss: Loss) -> Position | None:
        """Return the position at which reading goes on: the oldest stored message, None when it
        cannot just now. Raises DataLoss, unless that is allowed.
        """
        if at is None or self._options.fail_on_data_loss:
            raise self._loss_error(queue, loss, at)
        return self._resume_after_loss(queue, at, loss)

    def drop_expired_queue(self, queue: str) -> None:
        """Hold a queue no more that expired before it was read; it is acquired anew when it is
        found again.
        """
        with suppress(ValueError):
            self.queues.remove(queue)

    def fail_on_refused_ack(self, queue: str, position: Position, result: AckResult) -> None:
        """An ack was refused since Redis holds another history than the checkpoint."""
        kind = {"missing": "expired", "older": "rolled-back"}.get(result.status, result.status)
        loss = Loss(
            kind,
            f"message {position.last} of incarnation {position.born} (fingerprint {position.mark})",
            result.detail or "no such queue",
        )
        if self._options.fail_on_data_loss:
            raise self._loss_error(queue, loss)

    def stop(self) -> None:
        """End threads and connections."""
        self.siblings.unregister()
        self._keep_alive.stop()
        self._push_listeners.stop()
        self.store.close()

    def _attach_queues(
        self, queues: Sequence[str], known: Mapping[str, Position]
    ) -> dict[str, int]:
        """Attach; the result is the ttl of every queue that exists now. Queues of an unreachable
        source are added to ``paused``.
        """
        create = self._options.create and self._options.subscribe_pattern is None
        try:
            found = (
                self.store.attach(queues, QueueCreateOptions(create, self._options.ttl_s))
                if queues
                else {}
            )
        except QueueMissing:
            if len(queues) > 1:  # one of them
                return {
                    name: ttl_s
                    for queue in queues
                    for name, ttl_s in self._attach_queues([queue], known).items()
                }
            if self._options.subscribe or (queues[0] in known and self._options.fail_on_data_loss):
                raise
            self._warn_of_missing_queues(
                {queue: known[queue] for queue in queues if queue in known}
            )
            # Matched the pattern and expired since, or a partition that was never written to
            return {}
        self.paused.update(queue for queue in queues if queue not in found)
        for queue, attached in found.items():
            if attached.taken:
                log.warning(MESSAGES_TAKEN_WARNING, display_name(queue))
            if attached.existed and attached.ttl_s < SHORT_TTL_S:
                log.warning(
                    "queue %r keeps its own ttl of %d s, that of its creation: if nothing holds it"
                    " for longer, its messages are gone (and that will be noticed). Keep a query or"
                    " an attached producer on it, or create it anew with a longer one: ttl in"
                    " Spark, ttl_s in Python",
                    display_name(queue),
                    attached.ttl_s,
                )
        return {queue: attached.ttl_s for queue, attached in found.items()}

    def _refuse_mixed_readers(self, queues: Sequence[str]) -> list[str]:
        """All queues but those of unreachable sources. A reader with a subscription and one without
        would drop each other's messages: QueueBusy.
        """
        if self._options.subscription:
            holders = self.store.holders(queues, "")
            for queue, holder in holders.items():
                if holder and not is_dead(holder):
                    who = _describe_other(self.store, queue, "", holder)
                    raise QueueBusy(
                        queue=display_name(queue),
                        found=f"is read by a query without a subscription ({who})",
                        remedy=(
                            "That query would lose messages to this one: stop it, or give it an"
                            " option 'subscription' of its own"
                        ),
                    )
            return [queue for queue in queues if queue in holders]
        subscriptions = self.store.subscriptions(queues)
        for queue, names in subscriptions.items():
            if names:
                raise QueueBusy(
                    queue=display_name(queue),
                    found=f"has the subscriptions {', '.join(sorted(names))}",
                    remedy=(
                        "A reader without one would wait for them or lose messages to them: set"
                        " option 'subscription', or read with ack=none; what reads no more is ended"
                        " by busmq unsubscribe"
                    ),
                )
        return [queue for queue in queues if queue in subscriptions]

    def _check_acked_by_others(self, queues: Sequence[str], sources: Collection[str]) -> None:
        """A new subscription does not see what others had acked before: a warning, or an error
        where a user asks for such messages.
        """
        name = self._options.subscription
        others = (
            {
                queue: names
                for queue, names in self.store.subscriptions(queues).items()
                if names and name not in names
            }
            if queues
            else {}
        )
        for queue, state in self.store.states(dict.fromkeys(others, -1)).items() if others else ():
            if state.floor <= 0 or state.done:  # the kept messages of a queue have a known end
                continue
            text = (
                f"queue {display_name(queue)!r}: {state.floor} messages (ids 1..{state.floor}) had"
                f" left it before subscription {name!r} came, acknowledged by"
                f" {', '.join(sorted(others[queue]))}"
            )
            if (
                split_name(queue)[0] not in sources
                and self._options.fail_on_data_loss
                and self._options.asked_start(*split_name(queue)) == "earliest"
            ):
                remedy = (
                    "Leave startingOffsets out, or set failOnDataLoss=false, to begin with the"
                    " oldest message that is stored"
                )
                raise ConfigError(
                    reason=f"{text}, and startingOffsets=earliest asks for them. {remedy}"
                )
            log.warning(
                "%s; it begins with the oldest that is stored. To register one before others ack:"
                " busmq subscribe QUEUE NAME",
                text,
            )

    def _decide_entry_positions(self, starts: Mapping[str, OffsetBound]) -> None:
        """Decide where queues begin that do not begin at their oldest message."""
        later = {queue: start for queue, start in starts.items() if start != "earliest"}
        if not later:
            return
        later = without_times(later, self.store.find_times, self._options.timestamp_strategy)
        states = {
            queue: state
            for queue, state in self.store.states(dict.fromkeys(later, -1)).items()
            if state.last_id != UNKNOWN_ID
        }
        ends = {
            queue: Position(state.born, starts_after(queue, later[queue], state))
            for queue, state in states.items()
        }
        self.check_backlog(ends)
        self._entering.update(ends)

    def ids_before_oldest_messages(self, starts: Mapping[str, Position]) -> dict[str, int]:
        """The last ids before the oldest messages of queues that enter a query whose checkpoint
        knows their source, where these are lower than ``starts``: a batch that was planned without
        the checkpoint begins there as startingOffsets says, as if the query was new.
        """
        states = self.store.states(dict.fromkeys(starts, -1)) if starts else {}
        found = {
            queue: state.floor
            for queue, state in states.items()
            if state.born == starts[queue].born and state.floor != UNKNOWN_ID
        }
        return {queue: floor for queue, floor in found.items() if floor < starts[queue].last}

    def check_backlog(self, ends: Mapping[str, Position]) -> None:
        """Raises UnreadBacklog when acks up to positions of queues that enter would delete
        messages that this query has not read.
        """
        if not ends or not self._token:
            return
        states = self.store.states(dict.fromkeys(ends, -1))
        subscriptions = self.store.subscriptions(list(states))
        for queue, names in subscriptions.items():
            others = [last for name, last in names.items() if name != self._options.subscription]
            last = ends[queue].last
            count = count_messages_to_delete(
                states[queue], last, names.get(self._options.subscription), others
            )
            if count and not self._options.discard:
                earliest = (
                    self._options.start_of(*split_name(queue)) == "earliest"
                )  # now, but not when the batch was planned that is in the checkpoint
                start = (
                    "the checkpoint" if earliest else self._options.shown_start(*split_name(queue))
                )
                raise UnreadBacklog(queue=display_name(queue), count=count, last=last, start=start)
            if count:
                log.warning(
                    "queue %r: %d unread messages up to id %d will be deleted, as"
                    " discardBacklog=true says",
                    display_name(queue),
                    count,
                    last,
                )

    def _subscription_start(self, queue: str) -> str | int:
        """Return the start of a new subscription: no later than its query, so that unread messages
        are not deleted.
        """
        return self._entering[queue].last if queue in self._entering else "earliest"

    def _resume_after_loss(self, queue: str, at: Position, loss: Loss) -> Position | None:
        """failOnDataLoss=false: enter anew at the oldest stored message. The loss is counted and
        logged once, since the next offset is beyond it.
        """
        self.warn_of_loss(queue, loss, at)
        ttls = self._attach_queues([queue], {})
        if not ttls:
            return None
        self._add_to_keep_alive(ttls)
        if self._options.subscription:
            self.store.subscribe(
                {queue: "earliest"}, self._options.subscription
            )  # positions of an ended life went with it
        self._find_skipped_ids([queue])
        state = self.store.states({queue: -1}).get(queue)
        if state is None or not state.exists or state.floor == UNKNOWN_ID:
            return None
        return Position(state.born, state.floor, "", state.floor, at.lost + max(1, loss.ids))

    def _other_holder(self, queue: str) -> str:
        """The token of another lease holder of a queue; '' when there is none that is known to be
        alive.
        """
        if not self._token:
            return ""
        with suppress(ConfigError):  # npm's federation does not show it
            holder = self.store.holders([queue], self._options.subscription).get(queue, "")
            return (
                "" if holder in {self._token, *self.siblings.others} or is_dead(holder) else holder
            )
        return ""

    def _loss_error(self, queue: str, loss: Loss, at: Position | None = None) -> Exception:
        if holder := self._other_holder(
            queue
        ):  # a second driver of this query: it has read on, and nothing is lost
            return busy_error(self.store, queue, holder, self._options.subscription)
        listening = 1 if queue in self.queues else 0
        traces = self.store.traces(queue)
        if (
            loss.kind == "removed"
            and at is not None
            and self._acked_up_to(queue, traces) >= at.last + loss.ids
        ):
            loss = replace(loss, kind="acknowledged")
        return loss_error(display_name(queue), loss, traces, own_listeners=listening)

    def _acked_up_to(self, queue: str, traces: LossCauseEvidence) -> int:
        """Up to where a query that reads as this one does has acknowledged the queue; 0 when that
        is not known.
        """
        if not self._options.subscription:
            return traces.acked
        return self.store.subscriptions([queue]).get(queue, {}).get(self._options.subscription, 0)


def names_queue(
    names: Collection[str], pattern: str | None, topics: Collection[str], queue: str
) -> bool:
    """Whether the options of a query, as they are given, name a queue of a source."""
    if topics:
        place = topic_partition(queue)
        return place is not None and place[0] in topics
    return queue in names if pattern is None else re.fullmatch(pattern, queue) is not None


def _includes(options: ReadOptions, queue: str) -> bool:
    return names_queue(options.subscribe, options.subscribe_pattern, options.topic, queue)


def find_queues(
    options: ReadOptions, store: ReadStore, pace: Callable[[], object] = no_pause
) -> list[str]:
    """The queues that match the pattern, or the partitions of the topics, which are made where the
    options say so. Raises TopicMissing.
    """
    if options.topic:
        return store.topic_queues(options.topic, options.partitions)
    return store.discover(lambda name: _includes(options, split_name(name)[1]), pace)


class QueueSelection:
    """The queues of one query. ``listed_sources`` are the links that have said which queues they
    have.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.named_queues = [
            qualified_name(source, queue)
            for source in options.sources
            for queue in options.subscribe
        ]
        self.listed_sources: set[str] = set()
        self._discovery: QueueDiscoveryThread | None = None

    def includes(self, queue: str) -> bool:
        """Whether the options name the queue or its topic, or their pattern does."""
        source, own = split_name(queue)
        return source in self.options.sources and _includes(self.options, own)

    def queues_to_acquire(
        self, known: Collection[str], held: Collection[str], store: PlanningStore, *, new_ones: bool
    ) -> list[str]:
        """The queues that the query reads now. ``known`` are those of its checkpoint; ``new_ones``:
        whether such as come later are looked for.
        """
        if self.options.subscribe:
            return self.named_queues
        # A queue of the checkpoint that does not exist any more is not discovered, yet must be
        # missed.
        here = set(held)
        missed = [queue for queue in known if queue not in here and self.includes(queue)]
        return list(dict.fromkeys([*missed, *self._discover_queues(store, new_ones)]))

    def check_planned_sources(self, planned: Mapping[str, Position]) -> None:
        """A batch that was planned is read as it was planned, from wherever: raises ConfigError
        when the options do not name its source any more.
        """
        if gone := {split_name(queue)[0] for queue in planned} - {*self.options.sources, ""}:
            reason = (
                f"the last batch in the checkpoint reads from link {min(gone)!r}, which"
                " federation.url does not name any more"
            )
            raise ConfigError(reason=f"{reason}; name it until that batch is done")

    def stop(self) -> None:
        """End the thread that looks for new ones."""
        if self._discovery:
            self._discovery.stop()

    def _discover_queues(self, store: PlanningStore, new_ones: bool) -> Sequence[str]:
        """The queues that are not named one by one: looked for here at the first call, so that it
        misses none; then beside the planning.
        """
        if self._discovery is not None:
            found = self._discovery.take_found_queues()
            self.listed_sources |= {*found.listed_sources} - {*store.unavailable}
            return found.queues
        options = self.options
        first = find_queues(options, store)
        self._discovery = QueueDiscoveryThread(
            lambda: planning_store(options, quiet=True),
            partial(find_queues, options),
            links=bool(options.links),
        )
        if new_ones:
            self._discovery.start()
        return first


STOPPING_READER_GRACE_S = 3.0
"""A reader of this machine that is just being stopped may take so long to end."""
LEASE_RETRY_PAUSE_S = 0.2


def acquire_leases(
    store: ReadStore,
    queues: Sequence[str],
    subscription: str,
    token: str,
    siblings: Collection[str] = (),
) -> list[str]:
    """Become the reader of all ``queues``. Waits for a lease that may end (a stopping reader here,
    an unknown one elsewhere). ``siblings``: the tokens of the other readers of the same query,
    which share theirs.

    The result is all queues but those whose source is unreachable. Raises QueueBusy when another
    reader renews its lease.
    """
    started = time.monotonic()
    dead: dict[str, str] = {}
    while True:
        holders = store.lease(queues, subscription, token, dead)
        others = {
            queue: holder
            for queue, holder in holders.items()
            if holder != token and holder not in siblings
        }
        if not others:
            return [queue for queue in queues if queue in holders]
        dead = {queue: holder for queue, holder in others.items() if is_dead(holder)}
        if not dead:
            here = any(f"|{this_machine()}|" in holder for holder in others.values())
            if time.monotonic() - started > (
                STOPPING_READER_GRACE_S if here else LEASE_MS / 1000 + STOPPING_READER_GRACE_S
            ):
                raise busy_error(store, *next(iter(others.items())), subscription)
            time.sleep(LEASE_RETRY_PAUSE_S)


def redis_store_of(store: ReadStore) -> RedisStore | None:
    """Return the store of Redis itself, where the query reads from Redis."""
    own = store.redis_store if isinstance(store, MultiSourceStore) else store
    return own if isinstance(own, RedisStore) else None


def _describe_other(store: ReadStore, queue: str, subscription: str, holder: str) -> str:
    """Describe the holder of a lease, by its record where this is in Redis itself."""
    source, name = split_name(queue)
    own = redis_store_of(store)
    if own is None or source:
        return describe_holder(holder)
    return own.describe_holder(name, subscription, holder)


def busy_error(store: ReadStore, queue: str, holder: str, subscription: str) -> QueueBusy:
    """The error for a queue that another query reads; ``holder`` is its token, '' where it has gone
    meanwhile.
    """
    what = (
        f"is read by another query as subscription {subscription!r}"
        if subscription
        else "is read by another query"
    )
    what += f" ({_describe_other(store, queue, subscription, holder)})" if holder else ""
    remedy = (
        "Stop that query, or give each query its own option 'subscription', or read with ack=none"
    )
    return QueueBusy(queue=display_name(queue), found=what, remedy=remedy)


class SelfJoinReaders:
    """The reader ``token``, and the other readers of the same query that read from the same
    place.
    """

    def __init__(self, options: ReadOptions, token: str) -> None:
        self.others: dict[str, dict[str, Any]] = {}
        """The others by their tokens; the leases under these count as ours."""
        self._token, self._file = token, _registry_file()
        self._me: dict[str, Any] = {
            "where": (
                sha256(
                    repr(
                        (options.url, options.layout, options.links, options.subscription)
                    ).encode()
                ).hexdigest()
            ),
            "subscribe": list(options.subscribe),
            "pattern": options.subscribe_pattern,
            "topic": list(options.topic),
            "acked": {},
            "beginning": True,  # until it is asked again
            "met": [],  # the tokens of those that were beginning when it joined
        }

    def register(self) -> None:
        """Become one of the readers that are asked for the first time."""
        if not self._token:
            return
        try:
            self._delete_files_of_dead_drivers()
            with _locked_state(self._file) as state:
                readers = state["readers"]
                for token in [token for token in readers if is_dead(token)]:
                    del readers[token]
                self._me["met"] = [
                    token for token, reader in readers.items() if reader["beginning"]
                ]
                readers[self._token] = self._me
                self.others = self._siblings(readers)
        except (OSError, ImportError) as error:
            log.debug("the readers of a query cannot find each other: %s", error)
            self._token = ""

    def find_new_siblings(self) -> None:
        """See who has joined since, as long as some may."""
        if self._me["beginning"] and self._token:
            with _locked_state(self._file) as state:
                self.others = self._siblings(state["readers"])

    def stop_admitting_readers(self) -> None:
        """This reader is asked again, so no other of its query will come."""
        if not self._me["beginning"] or not self._token:
            return
        self._me["beginning"] = False
        with _locked_state(self._file) as state:
            state["readers"][self._token] = self._me
            self.others = self._siblings(state["readers"])
        if not self.others:
            self.unregister()

    def unregister(self) -> None:
        """This reader ends, or has no others."""
        if self._token:
            with suppress(OSError), _locked_state(self._file) as state:
                state["readers"].pop(self._token, None)
            self._token = ""

    def lowest_positions(self, positions: Mapping[str, Position]) -> dict[str, Position]:
        """Return the lowest positions of all readers after this one has reached ``positions``; none
        for a queue that a reader has not begun.
        """
        if not self._token:
            return dict(positions)
        with _locked_state(self._file) as state:
            readers = state["readers"]
            readers[self._token] = self._me
            self._me["acked"].update(
                {queue: [p.born, p.last, p.mark] for queue, p in positions.items()}
            )
            acked = [
                (other, readers.get(token, other)["acked"]) for token, other in self.others.items()
            ]
            found = {
                queue: _lowest_position(queue, position, acked)
                for queue, position in positions.items()
            }
        return {queue: position for queue, position in found.items() if position is not None}

    def _siblings(self, readers: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The readers that began with this one and may read what it reads."""
        found = {
            token: other
            for token, other in readers.items()
            if other["where"] == self._me["where"]
            and (token in self._me["met"] or self._token in other["met"])
            and not is_dead(token)
        }
        unnamed = not self._me["subscribe"]
        return {
            token: other
            for token, other in found.items()
            if unnamed or any(_reads_queue(other, queue) for queue in self._me["subscribe"])
        }

    def _delete_files_of_dead_drivers(self) -> None:
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        owner = self._file.parent.lstat()
        if owner.st_uid != os.getuid() or owner.st_mode & 0o022:
            raise OSError(f"{self._file.parent} belongs to another user")
        for file in self._file.parent.glob("*.json"):
            if not is_alive(file.stem):
                file.unlink(missing_ok=True)


def _reads_queue(reader: Mapping[str, Any], name: str) -> bool:
    return names_queue(reader["subscribe"], reader["pattern"], reader["topic"], name)


def _lowest_position(
    queue: str, position: Position, others: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> Position | None:
    """Return None where one of the others that read the queue has still to begin, or has ended and
    may go on at a restart.
    """
    for other, acked in others:
        if _reads_queue(other, split_name(queue)[1]):
            born, last, mark = acked.get(queue, ("", 0, ""))
            if born != position.born:
                return None
            position = min(position, Position(born, last, mark), key=lambda each: each.last)
    return position


def _registry_file() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"busmq-{user}" / f"{process_name(os.getppid())}.json"


@contextmanager
def _locked_state(file: Path) -> Iterator[dict[str, Any]]:
    """The state in the file, for one process at a time; it is written back, or removed once it
    names no reader.
    """
    import fcntl  # not everywhere

    file.parent.mkdir(
        mode=0o700, exist_ok=True
    )  # what clears old files away may have taken it from a query that was idle for days
    handle = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        state: dict[str, Any] = (
            json.loads(file.read_text("utf-8")) if file.exists() else {"readers": {}}
        )
        yield state
        if state["readers"]:
            new = file.with_suffix(".new")
            new.write_text(json.dumps(state), "utf-8")
            new.replace(file)
        else:
            file.unlink(missing_ok=True)
    finally:
        os.close(handle)
