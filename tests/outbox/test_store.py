"""The file of an outbox: one process at a time, errors that say what is wrong, and nothing lost
that was returned for when the disk is full.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from busmq_spark.errors import OutboxBusy, OutboxFull, OutboxUnusable, StateError
from busmq_spark.outbox import lock, report, sql
from busmq_spark.outbox.files import DiskReserveFile
from busmq_spark.outbox.group_commit import GroupCommitFuture, SqliteGroupCommitWriter
from busmq_spark.outbox.outbox import SyncOutbox
from tests.conftest import Fresh
from tests.outbox.conftest import Place, drain
from tests.outbox.running import Program, numbers
from tests.support import PATIENCE_S, lasting_port, wait_until

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def nowhere() -> str:
    return f"redis://127.0.0.1:{lasting_port()}"


# -- one process -----------------------------------------------------------------------------------


def test_a_second_process_is_refused_with_pid_and_host_until_the_first_is_gone_however(
    path: Path, nowhere: str
) -> None:
    with Program(path, nowhere, "q") as program:
        program.wait("open")
        with pytest.raises(OutboxBusy) as busy, SyncOutbox(path, nowhere):
            pass
        assert (busy.value.details["pid"], busy.value.details["host"]) == (
            program.pid,
            socket.gethostname(),
        )
        with pytest.raises(OutboxBusy):
            lock.clear_dead_owner(path)
        program.do("push", 3)
        program.kill()
        assert lock.find_owner(path) is None
        assert (found := lock.read_owner(path)) is not None
        assert found.pid == program.pid
    with SyncOutbox(path, nowhere) as outbox:
        assert outbox.push("q", 1).number == 4
    assert lock.read_owner(path) is None


def test_a_second_outbox_of_this_process_is_refused_too_and_one_that_was_closed_is_not(
    path: Path, nowhere: str
) -> None:
    with SyncOutbox(path, nowhere), pytest.raises(OutboxBusy) as busy, SyncOutbox(path, nowhere):
        pass
    assert busy.value.details["pid"] == os.getpid()
    with SyncOutbox(path, nowhere):
        pass


def test_a_process_that_was_forked_from_the_owner_does_not_keep_the_lock(
    path: Path, nowhere: str
) -> None:
    outbox = SyncOutbox(path, nowhere)
    outbox.__enter__()
    ours, its = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(its)
        os.read(ours, 1)  # until its parent says so, or is gone
        os._exit(0)
    try:
        outbox.__exit__(None, None, None)
        with SyncOutbox(path, nowhere):
            pass
    finally:
        os.close(its)
        os.waitpid(child, 0)


def test_what_a_dead_owner_left_is_removed_by_unlock(path: Path, nowhere: str) -> None:
    with Program(path, nowhere, "q") as program:
        program.wait("open")
    assert lock.read_owner(path) is not None
    assert lock.clear_dead_owner(path)
    assert not lock.clear_dead_owner(path)
    assert lock.read_owner(path) is None


# -- files that will not do ------------------------------------------------------------------------


def opens(path: Path, nowhere: str) -> str:
    with pytest.raises(OutboxUnusable) as unusable, SyncOutbox(path, nowhere):
        pass
    assert lock.find_owner(path) is None
    return str(unusable.value)


def test_a_path_in_a_missing_folder_and_one_that_is_a_folder(tmp_path: Path, nowhere: str) -> None:
    assert "in a folder that exists" in opens(tmp_path / "missing" / "outbox.db", nowhere)
    assert "cannot be opened, as it is a folder" in opens(tmp_path, nowhere)
    assert not (tmp_path / "missing").exists()


def test_a_file_of_something_else_is_left_as_it_is(path: Path, nowhere: str) -> None:
    path.write_bytes(b"minutes of a meeting\n" * 1000)
    assert "no SQLite file" in opens(path, nowhere)
    assert path.read_bytes() == b"minutes of a meeting\n" * 1000
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine(x)")
    other.close()
    before = path.read_bytes()
    assert "SQLite file of something else" in opens(path, nowhere)
    assert path.read_bytes() == before


def test_a_store_of_another_version_says_which(path: Path, nowhere: str) -> None:
    with SyncOutbox(path, nowhere) as outbox:
        outbox.push("q", 1)
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version=7")
    other.close()
    found = opens(path, nowhere)
    assert "of version 7" in found
    assert f"expected version {sql.SCHEMA_VERSION}" in found
    with pytest.raises(OutboxUnusable, match="version 7"):
        report.read_status(path)


def test_a_damaged_store_is_an_error_for_who_asks_and_the_forwarder_goes_on_trying(
    path: Path, nowhere: str
) -> None:
    with SyncOutbox(path, nowhere) as outbox:
        outbox.push("q", *[b"x" * 3000] * 100)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with pytest.raises(OutboxUnusable, match="damaged"), SyncOutbox(path, nowhere) as outbox:
        outbox.push("q", 1)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_folder_or_file_that_may_not_be_written_to(
    tmp_path: Path, nowhere: str, what: str
) -> None:
    """As a user whom rights bind, which root is not."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "outbox.db"
    if what == "file":
        with SyncOutbox(path, nowhere):
            pass
        path.chmod(0o444)
    (folder if what == "folder" else path).chmod(0o555 if what == "folder" else 0o444)
    said = as_another(tmp_path, f"SyncOutbox(Path({str(path)!r}), {nowhere!r}).__enter__()")
    folder.chmod(0o755)
    assert "may not be written to" in said


