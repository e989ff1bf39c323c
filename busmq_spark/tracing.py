"""Spans of OpenTelemetry, by its API package alone. Programs that have set no provider of spans get
none, and OpenTelemetry is never imported for them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from busmq_spark.errors.foreign import error_text
from busmq_spark.queue.caching import MemoizedFunction

if TYPE_CHECKING:
    from asyncio import Future

T = TypeVar("T")

TRACEPARENT = "traceparent"
"""Name of the field of W3C Trace Context: an extension of CloudEvents, and a field of a job."""
_TRACER_NAME = "busmq_spark"
_told: list[str] = []
log = logging.getLogger("busmq_spark")


def _api() -> Any:
    """Return the API if the program has set a provider. redis-py imports the API by itself.

    The public function looks into the environment each time, which takes as long as half a push.
    """
    api: Any = sys.modules.get("opentelemetry.trace")
    return None if api is None or getattr(api, "_TRACER_PROVIDER", api) is None else api


def _make_tracer(provider: Any) -> Any:
    return provider.get_tracer(_TRACER_NAME)


_tracer_of = MemoizedFunction(_make_tracer, most=1)
"""The tracer of a provider. Making one changes the warning filters of the process for a moment."""


def _start_span(api: Any, name: str, attributes: Mapping[str, str | int]) -> Any:
    """Return a span that has begun, or None if the provider of the program fails: the call
    itself goes on.
    """
    found = {f"busmq.{key}": value for key, value in attributes.items()}
    try:
        return _tracer_of(api.get_tracer_provider()).start_span(name, attributes=found)
    except Exception as error:  # noqa: BLE001  # it is the code of others
        _tell_failure_once(error_text(error))
        return None


def _tell_failure_once(text: str) -> None:
    if not _told:
        _told.append(text)
        log.error("no span is made, since the provider of spans failed: %s", text)


def span(name: str, **attributes: str | int) -> AbstractContextManager[object]:
    """Return a context whose block is a span; an exception marks it as failed."""
    if (api := _api()) is None:
        return nullcontext()
    if (made := _start_span(api, name, attributes)) is None:
        return nullcontext()
    context: AbstractContextManager[object] = api.use_span(made, end_on_exit=True)
    return context


def traced(future: Future[T], name: str, **attributes: str | int) -> Future[T]:
    """Return ``future``; until it is done a span lasts, which its exception marks as failed."""
    if (api := _api()) is None or (made := _start_span(api, name, attributes)) is None:
        return future

    def end(done: Future[T]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            made.record_exception(error)
            made.set_status(api.StatusCode.ERROR)
        made.end()

    future.add_done_callback(end)
    return future


def current_traceparent() -> str | None:
    """Return ``traceparent`` of the present span, or None without one."""
    if _api() is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(TRACEPARENT)


@contextmanager
def continued_trace(traceparent: object, name: str, **attributes: str | int) -> Iterator[None]:
    """Run the block as a span after the one of ``traceparent``; text that is no traceparent begins
    a trace of its own.
    """
    if _api() is None:
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {TRACEPARENT: traceparent} if isinstance(traceparent, str) else {}
    token = context.attach(TraceContextTextMapPropagator().extract(carrier))
    try:
        with span(name, **attributes):
            yield
    finally:
        context.detach(token)
