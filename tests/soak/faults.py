"""What may happen to a query. Each fault does its harm, ends it or leaves it to ``Site.calm``, and
lets ``Run`` see to the rest.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from busmq_spark.queue import queue as queues
from busmq_spark.queue.command_generators import command
from busmq_spark.spark.java_runtime import find_jar
from tests.faults.process import DriverProcess
from tests.faults.proxy import Command
from tests.soak.machine import can_be_set
from tests.soak.mirror import mirror_killed, mirror_link_cut
from tests.soak.pause import pause
from tests.soak.run import KINDS, QUEUES, VARIANTS, Run
from tests.soak.shared import group_worker_answers_late, group_worker_killed, group_worker_stopped
from tests.soak.topic import topic_grown

FEDERATED = ("federation", "mirror")
"""Kinds of rounds that use the federation server."""
HELD_S = 60.0
"""A command that does not come for so long will not come: this kind of query does not send it."""


def some_command(run: Run) -> tuple[str, Callable[[Command], bool], int]:
    """A point in the life of a batch: its name, the command that marks it, and how many of those
    pass before.
    """
    name = run.chance.choice(("stage", "record", "commit", "ack_to", "state", "range"))
    skip = run.chance.randrange(4) if name in ("stage", "commit", "range") else 0
    if name == "range":
        return (
            name,
            lambda command: command.name == "LRANGE" and command.keys[0].endswith(":messages"),
            skip,
        )
    if name == "stage":
        return (
            name,
            lambda command: (
                command.name in ("stage", "RPUSHX", "push") and "out-" in command.keys[0]
            ),
            skip,
        )
    return name, lambda command: command.name == name, skip


# What costs time and no message


def driver_killed(run: Run) -> str:
    pause(run.chance, 0, 3)
    run.lose_driver()
    return ""


def driver_killed_at_a_command(run: Run) -> str:
    """The command arrives when its sender is dead, or never, or its reply is what gets lost."""
    name, matches, skip = some_command(run)
    reply, late = run.chance.random() < 0.3, run.chance.random() < 0.5
    gate = run.site.proxy.hold(matches, reply=reply, skip=skip)
    run.feed(500)
    held = gate.poll(HELD_S)
    gate.open()
    run.lose_driver()
    if held is None:
        return f"{name} never came"
    if late and not reply:
        run.begin()
        pause(run.chance, 0, 5)
        held.release()
    else:
        held.drop()
    return f"{name}+{skip}{' reply' if reply else ''}{' late' if late else ''}"


def packet_late(run: Run) -> str:
    """The link breaks for its sender alone; what was under way arrives after the repetition."""
    name, matches, skip = some_command(run)
    gate = run.site.proxy.hold(matches, skip=skip)
    run.feed(500)
    held = gate.poll(HELD_S)
    gate.open()
    if held is None:
        return f"{name} never came"
    held.cut()
    pause(run.chance, 0, 4)
    held.release()
    return f"{name}+{skip}"


def worker_killed(run: Run) -> str:
    """A Python worker or an executor; Spark in one process gives up at the first."""
    pause(run.chance, 0, 2)
    assert run.driver is not None
    victims = []
    for process in run.driver.processes():
        with suppress(psutil.Error):
            words = " ".join(process.cmdline())
            executor = "CoarseGrainedExecutorBackend" in words and "SparkSubmit" not in words
            if executor or ("pyspark" in words and "daemon" in words):
                victims.append(process)
    run.engine_fails = True
    with suppress(psutil.Error, IndexError):
        run.chance.choice(victims).kill()
    return f"1 of {len(victims)}"


def redis_killed(run: Run) -> str:
    for _ in range(run.chance.randint(1, 3)):
        run.site.server.kill()
        pause(run.chance, 0, 2)
        run.site.server.restart()
        pause(run.chance, 0, 2)
    return ""


def redis_stalled(run: Run) -> str:
    run.site.server.pause()
    pause(run.chance, 0.5, 13)
    run.site.server.resume()
    return ""


def scripts_flushed(run: Run) -> str:
    for _ in range(5):
        run.site.server.command("SCRIPT", "FLUSH")
        run.site.server.command("CLIENT", "KILL", "TYPE", "normal")
        pause(run.chance, 0, 1)
    return ""


def links_cut(run: Run) -> str:
    line = run.site.far if run.kind in FEDERATED and run.chance.random() < 0.5 else run.site.line
    for _ in range(run.chance.randint(1, 12)):
        line.cut()
        pause(run.chance, 0, 0.7)
    return ""


def links_silent(run: Run) -> str:
    """The cable is out: nothing passes on the connections there are, and neither end is closed."""
    (run.site.far if run.kind in FEDERATED else run.site.line).hush()
    pause(run.chance, 0, 5)
    return ""


def links_slow(run: Run) -> str:
    line = run.site.far if run.kind in FEDERATED and run.chance.random() < 0.5 else run.site.line
    line.delay_s, line.bytes_per_s = (
        run.chance.choice((0.01, 0.05, 0.1)),
        run.chance.choice((None, 200_000.0)),
    )
    run.feed(500)
    pause(run.chance, 1, 8)
    line.delay_s, line.bytes_per_s = 0.0, None
    return ""


def redis_full(run: Run) -> str:
    used = int(
        str(run.site.server.command("INFO", "memory")).partition("used_memory:")[2].split()[0]
    )
    run.feed(1000)
    run.site.server.command("CONFIG", "SET", "maxmemory", str(used))
    pause(run.chance, 0, 6)
    run.site.server.command("CONFIG", "SET", "maxmemory", "0")
    return ""


def server_killed(run: Run) -> str:
    """The federation server."""
    run.site.serving.kill()
    pause(run.chance, 0, 4)
    run.site.serve()
    return ""


def second_driver(run: Run) -> str:
    """Another driver goes on with the same checkpoint, shared or copied, while the first still
    runs.
    """
    folder, copied = (
        run.checkpoint.folder,
        run.chance.random() < 0.5 and run.checkpoint.planned >= 0,
    )
    other = run.folder / "copied"
    if copied:
        with suppress(shutil.Error):  # Spark removes a file now and then
            shutil.copytree(folder, other)
    first, run.driver = run.driver, None
    environment = run.site.machines["spark"].environment
    with DriverProcess(
        run.folder / "second", run.master, live=run.kind == "live", more=environment
    ) as run.driver:
        run.checkpoint.folder = other if copied else folder
        run.begin()
        run.feed(500)
        pause(run.chance, 0, 6)
        run.lose_driver()
    run.checkpoint.folder, run.driver = folder, first
    run.engine_fails = True  # Spark's own words when two share a checkpoint
    return "copied" if copied else "shared"


def power_lost(run: Run) -> str:
    """Of the driver's machine. The product's manager has synced all that it has spoken of."""
    pause(run.chance, 0, 3)
    run.lose_driver()
    folder = run.checkpoint.folder
    lost = run.site.machines["spark"].cut_power(folder, run.chance) if folder.exists() else 0
    run.feed(300)
    return f"{lost} changes"


def clock_set(run: Run) -> str:
    """Of the drivers, of the federation server; that of Redis only back, for ahead it ends what has
    a ttl.
    """
    name = run.chance.choice(
        ("spark", "redis", "serve") if run.kind == "federation" else ("spark", "redis")
    )
    seconds = run.chance.choice(
        (-86_400, -3600) if name == "redis" else (-86_400, -3600, -2, 3600, 86_400)
    )
    run.site.machines[name].set_clock(seconds)
    run.feed(500)
    return f"{name} {seconds:+} s"


# What may cost messages, if an error reports it


def queue_closed(run: Run) -> str:
    run.bus.close(run.source)
    pause(run.chance, 0, 2)
    return ""


def queue_created_again(run: Run) -> str:
    run.bus.close(run.source)
    run.feed(run.chance.randint(1, 900))
    return ""


def queue_flushed(run: Run) -> str:
    run.feed(500)
    run.bus.link.run(queues.flush(run.bus.keys(run.source)))
    return ""


def messages_taken(run: Run) -> str:
    run.feed(500)
    run.bus.link.run(
        queues.pop(
            run.bus.keys(run.source), reliable=False, ttl_s=3600, most=run.chance.randint(1, 300)
        )
    )
    return ""


def power_lost_unsynced(run: Run) -> str:
    """With Spark's own manager, which syncs nothing: what the sink has not synced may be gone, or
    be cut.
    """
    pause(run.chance, 0, 3)
    run.lose_driver()
    last, before, lost = run.checkpoint.planned, _sizes(run), 0
    if run.checkpoint.folder.exists():
        lost = run.site.machines["spark"].cut_power(run.checkpoint.folder, run.chance)
    cut = any(before[file] != size for file, size in _sizes(run).items() if file in before)
    if cut:
        run.unreadable = run.engine_fails = True
    run.feed(300)
    return f"{lost} changes, batch {last} to {run.checkpoint.planned}{', files cut' if cut else ''}"


def _sizes(run: Run) -> dict[Path, int]:
    return {
        file: file.stat().st_size for file in run.checkpoint.folder.rglob("*") if file.is_file()
    }


def checkpoint_restored(run: Run) -> str:
    """From a copy some batches old."""
    copy = run.folder / "backup"
    with suppress(shutil.Error):
        shutil.copytree(run.checkpoint.folder, copy)
    before = run.checkpoint.planned
    for _ in range(3):
        run.feed(700)
        pause(run.chance, 0.5, 2)
    now = run.checkpoint.planned
    run.lose_driver()
    shutil.rmtree(run.checkpoint.folder)
    if copy.exists():
        copy.rename(run.checkpoint.folder)
    run.feed(300)
    return f"{now} to {before}"


def redis_restored(run: Run) -> str:
    """From a copy some seconds old: what was pushed, appended and acked since then is gone, or
    there again.
    """
    server, copy = run.site.server, run.folder / "redis"
    copy.mkdir(parents=True, exist_ok=True)
    for file in server.folder.glob("appendonly*"):
        (shutil.copytree if file.is_dir() else shutil.copy)(file, copy / file.name)
    for _ in range(run.chance.randint(1, 3)):
        run.feed(700)
        pause(run.chance, 0, 2)
    last = run.fed[run.source] - 1
    run.until(lambda: last in run.arrived(run.source), "messages that the copy lacks have arrived")
    server.kill()
    for file in server.folder.glob("appendonly*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    for file in copy.iterdir():
        shutil.move(file, server.folder / file.name)
    server.restart()
    run.repeats = True
    return ""


def redis_clock_ahead(run: Run) -> str:
    """Behind the ttl of the source, and of what is staged."""
    seconds = run.chance.choice((7200, 90_000))
    run.feed(500)
    run.site.machines["redis"].set_clock(seconds)
    return f"{seconds} s"


def sink_closed(run: Run) -> str:
    """By others, as npm busmq or we close a queue. What it held counts as arrived."""
    run.feed(1000)
    pause(run.chance, 0, 1)
    keys, ours = run.bus.keys(run.out), run.chance.random() < 0.5
    names = keys.all if ours else keys.peer_keys
    text = (
        "local held = redis.call('LRANGE', KEYS[2], 0, -1) redis.call('DEL', unpack(KEYS)) return"
        " held"
    )
    run.bus.link.execute(command("PING"))
    held = run.bus.link.execute(command("EVAL", text, len(names), *names))
    run.taken += [int(value) for value in held[1::2]]
    return "by us" if ours else "by npm"


@dataclass(frozen=True)
class Fault:
    """``harms``: whether messages may be missing afterwards, if an error reports it; ``kinds``: of
    which rounds; ``own``: each has one of these.
    """

    do: Callable[[Run], str]
    harms: bool = False
    kinds: tuple[str, ...] = KINDS
    own: bool = False

    @property
    def name(self) -> str:
        return self.do.__name__.replace("_", " ")


BATCHES = ("python", "java", "federation", "topic", "shared")
SETTABLE = KINDS if can_be_set() else ()
SYNCED = SETTABLE if find_jar() else ()
FAULTS = [
    Fault(driver_killed),
    Fault(
        driver_killed_at_a_command, kinds=(*QUEUES, "topic", "shared")
    ),  # the sink of a mirror's round is not behind the proxy
    Fault(packet_late, kinds=BATCHES),
    Fault(worker_killed, kinds=("python", "java", "topic")),
    Fault(redis_killed),
    Fault(redis_stalled),
    Fault(scripts_flushed),
    Fault(links_cut),
    Fault(links_silent),
    Fault(links_slow),
    Fault(redis_full),
    Fault(server_killed, kinds=FEDERATED),
    Fault(second_driver, kinds=("python", "java", "topic")),
    Fault(power_lost, kinds=SYNCED),
    Fault(
        clock_set, kinds=tuple(kind for kind in SETTABLE if kind != "shared")
    ),  # a lease of a Redis that is set back lasts as much longer
    Fault(topic_grown, kinds=("topic",), own=True),
    Fault(group_worker_killed, kinds=("shared",), own=True),
    Fault(group_worker_stopped, kinds=("shared",), own=True),
    Fault(group_worker_answers_late, kinds=("shared",), own=True),
    Fault(mirror_killed, kinds=("mirror",), own=True),
    Fault(mirror_link_cut, kinds=("mirror",), own=True),
    Fault(queue_closed, harms=True, kinds=QUEUES),
    Fault(queue_created_again, harms=True, kinds=QUEUES),
    Fault(queue_flushed, harms=True, kinds=QUEUES),
    Fault(messages_taken, harms=True, kinds=QUEUES),
    Fault(sink_closed, harms=True, kinds=QUEUES),
    Fault(
        power_lost_unsynced,
        harms=True,
        kinds=tuple(kind for kind in BATCHES if kind in SETTABLE and kind in QUEUES),
    ),
    Fault(redis_restored, harms=True, kinds=QUEUES),
    Fault(redis_clock_ahead, harms=True, kinds=tuple(kind for kind in SETTABLE if kind in QUEUES)),
    Fault(checkpoint_restored, harms=True, kinds=("python", "java", "federation")),
]


def chosen(chance: random.Random, kind: str) -> list[Fault]:
    """The faults of one round: one to three, at most one of them harmful and that the last; those
    of a variant are its own or follow one.
    """
    harmless = [fault for fault in FAULTS if kind in fault.kinds and not fault.harms]
    harmful = [fault for fault in FAULTS if kind in fault.kinds and fault.harms]
    found = chance.choices(harmless, k=chance.randint(1, 3))
    if kind in VARIANTS:
        return [chance.choice([fault for fault in harmless if fault.own]), *found[1:]]
    if chance.random() >= 0.3:
        return found
    harm = chance.choice(harmful)
    # Its manager syncs nothing, in the whole round: what a power cut before it may leave is what it
    # is about itself.
    return [harm] if harm.do is power_lost_unsynced else [*found[:1], harm]
