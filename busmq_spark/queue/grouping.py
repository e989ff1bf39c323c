"""Items by what they have in common, and some at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=Sequence[Any])


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key, in their order; the keys in the order of their first items."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def slices(items: S, most: int) -> Iterator[S]:
    """The items in their order, at most so many at a time."""
    return (cast(S, items[first : first + most]) for first in range(0, len(items), most))
