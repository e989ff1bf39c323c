"""The operations of ``busmq.bulk.v1`` on the store of the server. The rights of the peer are
checked first (rights.py).

Rule 1. A peer names queues, never keys: the key of a staged list must be one that a task of a sink
        makes for that queue.
Rule 2. A peer can name only its own sinks, holders of leases and senders: the server puts the name
        of its secret before their names. Of each staged list it is noted who has staged it, and no
        other uses it.
Rule 3. Everything may be repeated by a peer that did not see the reply, and may still be under way
        when it is. Staged chunks are identified by their place in the list, and commits by their
        progress (writing/sink.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

from busmq_spark.errors import BusError, QueueMissing
from busmq_spark.federation.bulk.frames import make_wire_error, unpack_values
from busmq_spark.federation.bulk.operations import (
    MAX_EVENT_KEYS_PER_CALL,
    OPERATIONS,
    RpcOperation,
    RpcTarget,
)
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.rights import Identity
from busmq_spark.queue.command_generators import slices
from busmq_spark.queue.keys import federated_prefix, is_subscription, sink_of
from busmq_spark.queue.message import CHUNK_MESSAGES, Position
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, AttachResult
from busmq_spark.reading.reader_operations import AckResult
from busmq_spark.reading.reader_record import Announcement, ReaderRecord, id_of, lease_field
from busmq_spark.routing.event_patterns import check_key
from busmq_spark.store.protocol import QueueCreateOptions
from busmq_spark.store.redis_store import RedisStore
from busmq_spark.writing.idempotent_push import SENDER_TTL_S, claim_staged, has_place
from busmq_spark.writing.mirror import Positions
from busmq_spark.writing.sink import STAGED_KEY_SUFFIX, CommitStoppedAtMaxsize, StagedList, by_queue
from busmq_spark.writing.sink_rollback import SinkState
from busmq_spark.writing.sink_runs import SinkRun

_PLAIN_TEXT = re.compile(r"[^\x00-\x1f\x7f]{0,300}")
OTHER_HOLDER = "another peer"
"""Instead of the holder of a lease that is not the peer's: with its name it could be replaced."""
_SINK_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_RUN_ID = re.compile(r"[0-9a-zA-Z-]{1,64}")
MAX_CACHED_PLACES = 10_000
T = TypeVar("T")


