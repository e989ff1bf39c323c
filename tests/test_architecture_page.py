"""docs/architecture.md and the index of the code name files, classes and functions that exist,
where they say they are.
"""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

from tests.test_architecture import ORDER

ROOT = Path(__file__).parents[1]
PAGE = "\n".join(
    (ROOT / "docs" / page).read_text("utf-8") for page in ("architecture.md", "code-index.md")
)
FOLDERS = ("busmq_spark", "conf", "docs", "jvm-shim/src", "notebooks", "tests")
FILES = [
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.*")
    if "node_modules" not in path.parts
] + list(ROOT.glob("*.*"))
NAMES = {path.relative_to(ROOT).as_posix() for path in FILES}
DRAWN = "\n".join(re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL))
"""The paths of batches, jobs, messages …: functions beside their files."""
_FILE = re.compile(r"(?<![\w/*.-])((?:[\w*-]+/)*[\w*-]+\.(?:py|lua|json|java|md|ipynb|mjs))\b")
_MEMBER = re.compile(r"(?<![\w./])(?:[a-z]+/)?(_?[A-Z]\w+)\.((?!(?:py|java|md)\b)[a-z_]\w*)")
_IN_FILE = re.compile(r"((?:`[\w.]+`(?:\(\))?(?:, | and )?)+) in `([\w/.-]+\.(?:py|lua|java))`")
_JAVA = re.compile(r"`(?:core|source|sink|redis|store|options)/([A-Z]\w+)")
_WORD_WITH_BAR = re.compile(
    r"(?<![\w/.<:-])(_[a-z]\w*|[a-z]+(?:_[a-z]+)+)\b(?![\w/]*\.(?:py|lua|json))"
)


def files(named: str) -> list[Path]:
    """The files of the repository that a page may call by this path, or by its end."""
    return [ROOT / name for name in NAMES if fnmatch(name, named) or fnmatch(name, f"*/{named}")]


def texts(*endings: str) -> dict[Path, str]:
    """The text of the product's files."""
    of_product = [
        path
        for path in FILES
        if path.suffix in endings and path.relative_to(ROOT).parts[0] != "docs"
    ]
    return {path: path.read_text("utf-8") for path in of_product}


def members() -> dict[str, set[str]]:
    """What each class in Python has, by name of the class, inherited or not."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path, text in texts(".py").items():
        if "tests" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(
                    each.name
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                )
                bases.setdefault(node.name, set()).update(
                    base.id for base in node.bases if isinstance(base, ast.Name)
                )
    return {
        name: found.union(*(own.get(base, set()) for base in bases[name]))
        for name, found in own.items()
    }


def test_every_file_that_is_named_exists() -> None:
    named = set(_FILE.findall(PAGE))
    assert len(named) > 150
    assert sorted(name for name in named if not files(name)) == []


def test_every_class_in_java_that_is_named_exists() -> None:
    named = set(_JAVA.findall(PAGE))
    assert len(named) > 20
    assert sorted(name for name in named if not files(f"{name}.java")) == []


def test_every_method_that_is_named_exists() -> None:
    in_python, in_java = members(), {path.stem: text for path, text in texts(".java").items()}
    named = set(_MEMBER.findall(PAGE))
    assert len(named) > 20
    missing = [
        (cls, name)
        for cls, name in named
        if name not in in_python.get(cls, ())
        and not re.search(rf"\b{name}\(", in_java.get(cls, ""))
    ]
    assert sorted(missing) == []


def test_what_is_said_to_be_in_a_file_is_there() -> None:
    named = [
        (name, path)
        for names, path in _IN_FILE.findall(PAGE)
        for name in re.findall(r"`([\w.]+)`", names)
    ]
    assert len(named) > 25
    missing = [
        (name, path)
        for name, path in named
        if not any(
            is_word(name.rpartition(".")[2], file.read_text("utf-8")) for file in files(path)
        )
    ]
    assert missing == []


def test_every_function_of_the_paths_exists() -> None:
    defined = " ".join(texts(".py", ".lua").values())
    names = (
        set(re.findall(r"(?:def|class|function) (\w+)", defined))
        | {path.stem for path in FILES}
        | {path.parent.name for path in FILES}
    )
    drawn = set(_WORD_WITH_BAR.findall(DRAWN))
    assert len(drawn) > 12
    assert sorted(drawn - names) == []


def test_the_packages_are_drawn_in_the_order_that_their_imports_have() -> None:
    drawn = [
        line[:38].split()
        for line in PAGE.partition("```text\n")[2].partition("```")[0].splitlines()
    ]
    assert [name for line in drawn for name in line] == ORDER


def is_word(name: str, text: str) -> bool:
    """Whether a text has the name as a word."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
