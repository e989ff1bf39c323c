"""The README is true: its snippets and commands run, its tables are those of the code, and the tests it names exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from busmq_spark import options
from busmq_spark.embedded import RedisServer
from busmq_spark.federation.keyring import Keyring
from tests.jvm import module
from tests.peers.node import need

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
PROGRAMS = [body for kind, body in BLOCKS if kind == "python"]
COMMANDS = [line[2:].partition("    #")[0] for kind, body in BLOCKS if kind == "console" for line in body.splitlines() if line.startswith("$ ")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", PROGRAMS, ids=[f"program{i}" for i, _ in enumerate(PROGRAMS)])
def test_a_program_in_the_readme_runs_as_it_stands_in_any_order_and_again(program: str, tmp_path: Path) -> None:
    """In any order and again, since it leaves nothing that the next could find."""
    if "busmq-realtime" in program:
        need(module.missing())
        module.built()
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"three|\d+ large orders", done.stdout), done.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_programs_are_short_enough_to_be_read() -> None:
    assert PROGRAMS
    assert all(len(program.splitlines()) <= 24 for program in PROGRAMS)


def test_the_commands_of_the_readme_run_one_after_the_other() -> None:
    ours = [shlex.split(command) for command in COMMANDS if command.startswith("busmq ")]
    assert ours
    with RedisServer() as server:
        environ = {**os.environ, "BUSMQ_REDIS_URL": server.url}
        for words in ours:
            done = subprocess.run([sys.executable, "-m", "busmq_spark", *words[1:]], env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def test_the_secrets_of_the_readme_say_what_it_says_about_them(tmp_path: Path) -> None:
    [text] = [body for kind, body in BLOCKS if kind == "toml"]
    path = tmp_path / "secrets.toml"
    path.touch(mode=0o600)
    path.write_text(text)
    spark = Keyring.load(path).identify(tomllib.loads(text)["spark"]["secret"])
    assert spark is not None
    asked = [("read", "orders-new"), ("read", "orders-private-1"), ("write", "orders-new"), ("write", "results"), ("admin", "results")]
    assert [spark.may(verb, "queue", name) for verb, name in asked] == [True, False, False, True, False]


def test_the_command_that_serves_has_the_options_of_the_readme() -> None:
    [words] = [shlex.split(body) for kind, body in BLOCKS if kind == "sh"]
    assert words[:2] == ["busmq", "serve"]
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-m", "busmq_spark", "serve", "--help"], env=wide, capture_output=True, text=True, check=True)
    assert [word for word in words if word.startswith("--") and word not in done.stdout] == []


def test_other_commands_name_targets_and_extras_that_exist() -> None:
    makefile, project = (ROOT / "Makefile").read_text("utf-8"), (ROOT / "pyproject.toml").read_text("utf-8")
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:.*##", makefile, re.MULTILINE), command
        elif words[0] == "pip":
            for extra in re.findall(r"\[(.*?)\]", words[2])[0].split(","):
                assert re.search(rf"^{extra} = \[", project, re.MULTILINE), command
        else:
            assert words[0] == "busmq", command


def option_table(name: str) -> str:
    rows = [f"| `{option}` | {default} | {doc} |" for option, default, doc in options.rows(getattr(options, name))]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


@pytest.mark.parametrize("name", ["ReadOptions", "WriteOptions"])
def test_the_option_tables_are_those_of_the_code(name: str) -> None:
    found = re.search(rf"<!-- options: {name} -->\n(.*?)\n<!-- /options -->", README, re.DOTALL)
    assert found
    assert found[1] == option_table(name), f"the table in the README is old; it should be:\n\n{option_table(name)}"


def test_every_test_that_the_readme_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", README)
    assert len(named) >= 7
    for path, test in named:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        functions = {node.name for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))) if isinstance(node, kinds)}
        assert test in functions, f"{path} has no {test}"


def test_every_folder_on_the_map_exists() -> None:
    for path in re.findall(r"^\| `([\w/]+)` \|", README, re.MULTILINE):
        if "/" in path:
            assert (ROOT / path).exists(), path
