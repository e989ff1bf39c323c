"""Confirmed pushes under fail-overs: ``python -m tests.soak.durability``, a part of ``make soak``.

Each round starts servers, pushes durably from many tasks, does one fault that the seed chooses, and
goes on until all queues confirm again. Then each confirmed value must be stored once, at its id.
The control, which must lose pushes, is ``tests/bus/test_durability_failover.py``: it holds the
bytes of the replica, since a kill on one machine loses nothing. The exit code is 1 after a
violation.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter

from busmq_spark import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis, EmbeddedSentinel
from busmq_spark.errors import BusError, TooFewReplicas

QUEUES, AFTER_FAULT, ROUND_S = 6, 20, 180.0
FAULTS = ("kill", "kill-twice", "switch", "stop-replicas", "stop-master", "empty-replica")
Servers = EmbeddedSentinel | EmbeddedCluster


def master_of(servers: Servers) -> EmbeddedRedis:
    return servers.master if isinstance(servers, EmbeddedSentinel) else servers.masters[0]


def switch(servers: Servers) -> None:
    """Ask for an orderly fail-over."""
    if isinstance(servers, EmbeddedSentinel):
        servers.sentinels[0].command("SENTINEL", "FAILOVER", servers.name)
    else:
        servers.replicas[0].command("CLUSTER", "FAILOVER")


def kill(servers: Servers) -> None:
    """Kill a master, and start it again when its successor is there."""
    dead = master_of(servers)
    dead.kill()
    servers.wait_healthy()
    dead.restart()
    servers.wait_healthy()


def do_fault(fault: str, servers: Servers, chance: random.Random) -> None:
    stopped: list[EmbeddedRedis] = []
    match fault:
        case "kill":
            kill(servers)
        case "kill-twice":
            kill(servers)
            kill(servers)
        case "switch":
            switch(servers)
        case "stop-replicas":
            stopped = list(servers.replicas)
        case "stop-master":
            stopped = [master_of(servers)]
        case "empty-replica":
            gone = chance.choice(servers.replicas)
            gone.kill()
            gone.restart()
    for server in stopped:
        server.pause()
    if stopped:
        time.sleep(chance.uniform(0.2, 6))  # the length of the fault
    for server in stopped:
        server.resume()
    servers.wait_healthy()


class Producer:
    """Pushes to one queue, and the ledger of what was confirmed."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.confirmed, self.errors = queue, dict[int, str](), Counter[str]()
        self.pushed, self.last_error = 0, ""

    async def run(self, over: asyncio.Event) -> None:
        after = 0
        while after < AFTER_FAULT:
            values = [f"{self.queue.name} {self.pushed + n}" for n in range(1 + self.pushed % 5)]
            self.pushed += len(values)
            try:
                ids = await self.queue.push_many(values)
            except BusError as error:
                if isinstance(error, TooFewReplicas):
                    self.pushed -= len(values)  # it says that none was pushed: the same once more
                self.errors[error.code], self.last_error = self.errors[error.code] + 1, str(error)
                await asyncio.sleep(0.05)
                continue
            self.confirmed.update(zip(ids, values, strict=True))
            after += over.is_set()

    async def violations(self) -> list[str]:
        found = [m async for m in self.queue.consume(remove=False, max=await self.queue.count())]
        there = {message.id: message.text for message in found}
        lost = [id for id, value in self.confirmed.items() if there.get(id) != value]
        twice = len(found) - min(len(there), len({message.text for message in found}))
        text = f"{self.queue.name}: {len(lost)} confirmed lost, {twice} ids or values twice"
        return [text] if lost or twice else []


async def run_round(servers: Servers, fault: str, chance: random.Random) -> tuple[int, list[str]]:
    layout = "sentinel" if isinstance(servers, EmbeddedSentinel) else "cluster"
    there = Bus(servers.urls, layout=layout, durability="replicated", durability_timeout_s=1)
    async with there as bus, asyncio.timeout(ROUND_S):
        producers = [Producer(bus.queue(f"q{n}")) for n in range(QUEUES)]
        for each in producers:
            await each.queue.attach()
        over = asyncio.Event()
        tasks = [asyncio.create_task(each.run(over)) for each in producers]
        await asyncio.sleep(chance.uniform(0.05, 0.5))  # the moment of the fault
        await asyncio.to_thread(do_fault, fault, servers, chance)
        over.set()
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            print("  ", *{each.last_error for each in producers}, sep="\n   ")
            raise
        found = [text for each in producers for text in await each.violations()]
        errors = sum((each.errors for each in producers), Counter[str]())
        print("  ", dict(errors), flush=True)
        return sum(len(each.confirmed) for each in producers), found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    bad = 0
    for number in range(given.rounds):
        chance = random.Random(f"{given.seed}/{number}")
        fault, kind = FAULTS[number % len(FAULTS)], chance.choice(("sentinel", "cluster"))
        made: Servers = EmbeddedSentinel(2, 3) if kind == "sentinel" else EmbeddedCluster(3, 1)
        with made as servers:
            try:
                confirmed, found = asyncio.run(run_round(servers, fault, chance))
            except TimeoutError:
                confirmed, found = 0, [f"not over after {ROUND_S:g} s"]
        bad += bool(found)
        print(f"round {number} seed {given.seed} {kind} {fault}: {confirmed} confirmed", *found)
    print(f"{given.rounds} rounds, {bad} with a violation")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
