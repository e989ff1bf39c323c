"""The migration pages name calls that exist, with arguments that they take."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, is_typeddict

import pytest

import busmq_spark
from busmq_spark.bus.base_persisted_object import PersistedDict
from busmq_spark.bus.bus import Bus, QueueKeywords
from busmq_spark.bus.channel import Channel, ChannelKeywords
from busmq_spark.bus.deferred_federation import MirrorKeywords
from busmq_spark.bus.emitter import Emitter
from busmq_spark.bus.event_routing import EventAttributes
from busmq_spark.bus.jobs.job import Job
from busmq_spark.bus.jobs.jobs import Jobs
from busmq_spark.bus.jobs.worker import Worker, WorkerGroup, WorkerKeywords
from busmq_spark.bus.pubsub import Pubsub
from busmq_spark.bus.queue.base_consumption import ConsumeKeywords
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.queue.shared_group import SharedGroup, SharedGroupKeywords
from busmq_spark.bus.service import Request, ServeKeywords, Service
from busmq_spark.bus.topics.member import Member, OwnedPartitionMessages
from busmq_spark.bus.topics.topic import Topic, TopicsConsumer
from busmq_spark.bus.topics.topic_jobs import TopicJobs
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.serve.server import FederationServer
from busmq_spark.outbox.outbox import Outbox
from busmq_spark.outbox.target_opener import OutboxKeywords

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "docs" / "migrate-hfx-bus.md",
    ROOT / "docs" / "migrate-raintank-queue.md",
    ROOT / "docs" / "migrate-resolute.md",
    ROOT / "busmq_spark" / "bus" / "README.md",
]
TYPES: dict[str, type] = {
    "bus": Bus, "queue": Queue, "topic": Topic, "member": Member, "consumer": TopicsConsumer,
    "batch": OwnedPartitionMessages, "jobs": Jobs, "job": Job, "worker": Worker,
    "workers": WorkerGroup, "group": SharedGroup, "channel": Channel, "news": Pubsub,
    "record": PersistedDict, "service": Service, "request": Request, "outbox": Outbox,
}  # fmt: skip
"""The type of each name that the pages use."""
CLASSES: dict[str, type] = {
    "Bus": Bus, "Outbox": Outbox, "FederationServer": FederationServer, "Keyring": Keyring,
    "Rejected": busmq_spark.Rejected, "Released": busmq_spark.Released,
}  # fmt: skip
RESULTS = {
    (Bus, "queue"): Queue, (Bus, "topic"): Topic, (Bus, "jobs"): Jobs, (Bus, "channel"): Channel,
    (Bus, "pubsub"): Pubsub, (Bus, "service"): Service, (Bus, "persist"): PersistedDict,
    (Bus, "consumer"): TopicsConsumer, (Bus, "workers"): WorkerGroup, (Queue, "group"): SharedGroup,
    (Topic, "group"): Member, (Topic, "jobs"): TopicJobs, (Jobs, "new"): Job, (Jobs, "get"): Job,
}  # fmt: skip
KEYWORDS = {
    each.__name__: set(each.__annotations__)
    for each in (
        QueueKeywords,
        ChannelKeywords,
        ConsumeKeywords,
        WorkerKeywords,
        ServeKeywords,
        SharedGroupKeywords,
        OutboxKeywords,
        MirrorKeywords,
        EventAttributes,
    )
    if is_typeddict(each)
}  # fmt: skip
LOOSE = {
    Bus.jobs: KEYWORDS["QueueKeywords"],
    Queue.group: KEYWORDS["SharedGroupKeywords"],
}
"""Keywords of calls that take any, and check them."""
CALL = re.compile(rf"\b(?:{'|'.join((*TYPES, *CLASSES))})\b[.(]")


def codes(page: Path) -> Iterator[str]:
    """The code of the second column of each table."""
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("|") and not set(line) <= set("|- "):
            cell = re.split(r"(?<!\\)\|", line)[2]
            yield from re.findall(r"`([^`]+)`", cell)


SNIPPETS = [
    pytest.param(code, id=f"{page.stem}-{n}")
    for page in PAGES
    for n, code in enumerate(codes(page))
    if CALL.search(code)
]


def parsed(code: str) -> ast.Module:
    text = re.sub(r"…", "...", code).strip()
    for ending in ("", ": pass", "\nasync def handler(job): pass"):
        try:
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            found = compile(text + ending, code, "exec", flags)
        except SyntaxError:
            continue
        assert isinstance(found, ast.Module)
        return found
    pytest.fail(f"no Python: {code}")


@cache
def signature(owner: type, name: str) -> tuple[inspect.Signature, set[str] | None]:
    """The signature of a method, and the keywords that its ``**`` takes; None for no ``**``."""
    method = inspect.getattr_static(owner, name)
    made = isinstance(method, classmethod | staticmethod)
    method = method.__func__ if made else method
    found = inspect.signature(method)
    rest = [each for each in found.parameters.values() if each.kind is each.VAR_KEYWORD]
    if not rest or rest[0].annotation == "Never":
        named_only = [each for each in found.parameters.values() if each not in rest]
        return found.replace(parameters=named_only), None
    named = re.findall(r"Unpack\[(\w+)\]", str(rest[0].annotation))
    return found, KEYWORDS[named[0]] if named else LOOSE.get(method)


def check_call(owner: type, name: str, call: ast.Call) -> None:
    found, more = signature(owner, name)
    words = {each.arg: ... for each in call.keywords if each.arg is not None}
    listed = [each for each in call.args if not is_ellipsis(each)]
    if len(listed) < len(call.args):  # … stands for further arguments
        found.bind_partial(None, *listed, **words)
    else:
        found.bind(None, *call.args, **words)
    if more is not None:
        extra = words.keys() - found.parameters.keys()
        assert extra <= more, f"{owner.__name__}.{name} takes no {sorted(extra - more)}"


def is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def type_of(node: ast.AST) -> Any:
    """The type of an expression, as far as the pages tell; what it names is there."""
    if isinstance(node, ast.Await):
        return type_of(node.value)
    if isinstance(node, ast.Name):
        return TYPES.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = CLASSES.get(node.value.id) if isinstance(node.value, ast.Name) else None
        owner = owner or type_of(node.value)
        if owner is not None:
            ours = [base for base in owner.__mro__ if base.__module__.startswith("busmq")]
            there = hasattr(owner, node.attr)
            there = there or any(f"self.{node.attr}" in inspect.getsource(base) for base in ours)
            assert there, f"{owner.__name__} has no {node.attr}"
        return None
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            owner = CLASSES.get(node.func.id)
            if owner is not None:
                check_call(owner, "__init__", node)
            return owner
        if isinstance(node.func, ast.Attribute):
            type_of(node.func)
            value = node.func.value
            owner = CLASSES.get(value.id) if isinstance(value, ast.Name) else None
            owner = owner or type_of(value)
            if owner is not None:
                check_call(owner, node.func.attr, node)
            over = any(each.arg == "topic" for each in node.keywords)
            found = RESULTS.get((owner, node.func.attr))
            return TopicJobs if found is Jobs and over else found
    return None


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_call_of_a_page_exists_and_takes_its_arguments(code: str) -> None:
    for node in ast.walk(parsed(code)):
        if isinstance(node, ast.Call | ast.Attribute):
            try:
                type_of(node)
            except (TypeError, AttributeError) as error:
                pytest.fail(f"{code}: {error}")


def test_the_pages_have_calls_to_check() -> None:
    assert len(SNIPPETS) > 120


def test_each_event_that_the_npm_page_names_is_emitted() -> None:
    events = {
        event for each in (*TYPES.values(),) if issubclass(each, Emitter) for event in each.events
    }
    page = PAGES[3].read_text("utf-8")
    named = set(
        re.findall(
            r"event `(\w+)[`(]",
            " ".join(line.split("|")[2] for line in page.splitlines() if line.startswith("|")),
        )
    )
    assert named
    assert named - events - {"reconnecting", "reconnected"} == set()


def test_each_block_of_a_page_is_a_program_that_the_tests_run() -> None:
    """test_docs.py runs the Python ones; JavaScript is that of the other package."""
    for page in (*PAGES[:3], ROOT / "docs" / "kafka.md"):
        kinds = set(re.findall(r"^```(\w+)$", page.read_text("utf-8"), re.MULTILINE))
        assert "python" in kinds
        assert kinds <= {"python", "js"}
