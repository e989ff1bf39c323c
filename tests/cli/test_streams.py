"""Each command with streams that are closed, narrow or poor: no traceback, a documented exit code.
The commands are found, so a new one is tried, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from busmq_spark.cli_app import FAILED, OK, USAGE, app
from tests.cli import forked
from tests.cli.conftest import environment

ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "COLUMNS": "1", "LINES": "1", "TERM": ""}
PLACES: dict[str, tuple[tuple[int, ...], bool, dict[str, str]]] = {
    "no streams": ((0, 1, 2), False, {}),
    "no stdin and stdout": ((0, 1), False, {}),
    "broken pipe": ((), True, {}),
    "one column of ASCII": ((), False, ASCII),
}
"""The closed streams, whether nobody reads stdout any more, and the environment."""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command and group."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


COMMANDS = list(commands(typer.main.get_command(app)))


def tried(words: list[str], url: str | None, place: str) -> int:
    """The exit code of a command without a traceback."""
    closed, pipe, settings = PLACES[place]
    code, out, error = forked.run(
        words,
        "größe\n".encode(),
        {**environment(url), **settings},
        closed=closed,
        pipe=pipe,
    )
    assert b"Traceback" not in out + error, error
    assert b"Exception ignored" not in error, error
    return code


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "busmq")
def test_no_stream_of_a_command_brings_a_traceback(command: tuple[str, ...]) -> None:
    for place in PLACES:
        assert tried([*command, "--help"], None, place) == OK
    assert tried([*command, "--no-such-é\u2028"], None, "one column of ASCII") == USAGE


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", ["queues", "topics", "info", "push", "dead list"])
def test_no_stream_of_a_command_that_asks_redis_brings_a_traceback(
    redis_url: str, command: str, place: str
) -> None:
    named = ["küche\u2028"] if command in ("push", "dead list") else []
    assert tried([*command.split(), *named], redis_url, place) in (OK, FAILED, USAGE)


def test_a_file_that_cannot_be_written_is_an_error_with_its_name() -> None:
    code, _, error = forked.run(
        ["token", "--secrets", os.devnull + "/x", "--name", "a"], b"", environment(None)
    )
    assert code in (FAILED, USAGE)
    assert b"Traceback" not in error
