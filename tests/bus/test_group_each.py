"""``group.each(handler)``: functions that handle the messages of a shared group, with and without a
loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ConfigError, QueueFull, Rejected
from busmq_spark.groups.shared_group import LeasedMessage
from tests.bus.test_foreign_handlers import FAILURES
from tests.bus.tools import UNTIL_S
from tests.conftest import Fresh
from tests.support import wait_until

pytestmark = pytest.mark.redis


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_plain_function_handles_each_message_once_several_at_a_time(
    redis_url: str, fresh: Fresh
) -> None:
    together, seen = threading.Barrier(4, timeout=20), []

    def handle(message: LeasedMessage) -> None:
        together.wait()
        seen.append(message.text)

    with Bus.sync(redis_url) as bus, bus.queue(fresh("q")) as queue:
        queue.push_many([f"{n}" for n in range(12)])
        with queue.group("g", shared=True) as group:
            assert group.each(handle, at_once=4, most=12) == 12
            assert group.state().in_flight == 0
    assert sorted(seen, key=int) == [f"{n}" for n in range(12)]


@pytest.mark.parametrize(
    "error", [ValueError("bad"), UnprintableError(), asyncio.CancelledError(), Rejected("never")]
)
def test_what_a_handler_raises_is_a_try_and_in_the_end_a_dead_letter(
    redis_url: str, fresh: Fresh, error: BaseException
) -> None:
    name, calls = fresh("q"), []

    async def handle(message: LeasedMessage) -> None:
        calls.append((message.text, message.tries))
        if message.text == "bad":
            raise error

    async def main() -> None:
        async with Bus(redis_url) as bus, bus.queue(name) as queue:
            await queue.push_many(["bad", "good"])
            async with queue.group("g", shared=True, tries=2) as group:
                await group.each(handle, delay_s=0, most=2 if isinstance(error, Rejected) else 3)
            assert await bus.queue(f"{name}.dead").count() == 1

    asyncio.run(main())
    assert sorted(calls)[-1] == ("good", 1)
    assert [tries for text, tries in calls if text == "bad"] == (
        [1] if isinstance(error, Rejected) else [1, 2]
    )


def test_a_handler_that_takes_longer_than_its_lease_keeps_its_message(
    redis_url: str, fresh: Fresh
) -> None:
    async def main() -> None:
        async with Bus(redis_url) as bus, bus.queue(fresh("q")) as queue:
            await queue.push("one")
            tries: list[int] = []
            over = asyncio.Event()

            async def handle(message: LeasedMessage) -> None:
                tries.append(message.tries)
                await asyncio.sleep(2.5)
                over.set()

            async with (
                queue.group("g", shared=True, lease_s=1) as group,
                queue.group("g", shared=True) as other,
            ):
                both = [asyncio.create_task(each.each(handle)) for each in (group, other)]
                await over.wait()
                await group.wait_drained()
                await group.stop()
                await other.stop()
                await asyncio.gather(*both)
            assert tries == [1]

    asyncio.run(main())


@pytest.mark.fault
def test_the_message_of_a_process_that_is_killed_is_another_s(
    redis_url: str, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("q")
    script = (
        "import sys, time\nfrom busmq_spark import Bus\nwith Bus.sync(sys.argv[1]) as bus,"
        " bus.queue(sys.argv[2]) as queue, queue.group('g', shared=True, lease_s=1) as group:\n   "
        " group.each(lambda message: (print(message.text, flush=True), time.sleep(600)))\n"
    )
    with Bus.sync(redis_url) as bus, bus.queue(name) as queue:
        queue.push("one")
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        child = subprocess.Popen(
            [sys.executable, "-c", script, redis_url, name], stdout=subprocess.PIPE, env=environ
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"one\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        seen: list[tuple[str, int]] = []
        with queue.group("g", shared=True) as group:
            group.each(lambda message: seen.append((message.text, message.tries)), most=1)
        assert seen == [("one", 2)]


def test_bad_arguments_are_refused_and_a_stop_ends_it(redis_url: str, fresh: Fresh) -> None:
    with (
        Bus.sync(redis_url) as bus,
        bus.queue(fresh("q")) as queue,
        queue.group("g", shared=True) as group,
    ):
        for bad in (
            {"handler": "x"},
            {"handler": print, "at_once": 0},
            {"handler": print, "at_once": 1.5},
            {"handler": print, "most": 0},
            {"handler": print, "delay_s": -1},
            {"handler": print, "delay_s": "1"},
        ):
            with pytest.raises(ConfigError):
                group.each(**bad)
        over = threading.Thread(target=group.each, args=(print,))
        over.start()
        wait_until(over.is_alive)
        group.stop()
        over.join(20)
        assert not over.is_alive()


@pytest.mark.parametrize("how", FAILURES)
async def test_a_handler_that_fails_in_any_way_uses_up_the_tries_of_its_message(
    redis_url: str, fresh: Fresh, how: str
) -> None:
    async def handle(message: LeasedMessage) -> None:
        await FAILURES[how]()

    async with (
        Bus(redis_url) as bus,
        bus.queue(fresh()) as queue,
        queue.group("g", shared=True, tries=2) as group,
    ):
        await queue.push("a")
        handling = bus._spawn(group.each(handle, delay_s=0), "handling")
        async with bus.queue(group.dead) as dead:
            assert (await asyncio.wait_for(anext(dead.consume()), UNTIL_S)).json()["error"]
        assert not handling.done()
        handling.cancel()


async def test_an_error_of_settling_ends_it_although_no_further_message_comes(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        group = queue.group("g", shared=True)
        begun, go = asyncio.Event(), asyncio.Event()

        async def handle(message: LeasedMessage) -> None:
            begun.set()
            await go.wait()
            raise Rejected("no room for letters")

        async with group:
            dead = bus.queue(group.dead)
            await dead.attach(maxsize=1)
            await dead.push("full")
            await queue.push("a")
            handling = asyncio.ensure_future(group.each(handle))
            await begun.wait()
            go.set()
            with pytest.raises(QueueFull):
                await asyncio.wait_for(handling, UNTIL_S)
