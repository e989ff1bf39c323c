"""A service as its provider sees it."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.service import Request, Service
from busmq_spark.errors import (
    BusError,
    ConfigError,
    LinkLost,
    RequestFailed,
    RequestTimeout,
    StateError,
)
from busmq_spark.objects.service_and_channel_messages import ServiceRequest
from busmq_spark.queue import queue as flows
from busmq_spark.queue.keys import QueueKeys, service_queue
from tests.bus.conftest import OpenBus
from tests.bus.test_service import LONG_S, answer, end_time_of_requests, pair
from tests.bus.tools import UNTIL_S
from tests.conftest import Fresh
from tests.stored import read_at


class Gate:
    """A handler that is held until the test opens it."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.inside = 0
        self.most = 0
        self.cancelled = 0
        self._entered = asyncio.Condition()

    async def __call__(self, data: Any) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        async with self._entered:
            self._entered.notify_all()
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        return data

    async def entered(self, many: int) -> None:
        async with self._entered:
            await self._entered.wait_for(lambda: self.inside >= many)


async def stored(bus: Bus, name: str) -> list[Any]:
    """The data of the requests that no provider has taken."""
    return [
        ServiceRequest(message.json()["data"]).data
        for message in await bus.queue(service_queue(name)).run(read_at(keys(bus, name), 0, 999))
    ]


def keys(bus: Bus, name: str) -> QueueKeys:
    return bus.queue(service_queue(name)).keys


# Which requests