class BulkRpcHandler:
    """The operations of one peer on one store."""

    def __init__(self, store: RedisStore, identity: Identity, limits: PeerLimits) -> None:
        self.store = store
        self._identity, self._limits = identity, limits
        self._mark = federated_prefix(identity.owner)
        self._places: set[tuple[str, str]] = set()
        """Fields of hashes that were found to have a place there."""
        self._staged: set[str] = set()
        """Keys of staged lists that were found to be the peer's."""

    def run_call(self, name: str, arguments: Sequence[Any], body: memoryview | bytes) -> Any:
        """The result of a call whose rights were checked by :func:`check_rights_and_names`."""
        operation = OPERATIONS[name]
        if operation.has_body:
            arguments = (*arguments, unpack_values(body))
        elif len(body):
            raise make_wire_error(f"a body of {len(body)} bytes behind {name}", "none")
        method: Callable[..., Any] = getattr(
            self.store if operation.served_by is RpcTarget.STORE else self, name
        )
        return method(*arguments)

    def discover(self) -> list[str]:
        """The queues the peer may look at."""
        return self.store.discover(lambda queue: self._identity.may("browse", "queue", queue))

    def attach(
        self, queues: Sequence[str], creation: QueueCreateOptions
    ) -> Mapping[str, AttachResult]:
        """Attach queues; if the peer may not create queues, a queue that does not exist is
        missing.
        """
        found: dict[str, AttachResult] = {}
        for queue in queues:
            creates = self._identity.may("create", "queue", queue)
            found.update(
                self.store.attach(
                    [queue],
                    QueueCreateOptions(
                        creation.allowed and creates, creation.ttl_s, creation.maxsize
                    ),
                )
            )
        return found

    # -- subscriptions and leases ------------------------------------------------------------------

    def subscriptions(self, queues: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """Return the subscriptions that the peer may use."""
        found, owners = self.store.subscriptions(queues), self.store.subscription_owners(queues)
        return {queue: self._usable(queue, names, owners[queue]) for queue, names in found.items()}

    def positions(self, queues: Sequence[str]) -> Mapping[str, tuple[str, Positions]]:
        """Return the positions of the groups that the peer may use."""
        found, owners = self.store.positions(queues), self.store.subscription_owners(queues)
        return {
            queue: (born, self._usable(queue, groups, owners[queue]))
            for queue, (born, groups) in found.items()
        }

    def _usable(
        self, queue: str, names: Mapping[str, T], owners: Mapping[str, str]
    ) -> dict[str, T]:
        return {
            name: found
            for name, found in names.items()
            if self._identity.may_use(queue, name, owners.get(name, ""))
        }

    def ack(self, positions: Mapping[str, Position], subscription: str) -> Mapping[str, AckResult]:
        """Acknowledge, unless another reader holds the queue, or the subscription is not the
        peer's.
        """
        self._claim_subscription(positions, subscription)
        for queue, holder in self.store.holders(list(positions), subscription).items():
            if holder and not holder.startswith(self._mark):
                self._identity.raise_refused(f"ack queue {queue!r}, which another reader holds")
        return self.store.ack(positions, subscription)

    def subscribe(self, starts: Mapping[str, str | int], subscription: str) -> Mapping[str, int]:
        """Subscribe to queues that exist, if the subscription is the peer's or is new."""
        if not subscription:
            raise make_wire_error("a subscription without a name", "a name")
        if any(isinstance(start, int) and start < 0 for start in starts.values()):
            raise make_wire_error(
                "a subscription that begins below 0", "earliest, latest, or an id from 0 on"
            )
        for queue, status in self._claim_subscription(starts, subscription).items():
            if status == "missing":
                raise QueueMissing(queue=queue)
        return self.store.subscribe(starts, subscription)

    def lease(
        self, queues: Sequence[str], subscription: str, token: str, dead: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Take leases. A peer replaces its own dead readers only."""
        if not token or not all(map(_PLAIN_TEXT.fullmatch, (token, *dead.values()))):
            raise make_wire_error(
                "a holder that is empty, too long or has control characters", "1 to 300 characters"
            )
        self._claim_subscription(queues, subscription)
        ours = {queue: f"{self._mark}{holder}" for queue, holder in dead.items() if holder}
        own = f"{self._mark}{token}"
        said = self._announcement(subscription, own)
        return self._hide_other_holders(self.store.lease(queues, subscription, own, ours, said))

    def holders(self, queues: Sequence[str], subscription: str) -> Mapping[str, str]:
        """Return the holders of a subscription that the peer may use; the name of another peer's
        reader is not shown.
        """
        self._claim_subscription(queues, subscription, register=False)
        return self._hide_other_holders(self.store.holders(queues, subscription))

    def keep_alive(self, queues: Sequence[str], subscription: str, token: str) -> Mapping[str, int]:
        """Keep queues and leases of the peer alive."""
        if not token:
            return self.store.keep_alive(queues, "", "")
        self._claim_subscription(queues, subscription)
        own = f"{self._mark}{token}"
        said = self._announcement(subscription, own)
        return self.store.keep_alive(queues, subscription, own, said)

    def _announcement(self, subscription: str, token: str) -> Announcement:
        """The record of a reader of the peer: the name of its secret, and what the token tells."""
        pid = f"{token}||".split("|")[2].partition(".")[0]
        record = ReaderRecord(
            kind="federation",
            name=self._identity.name,
            id=id_of(token),
            pid=int(pid) if re.fullmatch("[0-9]{1,9}", pid) else None,
            at=int(1000 * time.time()),
        )
        return Announcement(lease_field(subscription), record.encode())

    def _hide_other_holders(self, holders: Mapping[str, str]) -> dict[str, str]:
        return {
            q: (
                holder.removeprefix(self._mark)
                if not holder or holder.startswith(self._mark)
                else OTHER_HOLDER
            )
            for q, holder in holders.items()
        }

    def _claim_subscription(
        self, queues: Iterable[str], subscription: str, *, register: bool = True
    ) -> dict[str, str]:
        """Make a new subscription the peer's. Raises FederationRefused for one that is not; the
        result says which queues are ``missing``.
        """
        if not subscription:
            return {}
        most, share = self._limits.subscriptions, self._limits.subscriptions_per_secret
        owners = self.store.claim_subscriptions(
            list(queues), subscription, self._identity.owner, most if register else 0, share
        )
        for queue, (status, owner) in owners.items():
            if status == "full" and register:
                if owner:
                    where, limit = (
                        f"its secret has {share} in queue {queue!r}, all it may have",
                        "subscriptions_per_secret",
                    )
                else:
                    where, limit = f"queue {queue!r} has {most}", "subscriptions"
                self._identity.raise_refused(
                    f"register subscription {subscription!r}: {where} of them (limit {limit})"
                )
            if status == "shared":
                self._identity.raise_refused(
                    f"use {subscription!r} of queue {queue!r}, a shared group, which cannot be read"
                    " over federation"
                )
            if status == "ok" and not self._identity.may_use(queue, subscription, owner):
                self._identity.raise_refused(
                    f"use subscription {subscription!r} of queue {queue!r}, which another has"
                    " registered; "
                    f'grant it with consume = ["subscription:{subscription}"]'
                )
        return {queue: status for queue, (status, _) in owners.items()}

    # -- sinks -------------------------------------------------------------------------------------

    def stage(
        self, queue: str, key: str, before: int, run: SinkRun, values: Sequence[bytes]
    ) -> tuple[int, int]:
        """Stage rows like ``stage_at`` of the store, for the peer's own sink if it is one that can
        be named.
        """
        if before < 0:
            raise make_wire_error(f"place {before}", "one from 0")
        self._check_staged_key(queue, key)
        self._claim_staged(queue, [key], self._limits.staged_lists_per_secret if before == 0 else 0)
        if not run.sink:
            return self.store.stage_at(queue, key, before, values)
        with self._sink_name_in_redis(run.sink) as own:
            return self.store.stage_at(queue, key, before, values, SinkRun(own, run.epoch))

    def push_from(
        self, queue: str, sender: str, sequences: Sequence[int], values: Sequence[bytes]
    ) -> tuple[int, int]:
        """Push for the peer's own sender of this name."""
        if not _RUN_ID.fullmatch(sender):
            raise make_wire_error(
                "a sender whose name has other characters, or too many",
                "1 to 64 letters, digits and hyphens",
            )
        if len(sequences) != len(values) or any(a >= b for a, b in pairwise((0, *sequences))):
            raise make_wire_error(
                "numbers of messages that do not rise from 1 on, or are not as many as the values",
                "one for each value, each above the last",
            )
        own, since = f"{self._mark}{sender}", int(time.time()) - SENDER_TTL_S
        self._take_place(
            queue,
            self.store.keys(queue).senders,
            own,
            self._limits.senders_per_secret,
            "senders_per_secret",
            since,
        )
        return self.store.push_from(queue, own, sequences, values)

    # -- events ------------------------------------------------------------------------------------

    def event_queues(self, events: Sequence[Sequence[str]]) -> list[list[str]]:
        """The queues that are subscribed to the keys of each event, and that the peer may push
        to.
        """
        if (count := sum(map(len, events))) > MAX_EVENT_KEYS_PER_CALL:
            raise make_wire_error(
                f"{count} keys of events", f"at most {MAX_EVENT_KEYS_PER_CALL} in a call"
            )
        checked = [[check_key(key) for key in keys] for keys in events]
        return self.store.route_events(
            checked, lambda queue: self._identity.may("push", "queue", queue), self._identity.owner
        )

    def subscribe_events(self, queue: str, patterns: Sequence[str], end: bool) -> None:
        """Subscribe or unsubscribe rows of the peer's own. A queue that does not exist is made, if
        the peer may create it.
        """
        if end:
            self.store.unsubscribe_events_as_peer(queue, patterns, self._identity.owner)
            return
        words, most = self._limits.event_pattern_words, self._limits.event_patterns_per_secret
        if long := next((pattern for pattern in patterns if pattern.count(".") >= words), None):
            self._identity.raise_refused(
                f"subscribe queue {queue!r} with {long!r}: it has more than {words} words (limit"
                " event_pattern_words)"
            )
        self.attach([queue], QueueCreateOptions(True, MIN_RECORD_TTL_S))
        if not self.store.subscribe_events_as_peer(queue, patterns, self._identity.owner, most):
            self._identity.raise_refused(
                f"subscribe queue {queue!r} with {len(patterns)} patterns: its secret may have"
                f" {most} (limit event_patterns_per_secret)"
            )

    # -- sinks -------------------------------------------------------------------------------------

    def begin(self, sink: str, run: str, queues: Sequence[str]) -> SinkRun:
        """Begin a run of the peer's own sink of this name."""
        if not _RUN_ID.fullmatch(run):
            raise make_wire_error(
                "a run whose name has other characters, or too many",
                "1 to 64 letters, digits and hyphens",
            )
        with self._sink_name_in_redis(sink) as own:
            return replace(self.store.begin(own, run, queues), sink=sink)

    def renew(self, run: SinkRun) -> None:
        """Renew the lists of the peer's own sink of this name."""
        with self._sink_name_in_redis(run.sink) as own:
            self.store.renew(SinkRun(own, run.epoch))

    def record(
        self, sink: str, batch: int, staged: Sequence[StagedList], query: str, span: str, epoch: int
    ) -> tuple[StagedList, ...]:
        """Record a batch of the peer's own sink of this name, with its own lists."""
        if not _PLAIN_TEXT.fullmatch(query):
            raise make_wire_error(
                "a query id that is too long or has control characters", "at most 300 characters"
            )
        self._check_staged_lists(staged)
        with self._sink_name_in_redis(sink) as own:
            self._claim_staged_lists(staged)
            return self.store.record(own, batch, staged, query, span, epoch)

    def recorded(self, sink: str, batch: int) -> tuple[StagedList, ...]:
        """Record a batch of the peer's own sink of this name."""
        with self._sink_name_in_redis(sink) as own:
            return self.store.recorded(own, batch)

    def sink_state(self, sink: str, queues: Sequence[str]) -> SinkState:
        """Return the state of the peer's own sink of this name."""
        with self._sink_name_in_redis(sink) as own:
            return self.store.sink_state(own, queues)

    def commit(
        self, queue: str, sink: str, batch: int, staged: Sequence[StagedList]
    ) -> CommitStoppedAtMaxsize | None:
        """Commit lists of that queue."""
        self._check_staged_lists(staged)
        if not staged or {part.queue for part in staged} != {queue}:
            raise make_wire_error(
                f"a commit of {len(staged)} lists", "at least one, all of the queue itself"
            )
        with self._sink_name_in_redis(sink) as own:
            self._take_place(
                queue,
                self.store.keys(queue).sinks,
                own,
                self._limits.sinks_per_secret,
                "sinks_per_secret",
            )
            if not {part.key for part in staged} <= self._staged:
                recorded = {part.key for part in self.store.recorded(own, batch)}
                self._claim_staged_lists([part for part in staged if part.key not in recorded])
            return self.store.commit(queue, own, batch, staged)

    def discard(self, staged: Sequence[StagedList]) -> None:
        """Delete lists that the peer has staged."""
        self._check_staged_lists(staged)
        self._claim_staged_lists(staged)
        self.store.discard(staged)

    def forget(self, sink: str, staged: Sequence[StagedList]) -> None:
        """Return the recorded lists of the peer's own sink of this name."""
        self._check_staged_lists(staged)
        with self._sink_name_in_redis(sink) as own:
            self.store.forget(own, staged)
        self._places.clear()

    @contextmanager
    def _sink_name_in_redis(self, sink: str) -> Iterator[str]:
        """Yield the name of the sink in Redis; errors have the peer's own name for it."""
        if not _SINK_NAME.fullmatch(sink):
            raise make_wire_error(
                "a sink id that is empty, too long or has control characters", "1 to 200 characters"
            )
        own = sink_of(self._identity.owner, sink)
        try:
            yield own
        except BusError as error:
            if error.details.get("sink") != own:
                raise
            raise type(error)(**{**error.details, "sink": sink}) from None

    def _check_staged_lists(self, staged: Iterable[StagedList]) -> None:
        servers = len(self.store.endpoints)
        for part in staged:
            self._check_staged_key(part.queue, part.key)
            if not 0 <= part.server < servers:
                raise make_wire_error(f"server {part.server}", f"one below {servers}")
            if any(not 1 <= size <= CHUNK_MESSAGES or times < 1 for size, times in part.chunks):
                raise make_wire_error(
                    "chunks of a staged list that no sink makes",
                    f"1 to {CHUNK_MESSAGES} rows in each",
                )

    def _check_staged_key(self, queue: str, key: str) -> None:
        prefix = self.store.keys(queue).stage("")
        if not key.startswith(prefix) or not STAGED_KEY_SUFFIX.fullmatch(key[len(prefix) :]):
            raise make_wire_error(
                "a key that is not one of a staged list of the queue",
                "query:batch:partition:token behind the queue's own prefix",
            )

    def _claim_staged_lists(self, staged: Sequence[StagedList]) -> None:
        for queue, parts in by_queue(staged).items():
            self._claim_staged(queue, [part.key for part in parts])

    def _claim_staged(self, queue: str, keys: Sequence[str], most: int = 0) -> None:
        """Make lists that are not there yet the peer's, up to ``most`` of them. Raises
        FederationRefused for another's.
        """
        unknown = [key for key in dict.fromkeys(keys) if key not in self._staged]
        if not unknown:
            return
        of_queue, who = self.store.keys(queue), (self._identity.owner, self._identity.name)
        for some in slices(unknown, CHUNK_MESSAGES):
            attempts = [key.removeprefix(of_queue.stage("")) for key in some]
            found = self.store.run(queue, claim_staged(of_queue, attempts, *who, most))
            if -1 in found:
                self._identity.raise_refused(
                    f"use a list of rows for queue {queue!r} that another has staged"
                )
            if -2 in found:
                self._refuse_place(queue, most, "staged_lists_per_secret")
            if len(self._staged) >= MAX_CACHED_PLACES:
                self._staged.clear()
            self._staged.update(key for key, whose in zip(some, found, strict=True) if whose == 1)

    # -- places ------------------------------------------------------------------------------------

    def _take_place(
        self, queue: str, key: str, field: str, most: int, limit: str, older_than_s: int = 0
    ) -> None:
        """A place of the secret in a hash of the queue. Raises FederationRefused where it has its
        share.
        """
        if (key, field) in self._places:
            return
        if not self.store.run(
            queue, has_place(key, field, self._identity.name, most, older_than_s)
        ):
            self._refuse_place(queue, most, limit)
        if len(self._places) >= MAX_CACHED_PLACES:
            self._places.clear()
        self._places.add((key, field))

    def _refuse_place(self, queue: str, most: int, limit: str) -> NoReturn:
        self._identity.raise_refused(
            f"write to queue {queue!r} as one more: its secret has {most} there (limit {limit})"
        )


def check_rights_and_names(
    identity: Identity, operation: RpcOperation, arguments: Sequence[Any]
) -> None:
    """Raises FederationRefused, or WireError for names that are none."""
    rights = list(operation.required_rights(*arguments))
    if any(not right.name for right in rights if right.name is not None):
        raise make_wire_error("an empty name of a queue or sink", "a name")
    identity.require_rights(rights)
    if operation.has_subscription and not is_subscription(arguments[1]):
        raise make_wire_error(
            "a subscription whose name would be that of another key", "letters, digits and the like"
        )
