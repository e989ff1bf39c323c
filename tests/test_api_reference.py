"""Each public method of the API reference has a first sentence, its arguments and its errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from pydoc import locate
from typing import Any

import pytest

import busmq_spark

PAGES = sorted((Path(__file__).parents[1] / "docs" / "reference").glob("*.md"))
ENTRY = re.compile(r"^::: ([\w.]+)$(?:\n    options:\n      members: \[(.*)\])?", re.MULTILINE)
WITH_SECTIONS = ("outbox", "bus", "queue", "groups", "topics", "jobs", "federation")
"""The pages whose methods have their arguments and errors in sections."""
WITHOUT_ERRORS = {"Emitter.off", "FederationServer.reload", "Jobs.new", "Worker.resume"}


def methods() -> Iterator[Any]:
    for page in PAGES:
        for name, members in ENTRY.findall(page.read_text("utf-8")):
            for member in re.findall(r"\w+", members):
                yield pytest.param(
                    page.stem, name, member, id=f"{name.rpartition('.')[2]}.{member}"
                )


def sections(text: str) -> dict[str, str]:
    found = re.split(r"^(Args|Raises|Returns|Example):$", text, flags=re.MULTILINE)
    return {"": found[0], **dict(zip(found[1::2], found[2::2], strict=True))}


def test_the_reference_has_each_public_name() -> None:
    """A data source is made by Spark, from options."""
    named = {
        name.rpartition(".")[2]
        for page in PAGES
        for name, _ in ENTRY.findall(page.read_text("utf-8"))
    }
    assert {*busmq_spark.__all__} - named == {"BusmqDataSource", "__version__"}


@pytest.mark.parametrize(("page", "name", "member"), list(methods()))
def test_a_method_has_a_first_sentence_its_arguments_and_its_errors(
    page: str, name: str, member: str
) -> None:
    method = inspect.getattr_static(locate(name), member)
    text = inspect.getdoc(method) or ""
    assert re.match(r"[A-Z](?:[^.]|\.\S)+\.(\s|$)", text), text
    if page not in WITH_SECTIONS or isinstance(method, property):
        return
    function = inspect.unwrap(getattr(method, "__func__", method))
    parts = sections(text)
    assert "Raises" in parts or function.__qualname__ in WITHOUT_ERRORS
    arguments = [
        each for each in inspect.signature(function).parameters if each not in ("self", "cls")
    ]
    named = re.findall(r"^    \**(\w+): ", parts.get("Args", ""), re.MULTILINE)
    assert named == arguments
