"""The house rules a reader relies on: imports point one way, each third-party package has one home,
files and functions stay small.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import parsed

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "busmq_spark"

# A room (module or package) may import from rooms to its left. __init__ (lazy names) and __main__
# (the command) belong to no room.
ORDER = [
    "errors",
    "extras",
    "arguments",
    "environment",
    "metrics",
    "starting_offsets",
    "option_parsing",
    "options",
    "embedded",
    "queue",
    "tracing",
    "reading",
    "routing",
    "groups",
    "writing",
    "objects",
    "redis_io",
    "store",
    "bus",
    "federation",
    "outbox",
    "mirror",
    "spark",
    "doctor",
    "cli",
    "demo",
    "cli_app",
]
NO_ROOM = {"__init__", "__main__"}
# Left of it, but not for it: the store is synchronous and for batches; Spark's own processes are
# synchronous, the bus is asyncio.
SKIPS = {("spark", "bus"), ("bus", "store")}
SCREEN = {"cli", "demo", "cli_app"}
HOME = {
    "redis": {"redis_io"},
    "websockets": {"federation"},
    "pyspark": {"spark", "demo"},
    "typer": SCREEN,
    "rich": SCREEN,
}
# Decisions and formats: they run without a server, a clock or a loop, so their tests do too.
PURE = {
    ("queue",),
    ("reading",),
    ("routing",),
    ("groups",),
    ("writing",),
    ("objects",),
    ("federation", "npm_wire", "dnode"),
    ("federation", "bulk", "operations"),
    ("federation", "bulk", "frames"),
    ("federation", "npm_wire", "channels"),
    ("federation", "error_codec"),
    ("federation", "gate", "handshake"),
    ("federation", "bounded_json"),
    ("federation", "gate", "limits"),
    ("federation", "gate", "rights"),
    ("federation", "gate", "token"),
    ("doctor", "findings"),
    ("doctor", "redis"),
    ("doctor", "bus"),
    ("doctor", "federation"),
    ("doctor", "spark"),
}
IMPURE = {"asyncio", "socket", "selectors", "threading", "subprocess", "time", *HOME}

MAX_STATEMENTS = 32


def imported(tree: ast.AST, module: tuple[str, ...]) -> Iterator[str]:
    """Absolute dotted names that a module imports, wherever in it; ``module`` is its own name,
    ``__init__`` included.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(
                [*(module[: -node.level] if node.level else ()), *filter(None, [node.module])]
            )
            yield from (f"{base}.{name.name}" for name in node.names)


def wrong_imports(package: Path) -> Iterator[str]:
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        room = parts[0]
        for name in imported(parsed(path.read_text()), (package.name, *parts)):
            root, inner, *_ = [*name.split("."), ""]
            problem = None
            if root == package.name and room not in NO_ROOM:
                problem = wrong_room(room, inner)
            elif room not in HOME.get(root, {room}):
                problem = f"{root} is for {', '.join(sorted(HOME[root]))} only"
            elif root in IMPURE and any(parts[: len(pure)] == pure for pure in PURE):
                problem = "a pure module touches no clock, loop, socket or client"
            if problem:
                yield f"{'/'.join(parts)} imports {name}: {problem}"


def wrong_room(room: str, inner: str) -> str | None:
    if inner == "__version__":
        return None
    if inner not in ORDER:
        return "inside the package, import from the module itself, not the lazy public name"
    if ORDER.index(inner) > ORDER.index(room):
        return f"{inner} is to the right of {room}"
    if (room, inner) in SKIPS:
        return f"{room} does without {inner}"
    return None


def test_imports_point_left_and_third_parties_stay_home() -> None:
    assert list(wrong_imports(PACKAGE)) == []


def imports_of_files(package: Path) -> dict[str, set[str]]:
    """Return the files that each file of a package imports, by dotted name. Imports of types and
    imports inside functions count.
    """
    files = {
        ".".join((package.name, *path.relative_to(package).with_suffix("").parts)): path
        for path in package.rglob("*.py")
    }
    return {
        name: {
            each if each in files else each.rpartition(".")[0]
            for each in imported(parsed(path.read_text()), tuple(name.split(".")))
        }
        & {*files}
        for name, path in files.items()
    }


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return each circle: the files that import each other, directly or by way of others."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, left = set[str](), [start]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left += new
        reached[start] = seen
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }


