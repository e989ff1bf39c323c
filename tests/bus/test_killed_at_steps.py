"""Programs are killed, or Redis is, at each step of their work: in the middle of a lease, a
settlement, a dead letter, a claim, an ack, an outcome.

All steps of a test are at once, each of a program and a queue of its own, through a proxy that
stops the command of the step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.groups import dead_letter
from tests.bus import group_worker, job_process, topic_worker
from tests.bus.group_tools import dead_letters
from tests.bus.job_tools import held_ends
from tests.bus.killable import Killable
from tests.bus.tools import UNTIL_S, redis
from tests.bus.topic_tools import Reader, all_read, in_order
from tests.conftest import Fresh
from tests.faults.proxy import Command, Gate, Held, Proxy

pytestmark = pytest.mark.fault
TRIES, PARTITIONS, MANY = 5, 2, 40
LETTER = 5
"""How many settlements a worker sends before the one that begins the dead letter of the first
message.
"""


@dataclass
class Step:
    """A program of a kind, and the command at which it is stopped: a script, after so many of
    them.
    """

    kind: str
    script: str
    skip: int = 0
    how: str = "lost"
    """``lost``: Redis never gets it. ``late``: Redis gets it when its sender is dead. ``done``:
    Redis has executed it, and the reply is lost.
    """
    name: str = field(default="", init=False)
    """Of its queue or topic; none is the beginning of another."""

    def matches(self, command: Command) -> bool:
        where = f"{self.name}.dead" if self.script == "push_letters" else self.name
        if self.kind == "job":  # its key is that of the job, and an outcome names the queue
            return command.name == self.script and any(
                where.encode() in outcome for outcome in command.args[6::5]
            )
        return command.name == self.script and any(where in key for key in command.keys)

    @property
    def words(self) -> tuple[str, list[object]]:
        """Its program, and what that is given."""
        if self.kind == "group":
            return "group_worker", [self.name, "g", TRIES]
        return (
            ("topic_worker", [self.name, "g"])
            if self.kind == "topic"
            else ("job_process", ["work", self.name, TRIES, 1])
        )

    def program(self, place: dict[str, Any]) -> Coroutine[Any, Any, None]:
        """The same within this process."""
        where = json.dumps(place)
        if self.kind == "group":
            return group_worker.main(where, self.name, "g", TRIES)
        return (
            topic_worker.main(where, self.name, "g")
            if self.kind == "topic"
            else job_process.work(where, self.name, str(TRIES), "1")
        )


def steps() -> list[Step]:
    """New ones."""
    return [
        Step("group", "group_lease", how="late"),
        Step("group", "group_lease", how="done"),
        Step("group", "group_settle", 1),
        Step("group", "group_settle", 1, "late"),
        Step("group", "group_settle", LETTER, "done"),
        Step("group", "push_letters"),
        Step("group", "push_letters", how="done"),
        Step("group", "group_settle", LETTER + 1),
        Step("topic", "topic_member", how="done"),
        Step("topic", "lease", how="late"),
        Step("topic", "ack_to", how="late"),
        Step("topic", "ack_to", how="done"),
        Step("job", "job_outcome"),
        Step("job", "job_outcome", how="done"),
    ]


class Work:
    """What a step has to do, and whether it was done in the end."""

    def __init__(self, bus: Bus, step: Step) -> None:
        self.bus, self.step = bus, step
        self.job: Job | None = None

    async def give(self, name: str) -> None:
        self.step.name = name
        if self.step.kind == "group":
            async with self.bus.queue(name) as queue:
                await queue.push_many([b"poison", b"v", b"v", b"v"])
        elif self.step.kind == "topic":
            async with self.bus.topic(name, PARTITIONS) as topic:
                await topic.push_many(
                    [f"k{n % 4}:{n}" for n in range(MANY)], keys=[f"k{n % 4}" for n in range(MANY)]
                )
        else:
            async with self.bus.jobs(name) as jobs:
                self.job = jobs.new()
                await jobs.send(self.job)

    async def check(self) -> None:
        """Waits until it is done."""
        name = self.step.name
        if self.step.kind == "group":
            async with self.bus.queue(name) as queue, self.bus.queue(f"{name}.dead") as dead:
                await asyncio.wait_for(queue.group("g", shared=True).wait_idle(), UNTIL_S)
                letters = [
                    dead_letter.decode_letter(message.value).id
                    for message in await dead_letters(dead, await dead.count())
                ]
            assert set(letters) == {1}, self.step
        elif self.step.kind == "topic":
            async with self.bus.topic(name) as topic:
                await all_read(topic)
        else:
            assert self.job is not None
            async with self.bus.jobs(name) as jobs:
                await held_ends(jobs, "g")
                assert (await jobs.get(self.job.id).outcomes())["g"].ok, self.step


async def stopped(gates: list[Gate]) -> list[Held]:
    """Returns when the command of every step is there."""
    return await asyncio.gather(*(asyncio.to_thread(gate.wait) for gate in gates))


@contextmanager
def held_at(proxy: Proxy, some: list[Step]) -> Iterator[list[Gate]]:
    gates = [proxy.hold(step.matches, reply=step.how == "done", skip=step.skip) for step in some]
    try:
        yield gates
    finally:
        for gate in gates:
            gate.open()


async def test_programs_that_are_killed_in_the_middle_of_a_step_lose_nothing(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    place, some = {"url": redis_server.url}, steps()
    with Proxy(redis_server.port) as proxy:
        async with Bus(**place) as bus:
            works = [Work(bus, step) for step in some]
            for work in works:
                await work.give(f"{fresh()}.")
            with held_at(proxy, some) as gates:
                workers = [
                    await Killable.start(step.words[0], {"url": proxy.url}, *step.words[1])
                    for step in some
                ]
                held = await stopped(gates)
                await asyncio.gather(*(worker.kill() for worker in workers))
            for step, each in zip(some, held, strict=True):
                if step.how == "late":
                    each.cut()
                    await asyncio.to_thread(each.arrive)
                else:
                    each.drop()
            for work, worker in zip(works, workers, strict=True):
                await finished(work, worker, place)


async def finished(work: Work, worker: Killable, place: dict[str, Any]) -> None:
    """Another program goes on behind what is settled."""
    if work.step.kind != "topic":
        another = asyncio.ensure_future(work.step.program(place))
        await work.check()
        another.cancel()
        await asyncio.wait([another])
        return
    async with work.bus.topic(work.step.name) as topic:
        acked = [
            int(await redis(queue, "HGET", queue.keys.acks, "g") or 0) for queue in topic.queues
        ]
        async with Reader(place, work.step.name) as reader:
            await work.check()
    begun = [(said[0], id, text) for said in worker.said if len(said) == 3 for id, text in said[1]]
    assert in_order([*begun, *reader.seen])
    assert {text for _, _, text in (*begun, *reader.seen)} == {f"k{n % 4}:{n}" for n in range(MANY)}
    assert [(partition, id) for partition, id, _ in reader.seen if id <= acked[partition]] == []


async def test_redis_killed_in_the_middle_of_every_step_costs_a_pause(fresh: Fresh) -> None:
    with EmbeddedRedis(aof=True) as server, Proxy(server.port) as proxy:
        some = [step for step in steps() if step.how != "late"]
        async with Bus(server.url) as bus:
            works = [Work(bus, step) for step in some]
            for work in works:
                await work.give(f"{fresh()}.")
            with held_at(proxy, some) as gates:
                running = [asyncio.ensure_future(step.program({"url": proxy.url})) for step in some]
                held = await stopped(gates)
                await asyncio.to_thread(server.kill)
                for each in held:
                    each.drop()
            await asyncio.to_thread(server.restart)
            for work in works:
                await work.check()
            assert [each for each in running if each.done()] == []
            for program in running:
                program.cancel()
            await asyncio.wait(running)
