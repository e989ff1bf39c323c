"""Files that docstrings, comments, Javadoc and heads of scripts name are there."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE_NAME = re.compile(
    r"(?<![\w.*<>{}$/~-])((?:[\w.-]+/)*[\w-]+\.(?:py|java|lua|md|ipynb))\b(?!\()"
)
NOT_OURS = {
    "tests.java",  # a module of Python
}
FOLDERS = ("busmq_spark", "jvm-shim/src", "tests", "notebooks")


def tracked() -> set[str]:
    """Every file of the repository, and every tail of its path."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    paths = [Path(line).parts for line in listed if line and (ROOT / line).exists()]
    return {"/".join(parts[start:]) for parts in paths for start in range(len(parts))}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a file, with the number of their first line."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        at_start = True
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and at_start):
                yield token.start[0], token.string
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                at_start = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
                at_start = at_start or token.type == tokenize.ENCODING
        return
    pattern = r"--[^\n]*" if path.suffix == ".lua" else r"/\*.*?\*/|//[^\n]*"
    for match in re.finditer(pattern, text, re.DOTALL):
        yield text.count("\n", 0, match.start()) + 1, match[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_file_that_a_comment_names_is_there(folder: str) -> None:
    known = tracked() | NOT_OURS
    missing = [
        f"{path.relative_to(ROOT)}:{line} names {name}"
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".lua", ".java")
        for line, text in prose(path)
        for name in FILE_NAME.findall(text)
        if name.removeprefix("./") not in known
    ]
    assert not missing, (
        "a file was moved or renamed, and its name stands in a docstring or comment. Write its"
        " present path, or leave the name out:\n" + "\n".join(missing)
    )


def test_no_comment_names_a_document_that_is_not_in_the_repository() -> None:
    facts = re.compile(r"spark-facts|\(facts [A-Z]\b")
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".lua", ".java")
        for line, text in prose(path)
        if facts.search(text)
    ]
    assert found == [], "say the fact itself: the notes that these lines name are not published"
