"""One process per store: a lock of the operating system on a file beside the store, which ends with the process however that ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path

from busmq_spark.errors import OutboxBusy
from busmq_spark.outbox.schema import translating_errors, unreadable_error

LOCK_TIMEOUT_S = 0.3
"""A status check holds the lock for a moment: opening waits so long for it."""
_held_locks: weakref.WeakSet[OutboxFileLock] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class OutboxLockOwner:
    """Who has a store open. ``since``: seconds since 1970."""

    pid: int
    host: str
    since: float


class OutboxFileLock:
    """Held from its creation to :meth:`release`. Raises OutboxBusy, which names the process that has it."""

    def __init__(self, store: Path) -> None:
        path = lock_path(store)
        with translating_errors(store):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + LOCK_TIMEOUT_S
        while not _try_lock(self._file):
            if time.monotonic() >= until:
                os.close(self._file)
                raise busy_error(store)
            time.sleep(0.01)
        self._store = store
        _held_locks.add(self)

    def write_owner(self) -> None:
        """Say who has it. Raises OutboxDiskFull."""
        with translating_errors(self._store):
            _replace_text(self._file, json.dumps(asdict(OutboxLockOwner(os.getpid(), socket.gethostname(), time.time()))))

    @property
    def is_held(self) -> bool:
        """Whether this process has it: one that was forked from the owner has not."""
        return self._file >= 0

    def release(self) -> None:
        """Let others have the store. The file stays: removing it could remove the next owner's."""
        if self._file >= 0:
            _replace_text(self._file, "")
            self.forget()

    def forget(self) -> None:
        """Close the file only: a process that was forked shares the lock, and must not keep it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def find_owner(store: Path) -> OutboxLockOwner | None:
    """The owner of the open store; None when it is not open. Changes nothing. Raises OutboxUnusable where this user may not look."""
    try:
        file = os.open(lock_path(store), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise unreadable_error(lock_path(store)) from None
    try:
        if _try_lock(file):
            return None
        return _decode_owner(os.read(file, 4096))
    finally:
        os.close(file)


def read_owner(store: Path) -> OutboxLockOwner | None:
    """Who had it last and did not end in an orderly way, or has it still."""
    try:
        found = _decode_owner(lock_path(store).read_bytes())
    except FileNotFoundError:
        return None
    return found if found.pid else None


def clear_dead_owner(store: Path) -> bool:
    """Remove the note of an owner that is gone. Whether there was one. Raises OutboxBusy when it lives."""
    if find_owner(store) is not None:
        raise busy_error(store)
    if read_owner(store) is None:
        return False
    OutboxFileLock(store).release()
    return True


def busy_error(store: Path) -> OutboxBusy:
    """The error for a store that another has open."""
    found = find_owner(store) or OutboxLockOwner(0, "", 0)
    return OutboxBusy(path=str(store), pid=found.pid or "unknown", host=found.host or "an unknown host")


def lock_path(store: Path) -> Path:
    """The file that is locked."""
    return store.with_name(f"{store.name}.lock")


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _replace_text(file: int, text: str) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, text.encode(), 0)


def _decode_owner(text: bytes) -> OutboxLockOwner:
    try:
        return OutboxLockOwner(**json.loads(text))
    except (ValueError, TypeError):
        return OutboxLockOwner(0, "", 0)


def _forget_locks_after_fork() -> None:
    for held in tuple(_held_locks):
        held.forget()


os.register_at_fork(after_in_child=_forget_locks_after_fork)
