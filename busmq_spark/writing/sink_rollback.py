"""Whether the Redis of a sink is older than the checkpoint of its query.

Rule 1. When a batch is appended, the driver notes its number and digest in the checkpoint
        (:class:`CommittedBatch`), before Spark's commit log has it. So the note is never newer
        than Redis, unless Redis went back.
Rule 2. Before the next batch is recorded, the record of the sink must have the noted batch, or a
        later one; ``record`` checks that again in the step that records.
Rule 3. A queue of the noted batch that has progress of the sink must have it up to that batch:
        the queue may be on another server than the record. A queue without progress passes: it may
        have expired, or have been made anew on another server. A flush of its server alone looks
        the same, and is not noticed.
Rule 4. A record may also be missing because it expired, or because a run that delivers at least
        once has declared it void. Both are no loss.
Rule 5. A fail-over between the record and the append may take back only the record. This is no loss
        where Redis has the record from before the noted batch, and each noted queue has progress
        that says that the rows of that record are appended.
Rule 6. The noted batch may come again, after a loss of power took back the commit log and the
        record. Then Redis must have the record from before that batch; its rows are appended again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

from busmq_spark.queue.command_generators import Flow, command
from busmq_spark.queue.keys import QueueKeys, sink_record
from busmq_spark.queue.queue import MIN_RECORD_TTL_S
from busmq_spark.writing.sink import StagedList, decode_manifest

T = TypeVar("T")
COMMITTED_BATCH_FILE = "busmq-sink.json"
"""The name of the file in the checkpoint of a query."""
COMMITTED_BATCH_VERSION = 1
MAX_NOTED_QUEUES = 1_000
"""Queues of a batch that are noted, at most."""
RECORD_EXPIRES_MS = (MIN_RECORD_TTL_S - 3600) * 1000
"""Age of a note from which its record may have expired: an hour less than the ttl of the record,
since two clocks measure them.
"""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The note of a sink's last appended batch, in the checkpoint of its query."""

    sink: str
    batch: int
    digest: str
    """:func:`lists_digest` of its lists."""
    made: int
    """Epoch of the run that recorded it; 0 where that is not known."""
    at_ms: int
    """The time of the driver before the batch was recorded, in ms since 1970."""
    queues: tuple[str, ...]
    before: int = -1
    """The batch that Redis had on record before this one; -1: none, or Redis was not asked."""

    @classmethod
    def of(
        cls, sink: str, batch: int, held: Sequence[StagedList], at_ms: int, before: int = -1
    ) -> CommittedBatch:
        """Return the note of a batch that consists of these lists."""
        queues = tuple(dict.fromkeys(part.queue for part in held if part.rows))
        made = held[0].made if held else 0
        return cls(sink, batch, lists_digest(held), made, at_ms, queues[:MAX_NOTED_QUEUES], before)

    def encode(self) -> str:
        """Return the text of the file."""
        fields = {
            "v": COMMITTED_BATCH_VERSION,
            "sink": self.sink,
            "batch": self.batch,
            "before": self.before,
            "digest": self.digest,
            "made": self.made,
            "at": self.at_ms,
            "queues": self.queues,
        }
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def decode(cls, text: str | bytes) -> CommittedBatch:
        """Return the note in the text of a file. Raises ValueError for another text."""
        try:
            found = json.loads(text)
            if found["v"] != COMMITTED_BATCH_VERSION:
                raise ValueError(f"version {found['v']!r}; expected {COMMITTED_BATCH_VERSION}")
            numbers = (found[name] for name in ("batch", "before", "made", "at"))
            batch, before, made, at_ms = (_checked(number, int) for number in numbers)
            queues = tuple(_checked(queue, str) for queue in found["queues"])
            sink, digest = _checked(found["sink"], str), _checked(found["digest"], str)
            return cls(sink, batch, digest, made, at_ms, queues, before)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no note of a sink: {error!r}") from None


def _checked(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def lists_digest(held: Sequence[StagedList]) -> str:
    """Return a digest of the names of lists, which are unique for ever."""
    return sha256("\n".join(part.key for part in held).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class SinkState:
    """The last batch of a sink as Redis knows it."""

    batch: int
    """Its number; -1 where none is on record."""
    digest: str
    void: int
    """Records of runs with a lower epoch were declared void."""
    progress: Sequence[str]
    """Of each queue that was asked for; empty where it has none."""

    @property
    def progress_batches(self) -> list[tuple[int, bool]]:
        """Return the batch of each progress and whether it is done; -1 where there is none."""
        parts = [re.match(r"(\d+):(\w+)", text) for text in self.progress]
        return [(int(part[1]), part[2] == "done") if part else (-1, False) for part in parts]


def read_sink_state(sink: str) -> Flow[SinkState]:
    """Return the state of a sink, without progress."""
    batch, manifest, void = yield command("HMGET", sink_record(sink), "batch", "manifest", "void")
    digest = lists_digest(decode_manifest(manifest)) if manifest else ""
    return SinkState(-1 if batch is None else int(batch), digest, int(void or 0), ())


def read_progress(queues: Sequence[QueueKeys], sink: str) -> Flow[list[str]]:
    """Return the progress of a sink in queues; empty where there is none."""
    found = (yield [command("HGET", keys.sinks, sink) for keys in queues]) if queues else []
    return [(progress or b"").decode() for progress in found]


def expected_batch(noted: CommittedBatch, batch: int) -> int:
    """Return the batch that Redis must have on record before it records this one; -1 where it may
    have none.

    The noted batch itself may come again: it needs the one before it. Nothing is expected for an
    earlier batch, as after an edit of the logs.
    """
    if noted.batch < batch:
        return noted.batch
    return noted.before if noted.before < batch else -1


def batch_before(noted: CommittedBatch, state: SinkState, batch: int) -> int:
    """Return the batch that Redis had on record before this one."""
    return state.batch if state.batch < batch else expected_batch(noted, batch)


def known_instead(noted: CommittedBatch, state: SinkState, now_ms: int, batch: int) -> str:
    """Return the batch that Redis knows instead of the expected one, for people; empty where Redis
    is not too old for this batch.
    """
    expected = expected_batch(noted, batch)
    if state.void > noted.made or expected < 0:
        return ""
    if expected == noted.batch and state.batch == noted.before and _is_appended(noted, state):
        return ""
    if state.batch < 0:
        return "" if now_ms - noted.at_ms >= RECORD_EXPIRES_MS else "no batch of it"
    if state.batch < expected:
        return f"batch {state.batch}"
    if expected < noted.batch:
        return ""
    if state.batch == noted.batch and state.digest != noted.digest:
        return f"another batch {state.batch}"
    for queue, (of, done) in zip(noted.queues, state.progress_batches, strict=True):
        if 0 <= of < noted.batch:
            return f"batch {of} in queue {queue!r}"
        if of == noted.batch and not done:
            return f"a part of batch {of} in queue {queue!r}"
    return ""


def _is_appended(noted: CommittedBatch, state: SinkState) -> bool:
    done = f"{noted.batch}:done;{noted.made};"
    return (
        0 < len(noted.queues) < MAX_NOTED_QUEUES
        and len(state.progress) == len(noted.queues)
        and all(progress.startswith(done) for progress in state.progress)
    )