def as_another(tmp_path: Path, call: str) -> str:
    """The OutboxUnusable of a call by a user whom rights bind."""
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.getuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o111)
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from busmq_spark.outbox import report\n"
        "from busmq_spark.outbox.outbox import SyncOutbox\n"
        "from busmq_spark.errors import OutboxUnusable\n"
        "if os.getuid() == 0:\n"
        "    os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        f"    {call}\n"
        "except OutboxUnusable as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("what", ["folder", "file", "lock"])
def test_who_may_not_read_a_store_is_told_so(tmp_path: Path, nowhere: str, what: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "outbox.db"
    with SyncOutbox(path, nowhere):
        pass
    folder.chmod(0o755)
    path.chmod(0o644)
    {"folder": folder, "file": path, "lock": lock.lock_path(path)}[what].chmod(0)
    said = as_another(tmp_path, f"report.read_status(Path({str(path)!r}))")
    folder.chmod(0o755)
    assert "this user may not read it" in said


def test_messages_are_for_the_eyes_of_their_user_only(path: Path, nowhere: str) -> None:
    with SyncOutbox(path, nowhere) as outbox:
        outbox.push("q", 1)
        assert {
            each.name: oct(each.stat().st_mode & 0o777) for each in path.parent.iterdir()
        } == dict.fromkeys(
            [f"outbox.db{end}" for end in ("", "-wal", "-shm", ".lock", ".reserve")], "0o600"
        )


def test_who_looks_whether_a_store_is_open_keeps_nobody_from_opening_it(
    path: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look takes the lock, for a moment: here for as long as the opener needs to find it
    taken.
    """
    monkeypatch.setattr(lock, "LOCK_TIMEOUT_S", PATIENCE_S)
    looking = os.open(lock.lock_path(path), os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_EX)
    tries: list[bool] = []
    taken = lock._try_lock

    def counted(file: int) -> bool:
        tries.append(taken(file))
        if len(tries) == 2:
            os.close(looking)
        return tries[-1]

    monkeypatch.setattr(lock, "_try_lock", counted)
    with SyncOutbox(path, nowhere):
        assert tries[:3] == [False, False, True]


def test_a_store_whose_maker_died_before_it_was_done_is_made(path: Path, nowhere: str) -> None:
    path.touch()
    with SyncOutbox(path, nowhere) as outbox:
        assert outbox.push("q", 1).number == 1
    path.unlink()
    with sqlite3.connect(path) as half:
        half.execute("PRAGMA journal_mode=WAL")
    half.close()
    with SyncOutbox(path, nowhere) as outbox:
        assert outbox.push("q", 1).number == 1


# -- full disks ------------------------------------------------------------------------------------


def test_on_a_full_disk_what_was_returned_for_stays_and_the_rest_is_refused(
    path: Path, nowhere: str, here: Place, fresh: Fresh
) -> None:
    """The kernel lets the file grow no further; then it does."""
    queue = fresh("orders")
    with Program(path, nowhere, queue) as program:
        program.wait("open")
        program.do("push", 100, 1000)
        program.do("limit", 700_000)
        program.do("until-full", 20_000)
        assert program.lines[-2] == "refused BUSMQ_OUTBOX_FULL"
        first = program.kept
        assert first > 100
        program.do("limit", 0)
        program.do("push", 50, 1000)
        last = program.kept
        assert last == first + 50
    with here.outbox(path) as outbox:
        drain(outbox)
    assert numbers(here.values(queue)) == [*range(1, last + 1)]


def test_on_a_full_file_system_forwarding_makes_room(
    tmp_path: Path, here: Place, nowhere: str, fresh: Fresh
) -> None:
    queue, disk, path = fresh("orders"), tmp_path / "disk", tmp_path / "disk" / "outbox.db"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        kept = 0
        with SyncOutbox(path, nowhere) as outbox:
            for size in (200_000, 2_000):
                with suppress(OutboxFull):
                    while True:
                        outbox.push(queue, b"%d %s" % (kept + 1, b"x" * size))
                        kept += 1
            with pytest.raises(OutboxFull, match="takes no more"):
                outbox.push(queue, b"x" * 2_000)
            assert report.read_outgoing(path)[0].messages == kept > 10
        (disk / "other").write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
        with here.outbox(path) as outbox:
            drain(outbox)
            (disk / "other").unlink()
            outbox.push(queue, b"%d last" % (kept + 1))
            drain(outbox)
        assert numbers(here.values(queue)) == [*range(1, kept + 2)]
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


# -- the writer ------------------------------------------------------------------------------------


def test_calls_under_way_together_share_a_transaction_and_one_that_fails_fails_alone(
    path: Path,
) -> None:
    connection = sql.create_or_open(path)
    said: list[str] = []
    connection.set_trace_callback(said.append)
    writer = SqliteGroupCommitWriter(connection, path, DiskReserveFile(path))
    opening = writer.submit(lambda c: sql.begin_opening(c, "s")).result()
    said.clear()

    def held(until: int) -> None:
        """The writer is busy until so many calls are made."""
        begun = threading.Event()
        writer.submit(lambda _: begun.set() or wait_until(lambda: len(futures) == until))
        begun.wait()

    futures: list[GroupCommitFuture[object]] = []
    held(20)
    for n in range(20):
        if n == 7:
            futures.append(writer.submit(lambda _: 1 / 0))
        else:
            futures.append(
                writer.submit(
                    lambda c, n=n: sql.store_messages(
                        c,
                        opening,
                        sql.OutboxEntryKind.PUSH,
                        sql.find_or_add_destination(c, "q"),
                        [b"%d" % n],
                    )
                )
            )
    with pytest.raises(ZeroDivisionError):
        futures[7].result()
    assert [future.result() for n, future in enumerate(futures) if n != 7] == [*range(1, 20)]
    assert (
        said.count("COMMIT") == 1 + 19
    )  # what held it; the others together, and since one of them failed, one by one
    said.clear()
    held(40)
    for _ in range(20):
        futures += [writer.submit(lambda c: sql.find_or_add_destination(c, "q"))]
    assert {future.result() for future in futures[20:]} == {sql.OutboxDestinationQueue(1, "q")}
    assert said.count("COMMIT") == 2
    writer.close()
    with pytest.raises(StateError):
        writer.submit(sql.is_empty)


def test_many_threads_lose_nothing_and_keep_their_own_order(
    opened: SyncOutbox, here: Place, fresh: Fresh
) -> None:
    queue = fresh("orders")
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda t: [opened.push(queue, f"{t} {n}") for n in range(50)], range(16)))
    drain(opened)
    found = [tuple(map(int, value.split())) for value in here.values(queue)]
    assert sorted(found) == [(t, n) for t in range(16) for n in range(50)]
    for thread in range(16):
        assert [n for t, n in found if t == thread] == [*range(50)]
