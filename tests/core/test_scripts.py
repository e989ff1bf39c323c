"""How a Lua script is put together from its file and its includes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import busmq_spark
from busmq_spark.queue.scripts import ROOMS, find_file, load, script_names

NAMES = sorted(script_names())
_DEFINED = re.compile(r"^ *local function (\w+)")
INCLUDED = {
    found[1]
    for room in ROOMS
    for file in Path(busmq_spark.__path__[0], room, "lua", "include").glob("*.lua")
    for line in file.read_text("utf-8").splitlines()
    if (found := _DEFINED.match(line))
}


def test_no_two_scripts_have_one_name() -> None:
    files = [
        str(file.relative_to(folder))
        for room in ROOMS
        for folder in [Path(busmq_spark.__path__[0], room, "lua")]
        for file in folder.rglob("*.lua")
    ]
    assert len({*files}) == len(files) > len(NAMES) == len({*NAMES})
    assert [file for file in files if not find_file(file).is_file()] == []


@pytest.mark.parametrize("name", NAMES)
def test_each_function_that_a_script_calls_is_there_before_it_and_once(name: str) -> None:
    there: set[str] = set()
    inside: set[str] = set()
    for line in load(name).text.splitlines():
        code = line.partition(" -- ")[0]
        if not line.startswith(" "):
            inside = set()
        if found := _DEFINED.match(code):
            assert found[1] not in there | inside
            (inside if line.startswith(" ") else there).add(found[1])
        assert INCLUDED & set(re.findall(r"(?<![\w.:])(\w+)\(", code)) <= there | inside, line


def test_an_include_has_its_includes_and_one_inside_a_function_ends_with_it() -> None:
    text = load("push").text
    assert [
        name
        for name in ("sizes", "opened", "append", "drop")
        if text.count(f"\nlocal function {name}(") != 1
    ] == []
    assert text.count("\nlocal function find(") == 0
    assert text.count("\n  local function find(") == 2, "in waiting and in drop"
    assert "@include" not in text
