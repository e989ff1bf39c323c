"""The locks of a store: two locks of the operating system, which end with the process.

Rule 1. The first lock is on a file beside the store, which names the owner. The other is on the
        store itself, and so holds for its other names: a hard link, a mount, a new name. Paths are
        real paths (:func:`file_identity.real_path`), so symbolic links are resolved.
Rule 2. SQLite's own locks on the store end when this process closes any descriptor of it.
        So a store that this process has open is found by its identity and not opened again.
        The descriptor of the lock is closed after SQLite's.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from busmq_spark.errors import OutboxBusy, OutboxUnusable
from busmq_spark.outbox.files import FileIdentity, check_has_one_name, check_is_file
from busmq_spark.outbox.sql import translating_errors, unreadable_error

LOCK_TIMEOUT_S = 0.3
"""A status check holds the lock for a moment: opening waits so long for it."""
_LOCKED_BYTE = 2**62
"""Of the store: SQLite locks bytes around 2**30, and no file is so long."""
_FLOCK = "hhqqi0q"
"""``struct flock`` of Linux: type, whence, start, length, pid."""
_TryLock: TypeAlias = Callable[[int], bool]
_held_locks: weakref.WeakSet[OutboxFileLock] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class OutboxLockOwner:
    """The owner of an open store. ``since``: seconds since 1970."""

    pid: int
    host: str
    since: float


class OutboxFileLock:
    """Both locks of a store, held from their creation to :meth:`release`.

    Makes an empty store where there is none. Raises OutboxBusy, which names the process that has it
    open, and OutboxUnusable for a store that is no regular file or has a second hard link.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._files: list[int] = []
        check_is_file(store)
        if _own_lock(store) is not None:
            raise busy_error(store)
        try:
            self._lock(lock_path(store), _try_lock)
            self._lock(store, _try_lock_store)
            self.identity = FileIdentity.of(store)
            check_has_one_name(store)
        except BaseException:
            self.forget()
            raise
        _held_locks.add(self)

    def _lock(self, path: Path, try_lock: _TryLock) -> None:
        with translating_errors(self._store):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._files.append(os.open(path, flags, 0o600))
        until = time.monotonic() + LOCK_TIMEOUT_S
        while not self._try(try_lock):
            if time.monotonic() >= until:
                raise busy_error(self._store)
            time.sleep(0.01)

    def _try(self, try_lock: _TryLock) -> bool:
        try:
            return try_lock(self._files[-1])
        except OSError as error:
            raise OutboxUnusable(
                path=str(self._store),
                found=f"its file system does not lock files ({error.strerror})",
                expected="a local disk, where one process at a time has the file open",
                remedy="Put the file on a local disk",
            ) from error

    def write_owner(self) -> None:
        """Write who has it, for others to read. A full disk may refuse it, and that does no
        harm.
        """
        with suppress(OSError):
            owner = OutboxLockOwner(os.getpid(), socket.gethostname(), time.time())
            _replace_text(self._files[0], json.dumps(asdict(owner)))

    @property
    def is_held(self) -> bool:
        """Whether this process has it: one that was forked from the owner has not."""
        return bool(self._files)

    def release(self) -> None:
        """Let others have the store, which SQLite has closed. The file beside it stays for them."""
        if self._files:
            with suppress(OSError):
                _replace_text(self._files[0], "")
            self.forget()

    def forget(self) -> None:
        """Close the files only: a forked process shares the locks, and must not keep them."""
        while self._files:
            os.close(self._files.pop())


def find_owner(store: Path) -> OutboxLockOwner | None:
    """The owner of the open store; return None when it is not open. Changes nothing. Raises
    OutboxUnusable where this user may not look.
    """
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


def is_open_under_another_name(store: Path) -> bool:
    """Whether another process has the file open by a name that is not this one. Changes nothing."""
    if (
        _own_lock(store) is not None
        or find_owner(store) is not None
        or not hasattr(fcntl, "F_OFD_GETLK")
    ):
        return False
    try:
        file = os.open(store, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_OFD_GETLK, _lock_of_store()))
    except OSError:
        return False
    finally:
        os.close(file)
    return bool(found[0] != fcntl.F_UNLCK)


def read_owner(store: Path) -> OutboxLockOwner | None:
    """Return the last owner that did not end in an orderly way, or that still has it."""
    try:
        found = _decode_owner(lock_path(store).read_bytes())
    except FileNotFoundError:
        return None
    return found if found.pid else None


def clear_dead_owner(store: Path) -> bool:
    """Remove the note of an owner that is gone. Whether there was one. Raises OutboxBusy when it
    lives.
    """
    if find_owner(store) is not None:
        raise busy_error(store)
    if read_owner(store) is None:
        return False
    OutboxFileLock(store).release()
    return True


def busy_error(store: Path) -> OutboxBusy:
    """The error for a store that another has open."""
    here = OutboxLockOwner(os.getpid(), socket.gethostname(), 0) if _own_lock(store) else None
    found = here or find_owner(store) or OutboxLockOwner(0, "", 0)
    return OutboxBusy(
        path=str(store), pid=found.pid or "unknown", host=found.host or "an unknown host"
    )


def lock_path(store: Path) -> Path:
    """The file that is locked."""
    return store.with_name(f"{store.name}.lock")


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_lock_store(file: int) -> bool:
    """Lock a byte that SQLite does not use, for this descriptor alone (OFD lock)."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return _try_lock(file)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _lock_of_store())
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _lock_of_store() -> bytes:
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _LOCKED_BYTE, 1, 0)


def _own_lock(store: Path) -> OutboxFileLock | None:
    """Return the lock by which this process has the file open, by whichever name."""
    identity = FileIdentity.of(store)
    return next(
        (lock for lock in tuple(_held_locks) if lock.is_held and lock.identity == identity), None
    )


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
