"""Types of the synchronous API, made from those of the asyncio objects:

    python -m tests.sync_stub

Each class of CLASSES gets a twin in ``bus/sync_types.pyi``: what is awaited is returned, an
asynchronous iterator is an iterator, and an object of the bus is its twin.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
import typing
from collections import abc
from collections.abc import Iterator
from pathlib import Path

from busmq_spark.bus.base_persisted_object import PersistedDataclass, PersistedDict
from busmq_spark.bus.bus import Bus
from busmq_spark.bus.channel import Channel
from busmq_spark.bus.deferred_federation import MirrorHandle
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.jobs.jobs import Jobs
from busmq_spark.bus.jobs.worker import Worker, WorkerGroup
from busmq_spark.bus.pubsub import Pubsub
from busmq_spark.bus.queue.ordered_group import OrderedGroup
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.queue.shared_group import SharedGroup
from busmq_spark.bus.service import Service
from busmq_spark.bus.topics.member import Member
from busmq_spark.bus.topics.topic import Topic, TopicsConsumer
from busmq_spark.bus.topics.topic_jobs import TopicJobs, TopicWorker

ROOT = Path(__file__).parents[1]
STUB = ROOT / "busmq_spark" / "bus" / "sync_types.pyi"
CLASSES: list[type] = [
    *(Bus, Queue, OrderedGroup, SharedGroup, Topic, Member, TopicsConsumer, Channel, Pubsub),
    *(Service, PersistedDict, PersistedDataclass, Jobs, TopicJobs, Job, Worker, TopicWorker),
    *(WorkerGroup, MirrorHandle),
]
TWINS = {cls.__name__: f"Sync{cls.__name__}" for cls in CLASSES} | {
    "Consumption": "Iterator[SyncMessage]",
    "ChannelMessages": "Iterator[SyncMessage]",
    "JobOutcomeIterator": "Iterator[JobOutcome]",
}
BASES = {"PersistedDict": "Mapping[str, Any]", "Job": "Mapping[str, Any]"} | {
    "PersistedDataclass": "Generic[D]"
}
FIELDS = {
    "Queue": "name: str; pushed: int; consumed: int; handed: int; ttl_s: int; discoverable: bool",
    "Topic": "name: str",
    "Channel": "name: str; local: str; remote: str",
    "Pubsub": "name: str; most: int",
    "Service": "name: str",
    "OrderedGroup": "name: str",
    "SharedGroup": "name: str; tries: int; lease_s: float",
    "Member": "name: str",
    "TopicsConsumer": "name: str",
    "Jobs": "queue: SyncQueue",
    "PersistedDict": "name: str; existed: bool",
    "PersistedDataclass": "name: str; value: D; existed: bool",
    "Job": "id: str; tries: int",
    "Bus": "token: str",
}
"""Attributes that are set where no annotation stands."""
INSIDE = {
    "servers",
    "Bus.release",
    "put",
    "translate",
    "Queue.begin",
    "life",
    "Queue.run",
    "Topic.run",
    "check_life",
    "note_time",
    "server",
    "offer",
    "parts",
    "in_redis",
    "unsaved_fields",
    "finish",
    "spare_caller",
    "write",
    "SharedGroup.take",
}
"""Methods for other objects of the bus."""
DUNDERS = {"__getitem__", "__setitem__", "__iter__", "__aiter__", "__len__"}
AWAITED, ITERATED = {"Coroutine", "Awaitable", "Future"}, {"AsyncIterator", "AsyncGenerator"}
HOMES: dict[str, str] = {}
"""Imports of names that are an attribute of a module where they are used."""
HEAD = '''# Made by: python -m tests.sync_stub
"""Types of the objects of ``Bus.sync``: those of the asyncio objects, without awaiting."""
'''
COMMON = """
class SyncMessage(Message):
    def ack(self) -> None: ...  # type: ignore[override]

class RunningTask:
    def done(self) -> bool: ...
    def result(self) -> Any: ...

class SyncHandle:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def close(self) -> None: ...

