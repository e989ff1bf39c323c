"""The table of what does not hold for federated objects: nothing in it may be stale."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.bus.federated import EXCEPT, EXCEPT_NPM

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", sorted({*EXCEPT, *EXCEPT_NPM}))
def test_every_exception_names_a_test_that_would_run(name: str) -> None:
    file, _, test = name.partition("::")
    tests = {
        node.name: node
        for node in ast.walk(ast.parse((HERE / f"{file}.py").read_text()))
        if isinstance(node, ast.AsyncFunctionDef)
    }
    assert "open_bus" in [argument.arg for argument in tests[test].args.args]


def test_no_test_is_excepted_twice() -> None:
    assert {*EXCEPT} & {*EXCEPT_NPM} == set()
