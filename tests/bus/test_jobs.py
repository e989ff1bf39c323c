"""Jobs: fields, sending, working and waiting, on every layout where Redis is touched."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import (
    ConfigError,
    JobFailed,
    JobTimeout,
    MessageRefused,
    Rejected,
    StateError,
)
from tests.bus.conftest import OpenBus
from tests.bus.job_tools import LONG_S, Held, concat, keys_of, letters, nothing, until_none
from tests.bus.tools import UNTIL_S, LoopClock, redis, stored, until
from tests.conftest import Fresh


async def test_the_example(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, open_bus() as other, bus.jobs(fresh()) as jobs:
        async with other.jobs(jobs.queue.name).worker("worldConcat")(concat):
            job = jobs.new()
            job["inbound"] = "Hello"
            assert await job.save()
            done = await jobs.send(job, wait=["worldConcat"], timeout_s=UNTIL_S)
            assert [(group, each.ok, each.tries) for group, each in done.items()] == [
                ("worldConcat", True, 1)
            ]
            assert await job.load("outbound", forget=("outbound",)) == {"outbound": "Hello world!"}
            assert (job["inbound"], job["outbound"]) == ("Hello", "Hello world!")
            for name in ("inbound", "outbound"):
                assert await redis(jobs.queue, "EXISTS", job.in_redis.field(name)) == 0
            again = await asyncio.wait_for(
                other.jobs(jobs.queue.name).get(job.id).wait(["worldConcat"]), UNTIL_S
            )
            assert again == done
        await jobs.queue.flush()


async def test_what_a_handler_raises_is_the_error_of_its_group(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async def bad(job: Job) -> None:
        raise ValueError(f"no {(await job.load('what'))['what']}")

    async with (
        open_bus() as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("bad", tries=2)(bad),
        jobs.worker("good")(nothing),
    ):
        job = jobs.new()
        job["what"] = "room"
        with pytest.raises(
            JobFailed, match=r"is given up by \{'bad': 'ValueError: no room'\}"
        ) as caught:
            await jobs.send(job, wait=["good", "bad"], timeout_s=UNTIL_S)
        assert caught.value.errors == {"bad": "ValueError: no room"}
        done = await job.wait(["bad", "good"], timeout_s=UNTIL_S, fail_fast=False)
        assert [(each.group, each.ok, each.error, each.tries) for each in done.values()] == [
            ("bad", False, "ValueError: no room", 2),
            ("good", True, "", 1),
        ]
        assert await job.outcomes() == done
        [letter] = await letters(jobs)
        assert (letter.group, letter.tries, letter.error) == ("bad", 2, "ValueError: no room")


async def test_a_rejection_is_no_other_try(place: dict[str, Any], fresh: Fresh) -> None:
    calls = []

    async def refuse(job: Job) -> None:
        calls.append(job.tries)
        raise Rejected("unreadable")

    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs, jobs.worker("g")(refuse):
        done = await jobs.send(jobs.new(), wait=["g"], fail_fast=False, timeout_s=UNTIL_S)
        assert (done["g"].error, done["g"].tries, calls) == ("unreadable", 1, [1])
        [letter] = await letters(jobs)
        assert (letter.error, letter.tries) == ("unreadable", 1)
        assert await stored(jobs.queue) == []


async def test_fields_are_kept_until_they_are_saved_and_stacked(
    place: dict[str, Any], fresh: Fresh
) -> None:
    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs:
        job = jobs.new()
        job["bytes"], job["text"], job["none"] = b"\x00\xff", "\u00e9", None
        job.set("short", [1, 2.5], ttl_s=100)
        assert await keys_of(jobs.queue, job) == []
        assert await job.save()
        assert not await job.save()
        job["text"] = {"n": 1}
        assert await job.save()
        same = jobs.get(job.id)
        wanted = {
            "bytes": b"\x00\xff",
            "text": {"n": 1},
            "none": None,
            "short": [1, 2.5],
            "missing": None,
        }
        assert await same.load(*wanted) == wanted
        assert dict(same) == wanted
        left = {
            name: await redis(jobs.queue, "PTTL", job.in_redis.field(name))
            for name in ("text", "short")
        }
        assert 0 < left["short"] <= 100_000 < left["text"] <= 1000 * jobs.queue.ttl_s
        assert await same.load(forget="text") == {}
        assert await job.load("text") == {"text": None}
        await jobs.get(job.id).load(*wanted, forget=[*wanted])
        await until_none(lambda: keys_of(jobs.queue, job))


async def test_an_empty_save_and_load_send_nothing() -> None:
    jobs = Bus("redis://127.0.0.1:1").jobs("q")
    job = jobs.new()
    assert not await job.save()
    assert await job.load() == {}


async def test_sending_saves_what_is_unsaved(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        jobs = bus.jobs(fresh())
        job = jobs.new()
        job["a"] = 1
        assert await jobs.send(job) == {}
        assert await jobs.get(job.id).load("a") == {"a": 1}
        assert await jobs.queue.count() == 1


async def test_a_job_that_is_sent_again_is_done_again(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs, jobs.worker("g")(nothing):
        job = jobs.new()
        first = await jobs.send(job, wait=["g"], timeout_s=UNTIL_S)
        second = await jobs.send(job, wait=["g"], timeout_s=UNTIL_S)
        assert (first["g"].message, second["g"].message) == (1, 2)


async def test_waiting_later_in_another_process_and_at_once_when_it_is_done(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    held = Held()
    async with (
        open_bus() as bus,
        open_bus() as other,
        bus.jobs(fresh()) as jobs,
        jobs.worker("g")(held()),
    ):
        job = jobs.new()
        await jobs.send(job)
        waiting = asyncio.ensure_future(
            other.jobs(jobs.queue.name).get(job.id).wait(["g"], timeout_s=UNTIL_S)
        )
        await until(lambda: held.begun)
        held.go.set()
        done = await waiting
        assert done["g"].ok
        assert await other.jobs(jobs.queue.name).get(job.id).wait("g", timeout_s=0.001) == done


async def test_waits_that_may_last_equally_long_end_in_turn_and_one_that_is_cancelled_holds_up_none(
    place: dict[str, Any], fresh: Fresh
) -> None:
    ended: list[int] = []
    async with Bus(**place) as bus, bus.jobs(fresh()) as jobs:
        async with jobs.worker("g")(nothing):
            pass
        clock = LoopClock()

        async def waiting(number: int) -> None:
            with pytest.raises(JobTimeout, match=r"within 1000 s"):
                await jobs.send(jobs.new(), wait=["g"], timeout_s=1000)
            ended.append(number)

        tasks = []
        for number in range(4):
            tasks.append(asyncio.ensure_future(waiting(number)))
            await until(lambda number=number: jobs.queue.pushed == number + 1)
            clock.ahead_s += 50
        tasks[0].cancel()
        longer = asyncio.ensure_future(jobs.send(jobs.new(), wait=["g"], timeout_s=5000))
        await until(lambda: jobs.queue.pushed == 5)
        for number in (1, 2, 3):
            clock.ahead_s = 1000 + 50 * number
            await tasks[number]
            assert ended == [*range(1, number + 1)]
        assert not longer.done()
        async with jobs.worker("g")(nothing):
            assert (await longer)["g"].ok
            await jobs.send(jobs.new(), wait=["g"], timeout_s=1000)
        last = asyncio.ensure_future(waiting(4))
        await until(lambda: jobs.queue.pushed == 7)
        clock.ahead_s += 1000
        await last


async def test_a_wait_that_ends_too_soon_says_for_whom_and_may_go_on(
    place: dict[str, Any], fresh: Fresh
) -> None:
    held = Held()
    async with (
        Bus(**place) as bus,
        bus.jobs(fresh()) as jobs,
        jobs.worker("slow")(held()),
        jobs.worker("quick")(nothing),
    ):
        job = jobs.new()
        await jobs.send(job, wait=["quick"], timeout_s=UNTIL_S)
        with pytest.raises(JobTimeout, match=r"no outcome of \['slow'\] within 0.2 s") as caught:
            await job.wait(["slow", "quick"], timeout_s=0.2)
        assert caught.value.details["missing"] == ["slow"]
        held.go.set()
        assert sorted(await job.wait(["slow", "quick"], timeout_s=UNTIL_S)) == ["quick", "slow"]


async def test_who_waits_when_it_is_detached_is_told(redis_url: str, fresh: Fresh) -> None:
    held = Held()
    async with Bus(redis_url) as bus:
        jobs = bus.jobs(fresh())
        async with bus.jobs(jobs.queue.name).worker("g")(held()):
            waiting = asyncio.ensure_future(jobs.send(jobs.new(), wait=["g"], timeout_s=UNTIL_S))
            await until(lambda: held.begun)
            await jobs.detach()
            with pytest.raises(StateError, match="it is detached"):
                await waiting


async def test_outcomes_are_pushed_to_a_queue_where_that_is_asked_for(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with (
        open_bus() as bus,
        bus.jobs(fresh(), durable=True) as jobs,
        bus.queue(f"{jobs.queue.name}.done") as done,
    ):
        async with bus.jobs(jobs.queue.name).worker("g")(nothing):
            job = jobs.new()
            await jobs.send(job)
            [said] = [message.json() async for message in done.consume(max=1)]
        assert (said["job"], said["group"], said["ok"], said["queue"]) == (
            job.id,
            "g",
            True,
            jobs.queue.name,
        )


async def test_outcomes_are_pushed_to_no_other_queue_that_a_message_names(
    redis_url: str, fresh: Fresh
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.jobs(fresh()) as jobs,
        bus.queue(fresh("paid")) as paid,
        bus.queue(f"{jobs.queue.name}.done") as done,
    ):
        async with jobs.worker("g", start="earliest")(nothing):
            await jobs.queue.push({"job": "a", "from": "x", "done": paid.name})
            await jobs.get("a").wait(["g"], timeout_s=UNTIL_S)
            await jobs.queue.push({"job": "b", "from": "x", "done": done.name})
            [said] = [
                message.json() async for message in done.consume(max=1)
            ]  # the worker pushes outcomes in this order
        assert (said["job"], await paid.count()) == ("b", 0)


async def test_a_group_begins_with_new_jobs_unless_it_is_told(redis_url: str, fresh: Fresh) -> None:
    held = Held()
    held.go.set()
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        old = jobs.new()
        await jobs.send(old)
        async with jobs.worker("new")(held()), jobs.worker("all", start="earliest")(held()):
            await jobs.send(new := jobs.new(), wait=["new", "all"], timeout_s=UNTIL_S)
            assert Counter(held.ended) == {old.id: 1, new.id: 2}


def test_the_same_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    name = fresh()
    ready = asyncio.Event()

    async def work() -> None:
        async with Bus(redis_url) as bus, bus.jobs(name).worker("g")(concat):
            ready.set()
            await asyncio.sleep(LONG_S)

    with Bus.sync(redis_url) as bus, bus.jobs(name) as jobs:
        inside: Any = bus
        working = inside._thing._spawn  # the loop of the bus runs the worker, too
        inside._call_on_loop(lambda: working(work(), "worker"))
        inside._call_on_loop(ready.wait)
        job = jobs.new()
        job["inbound"] = "Hello"
        assert (job.save(), "inbound" in job, len(job), list(job)) == (True, True, 1, ["inbound"])
        done = jobs.send(job, wait=["g"], timeout_s=UNTIL_S)
        assert done["g"].ok
        assert job.load("outbound") == {"outbound": "Hello world!"}
        assert job["outbound"] == "Hello world!"
        assert jobs.get(job.id).wait(["g"]) == done


async def test_what_makes_no_sense_is_refused(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus, bus.jobs(fresh()) as jobs:
        for options, found in [
            ({"lease_s": 0.5}, "lease_s is 0.5; expected 1 to 604800 seconds"),
            ({"tries": 0}, "tries is 0; expected a whole number of at least 1"),
            ({"limit": 0}, "limit is 0; expected a whole number of at least 1"),
            ({"limit": True}, "limit is True"),
            ({"deadline_s": 0}, "deadline_s is 0; expected 0.001"),
            ({"deadline_s": "30"}, "deadline_s is '30'"),
            ({"group_limit": -1}, "limit is -1"),
            ({"backoff_s": -1}, "backoff_s is -1"),
            ({"backoff_s": 61}, "backoff_s is 61"),
        ]:
            with pytest.raises(ConfigError, match=found):
                jobs.worker("g", **options)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="coroutine function of one argument, the job"):
            jobs.worker("g")("shout")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="the name of the shared group is 'a:due'"):
            jobs.worker("a:due")(nothing)
        with pytest.raises(ConfigError, match="one of groups is ''"):
            await jobs.send(jobs.new(), wait=[""])
        with pytest.raises(
            ConfigError,
            match="has no group 'nobody' to wait for; it is made when a worker of it begins",
        ):
            await jobs.send(jobs.new(), wait=["nobody"])
        with pytest.raises(ConfigError, match="has no group 'nobody'"):
            await jobs.get("some").wait(["nobody"])
        assert await jobs.queue.count() == 0
        for timeout_s in (0, -1, float("nan"), float("inf"), "5", None):
            with pytest.raises(ConfigError, match="timeout_s is"):
                await jobs.send(jobs.new(), wait=["g"], timeout_s=timeout_s)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no group is named to wait for"):
            await jobs.new().wait([])
        with pytest.raises(ConfigError, match="outcome_ttl_s is 0"):
            bus.jobs("q", outcome_ttl_s=0)
        with pytest.raises(ConfigError, match="the id of the job is 'a:b'"):
            jobs.get("a:b")
        job = jobs.new()
        with pytest.raises(MessageRefused, match="has 629145600 bytes"):
            job["big"] = bytes(600 * 1024 * 1024)
        with pytest.raises(ConfigError, match="the name of the field is 'done'"):
            job["done"] = 1
        with pytest.raises(ConfigError, match="ttl_s is 0"):
            job.set("a", 1, ttl_s=0)
        with pytest.raises(ConfigError, match="the name of the field is ':a'"):
            await job.load("b", forget=[":a"])
        assert not await job.save()
        async with jobs.worker("g")(nothing) as worker:
            with pytest.raises(StateError, match="it is at work already"):
                await worker.__aenter__()
            with pytest.raises(ConfigError, match="timeout_s is -1"):
                await worker.pause(-1)


async def test_the_rights_of_the_page_are_enough_for_jobs(fresh: Fresh) -> None:
    page = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text("utf-8")
    found = (
        r"ACL SETUSER spark on >secret (.*?)\n",
        r"Shared\s+groups need `(.*?)`",
        r"follow the jobs\s+of a pattern of queues needs `(.*?)`",
    )
    rules, groups, more = (re.search(pattern, page) for pattern in found)
    assert rules
    assert groups
    assert more
    with EmbeddedRedis() as server:
        words = (
            *rules[1].split(),
            "+unsubscribe",
            "+hexists",
            *groups[1].split(),
            *more[1].split(),
        )
        server.command("ACL", "SETUSER", "spark", "on", ">secret", *words)
        async with (  # noqa: SIM117  # too long
            Bus(server.url, user="spark", password="secret") as bus,
            bus.jobs(fresh(), durable=True) as jobs,
        ):
            async with jobs.worker("g", tries=1)(concat):
                good, bad = jobs.new(), jobs.new()
                good["inbound"], bad["inbound"] = "Hello", None
                assert (await jobs.send(good, wait=["g"], timeout_s=UNTIL_S))["g"].ok
                await good.load("outbound", forget=("outbound",))
                await jobs.get(good.id).wait(["g"])
                async with jobs.completions("*") as every:
                    await jobs.send(bad, wait=["g"], timeout_s=UNTIL_S, fail_fast=False)
                    assert (await asyncio.wait_for(anext(every), UNTIL_S)).job == bad.id
        assert server.command("ACL", "LOG") == []


async def test_a_cap_is_the_queue_s_from_the_next_attach_on(redis_url: str, fresh: Fresh) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.jobs(fresh(), cap=2) as jobs,
        Bus(redis_url) as other,
        other.queue(jobs.queue.name) as queue,
    ):
        for _ in range(4):
            await jobs.send(jobs.new())
        await queue.push("another")
        assert await stored(queue) == [4, 5]
        assert (await queue.metadata())["cap"] == "2"
        async with (
            bus.queue(queue.name, cap=1, overflow="drop-oldest"),
            queue.group("g", start="earliest"),
        ):
            await queue.push_many(["a", "b"])
            assert await stored(queue) == [7]
        async with bus.queue(queue.name, cap=0):
            assert "cap" not in await queue.metadata()
        with pytest.raises(ConfigError, match="overflow is 'drop'"):
            bus.jobs("q", cap=1, overflow="drop")