async def test_expired_and_malformed_requests_are_dropped_with_a_warning(
    open_bus: OpenBus, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    served = []
    async with open_bus() as bus, bus.queue(service_queue(name := fresh("svc"))) as requests:
        now_ms = time.time() * 1000
        for frame in (
            ServiceRequest("old", expires_ms=now_ms - 1000),
            ServiceRequest("fresh", expires_ms=now_ms + 60_000),
            ServiceRequest("eternal"),
        ):
            await requests.push(frame.encode())
        for text in ("notjson", "null", "[1]", '"text"', '{"data":1,"replyTo":7}', b"\xff{}"):
            await requests.push(text)
        async with pair(bus, name, served.append) as service:
            await service.request("last")
    assert served == ["fresh", "eternal", "last"]
    assert (
        len(
            [
                record
                for record in caplog.records
                if record.levelname == "WARNING" and "is dropped" in record.message
            ]
        )
        == 7
    )
    assert len(caplog.records) == 7


async def test_a_request_makes_the_provider_write_to_no_queue_but_a_reply_queue(
    open_bus: OpenBus, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    served = []
    async with (
        open_bus() as bus,
        bus.queue(service_queue(name := fresh("svc"))) as requests,
        bus.queue(fresh("victim")) as victim,
    ):
        await requests.push(ServiceRequest("evil", "1", victim.name).encode())
        async with pair(bus, name, served.append) as service:
            await service.request("last")
        assert served == ["last"]
        assert await victim.count() == 0
    assert "not a reply queue of this service" in caplog.text


async def test_what_cannot_be_understood_does_not_count_towards_max(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, bus.queue(service_queue(name := fresh("svc"))) as requests:
        await requests.push("notjson")
        await requests.push(ServiceRequest(0, expires_ms=1).encode())
        async with bus.service(name) as provider, bus.service(name) as service:
            await service.connect(timeout_s=LONG_S)
            await provider.serve(lambda data: data, max=2)
            assert await asyncio.gather(service.request(1), service.request(2)) == [1, 2]
            await service.send(3)
            assert not provider.serving
            assert await stored(bus, name) == [3]


async def test_a_provider_with_no_room_leaves_requests_to_others(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    gate = Gate()
    async with (
        open_bus() as bus,
        bus.service(name := fresh("svc")) as busy,
        pair(bus, name, gate, concurrency=2) as service,
    ):
        asked = [asyncio.ensure_future(service.request(n)) for n in range(5)]
        await gate.entered(2)
        await busy.serve(lambda data: -data)
        assert await asyncio.gather(*asked[2:]) == [-2, -3, -4]
        assert gate.most == 2
        gate.opened.set()
        assert await asyncio.gather(*asked[:2]) == [0, 1]


async def test_no_more_handlers_run_at_once_than_asked_for(open_bus: OpenBus, fresh: Fresh) -> None:
    gate = Gate()
    async with open_bus() as bus, pair(bus, name := fresh("svc"), gate, concurrency=3) as service:
        asked = [asyncio.ensure_future(service.request(n)) for n in range(20)]
        await gate.entered(3)
        async with bus.queue(service_queue(name)) as requests:
            assert len([message async for message in requests.consume(remove=False, max=17)]) == 17
        gate.opened.set()
        assert await asyncio.gather(*asked) == list(range(20))
        assert gate.most == 3


async def test_several_providers_share_what_comes(open_bus: OpenBus, fresh: Fresh) -> None:
    gates = [Gate() for _ in range(3)]
    async with open_bus() as bus, bus.service(name := fresh("svc")) as service:
        providers = [bus.service(name) for _ in gates]
        for provider, gate in zip(providers, gates, strict=True):
            await provider.serve(gate, concurrency=2)
        await service.connect(timeout_s=LONG_S)
        asked = [asyncio.ensure_future(service.request(n)) for n in range(6)]
        for gate in gates:
            await gate.entered(2)
            gate.opened.set()
        assert await asyncio.gather(*asked) == list(range(6))


# Which replies


async def test_handlers_of_every_form(open_bus: OpenBus, fresh: Fresh) -> None:
    class Object:
        async def __call__(self, data: int) -> int:
            return data + 1

    def with_default(data: int, step: int = 1) -> int:
        return data + step

    async def with_request(data: int, request: Request) -> int:
        assert request.reply_to is not None
        return int(request.data + 1)

    async def replies(data: int, request: Request) -> None:
        await request.reply(data + 1)

    for handler in (
        Object(),
        with_default,
        with_request,
        replies,
        functools.partial(with_default, step=1),
        (1).__add__,
    ):
        async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
            assert await service.request(1) == 2


@pytest.mark.parametrize("handler", [lambda: 1, lambda a, b, c: 1])
async def test_a_handler_that_cannot_be_called_is_refused_at_once(
    open_bus: OpenBus, fresh: Fresh, handler: Any
) -> None:
    async with open_bus() as bus, bus.service(fresh("svc")) as service:
        with pytest.raises(ConfigError, match="a handler is called with"):
            await service.serve(handler)
        with pytest.raises(ConfigError, match="concurrency is 0"):
            await service.serve(print, concurrency=0)
        assert not service.serving


async def test_what_a_handler_does_wrong_reaches_the_requester_and_the_event(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async def waits_for_what_is_cancelled() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def handler(data: str, request: Request) -> Any:
        if data == "cancelled":
            await waits_for_what_is_cancelled()
        if data == "twice":
            await request.reply(1)
            await request.reply(2)
        return object()

    errors: list[BaseException] = []
    async with (
        open_bus() as bus,
        bus.service(name := fresh("svc")) as provider,
        bus.service(name) as service,
    ):
        provider.on("error", errors.append)
        await provider.serve(handler)
        await service.connect(timeout_s=LONG_S)
        with pytest.raises(RequestFailed, match="CancelledError"):
            await service.request("cancelled")
        with pytest.raises(RequestFailed, match="is not JSON serializable"):
            await service.request("not JSON")
        assert await service.request("twice") == 1
        await service.send("without reply")
        while len(errors) < 3:
            await service.request("twice")
    assert [type(error).__name__ for error in errors[:3]] == [
        "CancelledError",
        "MessageRefused",
        "StateError",
    ]


async def test_a_failed_handler_is_logged_with_its_stack_trace(
    open_bus: OpenBus, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(data: Any) -> None:
        raise LookupError("no such thing")

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        with pytest.raises(RequestFailed):
            await service.request(1)
    assert "in handler" in caplog.text


async def test_without_anybody_waiting_nothing_is_replied(open_bus: OpenBus, fresh: Fresh) -> None:
    done = asyncio.Event()

    async def handler(data: Any, request: Request) -> AsyncIterator[int]:
        await request.partial(1)
        assert request.reply_to is None
        return items()

    async def items() -> AsyncIterator[int]:
        yield 1
        done.set()

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        await service.send(1)
        await done.wait()


async def test_a_reply_queue_that_vanished_is_made_anew(open_bus: OpenBus, fresh: Fresh) -> None:
    async def handler(data: Any, request: Request) -> Any:
        assert request.reply_to is not None
        queue = bus.queue(request.reply_to)
        await queue.run(flows.delete(queue.keys))
        return data

    async with open_bus() as bus, pair(bus, fresh("svc"), handler) as service:
        assert [await service.request(n) for n in range(3)] == [0, 1, 2]


async def test_a_last_reply_whose_link_broke_is_given_again_a_partial_one_not(
    open_bus: OpenBus, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[bytes] = []
    push = Queue.push

    def unlucky(queue: Queue, value: Any) -> Any:
        if b'"err"' in value and value not in broken:
            broken.append(value)
            raise LinkLost(url="redis://…", reason="broke under way")
        return push(queue, value)

    async def handler(data: Any) -> AsyncIterator[int]:
        yield 1

    monkeypatch.setattr(Queue, "push", unlucky)
    async with open_bus() as bus, pair(bus, name := fresh("svc"), lambda data: data) as service:
        assert await service.request(1) == 1
    async with open_bus() as bus, pair(bus, name, handler) as service:
        with pytest.raises(RequestFailed, match="broke under way"):
            await anext(service.stream(1))
    assert [b'"partial":true' in value for value in broken] == [False, True, False]


# The end


async def test_disconnecting_lets_handlers_end_and_takes_nothing_new(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    gate, stopped = Gate(), asyncio.Event()
    async with (
        open_bus() as bus,
        bus.service(name := fresh("svc")) as provider,
        bus.service(name) as service,
    ):
        await provider.serve(gate)
        provider._side._requests.once("consuming", lambda _: stopped.set())
        await service.connect(timeout_s=LONG_S)
        asked = asyncio.ensure_future(service.request("under way"))
        await gate.entered(1)
        leaving = asyncio.ensure_future(provider.disconnect(grace_s=LONG_S))
        await stopped.wait()
        await service.send("afterwards")
        gate.opened.set()
        assert await asked == "under way"
        await leaving
        assert await stored(bus, name) == ["afterwards"]
        await provider.serve(gate)  # and again
        assert await service.request("again") == "again"


async def test_a_provider_that_has_left_keeps_no_queue_alive(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async with open_bus() as bus, pair(bus, fresh("svc"), lambda data: data) as service:
        await service.request(1)
        assert len(bus._objects) == 6  # two ends, each with the request queue and the reply queue
        await service.disconnect()
        [provider] = [thing for thing in bus._objects if isinstance(thing, Service)]
        await provider.disconnect()
        assert not bus._objects


async def test_a_streamed_reply_does_not_keep_a_provider_from_leaving(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    async def handler(data: Any) -> AsyncIterator[int]:
        yield 1

    async with (
        open_bus() as bus,
        bus.service(name := fresh("svc")) as provider,
        bus.service(name) as service,
    ):
        await provider.serve(handler)
        await service.connect(timeout_s=LONG_S)
        assert [part async for part in service.stream(1)] == [1]
        async with asyncio.timeout(UNTIL_S):  # Q15: npm busmq waits for all of the grace period
            await provider.disconnect(grace_s=0.1 * LONG_S)


async def test_after_the_grace_period_handlers_are_cancelled_and_their_requesters_time_out(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    gate = Gate()
    async with (
        open_bus() as bus,
        bus.service(name := fresh("svc")) as provider,
        bus.service(name) as service,
    ):
        await provider.serve(gate)
        await service.connect(timeout_s=LONG_S)
        asked = asyncio.ensure_future(service.request(1))
        await gate.entered(1)
        await provider.disconnect(grace_s=0.001)
        assert gate.cancelled == 1
        async with bus.queue(service_queue(name)) as requests:
            another = asyncio.ensure_future(service.request(2))
            await answer(bus, requests, {"reply": "behind what was replied before"})
            await another
        end_time_of_requests(service)
        with pytest.raises(RequestTimeout):
            await asked


async def test_a_handler_may_disconnect_its_own_service(open_bus: OpenBus, fresh: Fresh) -> None:
    async with (
        open_bus() as bus,
        bus.service(name := fresh("svc")) as provider,
        bus.service(name) as service,
    ):

        async def handler(data: Any) -> Any:
            await provider.disconnect(grace_s=LONG_S)
            return data

        await provider.serve(handler)
        await service.connect(timeout_s=LONG_S)
        assert await service.request("bye") == "bye"
        assert not provider.serving


async def test_leaving_the_bus_ends_handlers_and_leaves_no_task(
    open_bus: OpenBus, fresh: Fresh
) -> None:
    gate = Gate()
    before = asyncio.all_tasks()
    async with open_bus() as bus:
        provider, service = bus.service(name := fresh("svc")), bus.service(name)
        await provider.serve(gate)
        await service.connect(timeout_s=LONG_S)
        asked = asyncio.ensure_future(service.request(1))
        await gate.entered(1)
    with pytest.raises((StateError, BusError)):
        await asked
    assert gate.cancelled == 1
    assert asyncio.all_tasks() == before
