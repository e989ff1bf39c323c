"""The note of the last batch that a sink has appended, in the checkpoint of its query. By this note
the sink notices a Redis that is older than the checkpoint; the rules are in
writing/sink_rollback.py.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from busmq_spark.errors import FederationRefused, SinkRolledBack, Unauthorized, WireError
from busmq_spark.options import WriteOptions
from busmq_spark.store.protocol import WriteStore
from busmq_spark.writing.sink import StagedList
from busmq_spark.writing.sink_rollback import (
    COMMITTED_BATCH_FILE,
    CommittedBatch,
    SinkState,
    batch_before,
    expected_batch,
    known_instead,
)

log = logging.getLogger("busmq_spark")
_warned: set[str] = set()
"""Checkpoints and sinks that were warned about."""


def _warn_once(about: str, text: str, *values: object) -> None:
    if about not in _warned:
        _warned.add(about)
        log.warning(text, *values)


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """The result of the check before a batch is recorded."""

    at_ms: int
    """The time of the check."""
    least: int = -1
    """A batch that the record of the sink must still have when this one is recorded."""
    before: int = -1
    """The batch that Redis had on record before this one."""
    loss_accepted: bool = False
    """Redis is older than the note, and the query goes on."""


class CommittedBatchNote:
    """The note of one sink in a checkpoint. ``folder`` is the checkpoint on this machine.
    Nothing is noted without it: the checkpoint is elsewhere, or not known.
    """

    def __init__(self, folder: Path | None, sink: str) -> None:
        self._file = folder and folder / COMMITTED_BATCH_FILE
        self._sink = sink

    def check(self, store: WriteStore, options: WriteOptions, batch: int) -> BatchCheck:
        """Compare Redis with the note before this batch is recorded. Raises SinkRolledBack."""
        noted, now_ms = self._read(), _now_ms()
        if noted is None:
            return BatchCheck(now_ms)
        try:
            noted, state = self._ask(store, noted)
        except WireError as error:
            _warn_once(
                self._sink,
                "the federation server is of a version that does not say what it has of sink %s,"
                " so a Redis there that is older than the checkpoint is not noticed: %s",
                *(self._sink, error),
            )
            return BatchCheck(now_ms)
        expected, before = expected_batch(noted, batch), batch_before(noted, state, batch)
        known = known_instead(noted, state, now_ms, batch)
        if known:
            rolled_back = SinkRolledBack(sink=self._sink, found=known, expected=expected)
            if options.fail_on_data_loss:
                raise rolled_back
            log.warning("%s. The query goes on (failOnDataLoss=false)", rolled_back)
        held = options.fail_on_data_loss and state.batch >= expected
        return BatchCheck(now_ms, expected if held else -1, before, bool(known))

    def _ask(self, store: WriteStore, noted: CommittedBatch) -> tuple[CommittedBatch, SinkState]:
        """Return the state of the sink, and the note: without its queues where the sink has no
        rights on them any more.
        """
        try:
            return noted, store.sink_state(self._sink, noted.queues)
        except (FederationRefused, Unauthorized) as error:
            state = store.sink_state(self._sink, ())
            _warn_once(
                f"rights of {self._sink}",
                "sink %s may not ask for its progress in the queues of its last batch, so a queue"
                " that is older than the checkpoint is not noticed: %s",
                *(self._sink, error),
            )
            return replace(noted, queues=()), state

    def write(self, batch: int, held: Sequence[StagedList], check: BatchCheck) -> None:
        """Note a batch that is appended. Without rows the note stays, but for one whose loss was
        accepted: that is removed.
        """
        if self._file is None:
            return
        if not held:
            if check.loss_accepted:
                self._remove()
            return
        text = CommittedBatch.of(self._sink, batch, held, check.at_ms, check.before).encode()
        new = self._file.with_name(f".{COMMITTED_BATCH_FILE}.{os.getpid()}.tmp")
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # The checksum that Hadoop wrote for an earlier file: by it the new one is damaged.
            self._file.with_name(f".{COMMITTED_BATCH_FILE}.crc").unlink(missing_ok=True)
            new.replace(self._file)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            _warn_once(
                str(self._file),
                "%s cannot be written, so a Redis of sink %s that is older than the checkpoint may"
                " not be noticed: %s",
                *(self._file, self._sink, error),
            )

    def _remove(self) -> None:
        assert self._file is not None
        try:
            self._file.unlink(missing_ok=True)
            self._file.with_name(f".{COMMITTED_BATCH_FILE}.crc").unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", self._file, error)

    def _read(self) -> CommittedBatch | None:
        """Return the note; None where there is none of this sink."""
        if self._file is None:
            return None
        try:
            found = CommittedBatch.decode(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _warn_once(
                str(self._file),
                "%s cannot be read, and is written anew with the next batch: %s",
                *(self._file, error),
            )
            return None
        return found if found.sink == self._sink else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
