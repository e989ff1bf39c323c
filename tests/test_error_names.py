"""An error class is named as its code."""

from __future__ import annotations

import ast
from pathlib import Path

import busmq_spark
from tests.support import parsed

PACKAGE = Path(busmq_spark.__file__).parent


def codes_of_classes() -> list[tuple[str, str]]:
    """Each class of the package with an error code of its own, and that code."""
    return [
        (cls.name, line.value.value)
        for path in sorted(PACKAGE.rglob("*.py"))
        for cls in ast.walk(parsed(path.read_text("utf-8")))
        if isinstance(cls, ast.ClassDef)
        for line in cls.body
        if isinstance(line, ast.Assign)
        and ast.unparse(line.targets[0]) == "code"
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    ]


def test_an_error_class_is_named_as_its_code() -> None:
    found = codes_of_classes()
    assert len(found) > 50
    camel = [
        (name, code, "".join(map(str.capitalize, code.removeprefix("BUSMQ_").split("_"))))
        for name, code in found
    ]
    wrong = [
        f"{name} has the code {code}: name it {wanted}, or {wanted}Error"
        for name, code, wanted in camel
        if name not in (wanted, f"{wanted}Error")
    ]
    assert wrong == []


def test_no_two_error_classes_have_one_code() -> None:
    codes = [code for _, code in codes_of_classes()]
    assert sorted(codes) == sorted(set(codes))
