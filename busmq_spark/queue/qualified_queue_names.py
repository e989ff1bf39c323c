"""Queues of several sources under one kind of name. Planning, attaching and tasks see names only;
here they are made and taken apart.

A queue of Redis itself has its own name, so that a query without links has no trace of this. The
name of a queue of a link begins with the link's name.
"""

from __future__ import annotations

from collections.abc import Iterable

_SOURCE_SEPARATOR = "\ufdd0"
"""A code point that Unicode keeps for uses like this and out of text. Links never have it in their
names, so the first one is ours.
"""


def qualified_name(source: str, queue: str) -> str:
    """The name of a queue of a source; ``source`` is a link's name, or '' for Redis itself."""
    return f"{source}{_SOURCE_SEPARATOR}{queue}" if source else queue


def split_name(name: str) -> tuple[str, str]:
    """Source and queue of a name that ``qualified_name`` made."""
    if _SOURCE_SEPARATOR not in name:  # nearly every name, and planning asks for each of thousands
        return "", name
    source, between, queue = name.partition(_SOURCE_SEPARATOR)
    return (source, queue) if source and between else ("", name)


def display_name(name: str) -> str:
    """For people."""
    source, queue = split_name(name)
    return f"{source}/{queue}" if source else queue


def by_source(names: Iterable[str]) -> dict[str, list[str]]:
    """The queues of each source, in the order given."""
    found: dict[str, list[str]] = {}
    for name in names:
        source, queue = split_name(name)
        found.setdefault(source, []).append(queue)
    return found
