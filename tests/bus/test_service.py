"""A service as the requester sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.service import PendingRequest, Request, Requester, ServerClock, Service
from busmq_spark.errors import (
    ConfigError,
    MessageRefused,
    RequestFailed,
    RequestTimeout,
    StateError,
)
from busmq_spark.objects.service_and_channel_messages import ServiceReply, decode_request
from busmq_spark.queue.keys import service_queue
from tests.bus.conftest import OpenBus
from tests.conftest import Fresh

LONG_S = 20
SOON_S = 2.5
"""For a request that is to time out, but not before a provider has received it: an expired one is
dropped.
"""


@asynccontextmanager
async def pair(
    bus: Bus, name: str, handler: Callable[..., Any], **options: Any
) -> AsyncIterator[Service]:
    """The connected end of a service whose other end serves."""
    async with bus.service(name) as provider, bus.service(name) as requester:
        await provider.serve(handler, **options)
        await requester.connect(timeout_s=LONG_S)
        yield requester


@asynccontextmanager
async def stage(bus: Bus, name: str) -> AsyncIterator[tuple[Service, Queue]]:
    """A connected end and the queue on which its requests are found: the test itself provides."""
    async with bus.service(name) as requester, bus.queue(service_queue(name)) as requests:
        await requester.connect(timeout_s=LONG_S)
        yield requester, requests


async def answer(
    bus: Bus, requests: Queue, *replies: dict[str, Any], req_id: str | None = None
) -> None:
    """Take one request and push these replies to it."""
    message = await anext(requests.consume())
    frame = decode_request(message.text)
    assert frame.reply_to is not None
    async with bus.queue(frame.reply_to) as queue:
        for fields in replies:
            await queue.push(ServiceReply(req_id or frame.req_id, **fields).encode())


def end_time_of_requests(service: Service) -> None:
    """As if the time of those that wait for a reply were over."""
    assert isinstance(service._side, Requester)
    for waiting in service._side._waiting.values():
        waiting.deadline = float("-inf")
        waiting._something.set()


@pytest.mark.parametrize(
    "data", [{"q": 1}, "text", 5, None, True, [], "ü 世 😀 \0", {"nested": [1, {"a": None}]}]
)
async def test_every_json_value_goes_there_and_back(
    open_bus: OpenBus, fresh: Fresh, data: Any
) -> None:
    async with open_bus() as bus, pair(bus, fresh("svc"), lambda data: data) as service:
        assert await service.request(data) == data


async def test_many_requests_at_once_each_get_their_own_reply(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    async with open_bus() as bus, pair(bus, fresh("svc"), double) as service:
        assert await asyncio.gather(*(service.request(n) for n in range(200))) == [
            2 * n for n in range(200)
        ]


async def test_an_error_of_the_provider_is_raised_without_its_stack_trace(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    def handler(data: Any) -> None:
        raise LookupError("no such thing")

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        with pytest.raises(RequestFailed, match="no such thing") as caught:
            await service.request(1)
        assert caught.value.details["error"] == {"message": "no such thing"}


async def test_a_provider_may_ask_for_stack_traces_to_be_sent(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    def handler(data: Any) -> None:
        raise LookupError("no such thing")

    async with open_bus() as bus, pair(bus, fresh("svc"), handler, send_stack=True) as service:
        with pytest.raises(RequestFailed) as caught:
            await service.request(1)
        assert "in handler" in caught.value.details["error"]["stack"]


@pytest.mark.parametrize("error", ["bad", {"message": "worse", "code": 7}])
async def test_an_error_may_be_a_text_or_an_object(
    open_bus: OpenBus, fresh: Fresh, error: Any
) -> None:
    async def handler(data: Any, request: Request) -> None:
        await request.fail(error)

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        with pytest.raises(RequestFailed) as caught:
            await service.request(1)
        assert caught.value.details["error"] == error


async def test_a_request_without_a_provider_is_a_timeout_that_says_so(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.service(fresh("svc")) as service:
        await service.connect(timeout_s=0.03)
        with pytest.raises(RequestTimeout, match=r"within 0.03 s\. Is a provider serving"):
            await service.request(1)
        with pytest.raises(RequestTimeout, match=r"within 0\.02 s"):
            await service.request(1, timeout_s=0.02)
        with pytest.raises(RequestTimeout):
            await anext(service.stream(1))


async def test_a_reply_that_comes_too_late_or_unasked_is_dropped(
    open_bus: OpenBus, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bus() as bus, stage(bus, fresh("svc")) as (service, requests):
        early = asyncio.create_task(service.request("early"))
        assert len([message async for message in requests.consume(remove=False, max=1)]) == 1
        end_time_of_requests(service)
        with pytest.raises(RequestTimeout):
            await early
        await answer(bus, requests, {"reply": "late"})
        again = asyncio.create_task(service.request("again"))
        await answer(bus, requests, {"reply": "nobody asked"}, req_id="unknown")
        later = asyncio.create_task(service.request("later"))
        await answer(bus, requests, {"reply": "for the later one"})
        assert await later == "for the later one"
        assert not again.done()
        again.cancel()


async def test_what_is_no_reply_is_dropped_with_a_warning(
    open_bus: OpenBus, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_bus() as bus, stage(bus, fresh("svc")) as (service, requests):
        asked = asyncio.create_task(service.request(1))
        frame = decode_request((await anext(requests.consume())).text)
        assert frame.reply_to is not None
        async with bus.queue(frame.reply_to) as queue:
            for text in (
                "no json",
                "[]",
                '{"reqId":{}}',
                ServiceReply(frame.req_id, reply="fine").encode(),
            ):
                await queue.push(text)
            assert await asked == "fine"
    assert [record.levelname for record in caplog.records if "is dropped" in record.message] == [
        "WARNING"
    ] * 2


async def test_partial_replies_come_as_a_stream(open_bus: OpenBus, fresh: Fresh) -> None:
    async def handler(data: int, request: Request) -> str:
        for n in range(data):
            await request.partial(n)
        return "last"

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        assert [part async for part in service.stream(3)] == [0, 1, 2, "last"]
        assert [part async for part in service.stream(0)] == ["last"]
        assert await service.request(3) == 0


async def test_partial_replies_may_be_all_there_is(open_bus: OpenBus, fresh: Fresh) -> None:
    async def handler(data: Any, request: Request) -> None:
        await request.partial(data)

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        assert [part async for part in service.stream(1)] == [1]


async def test_a_generator_streams_its_items_and_the_end_is_no_item(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async def handler(data: int) -> AsyncIterator[int | None]:
        for n in range(data):
            yield n or None

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        assert [part async for part in service.stream(300)] == [None, *range(1, 300)]
        assert [part async for part in service.stream(0)] == []
        assert await service.request(0) is None


async def test_an_error_in_the_middle_of_a_stream_comes_after_the_parts_before_it(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async def handler(data: Any) -> AsyncIterator[int]:
        yield 1
        raise ValueError("broke")

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        parts = service.stream(None)
        assert await anext(parts) == 1
        with pytest.raises(RequestFailed, match="broke"):
            await anext(parts)


async def test_a_provider_that_falls_silent_in_the_middle_of_a_stream_is_a_timeout(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, stage(bus, fresh("svc")) as (service, requests):
        parts = service.stream(1)
        first = asyncio.create_task(anext(parts))
        await answer(bus, requests, {"reply": 1, "partial": True})
        assert await first == 1
        end_time_of_requests(service)
        with pytest.raises(RequestTimeout):
            await anext(parts)


async def test_each_reply_restarts_the_timeout() -> None:
    waiting = PendingRequest(0.2)
    before = waiting.deadline
    await asyncio.sleep(0.01)  # nothing is waited for: the clock goes on
    waiting.add_reply(ServiceReply("1", partial=True))
    assert waiting.deadline > before
    await waiting.next()
    with pytest.raises(TimeoutError):
        await waiting.next()


async def test_a_stream_that_is_left_early_leaves_nothing_behind(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async def handler(data: Any) -> AsyncIterator[int]:
        for n in range(5):
            yield n

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        parts = service.stream(None)
        assert await anext(parts) == 0
        await parts.aclose()
        await service.disconnect(grace_s=LONG_S)  # would wait for a request that is still open


async def test_a_request_without_reply_names_no_reply_queue_and_gets_none(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, stage(bus, fresh("svc")) as (service, requests):
        await service.send({"n": 1})
        frame = decode_request((await anext(requests.consume())).text)
        assert (frame.data, frame.reply_to) == ({"n": 1}, None)
        assert frame.expires_ms is not None


async def test_requests_that_came_before_the_provider_are_served(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with (
        open_bus() as bus,
        bus.service(name := fresh("svc")) as service,
        bus.service(name) as provider,
    ):
        await service.connect(timeout_s=LONG_S)
        asked = [asyncio.ensure_future(service.request(n)) for n in range(3)]
        async with bus.queue(service_queue(name)) as requests:
            assert len([message async for message in requests.consume(remove=False, max=3)]) == 3
        await provider.serve(lambda n: -n)
        assert await asyncio.gather(*asked) == [0, -1, -2]


async def test_disconnecting_waits_for_replies_and_fails_the_requests_that_are_left(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, stage(bus, fresh("svc")) as (service, requests):
        asked = asyncio.ensure_future(service.request(1))
        leaving = asyncio.ensure_future(service.disconnect(grace_s=LONG_S))
        await answer(bus, requests, {"reply": "in time"})
        assert await asked == "in time"
        await leaving
        await service.connect(timeout_s=LONG_S)
        asked = asyncio.ensure_future(service.request(2))
        await asyncio.sleep(0)
        await service.disconnect(grace_s=0.001)
        with pytest.raises(StateError, match="disconnected"):
            await asked


async def test_a_request_whose_end_disconnects_while_it_reads_the_clock_fails_as_disconnected(
    open_bus: OpenBus, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, left = asyncio.Event(), asyncio.Event()

    async def now_ms(_: ServerClock) -> float:
        reading.set()
        await left.wait()
        return 0.0

    async with open_bus() as bus, stage(bus, fresh("svc")) as (service, _):
        monkeypatch.setattr(ServerClock, "now_ms", now_ms)
        asked = asyncio.ensure_future(service.request(1))
        await reading.wait()
        await service.disconnect(grace_s=0.001)
        left.set()
        with pytest.raises(StateError, match="disconnected"):
            await asked


async def test_each_end_has_its_events_and_its_state(open_bus: OpenBus, fresh: Fresh) -> None:
    seen: list[str] = []
    async with open_bus() as bus:
        provider, requester = bus.service(name := fresh("svc")), bus.service(name)
        for what, service in (("provider", provider), ("requester", requester)):
            for event in ("serving", "connected", "disconnect"):
                service.on(event, lambda what=what, event=event: seen.append(f"{what} {event}"))
        provider.on("request", lambda request: seen.append(f"request {request.data}"))
        await provider.serve(lambda data: data)
        await requester.connect()
        assert (provider.serving, provider.connected, requester.serving, requester.connected) == (
            True,
            False,
            False,
            True,
        )
        await requester.request(7, timeout_s=LONG_S)
        await requester.disconnect()
        await requester.disconnect()
    assert not provider.serving
    assert seen == [
        "provider serving",
        "requester connected",
        "request 7",
        "requester disconnect",
        "provider disconnect",
    ]


async def test_calls_that_make_no_sense_are_refused(open_bus: OpenBus, fresh: Fresh) -> None:
    async with open_bus() as bus, pair(bus, fresh("svc"), lambda data: data) as service:
        with pytest.raises(StateError, match="serving or connected already"):
            await service.connect()
        with pytest.raises(StateError, match="serving or connected already"):
            await service.serve(print)
        with pytest.raises(ConfigError, match="timeout_s is 0"):
            await service.request(1, timeout_s=0)
        with pytest.raises(MessageRefused):
            await service.request(b"bytes")
        await service.disconnect()
        for call in (service.request, service.send, service.stream):
            with pytest.raises(StateError, match="not connected"):
                await call(1)
