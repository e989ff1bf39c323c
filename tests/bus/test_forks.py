"""Objects of a bus after a fork, on another loop, and pickled: one typed error, at once, and the
parent is not disturbed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from busmq_spark import Bus, Outbox
from busmq_spark.errors import StateError
from tests.conftest import Fresh
from tests.support import PATIENCE_S, wait_until


def run_in_child(work: Callable[[], object]) -> str:
    """Return what a forked child says: its result, or the code of its error."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(work())
        except BaseException as error:  # noqa: BLE001
            said = f"{getattr(error, 'code', type(error).__name__)} {error}"
        os.write(writing, said[:2000].encode())
        os._exit(0)
    os.close(writing)
    try:
        wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, what="the child has ended")
        with os.fdopen(reading) as file:
            return file.read()
    except AssertionError:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        raise


FORKED = "open in the process that this one was forked from"


def test_a_synchronous_bus_says_in_a_forked_child_whose_it_is(redis_url: str, fresh: Fresh) -> None:
    name = fresh()
    with (
        Bus.sync(redis_url) as bus,
        bus.queue(name) as queue,
        bus.persist(fresh()) as record,
        queue.group("g", shared=True) as group,
    ):
        assert queue.push("parent") == 1
        messages = queue.consume()
        batches = group.batches()
        for work in (
            lambda: queue.push("child"),
            queue.count,
            lambda: bus.queue(name).exists(),
            lambda: next(messages),
            lambda: next(batches),
            record.save,
            bus.__enter__,
            lambda: queue.on("attached", print),
        ):
            assert run_in_child(work).startswith("BUSMQ_STATE")
        assert FORKED in run_in_child(queue.count)
        assert (
            run_in_child(lambda: (queue.__exit__(None, None, None), bus.__exit__(None, None, None)))
            == "(None, None)"
        )
        assert queue.push("parent") == 2
        assert next(messages).text == "parent"


def test_a_forked_child_makes_a_bus_of_its_own(redis_url: str, fresh: Fresh) -> None:
    name = fresh()

    def push() -> int:
        with Bus.sync(redis_url) as own, own.queue(name) as queue:
            return int(queue.push("child"))

    with Bus.sync(redis_url) as bus, bus.queue(name) as queue:
        assert run_in_child(push) == "1"
        assert queue.push("parent") == 2


def use_in_process(bus: Any, queue: Any) -> None:
    with bus, queue:
        pass


def test_multiprocessing_gets_no_bus_of_its_parent(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        process = multiprocessing.get_context("fork").Process(
            target=use_in_process, args=(bus, queue)
        )
        process.start()
        process.join(PATIENCE_S)
        assert process.exitcode == 1
        with pytest.raises(StateError, match="pickle"):
            multiprocessing.get_context("spawn").Process(
                target=use_in_process, args=(bus, queue)
            ).start()
        assert queue.push("x") == 1


async def test_an_asyncio_bus_says_in_a_forked_child_whose_it_is(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue, bus.jobs(fresh()) as jobs:
        for work in (
            lambda: queue.push("x"),
            queue.count,
            lambda: jobs.send(jobs.new()),
            lambda: queue.group("g").__aenter__(),
        ):

            async def use(work: Any = work) -> object:
                return await work()

            assert run_in_child(lambda use=use: asyncio.run(use())).startswith("BUSMQ_STATE")  # type: ignore[misc]
        assert run_in_child(lambda: asyncio.run(_leave(bus))) == "None"
        assert await queue.push("x") == 1


async def _leave(bus: Bus) -> None:
    await bus.__aexit__(None, None, None)


async def test_an_asyncio_bus_is_refused_on_another_loop(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:

        async def use() -> None:
            for work in (lambda: queue.push("x"), queue.count, lambda: bus.queue(fresh()).attach()):
                with pytest.raises(StateError, match="another event loop"):
                    await work()

        await asyncio.to_thread(asyncio.run, use())
        errors: list[BaseException] = []

        def push() -> None:
            try:
                queue.push("x")
            except StateError as error:
                errors.append(error)

        thread = threading.Thread(target=push)
        thread.start()
        thread.join()
        assert len(errors) == 1
        assert await queue.push("x") == 1


@pytest.mark.parametrize(
    "make", ["bus", "queue", "topic", "jobs", "service", "channel", "worker", "group", "persist"]
)
async def test_objects_of_a_bus_are_not_pickled(redis_url: str, fresh: Fresh, make: str) -> None:
    async def work(job: object) -> None: ...

    async with Bus(redis_url) as bus:
        things: dict[str, Any] = {
            "bus": bus,
            **{
                kind: getattr(bus, kind)(fresh())
                for kind in ("queue", "topic", "jobs", "service", "channel", "persist")
            },
            "worker": bus.jobs(fresh()).worker("g")(work),
            "group": bus.queue(fresh()).group("g", shared=True),
        }
        with pytest.raises(StateError, match="cannot pickle"):
            pickle.dumps(things[make])


def test_the_end_of_a_child_is_silent_and_leaves_the_parent_alone(
    redis_url: str, fresh: Fresh, tmp_path: Path
) -> None:
    """The child collects all it has of the bus, runs a loop of its own, and exits by the
    interpreter.
    """
    script = tmp_path / "forks.py"
    script.write_text(
        dedent(f"""
        import asyncio, gc, os, sys
        from busmq_spark import Bus

        bus = Bus.sync({redis_url!r}).__enter__()
        queue = bus.queue({fresh()!r}).__enter__()
        group = queue.group("g", shared=True).__enter__()
        queue.push("a")
        leased = next(iter(group.batches()))
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                async def collect():
                    global bus, queue, group
                    things = bus._thing, bus._loop_thread
                    bus = queue = group = None
                    things[0].__dict__.clear()
                    things[1].__dict__.clear()
                    del things
                    gc.collect()
                asyncio.run(collect())
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            assert queue.push("b") > 1
            assert group.extend(leased) == []
        assert group.ack(leased) == []
        group.__exit__(None, None, None)
        queue.__exit__(None, None, None)
        bus.__exit__(None, None, None)
        print("well", end="")
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("well", "", 0)


def test_an_outbox_says_in_a_forked_child_whose_it_is(
    redis_url: str, fresh: Fresh, tmp_path: Path
) -> None:
    with Outbox.sync(tmp_path / "o.db", to=redis_url) as outbox:
        outbox.push(fresh(), "a")
        assert run_in_child(lambda: outbox.push("q", "b")).startswith("BUSMQ_STATE")
        assert run_in_child(lambda: outbox.__exit__(None, None, None)) == "None"
        outbox.push(fresh(), "c")
        outbox.wait_drained(timeout_s=PATIENCE_S)
