"""Who writes to a store: the caller or the thread, what goes together, and what signals, forks and
loops that end leave behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from busmq_spark.errors import StateError
from busmq_spark.outbox import forwarder, report, sql
from busmq_spark.outbox.files import DiskReserveFile
from busmq_spark.outbox.group_commit import GroupCommitFuture, SqliteGroupCommitWriter
from busmq_spark.outbox.outbox import SyncOutbox
from tests.conftest import Fresh
from tests.outbox.conftest import Place, drain
from tests.support import lasting_port, wait_until

pytestmark = pytest.mark.redis


class Interrupted(BaseException):
    """What a signal handler raises."""


class Store:
    """A writer, and what it has said to SQLite."""

    def __init__(self, path: Path) -> None:
        connection = sql.create_or_open(path)
        self.said: list[str] = []
        connection.set_trace_callback(self.said.append)
        self.writer = SqliteGroupCommitWriter(connection, path, DiskReserveFile(path))
        opening = self.writer.write(lambda c: sql.begin_opening(c, "s"))
        self.append: Callable[[Any], int] = lambda c: sql.store_messages(
            c, opening, sql.OutboxEntryKind.PUSH, sql.find_or_add_destination(c, "q"), [b"x"]
        )

    def stored(self) -> int:
        return self.writer.write(
            lambda c: int(c.execute("SELECT count(*) FROM entry").fetchone()[0])
        )

    @contextmanager
    def held(self) -> Iterator[GroupCommitFuture[None]]:
        """The thread is busy; afterwards it begins with what was asked for meanwhile."""
        begun, over = threading.Event(), threading.Event()

        def work(_: object) -> None:
            begun.set()
            over.wait()

        busy = self.writer.submit(work)
        begun.wait()
        try:
            self.said.clear()
            yield busy
        finally:
            over.set()


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    made = Store(path)
    yield made
    made.writer.close()


# -- threads ---------------------------------------------------------------------------------------


def test_a_call_alone_is_written_in_its_own_thread_and_one_beside_others_together_with_them(
    store: Store,
) -> None:
    here = threading.get_ident()
    assert store.writer.write(lambda _: threading.get_ident()) == here
    assert store.writer.submit(lambda _: threading.get_ident()).result() != here
    with ThreadPoolExecutor(8) as threads:
        with store.held():
            calls = [threads.submit(store.writer.write, store.append) for _ in range(8)]
            wait_until(lambda: store.writer._jobs.qsize() == 8)
        assert sorted(call.result() for call in calls) == [*range(1, 9)]
    assert store.said.count("COMMIT") == 1 + 1  # what held it; the others


class Unnoticed:
    """A lock that was free when it was looked at."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return False


def test_while_the_thread_waits_for_its_turn_a_caller_does_not_go_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that calls again and again would keep all others waiting."""
    monkeypatch.setattr(store.writer, "_writing", Unnoticed(store.writer._writing))
    begun, over = threading.Event(), threading.Event()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.writer.write, lambda _: (begun.set(), over.wait()))
        begun.wait()
        second = store.writer.submit(store.append)
        wait_until(lambda: store.writer._waits)
        third = threads.submit(store.writer.write, store.append)
        wait_until(lambda: store.writer._jobs.qsize() == 1)
        over.set()
        first.result()
        assert (second.result(), third.result()) == (1, 2)


def test_what_is_called_behind_the_end_says_so_and_what_was_called_before_is_written(
    path: Path,
) -> None:
    store, ended = Store(path), threading.Event()
    with store.held():
        asked = [store.writer.submit(store.append) for _ in range(3)]
        closing = threading.Thread(target=lambda: (store.writer.close(), ended.set()))
        closing.start()
        wait_until(lambda: store.writer._closed)
        for call in (store.writer.write, store.writer.submit):
            with pytest.raises(StateError):
                call(store.append)
    closing.join()
    assert [each.result() for each in asked] == [1, 2, 3]
    with pytest.raises(StateError):
        store.writer.write(store.append)


# -- signals ---------------------------------------------------------------------------------------


def test_what_is_interrupted_before_its_commit_is_not_stored_and_the_next_call_is(
    store: Store,
) -> None:
    def interrupted(connection: Any) -> None:
        store.append(connection)
        raise Interrupted

    for _ in range(3):
        with pytest.raises(Interrupted):
            store.writer.write(interrupted)
    assert store.writer.write(store.append) == 1
    assert store.stored() == 1


def test_what_an_interrupted_call_left_open_is_rolled_back_by_the_next_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal came while the first one's transaction was rolled back."""

    def interrupted(connection: Any) -> None:
        store.append(connection)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(store.writer, "_roll_back", lambda: None)
        with pytest.raises(Interrupted):
            store.writer.write(interrupted)
    assert store.writer._connection.in_transaction
    assert store.writer.write(store.append) == 1
    assert store.stored() == 1


