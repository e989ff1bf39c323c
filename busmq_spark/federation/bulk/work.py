"""The operations of ``busmq.bulk.v1`` on the store behind the server, each after its arguments and the peer's rights were checked.

Rule 1. A peer names queues, never keys: the key of a staged list must be one that a task of a sink makes for that queue.
Rule 2. Everything may be repeated by a peer that did not see the reply, and may still be under way when it is. What is appended is told apart by
        its place in the staged list, and commits by their progress (core/sink.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from busmq_spark.core.keys import LIKE_A_PART
from busmq_spark.core.message import CHUNK_MESSAGES
from busmq_spark.core.queue import Attached
from busmq_spark.core.sink import ATTEMPT, Full, Staged
from busmq_spark.errors import FederationRefused
from busmq_spark.federation.bulk.calls import Operation
from busmq_spark.federation.bulk.frames import unpack_values, wrong
from busmq_spark.federation.grants import Verb
from busmq_spark.federation.keyring import Identity
from busmq_spark.store.protocol import Creation
from busmq_spark.store.redis_store import RedisStore

_ODD = re.compile(r"^:|[\x00-\x1f\x7f]")
_SINK = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


class Work:
    """What one peer may ask of one store."""

    def __init__(self, store: RedisStore, identity: Identity) -> None:
        self.store = store
        self._identity = identity

    def do(self, name: str, arguments: Sequence[Any], body: memoryview | bytes) -> Any:
        """The result of a call whose rights were checked by :func:`check`."""
        methods: dict[str, Callable[..., Any]] = {
            "attach": self.attach,
            "discover": self.discover,
            "record": self.record,
            "recorded": self.recorded,
            "commit": self.commit,
            "discard": self.discard,
            "forget": self.forget,
            **{plain: getattr(self.store, plain) for plain in PLAIN},
        }
        if name in ("stage", "push"):
            return self._append(name, arguments, unpack_values(body))
        if len(body):
            raise wrong(f"a body of {len(body)} bytes behind {name}", "none")
        return methods[name](*arguments)

    def may(self, verb: Verb, queue: str) -> bool:
        """Whether the peer may do this to the queue."""
        return self._identity.may(verb, "queue", queue)

    def require(self, verb: Verb, queues: Iterable[str]) -> None:
        """Raises FederationRefused for the first queue the peer may not do this to."""
        for queue in queues:
            if not self.may(verb, queue):
                raise FederationRefused(url="", reason=f"{self._identity.name!r} may not {verb} queue {queue!r}")

    def discover(self) -> list[str]:
        """The queues the peer may read."""
        return self.store.discover(lambda queue: self.may("read", queue))

    def attach(self, queues: Sequence[str], creation: Creation) -> Mapping[str, Attached]:
        """For readers and writers; only who may write creates a queue, for everybody else one that does not exist is missing."""
        found: dict[str, Attached] = {}
        for queue in queues:
            creates = self.may("write", queue)
            if not creates:
                self.require("read", [queue])
            allowed = Creation(creation.allowed and creates, creation.ttl_s, creation.maxsize)
            found.update(self.store.attach([queue], allowed))
        return found

    def _append(self, name: str, arguments: Sequence[Any], values: Sequence[bytes]) -> tuple[int, int]:
        if name == "push":
            return self.store.push(arguments[0], values)
        queue, key, before = arguments
        if before < 0:
            raise wrong(f"place {before}", "one from 0")
        self._check_key(queue, key)
        return self.store.stage_at(queue, key, before, values)

    def record(self, sink: str, batch: int, staged: Sequence[Staged], query: str) -> tuple[Staged, ...]:
        """The sink must be the peer's: what is on record for it, if anything, must be for queues the peer may write."""
        self._check_sink(sink)
        self._check_staged(staged)
        self.require("write", _queues(self.store.on_record(sink)))
        return self._own(self.store.record(sink, batch, staged, query))

    def recorded(self, sink: str, batch: int) -> tuple[Staged, ...]:
        """As the store's, if it is the peer's."""
        self._check_sink(sink)
        return self._own(self.store.recorded(sink, batch))

    def commit(self, queue: str, sink: str, batch: int, staged: Sequence[Staged]) -> Full | None:
        """As the store's, for lists of that queue."""
        self._check_sink(sink)
        self._check_staged(staged)
        if not staged or _queues(staged) != [queue]:
            raise wrong(f"a commit of {len(staged)} lists", "at least one, all of the queue itself")
        return self.store.commit(queue, sink, batch, staged)

    def discard(self, staged: Sequence[Staged]) -> None:
        """As the store's."""
        self._check_staged(staged)
        self.store.discard(staged)

    def forget(self, sink: str, staged: Sequence[Staged]) -> None:
        """As the store's, if the sink is the peer's."""
        self._check_sink(sink)
        self._check_staged(staged)
        self.require("write", _queues(self.store.on_record(sink)))
        self.store.forget(sink, staged)

    def _own(self, held: tuple[Staged, ...]) -> tuple[Staged, ...]:
        self.require("write", _queues(held))
        return held

    def _check_staged(self, staged: Iterable[Staged]) -> None:
        servers = len(self.store.endpoints)
        for part in staged:
            self._check_key(part.queue, part.key)
            if not 0 <= part.server < servers:
                raise wrong(f"server {part.server}", f"one below {servers}")
            if any(not 1 <= size <= CHUNK_MESSAGES or times < 1 for size, times in part.runs):
                raise wrong("chunks of a staged list that no sink makes", f"1 to {CHUNK_MESSAGES} rows in each")

    def _check_key(self, queue: str, key: str) -> None:
        prefix = self.store.keys(queue).stage("")
        if not key.startswith(prefix) or not ATTEMPT.fullmatch(key[len(prefix) :]):
            raise wrong("a key that is not one of a staged list of the queue", "query:batch:partition:token behind the queue's own prefix")

    @staticmethod
    def _check_sink(sink: str) -> None:
        if not _SINK.fullmatch(sink):
            raise wrong("a sink id that is empty, too long or has control characters", "1 to 200 characters")


PLAIN = (
    *("states", "marks", "counters", "ack", "subscribe", "subscriptions"),
    *("lease", "holders", "keep_alive", "traces", "bytes_until", "ends", "trim"),
)
"""Operations that are the store's own methods, as they are."""
_SUBSCRIPTION_AT = {"ack": 1, "subscribe": 1, "lease": 1, "holders": 1, "keep_alive": 1}


def check(work: Work, name: str, operation: Operation, arguments: Sequence[Any]) -> None:
    """Raises FederationRefused, or WireError for names that are none."""
    queues = list(operation.queues(*arguments))
    if "" in queues:
        raise wrong("an empty queue name", "a name")
    if operation.needs != "any":
        work.require(operation.needs, queues)
    subscription = arguments[_SUBSCRIPTION_AT[name]] if name in _SUBSCRIPTION_AT else ""
    if LIKE_A_PART.search(subscription) or _ODD.search(subscription):
        raise wrong("a subscription whose name would be that of another key", "letters, digits and the like")


def _queues(staged: Iterable[Staged]) -> list[str]:
    return list(dict.fromkeys(part.queue for part in staged))
