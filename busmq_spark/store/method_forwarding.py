"""Methods that pass their arguments on, made of the method of the protocol that they satisfy: name,
parameters and result are said once, there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from busmq_spark.queue.qualified_queue_names import qualified_name
from busmq_spark.store.protocol import ReadStore

P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[Any, P], T]


def make_forwarder(method: Method[P, T], to: Callable[..., Any]) -> Method[P, T]:
    """A method with the signature of ``method`` that calls ``to(self, name, *arguments)``."""
    parameters, name = signature(method), method.__name__

    @wraps(method)
    def passing(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        bound = parameters.bind(self, *args, **named)
        bound.apply_defaults()
        return cast(T, to(self, name, *bound.args[1:]))

    return passing


def make_per_queue_method(method: Method[P, T]) -> Method[P, T]:
    """A method that asks each store, or call, for its queues."""
    return make_forwarder(method, lambda store, *asked: store.ask_each(*asked))


class MultiQueueCallSplitter(ABC):
    """The operations whose first argument says queues and whose answer is by queue. The subclass
    shares them out to several stores, or calls, in :meth:`ask_each`.
    """

    @abstractmethod
    def ask_each(
        self, name: str, queues: Sequence[str] | Mapping[str, Any], *rest: Any
    ) -> dict[str, Any]:
        """The answers to an operation, under the names of the queues."""

    attach = make_per_queue_method(ReadStore.attach)
    states = make_per_queue_method(ReadStore.states)
    marks = make_per_queue_method(ReadStore.marks)
    note_times = make_per_queue_method(ReadStore.note_times)
    find_times = make_per_queue_method(ReadStore.find_times)
    times = make_per_queue_method(ReadStore.times)
    ages = make_per_queue_method(ReadStore.ages)
    ack = make_per_queue_method(ReadStore.ack)
    subscribe = make_per_queue_method(ReadStore.subscribe)
    subscriptions = make_per_queue_method(ReadStore.subscriptions)
    lease = make_per_queue_method(ReadStore.lease)
    holders = make_per_queue_method(ReadStore.holders)
    keep_alive = make_per_queue_method(ReadStore.keep_alive)


def restrict_to(queues: Sequence[str], argument: Any, source: str = "") -> Any:
    """Return the part of an argument for these queues of a source: a part of a mapping, the queues
    themselves of a list, anything else unchanged.
    """
    if isinstance(argument, Mapping):
        return {
            queue: argument[name]
            for queue in queues
            if (name := qualified_name(source, queue)) in argument
        }
    return (
        queues if isinstance(argument, Collection) and not isinstance(argument, str) else argument
    )
