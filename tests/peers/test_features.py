"""The table of what npm busmq offers and what it is called here: complete, and true."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import busmq_spark
from busmq_spark.bus.bus import Bus

ROOT = Path(busmq_spark.__file__).parents[1]
TABLE = (ROOT / "busmq_spark" / "bus" / "README.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## ([\w ]+)\n(.*?)(?=^## |\Z)", TABLE, re.MULTILINE | re.DOTALL))
LIB = ROOT / "tests" / "peers" / "node_modules" / "busmq" / "lib"
FILES = {
    "Bus": "bus",
    "Queue": "queue",
    "Channel": "channel",
    "Pubsub": "pubsub",
    "Persisted object": "persistify",
    "Service": "service",
}


@dataclass
class Shape:
    field: int = 0


def things() -> dict[str, Any]:
    """One object of each kind, by the name it has in the table."""
    bus = Bus("redis://localhost")
    made = {
        "queue": bus.queue("q"),
        "channel": bus.channel("c"),
        "news": bus.pubsub("p"),
        "record": bus.persist("r", Shape),
        "service": bus.service("s"),
    }
    return {"bus": bus, "record": bus.persist("r", Shape), "service": bus.service("s"), **made}


def offered(section: str) -> set[str]:
    """Public methods and events in the npm package's own source."""
    text = (LIB / f"{FILES[section]}.js").read_text("utf-8")
    methods = re.findall(r"^(?:\w+\.prototype|  object)\.([a-z]\w*) = ", text, re.MULTILINE)
    events = re.findall(r"(?:_this|this)\.emit\(['\"]([a-z:]+)['\"]", text)
    return {*methods, *events} - {"federatedMethods"}


@pytest.mark.peer
@pytest.mark.parametrize("section", FILES)
def test_every_method_and_event_of_the_npm_package_stands_in_the_table(
    npm: None, section: str
) -> None:
    found = offered(section)
    assert len(found) > 5
    theirs = " ".join(
        line.split("|")[1] for line in SECTIONS[section].splitlines() if line.startswith("| ")
    )
    missing = {
        name for name in found if not re.search(rf"`[^`]*\b{re.escape(name)}\b[^`]*`", theirs)
    }
    assert missing == set()


def test_every_name_in_the_table_exists() -> None:
    known = things()
    ours = [
        line.split("|")[2]
        for section in SECTIONS.values()
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    named = re.findall(r"\b(bus|queue|channel|news|record|service)\.(\w+)", " ".join(ours))
    assert len(named) > 40
    assert [f"{kind}.{name}" for kind, name in named if not hasattr(known[kind], name)] == []


def test_every_test_named_in_the_table_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TABLE)
    rows = [
        line
        for section in SECTIONS.values()
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| npm")
    ]
    assert all("::test_" in row for row in rows)
    for path, test in named:
        functions = {
            n.name
            for n in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
            if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert test in functions, f"{path} has no {test}"
