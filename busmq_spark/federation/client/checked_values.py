"""Values that a server gives, each checked: one of another kind is a WireError, which ends
its remote object and no more.
"""

from __future__ import annotations

from typing import Any

from busmq_spark.errors import WireError
from busmq_spark.queue.message import MAX_ID, Message


def expect_number(found: Any, what: str) -> int:
    """A whole number from 0, also as text: Node sends what Redis says."""
    if isinstance(found, str) and found.isascii() and found.isdecimal() and len(found) < 17:
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_ID:
        raise WireError(
            found=f"{what} that is {_describe_kind(found)}", expected="a whole number from 0"
        )
    return found


def expect_first_number(found: list[Any], what: str) -> int:
    """The number that an answer begins with."""
    return expect_number(found[0] if found else None, what)


def expect_text_as_bytes(found: Any, what: str) -> bytes:
    """A text, as bytes."""
    if not isinstance(found, str):
        raise WireError(found=f"{what} that is {_describe_kind(found)}", expected="text")
    return found.encode("utf-8", "replace")


def make_message(value: Any, id: Any) -> Message:
    """A message of a queue or channel."""
    return Message(
        expect_number(id, "the id of a message"), expect_text_as_bytes(value, "a message")
    )


def expect_texts_by_name(found: list[Any], what: str) -> dict[str, str]:
    """The names and texts that an answer begins with; none where it is null."""
    given = found[0] if found else None
    if not given:
        return {}
    if not isinstance(given, dict):
        raise WireError(found=f"{what} that is {_describe_kind(given)}", expected="an object")
    return {name: str(value) for name, value in given.items()}


def _describe_kind(found: Any) -> str:
    """Not the value itself: it may be long, or no business of a log."""
    return (
        "null"
        if found is None
        else "a number"
        if isinstance(found, int | float)
        else f"a {type(found).__name__}"
    )
