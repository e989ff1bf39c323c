"""Text of exceptions that other people's code made: always text, on one line, bounded, and without
credentials.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from busmq_spark.errors import MessageRefused, MessageUnreadable, QueueMissing
from busmq_spark.errors.foreign import (
    MAX_ERROR_CHARACTERS,
    code_of,
    error_text,
    exc_info,
    plain_text,
    stack_text,
)
from busmq_spark.groups.dead_letter import decode_letter, make_dead_letter
from busmq_spark.groups.shared_group import LeasedMessage
from busmq_spark.objects.service_and_channel_messages import error_object
from busmq_spark.queue.message import Message, encode_value


class NamelessMeta(type):
    __name__ = property(lambda cls: 1 / 0)


class Hostile(Exception, metaclass=NamelessMeta):
    __class__ = property(lambda self: 1 / 0)
    __notes__ = __cause__ = __context__ = __traceback__ = code = property(lambda self: 1 / 0)

    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __reduce__ = __str__


class NoText(Exception):
    def __str__(self) -> Any:
        return NotImplemented


class OddText(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError


class Looping(Exception):
    def __str__(self) -> str:
        return str(self)


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as found:  # noqa: BLE001
        return found


def with_cause(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def in_a_circle() -> BaseException:
    one = ValueError("one")
    one.__context__ = with_cause(KeyError("two"), one)
    return one


def with_notes() -> BaseException:
    error = ValueError("boom")
    error.add_note("of row 3")
    return error


HOSTILE: dict[str, Callable[[], Any]] = {
    "hostile": Hostile,
    "no text": NoText,
    "looping": Looping,
    "odd text": lambda: ValueError(OddText("odd")),
    "huge": lambda: ValueError("x" * 10_000_000),
    "unprintable": lambda: ValueError("\ud83d\x00\x1b[31m\n\u202e"),
    "group": lambda: ExceptionGroup("many", [Hostile(), ExceptionGroup("inner", [NoText()] * 100)]),
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "circle": in_a_circle,
    "no exception": object,
    "none": lambda: None,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_was_raised_has_a_text(name: str, caplog: pytest.LogCaptureFixture) -> None:
    error = HOSTILE[name]()
    text = error_text(error)
    assert type(text) is str
    assert 0 < len(text) <= MAX_ERROR_CHARACTERS
    text.encode()
    assert not {*"\n\x00\x1b\u202e"} & {*text}
    letter = decode_letter(
        make_dead_letter("q", "g", LeasedMessage(1, b"v", 1, 1, ""), error_text(error), 1)
    )
    assert letter.error == text
    if issubclass(type(error), BaseException):
        caught(error)
        json.dumps(error_object(error, stack_text(error)), ensure_ascii=False).encode()
        logging.getLogger("busmq_spark").error("failed", exc_info=exc_info(error))
        assert "test_foreign_errors.py" in caplog.text


def test_class_notes_members_and_causes_are_named() -> None:
    assert error_text(ValueError("boom")) == "ValueError: boom"
    assert error_text(KeyError()) == "KeyError"
    assert error_text(with_notes()) == "ValueError: boom (of row 3)"
    assert (
        error_text(with_cause(ValueError("a"), KeyError("b")))
        == "ValueError: a; caused by KeyError: 'b'"
    )
    group = ExceptionGroup("g", [ValueError("a"), KeyError("b")])
    assert (
        error_text(group) == "ExceptionGroup: g (2 sub-exceptions) [ValueError: a; KeyError: 'b']"
    )
    missing = QueueMissing(queue="q")
    assert error_text(with_cause(missing, KeyError("b"))) == str(missing)
    assert error_text("a\nb") == "a b"


@pytest.mark.parametrize(
    "text",
    [
        "redis://user:hunter2@host:1",
        "wss://hunter2@host/bus",
        "{'password': 'hunter2', 'n': 1}",
        "token=hunter2&x=1",
        "Authorization: Bearer hunter2hunter2",
    ],
)
def test_credentials_are_masked(text: str) -> None:
    assert "hunter2" not in plain_text(ValueError(text))
    assert "***" in plain_text(ValueError(text))


def test_a_code_is_taken_only_where_it_can_be_sent() -> None:
    for code, expected in (
        (5, 5),
        ("E", "E"),
        ("\ud800", "?"),
        (2**80, None),
        (True, None),
        ([], None),
    ):
        error = ValueError()
        error.code = code  # type: ignore[attr-defined]
        assert code_of(error) == expected


# Values that JSON cannot express


class Lying(dict[str, int]):
    def items(self) -> Any:
        raise LookupError("no items")


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value", [nested(100_000), Lying(a=1), {"a": b"x"}, float("inf"), "\ud800", {"\ud800": 1}]
)
def test_a_value_that_json_cannot_express_is_refused(value: Any) -> None:
    with pytest.raises(MessageRefused):
        encode_value(value)


def test_a_message_that_is_too_deep_or_no_json_is_unreadable() -> None:
    for value in (
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b"\xff\xff",
        b"{",
        b"1" * 10_000,
    ):
        with pytest.raises(MessageUnreadable) as raised:
            Message(1, value).json()
        assert isinstance(raised.value, ValueError)
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
