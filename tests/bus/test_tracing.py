"""Spans of OpenTelemetry, and traces that go on in another process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

from busmq_spark import tracing
from busmq_spark.bus.bus import Bus
from busmq_spark.bus.jobs.job import Job
from busmq_spark.errors import QueueFull
from busmq_spark.groups import job as flows
from busmq_spark.queue.message import encode_value
from busmq_spark.routing.cloud_event import Event
from tests.support import PATIENCE_S

EXPORTER = InMemorySpanExporter()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The ended spans of a test. A process has one provider, for ever."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
        trace.set_tracer_provider(provider)
    EXPORTER.clear()
    yield EXPORTER
    EXPORTER.clear()


async def test_a_trace_goes_from_the_sender_of_a_job_to_its_worker(
    spans: InMemorySpanExporter, redis_url: str
) -> None:
    async def handle(job: Job) -> None:
        with tracing.span("inside"):
            await asyncio.sleep(0)

    async with Bus(redis_url) as bus, bus.jobs("traced") as jobs, jobs.worker("mail")(handle):
        with tracing.span("request", batch=7):
            await jobs.send(jobs.new(), wait=["mail"], timeout_s=PATIENCE_S)
        await jobs.send(jobs.new(), wait=["mail"], timeout_s=PATIENCE_S)
    found = {span.name: span for span in reversed(spans.get_finished_spans())}
    request, work, inside = found["request"], found["busmq job"], found["inside"]
    assert request.attributes["busmq.batch"] == 7
    assert work.parent.span_id == request.context.span_id
    assert inside.parent.span_id == work.context.span_id
    assert work.attributes["busmq.group"] == "mail"
    traces = {span.context.trace_id for span in spans.get_finished_spans()}
    assert len(traces) == 2  # the second job has a trace of its own


async def test_a_push_is_a_span_and_its_error_marks_it(
    spans: InMemorySpanExporter, redis_url: str
) -> None:
    async with Bus(redis_url) as bus:
        queue = bus.queue("pushed")
        await queue.attach(maxsize=2)
        await queue.push_many([b"a", b"b"])
        with pytest.raises(QueueFull):
            await queue.push(b"c")
    good, bad = [each for each in spans.get_finished_spans() if each.name == "busmq push"]
    assert good.attributes["busmq.messages"] == 2
    assert good.status.is_ok
    assert not bad.status.is_ok
    assert bad.events[0].name == "exception"


async def test_a_provider_that_fails_costs_only_the_spans(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Sampler):
        def should_sample(self, *_: object, **__: object) -> SamplingResult:
            raise RuntimeError("no sample")

        def get_description(self) -> str:
            return "fails"

    class Counting(TracerProvider):
        made = 0

        def get_tracer(self, *given: Any, **named: Any) -> Any:
            Counting.made += 1
            return super().get_tracer(*given, **named)

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", Counting(sampler=Failing()))
    async with Bus(redis_url) as bus, bus.queue("unsampled") as queue:
        assert [await queue.push(b"a"), await queue.push(b"b")] == [1, 2]
        with tracing.span("block"):
            pass
    assert Counting.made == 1
    assert [each.levelname for each in caplog.records if "span" in each.message] == ["ERROR"]


async def test_an_event_carries_the_trace_of_its_publisher(
    spans: InMemorySpanExporter, redis_url: str
) -> None:
    async with Bus(redis_url) as bus, bus.queue("events") as queue:
        await bus.subscribe(["signup"], into="events")
        with tracing.span("request"):
            wanted = tracing.current_traceparent()
            await bus.publish(["signup"], {"user": 1})
            await bus.publish(["signup"], {"user": 2}, extensions={"traceparent": "mine"})
        await bus.publish(["signup"], {"user": 3})
        async with queue.group("all") as group:
            batch = await anext(aiter(group.batches()))
        found = [Event.decode(message.value) for message in batch]
    assert [each.extensions.get("traceparent") for each in found] == [wanted, "mine", None]


@pytest.mark.parametrize("bad", [b"traceparent", b'["traceparent"]', b'{"traceparent":[1]}'])
async def test_a_message_of_another_program_begins_a_trace_of_its_own(
    spans: InMemorySpanExporter, bad: bytes
) -> None:
    with tracing.continued_trace(flows.traceparent_of(bad), "work"):
        pass
    [span] = spans.get_finished_spans()
    assert span.parent is None


def test_a_reference_with_a_trace_names_the_same_job() -> None:
    plain = flows.reference_encoder('me"', "q.done")("j1")
    traced = flows.with_traceparent(plain, "00-1-2-01")
    assert flows.decode_reference(traced, "q") == flows.decode_reference(plain, "q")
    assert flows.traceparent_of(traced) == "00-1-2-01"
    assert flows.traceparent_of(plain) is None
    assert encode_value(traced) == traced


def test_a_program_without_opentelemetry_does_not_load_it() -> None:
    script = """
import sys
from busmq_spark import tracing
with tracing.span("a"), tracing.continued_trace(None, "b"):
    assert tracing.current_traceparent() is None
sys.exit("opentelemetry" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
