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
from pathlib import Path

from busmq_spark.errors import SinkRolledBack, WireError
from busmq_spark.options import WriteOptions
from busmq_spark.store.protocol import WriteStore
from busmq_spark.writing.sink import StagedList
from busmq_spark.writing.sink_rollback import (
    COMMITTED_BATCH_FILE,
    CommittedBatch,
    known_instead,
)

log = logging.getLogger("busmq_spark")
_warned: set[str] = set()
"""Checkpoints and sinks that were warned about."""


def _warn_once(about: str, text: str, *values: object) -> None:
    if about not in _warned:
        _warned.add(about)
        log.warning(text, *values)


class CommittedBatchNote:
    """The note of one sink in a checkpoint. ``folder`` is the checkpoint on this machine.
    Nothing is noted without it: the checkpoint is elsewhere, or not known.
    """

    def __init__(self, folder: Path | None, sink: str) -> None:
        self._file = folder and folder / COMMITTED_BATCH_FILE
        self._sink = sink

    def check(self, store: WriteStore, options: WriteOptions) -> int:
        """Return the number of a batch that the record of the sink must still have when the next
        one is recorded; -1 where there is none. Raises SinkRolledBack.
        """
        noted = self._read()
        if noted is None:
            return -1
        try:
            state = store.sink_state(self._sink, noted.queues)
        except WireError as error:
            _warn_once(
                self._sink,
                "the federation server is of a version that does not say what it has of sink %s,"
                " so a Redis there that is older than the checkpoint is not noticed: %s",
                *(self._sink, error),
            )
            return -1
        if known := known_instead(noted, state, _now_ms()):
            rolled_back = SinkRolledBack(sink=self._sink, found=known, expected=noted.batch)
            if options.fail_on_data_loss:
                raise rolled_back
            log.warning("%s. The query goes on (failOnDataLoss=false)", rolled_back)
            return -1
        return noted.batch if state.batch >= noted.batch else -1

    def write(self, batch: int, held: Sequence[StagedList]) -> None:
        """Note a batch that is appended."""
        if self._file is None or not held:
            return
        text = CommittedBatch.of(self._sink, batch, held, _now_ms()).encode()
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
