"""Taking hold of queues for a streaming read: find, check against the checkpoint, create, lease,
subscribe, keep alive, listen.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from busmq_spark.errors import ConfigError, QueueBusy, QueueMissing, UnreadBacklog
from busmq_spark.options import ReadOptions
from busmq_spark.queue.command_generators import run_sync
from busmq_spark.queue.position import Position
from busmq_spark.queue.qualified_queue_names import display_name, split_name
from busmq_spark.queue.retention import MESSAGES_TAKEN_WARNING
from busmq_spark.reading.batch_planner import (
    AcquiredQueues,
    first_start,
    starts_after,
    without_times,
)
from busmq_spark.reading.loss import Loss, count_messages_to_delete, loss_between
from busmq_spark.reading.reader_operations import UNKNOWN_ID, AckResult
from busmq_spark.redis_io import eviction
from busmq_spark.redis_io.lease_token import is_dead, my_token
from busmq_spark.spark import lease
from busmq_spark.spark.keepalive import ReaderKeepAlive
from busmq_spark.spark.self_join_readers import SelfJoinReaders
from busmq_spark.spark.stores import planning_store
from busmq_spark.starting_offsets import OffsetBound
from busmq_spark.store.loss_errors import loss_error
from busmq_spark.store.multi_source_store import MultiSourceStore
from busmq_spark.store.protocol import (
    LossCauseEvidence,
    PlanningStore,
    PushListeners,
    QueueCreateOptions,
)
from busmq_spark.store.redis_store import RedisStore

SHORT_TTL_S = 3600
"""An existing queue whose ttl is shorter is warned about: a query that is down for longer loses
what is in it.
"""
log = logging.getLogger("busmq_spark")


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
        self._keep_alive = ReaderKeepAlive(
            lambda: planning_store(options, quiet=True), options.subscription, self._token
        )
        self.siblings = SelfJoinReaders(options, self._token)
        self.siblings.register()
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
            found = lease.acquire_leases(
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
            if self.siblings.others:
                holders = self.store.holders(found, self._options.subscription)
                self._shared_leases.update(
                    queue for queue, holder in holders.items() if holder in self.siblings.others
                )
            self._add_to_keep_alive({queue: ttls[queue] for queue in found})
            self._push_listeners.listen(self.queues)

    def _add_to_keep_alive(self, ttls: Mapping[str, int]) -> None:
        """Keep these alive; also those whose lease another reader renews."""
        own = {queue: ttl_s for queue, ttl_s in ttls.items() if queue not in self._shared_leases}
        self._keep_alive.add_queues(own, self.store.failure_domains(own))

    def _check_eviction_policies(self) -> None:
        own = self.store.redis_store if isinstance(self.store, MultiSourceStore) else self.store
        if isinstance(own, RedisStore):
            eviction.check_eviction_policies(
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
            raise lease.busy_error(queue, self._other_holder(queue), self._options.subscription)

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
                    raise QueueBusy(
                        queue=display_name(queue),
                        found="is read by a query without a subscription",
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
        later = run_sync(
            without_times(later, self._options.timestamp_strategy),
            lambda question: self.store.find_times(question.wanted),
        )
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
            return lease.busy_error(queue, holder, self._options.subscription)
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
