"""An outbox is its file, not its path: every other name of the file is refused while it is open."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from busmq_spark.errors import OutboxBusy, OutboxUnusable
from busmq_spark.outbox import report
from busmq_spark.outbox.forwarder import OutboxForwarder
from busmq_spark.outbox.outbox import SyncOutbox
from tests.conftest import Fresh
from tests.outbox.conftest import Place, drain, numbered
from tests.outbox.running import Program, numbers
from tests.support import PATIENCE_S, lasting_port, wait_until

pytestmark = pytest.mark.redis
NAMES = ["symlink", "chain", "folder", "hard link", "dots", "relative"]


@pytest.fixture(scope="module")
def nowhere() -> str:
    return f"redis://127.0.0.1:{lasting_port()}"


def other_name(path: Path, kind: str) -> Path:
    """Another name of the file."""
    link = path.with_name("link.db")
    match kind:
        case "symlink":
            link.symlink_to(path)
        case "chain":
            path.with_name("middle.db").symlink_to(path.name)
            link.symlink_to("middle.db")
        case "folder":
            path.with_name("elsewhere").symlink_to(path.parent, target_is_directory=True)
            return path.with_name("elsewhere") / path.name
        case "hard link":
            link.hardlink_to(path)
        case "dots":
            path.with_name("inner").mkdir()
            return path.parent / "inner" / ".." / path.name
        case "relative":
            return Path(os.path.relpath(path))
    return link


@pytest.mark.parametrize("kind", NAMES)
def test_a_second_process_is_refused_through_any_name_of_the_file(
    path: Path, here: Place, fresh: Fresh, kind: str
) -> None:
    queue = fresh("orders")
    with Program(path, here.words, queue) as program:
        program.wait("open")
        program.do("push", 1)
        with pytest.raises(OutboxBusy), here.outbox(other_name(path, kind)):
            pass
        program.do("push", 3)
        program.do("drain")
        assert here.values(queue) == [b"%d " % n for n in range(1, 5)]


@pytest.mark.parametrize("kind", NAMES)
def test_a_second_outbox_of_this_process_is_refused_and_the_first_goes_on(
    path: Path, here: Place, fresh: Fresh, kind: str
) -> None:
    """The refused one must not close a descriptor of the file: SQLite's locks would go with it."""
    queue = fresh("orders")
    with here.outbox(path) as outbox:
        outbox.push(queue, 1)
        with pytest.raises(OutboxBusy) as busy, here.outbox(other_name(path, kind)):
            pass
        assert busy.value.details["pid"] == os.getpid()
        looked = (
            "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0,"
            " isolation_level=None).execute('PRAGMA locking_mode=EXCLUSIVE')"
        )
        subprocess.run([sys.executable, "-c", looked, path], check=True)
        outbox.push(queue, 2)
        drain(outbox)
    assert here.values(queue) == numbered(2)


def test_a_symlink_is_its_target_for_the_log_and_for_who_looks(
    path: Path, here: Place, nowhere: str, fresh: Fresh
) -> None:
    """A process is killed; what it had stored is in the log, which is beside the file and not
    beside the link.
    """
    queue, link = fresh("orders"), path.with_name("link.db")
    link.symlink_to(path)
    with Program(link, nowhere, queue) as program:
        program.wait("open")
        program.do("push", 3)
        assert report.read_status(link).owner == report.read_status(path).owner
        assert report.read_status(link).outgoing == 3
        program.kill()
    with here.outbox(path) as outbox:
        drain(outbox)
    assert numbers(here.values(queue)) == [1, 2, 3]
    assert sorted(each.name for each in path.parent.iterdir() if each.name.startswith("link")) == [
        "link.db"
    ]


def test_a_symlink_whose_target_is_not_there_yet_makes_it(path: Path, nowhere: str) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    with SyncOutbox(link, nowhere) as outbox:
        outbox.push("q", 1)
    assert report.read_status(path).outgoing == 1


