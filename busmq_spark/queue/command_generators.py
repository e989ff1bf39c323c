"""Items by what they have in common, and some at a time.

Operations on Redis as generators, and the two functions that run them (not Spark's driver).

Rule 1. A flow yields what Redis shall do, a :class:`RedisCall` or a list of them (one round trip),
        and is sent the reply or replies.
Rule 2. A flow touches no socket, clock or loop, so the same flow serves Spark (sync) and the bus
        (asyncio).
Rule 3. An error of a call is thrown into the flow where it yielded; the flow may catch it and go
        on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from busmq_spark.errors import BusError
from busmq_spark.queue.scripts import Script, load

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


Arg: TypeAlias = bytes | str | int
Q = TypeVar("Q")


class RedisCall(NamedTuple):
    """A command, or a Lua script, for the server that owns its keys.

    ``idempotent``: whether the driver may send it again when the connection broke and it is unknown
    whether Redis has executed it.
    """

    words: tuple[Arg, ...]
    """The command with its arguments; for a script KEYS and then ARGV."""
    script: Script | None = None
    key_count: int = 0
    idempotent: bool = True
    wired: tuple[int, bytes | memoryview] | None = None
    """Further words, and how many: as they are sent, each ``$<length> CR LF <bytes> CR LF``."""
    optional: bool = False
    """Whether the caller goes on without it while Redis pauses writes."""


Step: TypeAlias = RedisCall | Sequence[RedisCall]
Flow: TypeAlias = Generator[Step, Any, T]


def command(*words: Arg, idempotent: bool = True) -> RedisCall:
    """A plain Redis command."""
    return RedisCall(words, idempotent=idempotent)


def script(
    name: str,
    keys: Sequence[str],
    args: Sequence[Arg],
    *,
    idempotent: bool = True,
    optional: bool = False,
) -> RedisCall:
    """The Lua script ``lua/<name>.lua`` on ``keys``."""
    return RedisCall((*keys, *args), load(name), len(keys), idempotent, optional=optional)


def run_sync(
    flow: Generator[Q, Any, T],
    execute: Callable[[Q], Any],
    errors: tuple[type[Exception], ...] = (BusError,),
) -> T:
    """Run a flow to its end in this thread; ``execute`` sends one step and returns its reply (or
    the list of replies). ``errors`` are thrown into the flow; others end it.
    """
    resume: Callable[[Any], Q] = flow.send
    value: Any = None
    while True:
        try:
            step = resume(value)
        except StopIteration as done:
            # StopIteration is not generic; Flow[T] promises the T
            return done.value  # type: ignore[no-any-return]
        try:
            resume, value = flow.send, execute(step)
        except errors as error:
            resume, value = flow.throw, error


def run_flows_together(flows: Sequence[Flow[T]]) -> Flow[list[T | BusError]]:
    """Run flows beside each other: a step of all of them is one round trip. The results in their
    order; in the place of one that raised, its error.

    An error of the driver ends all of them: which of the calls failed is not known.
    """
    found: dict[int, T | BusError] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(flows)))
    while True:
        steps: dict[int, Step] = {}
        for i, reply in replies.items():
            try:
                steps[i] = flows[i].send(reply)
            except StopIteration as done:
                found[i] = done.value
            except BusError as error:
                found[i] = error
        if not steps:
            return [found[i] for i in range(len(flows))]
        answers = iter(
            (
                yield [
                    call
                    for step in steps.values()
                    for call in ([step] if isinstance(step, RedisCall) else step)
                ]
            )
        )
        replies = {
            i: next(answers) if isinstance(step, RedisCall) else [next(answers) for _ in step]
            for i, step in steps.items()
        }


async def run_async(
    flow: Generator[Q, Any, T],
    execute: Callable[[Q], Awaitable[Any]],
    errors: tuple[type[Exception], ...] = (BusError,),
) -> T:
    """Run a flow to its end on the running loop. Cancelling it leaves the step in flight executed
    or not, never half.
    """
    resume: Callable[[Any], Q] = flow.send
    value: Any = None
    while True:
        try:
            step = resume(value)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # as above
        try:
            resume, value = flow.send, await execute(step)
        except errors as error:
            resume, value = flow.throw, error
