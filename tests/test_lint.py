"""``make lint`` as a test, so that ``make test`` proves style, format and types too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "."], id="style"),
        pytest.param(["ruff", "format", "--check", "."], id="format"),
        pytest.param(["mypy"], id="types"),
    ],
)
def test_lint_finds_nothing(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=880,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("folder", "pattern"), [("jvm-shim/src", "*.java"), ("busmq_spark", "*.lua")]
)
def test_no_line_of_java_or_lua_has_more_than_100_characters(folder: str, pattern: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / folder).rglob(pattern)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > 100
    ]
    assert long == []
