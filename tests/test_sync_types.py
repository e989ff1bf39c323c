"""The types of the synchronous API are those of the objects that it calls."""

from __future__ import annotations

from tests.sync_stub import STUB, current


def test_the_types_are_made_from_the_asyncio_objects() -> None:
    assert STUB.read_text("utf-8") == current(), "run: python -m tests.sync_stub"
