"""Values computed once and cached, in objects that are pickled by value.

If the package is not installed, a query carries it along, pickled by value (Spark Connect,
notebooks). The caches of functools cannot be pickled so: they hold a lock (cached_property of
Python 3.11) or are pickled by their name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_attribute(Generic[T]):  # reads like property
    """An attribute computed when it is first asked for, then an entry of the object's dict."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type) -> cached_attribute[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...
    def __get__(self, owner: object | None, kind: type) -> cached_attribute[T] | T:
        if owner is None:
            return self
        value: T = self._make(owner)
        owner.__dict__[self._name] = value
        return value


class MemoizedFunction(Generic[T]):
    """A function of hashable arguments that keeps its last ``most`` results, and starts anew when
    there are more. They do not travel.
    """

    def __init__(self, make: Callable[..., T], most: int) -> None:
        self._make, self._most = make, most
        self._results: dict[tuple[Any, ...], T] = {}

    def __call__(self, *args: Any) -> T:
        found = self._results.get(args)
        if found is None:
            if len(self._results) >= self._most:
                self._results.clear()
            found = self._results[args] = self._make(*args)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoizedFunction, (self._make, self._most)


class ProcessLocalCache(dict[Any, Any]):
    """The open objects of a process, by their purpose. If the package travels by value, the cache
    travels empty: connections cannot travel.
    """

    def __reduce__(self) -> tuple[type[ProcessLocalCache], tuple[()]]:
        return (ProcessLocalCache, ())