"""


def definition(cls: type) -> ast.ClassDef:
    tree = ast.parse(Path(inspect.getfile(cls)).read_text("utf-8"))
    return next(
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )


def ours(cls: type) -> list[type]:
    """The class, and those of ours that it stands on."""
    return [each for each in cls.__mro__ if each.__module__.startswith("busmq_spark")]


class Synchronous(ast.NodeTransformer):
    """Makes the type that a synchronous caller sees."""

    def __init__(self, cls: type, event: str) -> None:
        self.event, self.file, self.is_result = event, inspect.getfile(cls), False

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if module := modules(self.file).get(ast.unparse(node.value)):
            HOMES[node.attr] = f"from {module} import {node.attr}"
        return ast.Name(node.attr)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        twin = self.event if node.id == "EventName" else TWINS.get(node.id, node.id)
        if self.is_result and node.id == "Message":  # an argument may be any message
            twin = "SyncMessage"
        return ast.parse(twin, mode="eval").body

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = ast.unparse(node.value).rpartition(".")[2]
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name in AWAITED:
            return self.visit(items[-1])
        if name in ITERATED:
            return ast.Subscript(ast.Name("Iterator"), self.visit(items[0]))
        if name == "Task":
            return ast.Name("RunningTask")
        if name == "Callable":  # a handler gets what the asyncio API gives it
            return ast.Subscript(node.value, ast.Tuple([items[0], self.visit(items[1])]))
        return self.generic_visit(node)


def modules(file: str) -> dict[str, str]:
    """The modules that a file names, by the name that they have there."""
    return {
        each.asname or each.name: f"{node.module}.{each.name}"
        for node in ast.walk(ast.parse(Path(file).read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        for each in node.names
        if each.name.islower()
    }


def signature(cls: type, node: ast.FunctionDef | ast.AsyncFunctionDef, event: str) -> str:
    """A method without its body."""
    given, change = node.args, Synchronous(cls, event)
    for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg):
        if each is not None and each.annotation is not None:
            each.annotation = change.visit(each.annotation)
    given.defaults = [ast.Constant(...) for _ in given.defaults]
    given.kw_defaults = [each and ast.Constant(...) for each in given.kw_defaults]
    change.is_result = True
    result = ast.unparse(change.visit(node.returns)) if node.returns else "None"
    name = node.name.replace("__aiter", "__iter")
    marks = [ast.unparse(each) for each in node.decorator_list]
    shown = "".join(f"    @{mark}\n" for mark in marks if mark in ("property", "overload"))
    return f"{shown}    def {name}({ast.unparse(given)}) -> {result}: ...\n"


def methods(cls: type) -> Iterator[str]:
    """The public methods of the class and its bases."""
    seen: set[str] = set()
    events = [
        ast.unparse(base.slice)
        for each in ours(cls)
        for base in definition(each).bases
        if isinstance(base, ast.Subscript) and ast.unparse(base.value) == "Emitter"
    ]
    for each in ours(cls):
        found: dict[str, list[str]] = {}
        for node in definition(each).body:
            if (
                not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                or node.name in seen | INSIDE | {"aclose", "start" if cls is Bus else ""}
                or f"{cls.__name__}.{node.name}" in INSIDE
                or (node.name.startswith("_") and node.name not in DUNDERS)
            ):
                continue
            found.setdefault(node.name, []).append(signature(each, node, (events or ["str"])[0]))
        for several in found.values():  # of overloads, the last is the body
            yield from several[:-1] if len(several) > 1 else several
        seen |= found.keys()


def imports(text: str) -> str:
    """The imports of the names that a text uses."""
    used = {
        node.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    made = set(re.findall(r"^class (\w+)", text, re.M)) | set(dir(builtins))
    lines = set()
    for name in sorted(used - made):
        if name in ("TracebackType",):
            lines.add("from types import TracebackType")
        elif name in abc.__all__:
            lines.add(f"from collections.abc import {name}")
        elif name in typing.__all__:
            lines.add(f"from typing import {name}")
        else:
            lines.add(HOMES.get(name) or home(name))
    return "\n".join(sorted(lines))


def home(name: str) -> str:
    """The import of a name, as a module of the bus has it."""
    for cls in dict.fromkeys(each for one in CLASSES for each in ours(one)):
        tree = ast.parse(Path(inspect.getfile(cls)).read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    if (each.asname or each.name) == name:
                        return f"from {node.module} import {ast.unparse(each)}"
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets += [node.target] if isinstance(node, ast.AnnAssign) else []
            if getattr(node, "name", "") == name or any(
                isinstance(each, ast.Name) and each.id == name for each in targets
            ):
                return f"from {cls.__module__} import {name}"
    raise LookupError(name)


def current() -> str:
    """The text that the stub should have."""
    out = [COMMON]
    for cls in CLASSES:
        name = cls.__name__
        above = ", ".join(["SyncHandle", *filter(None, [BASES.get(name)])])
        out.append(f"class Sync{name}({above}):\n")
        out += [f"    {each}\n" for each in FIELDS.get(name, "").split("; ") if each]
        out += ["    def start(self) -> Self: ...\n"] if cls is Bus else []
        out += [*methods(cls), "\n"]
    text = "".join(out)
    text = f"{HEAD}\n{imports(text)}\n{text}"
    for words in (["check", "--fix", "-q", "--select", "I,F401"], ["format", "-q"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(STUB), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    STUB.write_text(current(), "utf-8")