def test_no_file_imports_another_in_a_circle() -> None:
    """A circle says that two files are one, also where only types are imported."""
    assert circles(imports_of_files(PACKAGE)) == set()


def test_a_circle_of_types_is_found(tmp_path: Path) -> None:
    package = tmp_path / "busmq_spark"
    (package / "bus").mkdir(parents=True)
    (package / "bus" / "a.py").write_text("def f():\n    from busmq_spark.bus import b")
    (package / "bus" / "b.py").write_text("from .c import C")
    (package / "bus" / "c.py").write_text("if TYPE_CHECKING:\n    from busmq_spark.bus.a import f")
    (package / "bus" / "d.py").write_text("from busmq_spark.bus import a, b, c")
    assert circles(imports_of_files(package)) == {
        frozenset(("busmq_spark.bus.a", "busmq_spark.bus.b", "busmq_spark.bus.c"))
    }


def test_the_rooms_are_those_listed() -> None:
    assert {
        path.relative_to(PACKAGE).with_suffix("").parts[0] for path in PACKAGE.rglob("*.py")
    } - NO_ROOM == {*ORDER}


def test_what_is_listed_as_pure_exists() -> None:
    files = {path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    assert {
        pure for pure in PURE if not any(parts[: len(pure)] == pure for parts in files)
    } == set()


@pytest.mark.parametrize(
    ("file", "line", "found"),
    [
        ("errors.py", "from busmq_spark.queue import keys", "right of errors"),
        ("queue/queue.py", "from ..redis_io import sync_link", "right of queue"),
        ("queue/queue.py", "def f():\n    import time", "pure module"),
        ("queue/queue.py", "import redis.asyncio", "redis_io only"),
        ("reading/batch_planner.py", "from threading import Lock", "pure module"),
        ("spark/read/stream_reader.py", "from busmq_spark.bus import queue", "does without bus"),
        ("cli/serve.py", "from pyspark.sql import SparkSession", "demo, spark only"),
        (
            "bus/__init__.py",
            "from .queue import Queue\nfrom busmq_spark.cli import info",
            "right of bus",
        ),
        ("bus/queue/queue.py", "from busmq_spark import BusError", "lazy public name"),
        ("bus/queue/queue.py", "from rich import print", "cli, cli_app, demo only"),
    ],
)
def test_the_check_finds_a_wrong_import(tmp_path: Path, file: str, line: str, found: str) -> None:
    path = tmp_path / "busmq_spark" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    [problem] = wrong_imports(tmp_path / "busmq_spark")
    assert found in problem


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("cli.py", "import typer\nfrom busmq_spark.spark import source"),
        ("cli/__init__.py", "import rich.console\nfrom .serve import serve"),
        ("__main__.py", "from busmq_spark.cli_app import run"),
        (
            "redis_io/sync_link.py",
            (
                "import socket, time, redis\nfrom ..queue import keys\nfrom busmq_spark import"
                " errors, __version__"
            ),
        ),
        ("spark/federated.py", "import time, pyspark\nfrom busmq_spark.federation import portal"),
    ],
)
def test_the_check_allows_what_is_right(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / "busmq_spark" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    assert list(wrong_imports(tmp_path / "busmq_spark")) == []


def test_functions_are_short_enough_to_read() -> None:
    """Statements are counted, not lines: a narrow page must not make a function long."""
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": length
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := statements(node)) > MAX_STATEMENTS
    }
    assert long == {}


def statements(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of statements of a function, inner ones too, without its docstring."""
    inner = sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1
    return inner - (ast.get_docstring(node) is not None)


def test_the_standard_library_is_not_taken_for_a_third_party() -> None:
    assert not {*HOME} & sys.stdlib_module_names


def late_imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Return module and name of each ``DeferredImport``: no import statement names them."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        if isinstance(called, ast.Name) and called.id == "DeferredImport":
            module, name = (ast.literal_eval(each) for each in node.args[:2])
            yield module, name


def test_each_late_import_finds_its_name() -> None:
    late = {
        each
        for path in PACKAGE.rglob("*.py")
        for each in late_imports(parsed(path.read_text("utf-8")))
    }
    assert len(late) > 15
    for module, name in sorted(late):
        path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
        assert path.is_file(), module
        defined = {getattr(node, "name", "") for node in parsed(path.read_text("utf-8")).body}
        assert name in defined, (module, name)
