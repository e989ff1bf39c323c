"""The page for programs of resolute names calls and commands that exist. Its programs run in
tests/test_docs.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.shared_group import SharedGroup
from busmq_spark.cli_app import app
from busmq_spark.outbox.outbox import Outbox, SyncOutbox

PAGE = Path(__file__).parents[2] / "docs" / "migrate-resolute.md"
ROWS = [
    line.strip("|").split("|")
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("| ")
]
OURS = "\n".join("|".join(row[1:]) for row in ROWS)
CALLS = sorted(set(re.findall(r"(?<![\w.])(outbox|bus|group)\.(\w+)\(", OURS)))
COMMANDS = sorted(set(re.findall(r"`busmq ((?:[a-z]+ ?)+)", OURS)))


@pytest.mark.parametrize(("thing", "name"), CALLS)
def test_a_call_of_the_tables_exists(thing: str, name: str) -> None:
    classes = {"outbox": (Outbox, SyncOutbox), "bus": (Bus,), "group": (SharedGroup,)}[thing]
    for each in classes:
        assert callable(getattr(each, name))


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_the_tables_exists(words: str) -> None:
    found = get_command(app)
    for word in words.split():
        found = getattr(found, "commands", {})[word]


def test_the_tables_are_read() -> None:
    assert ("group", "each") in CALLS
    assert "outbox purge " in COMMANDS