def test_a_relative_path_stays_the_same_file_after_a_change_of_folder(
    tmp_path: Path, here: Place, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = fresh("orders")
    monkeypatch.chdir(tmp_path)
    with here.outbox(Path("outbox.db")) as outbox:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        outbox.push(queue, 1)
        drain(outbox)
        assert outbox.status().error == ""
    assert here.values(queue) == [b"1"]


def test_a_file_with_a_second_hard_link_is_not_opened(path: Path, nowhere: str) -> None:
    """SQLite's log goes by the name: after a crash it would be missing beside the other."""
    with SyncOutbox(path, nowhere) as outbox:
        outbox.push("q", 1)
    link = other_name(path, "hard link")
    for name in (path, link):
        with pytest.raises(OutboxUnusable, match="2 names"), SyncOutbox(name, nowhere):
            pass
    with pytest.raises(OutboxUnusable, match="2 names"):
        report.read_status(link)
    path.unlink()
    with SyncOutbox(link, nowhere) as outbox:
        assert outbox.push("q", 1).number == 2


def test_a_file_that_is_open_is_not_read_by_a_name_without_its_log(
    path: Path, nowhere: str
) -> None:
    """It would show an old state."""
    with Program(path, nowhere, "q") as program:
        program.wait("open")
        program.do("push", 3)
        link = other_name(path, "hard link")
        with pytest.raises(OutboxUnusable, match="2 names"):
            report.read_status(link)
        assert report.read_status(path).outgoing == 3


def test_a_killed_process_leaves_a_log_that_has_to_come_along(
    tmp_path: Path, here: Place, nowhere: str, fresh: Fresh
) -> None:
    queue, path, moved = fresh("orders"), tmp_path / "outbox.db", tmp_path / "moved.db"
    with Program(path, nowhere, queue) as program:
        program.wait("open")
        program.do("push", 3)
        program.kill()
    path.rename(moved)
    with pytest.raises(OutboxUnusable, match=r"outbox\.db-wal"), here.outbox(moved):
        pass
    tmp_path.joinpath("outbox.db-wal").rename(tmp_path / "moved.db-wal")
    with here.outbox(moved) as outbox:
        drain(outbox)
    assert numbers(here.values(queue)) == [1, 2, 3]


@pytest.mark.parametrize("what", ["file", "log", "folder", "replaced"])
@pytest.mark.parametrize("done", ["moved", "deleted"])
def test_while_the_file_is_not_where_it_was_opened_nothing_is_accepted(
    tmp_path: Path, here: Place, fresh: Fresh, what: str, done: str
) -> None:
    """What was returned for is forwarded all the same, and the outbox goes on when the file is
    back.
    """
    queue, folder = fresh("orders"), tmp_path / "folder"
    folder.mkdir()
    path = folder / "outbox.db"
    with SyncOutbox(path, f"redis://127.0.0.1:{lasting_port()}") as outbox:
        outbox.push(queue, 1)
    with here.outbox(path) as outbox:
        outbox.push(queue, 2)
        victim = {"log": path.with_name("outbox.db-wal"), "folder": folder}.get(what, path)
        victim.rename(tmp_path / "away")
        if what == "replaced":
            shutil.copy(tmp_path / "away", path)
        with pytest.raises(OutboxUnusable, match="moved or removed") as unusable:
            outbox.push(queue, "refused")
        assert str(victim if what == "log" else path) in str(unusable.value)
        drain(outbox)
        assert here.values(queue) == numbered(2)
        if done == "moved":
            (tmp_path / "away").replace(victim)
            outbox.push(queue, 3)
            drain(outbox)
            assert here.values(queue) == numbered(3)


def test_what_was_stored_before_the_log_was_moved_is_forwarded_though_its_forwarder_begins_late(
    tmp_path: Path, path: Path, here: Place, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, moved, run = fresh("orders"), threading.Event(), OutboxForwarder._run

    def run_late(forwarder: OutboxForwarder) -> None:
        moved.wait(PATIENCE_S)
        run(forwarder)

    monkeypatch.setattr(OutboxForwarder, "_run", run_late)
    with here.outbox(path) as outbox:
        outbox.push(queue, 1)
        path.with_name("outbox.db-wal").rename(tmp_path / "away")
        moved.set()
        drain(outbox)
        assert here.values(queue) == [b"1"]


def test_what_cannot_be_read_while_the_log_is_away_says_so(
    tmp_path: Path, path: Path, nowhere: str
) -> None:
    """SQLite speaks of an error of the disk: it makes an empty log."""
    with SyncOutbox(path, nowhere) as outbox:
        outbox.push("q", 1)
        path.with_name("outbox.db-wal").rename(tmp_path / "away")
        with pytest.raises(OutboxUnusable, match=r"outbox\.db-wal was moved or removed"):
            outbox.status()
        (tmp_path / "away").replace(path.with_name("outbox.db-wal"))
        assert outbox.status().outgoing == 1


def test_a_copy_is_an_outbox_of_its_own(
    path: Path, here: Place, nowhere: str, fresh: Fresh
) -> None:
    queue, copy = fresh("orders"), path.with_name("copy.db")
    with SyncOutbox(path, nowhere) as outbox:
        outbox.push(queue, 1, 2)
    shutil.copy(path, copy)
    with here.outbox(path) as outbox, here.outbox(copy) as other:
        outbox.push(queue, 3)
        drain(outbox)
        other.push(queue, 4)
        drain(other)
    assert here.values(queue) == numbered(4)


def test_a_file_on_another_mount_of_its_folder_is_refused_too(tmp_path: Path, nowhere: str) -> None:
    folder, mounted, file = tmp_path / "folder", tmp_path / "mounted", tmp_path / "file.db"
    folder.mkdir()
    mounted.mkdir()
    file.touch()
    path = folder / "outbox.db"
    with SyncOutbox(path, nowhere):
        binds = [(folder, mounted), (path, file)]
        if any(
            subprocess.run(["mount", "--bind", *pair], capture_output=True, check=False).returncode
            for pair in binds
        ):
            pytest.skip("mounting needs root")
        try:
            for name in (mounted / "outbox.db", file):
                with pytest.raises(OutboxBusy), SyncOutbox(name, nowhere):
                    pass
        finally:
            subprocess.run(["umount", "-l", mounted, file], check=True)


@pytest.mark.parametrize("kind", ["fifo", "device", "loop"])
def test_what_is_no_file_is_refused_with_one_error(tmp_path: Path, nowhere: str, kind: str) -> None:
    path = tmp_path / "outbox.db"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/null")
    else:
        path.symlink_to(path)
    with pytest.raises(OutboxUnusable), SyncOutbox(path, nowhere):
        pass
    assert not Path("/dev/null.lock").exists()


@pytest.mark.parametrize("errno_", ["ENOLCK", "EOPNOTSUPP", "ENOSYS"])
def test_a_file_system_without_locks_is_refused(
    path: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch, errno_: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(getattr(errno, errno_), "as of an NFS server without a lock daemon")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OutboxUnusable, match="does not lock files"), SyncOutbox(path, nowhere):
        pass


# -- files that two processes had open, as an older version allowed --------------------------------


def lose_senders(path: Path) -> None:
    """As a second process did that opened the file while nothing waited in it: the first one's
    opening was forgotten.
    """
    with sqlite3.connect(path) as other:
        other.execute("DELETE FROM opening")
    other.close()


def test_messages_whose_opening_was_forgotten_are_forwarded(
    path: Path, here: Place, nowhere: str, fresh: Fresh
) -> None:
    queue, others = fresh("orders"), fresh("others")
    with SyncOutbox(path, nowhere) as outbox:
        outbox.push(queue, *numbered(20))
        for n in range(5):
            outbox.push(others, n)
            outbox.push(queue, 21 + n)
    lose_senders(path)
    with here.outbox(path) as outbox:
        outbox.push(queue, 26)
        drain(outbox)
    assert here.values(queue) == numbered(26)
    assert here.values(others) == numbered(5, 0)


def test_messages_whose_opening_was_forgotten_while_it_is_open_are_forwarded(
    path: Path, here: Place, fresh: Fresh
) -> None:
    queue = fresh("orders")
    with here.outbox(path) as outbox:
        outbox.push(queue, 1)
        drain(outbox)
        lose_senders(path)
        outbox.push(queue, 2)
        drain(outbox)
    assert here.values(queue) == numbered(2)


def test_what_stops_the_forwarder_is_in_the_status(path: Path, here: Place, fresh: Fresh) -> None:
    """Until it goes on: here because another program renames a column, and names it as before."""
    queue = fresh("orders")

    def alter(before: str, after: str) -> None:
        with sqlite3.connect(path) as other:
            other.execute(f"ALTER TABLE destination RENAME COLUMN {before} TO {after}")
        other.close()

    with here.outbox(path) as outbox:
        outbox.push(queue, 1)
        drain(outbox)
        alter("queue", "renamed")
        outbox._engine._rescan()
        wait_until(lambda: "the forwarder fails" in outbox.status().error)
        assert "the forwarder fails" in report.read_status(path).error
        alter("renamed", "queue")
        outbox.push(queue, 2)
        drain(outbox)
        wait_until(lambda: not outbox.status().error)
    assert here.values(queue) == numbered(2)