def test_what_is_interrupted_behind_its_commit_is_forwarded(
    opened: SyncOutbox, here: Place, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, together = fresh("orders"), SqliteGroupCommitWriter._run_in_one_transaction

    def interrupted(*arguments: Any, **named: Any) -> Any:
        together(*arguments, **named)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(SqliteGroupCommitWriter, "_run_in_one_transaction", interrupted)
        with pytest.raises(Interrupted):
            opened.push(queue, 1)
    drain(opened)
    assert here.values(queue) == [b"1"]


@pytest.mark.parametrize("seed", range(3))
def test_signal_handlers_that_raise_at_any_moment_lose_and_double_nothing(
    opened: SyncOutbox, here: Place, fresh: Fresh, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A handler that raises while a weak reference is being cleared raises nowhere: Python reports
    # it by this hook.
    report_as_before = sys.unraisablehook
    monkeypatch.setattr(
        sys,
        "unraisablehook",
        lambda found: None if found.exc_type is Interrupted else report_as_before(found),
    )
    queue, chance, main = fresh("orders"), Random(seed), threading.get_ident()
    armed, over, kept, caught, n, count = threading.Event(), threading.Event(), [], [], 0, 400

    def handler(*_: object) -> None:
        if armed.is_set():
            armed.clear()
            raise Interrupted

    def send() -> None:
        while not over.wait(chance.random() / 500):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        while n < count:
            try:
                while n < count:
                    armed.set()
                    n += 1
                    opened.push(queue, n)
                    kept.append(n)
                armed.clear()
            except Interrupted:
                caught.append(n)
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    drain(opened)
    found = [int(value) for value in here.values(queue)]
    assert found == sorted({*found})
    assert {*kept} <= {*found} <= {*range(1, count + 1)}
    assert len(caught) > 3


def test_a_handler_that_calls_the_outbox_which_it_has_interrupted_is_told_so(store: Store) -> None:
    """To wait for the call below it would be to wait for ever."""
    with pytest.raises(StateError, match="call that was interrupted"):
        store.writer.write(lambda _: store.writer.write(store.append))
    assert store.writer.write(store.append) == 1


# -- forks -----------------------------------------------------------------------------------------


def test_a_process_that_was_forked_from_the_owner_cannot_use_the_outbox_and_does_it_no_harm(
    opened: SyncOutbox, here: Place, fresh: Fresh
) -> None:
    queue = fresh("orders")
    opened.push(queue, 1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            opened.push(queue, 2)
        except StateError as error:
            status = 0 if "forked" in str(error) else 2
        opened.__exit__(None, None, None)
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    opened.push(queue, 3)
    drain(opened)
    assert here.values(queue) == [b"1", b"3"]


# -- loops -----------------------------------------------------------------------------------------


def test_calls_that_are_written_together_wake_their_loop_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def calls() -> int:
        loop, woken = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(
            loop, "call_soon_threadsafe", lambda *about: (woken.append(about), wake(*about))
        )
        with store.held():
            futures = [store.writer.submit_async(store.append) for _ in range(50)]
            failing = store.writer.submit_async(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await failing
        assert await asyncio.gather(*futures) == [*range(1, 51)]
        woken.clear()
        with store.held():
            futures = [store.writer.submit_async(store.append) for _ in range(50)]
        assert await asyncio.gather(*futures) == [*range(51, 101)]
        return len(woken)

    assert asyncio.run(calls()) == 1


def test_a_call_that_is_cancelled_before_it_is_begun_is_not_stored(store: Store) -> None:
    async def calls() -> None:
        with store.held():
            first, second = (
                store.writer.submit_async(store.append),
                store.writer.submit_async(store.append),
            )
            first.cancel()
        assert await second == 1

    asyncio.run(calls())
    assert store.stored() == 1


def test_a_call_that_is_cancelled_while_it_is_written_disturbs_no_other(store: Store) -> None:
    async def calls() -> None:
        begun, over = threading.Event(), threading.Event()
        first = store.writer.submit_async(lambda _: (begun.set(), over.wait()))
        second = store.writer.submit_async(store.append)
        await asyncio.to_thread(begun.wait)
        first.cancel()
        over.set()
        assert await second == 1

    asyncio.run(calls())


def test_a_loop_that_ends_before_its_calls_are_written_leaves_them_to_be_written(
    store: Store,
) -> None:
    async def call() -> None:
        store.writer.submit_async(store.append)

    with store.held() as busy:
        asyncio.run(call())
    busy.result()
    assert store.writer.submit(store.append).result() == 2


# -- the forwarder ---------------------------------------------------------------------------------


def test_calls_for_a_queue_whose_server_is_away_do_not_wake_the_forwarder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks there when its pause is over, so that calls need not share the processor with it."""
    turns: list[object] = []
    turn = forwarder.OutboxForwarder._run_turn
    monkeypatch.setattr(forwarder, "RETRY_PAUSES_S", (600.0, 600.0))
    monkeypatch.setattr(
        forwarder.OutboxForwarder, "_run_turn", lambda its: (turns.append(its), turn(its))[1]
    )
    with SyncOutbox(path, f"redis://127.0.0.1:{lasting_port()}") as outbox:
        outbox.push("q", 0)
        outbox.publish(["k"], 0)
        wait_until(lambda: outbox.status().error and report.read_outgoing(path)[0].error)
        before = len(turns)
        for n in range(50):
            outbox.push("q", n)
            outbox.publish(["k"], n)
        assert len(turns) <= before + 3
