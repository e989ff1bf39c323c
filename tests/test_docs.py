"""README.md and `docs/` are true: snippets and commands run, tables are those of the code, what
they name exists, and the pages build.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import BusError
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.option_parsing import rows
from busmq_spark.options import ReadOptions, WriteOptions
from tests.jvm import module
from tests.peers.node import need
from tests.programs import Programs
from tests.reference_pages import NEEDED, PAGES, cause_and_remedy, current, raised

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXTS = {path: path.read_text("utf-8") for path in (README, *sorted((ROOT / "docs").rglob("*.md")))}
AROUND = {
    path: path.read_text("utf-8") for path in (ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md")
}
"""Pages for contributors, beside the documentation."""
BLOCKS = [
    (path.stem, *block)
    for path, text in {**TEXTS, **AROUND}.items()
    for block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
]
PROGRAMS = [
    pytest.param(body, id=f"{page}-{i}")
    for i, (page, kind, body) in enumerate(BLOCKS)
    if kind == "python"
]
COMMANDS = [
    line[2:].partition("    #")[0]
    for _, kind, body in BLOCKS
    if kind == "console"
    for line in body.splitlines()
    if line.startswith("$ ")
]
SHELL = [shlex.split(body) for _, kind, body in BLOCKS if kind == "sh"]


@pytest.fixture(scope="module")
def on_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Programs]]:
    """The process for a program with Spark. Java keeps the class path and the settings of its first
    session, so there is one process for each kind of session.
    """
    made: dict[str, Programs] = {}

    def process(program: str) -> Programs:
        kind = next((word for word in ("realtime(", "tune(") if word in program), "")
        if kind not in made:
            made[kind] = Programs(tmp_path_factory.mktemp("programs"))
        return made[kind]

    yield process
    for each in made.values():
        each.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_pages_runs_as_it_stands_in_any_order_and_again(
    program: str, tmp_path: Path, on_spark: Callable[[str], Programs]
) -> None:
    """In any order and again, since it leaves nothing that the next could find."""
    if "realtime(" in program:
        need(module.missing())
        module.built()
    if "SparkSession" in program:
        process = on_spark(program)
        folder = process.folder
        printed, error = process.run(program)
        assert not error, printed + error
    else:
        folder = tmp_path
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        printed = done.stdout
        assert done.returncode == 0, printed + done.stderr
    assert re.search(r"three|\d+ large orders", printed), printed
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_the_programs_are_short_enough_to_be_read() -> None:
    lengths = [(page, len(body.splitlines())) for page, kind, body in BLOCKS if kind == "python"]
    assert lengths[0][0] == "README"
    assert all(lines <= (12 if page == "README" else 24) for page, lines in lengths)


def test_the_readme_is_read_in_two_minutes() -> None:
    lines = TEXTS[README].splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


def test_the_commands_of_the_pages_run_one_after_the_other() -> None:
    ours = [shlex.split(command) for command in COMMANDS if command.startswith("busmq ")]
    assert ours
    with EmbeddedRedis() as server:
        environ = {**os.environ, "BUSMQ_REDIS_URL": server.url}
        for words in ours:
            done = subprocess.run(
                [sys.executable, "-m", "busmq_spark", *words[1:]],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def test_the_secrets_of_the_pages_say_what_is_said_about_them(tmp_path: Path) -> None:
    [text] = [body for _, kind, body in BLOCKS if kind == "toml"]
    path = tmp_path / "secrets.toml"
    path.touch(mode=0o600)
    path.write_text(text)
    spark = Keyring.load(path).identify(tomllib.loads(text)["spark"]["secret"])
    assert spark is not None
    asked = [
        ("read", "orders-new"),
        ("read", "orders-private-1"),
        ("write", "orders-new"),
        ("write", "results"),
        ("admin", "results"),
    ]
    assert [spark.may(verb, "queue", name) for verb, name in asked] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_the_command_that_serves_has_the_options_of_the_pages() -> None:
    [words] = [words for words in SHELL if words[1] == "serve"]
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "busmq_spark", "serve", "--help"],
        env=wide,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [word for word in words if word.startswith("--") and word not in done.stdout] == []


def test_the_command_that_signs_a_token_does_so_with_the_secrets_of_the_page(
    tmp_path: Path,
) -> None:
    [words] = [words for words in SHELL if words[1] == "token"]
    [text] = [body for _, kind, body in BLOCKS if kind == "toml"]
    path = tmp_path / "secrets.toml"
    path.touch(mode=0o600)
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "busmq_spark", *words[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    token = Keyring.load(path).identify_either(done.stdout.strip())
    assert token is not None
    assert [token.may(verb, "queue", "orders-new") for verb in ("read", "write")] == [True, False]


def test_other_commands_name_targets_and_extras_that_exist() -> None:
    makefile, project = (
        (ROOT / "Makefile").read_text("utf-8"),
        (ROOT / "pyproject.toml").read_text("utf-8"),
    )
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "make":
            subject = ROOT / "tests" / words[1].removeprefix("test-")
            known = re.search(rf"^{words[1]}:.*##", makefile, re.MULTILINE) or subject.is_dir()
            assert known, command
        elif words[0] == "pip":
            for extra in re.findall(r"\[(.*?)\]", words[2])[0].split(","):
                assert re.search(rf"^{extra} = \[", project, re.MULTILINE), command
        else:
            assert words[0] == "busmq", command


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_what_is_made_from_the_code_is_current(page: Path) -> None:
    assert current(TEXTS[page]) == TEXTS[page], (
        "the page is old: python -m tests.reference_pages writes it anew"
    )


def test_each_option_and_error_is_on_its_page() -> None:
    options_page, errors_page = (
        TEXTS[ROOT / "docs" / name] for name in ("options.md", "errors.md")
    )
    for cls in (ReadOptions, WriteOptions):
        assert [name for name, _, _ in rows(cls) if f"\n| `{name}` |" not in options_page] == []
    assert len(NEEDED) == 10
    assert all(f"\n| `{name}` |" in TEXTS[README] for name in NEEDED)
    assert [cls.code for cls in raised()] == re.findall(
        r"^## (BUSMQ_\w+)$", errors_page, re.MULTILINE
    )


@pytest.mark.parametrize("error", raised(), ids=lambda cls: cls.__name__)
def test_each_error_has_a_cause_and_a_remedy(error: type[BusError]) -> None:
    cause, remedy = cause_and_remedy(error)
    assert cause.endswith(".")
    assert remedy.endswith(".")
    assert len(remedy) > 1
    assert "{" not in cause + remedy
    assert "remedy" in vars(error) or remedy.removesuffix(".") in error.template


def test_every_test_that_the_pages_name_exists() -> None:
    named = {
        found
        for text in TEXTS.values()
        for found in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    }
    assert len(named) >= 60
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    for path in {path for path, _ in named}:
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
            if isinstance(node, kinds)
        }
        assert {test for named_path, test in named if named_path == path} - functions == set(), path


def test_every_path_that_the_pages_name_exists() -> None:
    for path, text in {**TEXTS, **AROUND}.items():
        for named in re.findall(
            r"`((?:busmq_spark|conf|docs|jvm-shim|notebooks|tests)/[\w/.-]*)`", text
        ):
            assert (ROOT / named).exists(), f"{path.name}: {named}"
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_documentation_builds_strictly(tmp_path: Path) -> None:
    """As ``make docs`` builds it: a link, anchor or page that is missing is an error."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        len(list((tmp_path / "site").rglob("index.html"))) == len(TEXTS) - 1
    )  # all but the README
