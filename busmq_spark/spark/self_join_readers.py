"""The readers of one query, where several read the same queue (a self-join): they share its lease,
and ack what all of them have done.

Spark starts a process for each reader and says to none of them which query it is of. But it asks
all readers of a query to plan once before it asks any of them again. So two readers of one driver
belong together where each was first asked before the other was asked again: they are of one query,
or of two that began at the same moment. They find each other by a file of this user, named after
the driver. If that is impossible each is on its own: the second is refused, and nothing is lost.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from busmq_spark.options import ReadOptions
from busmq_spark.queue.position import Position
from busmq_spark.queue.qualified_queue_names import split_name
from busmq_spark.redis_io.lease_token import is_alive, is_dead, process_name
from busmq_spark.spark.queue_selection import names_queue

log = logging.getLogger("busmq_spark")


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
