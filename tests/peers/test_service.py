"""Services between npm busmq 3.1.0 and this package, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.service import Request
from busmq_spark.errors import RequestFailed, RequestTimeout
from busmq_spark.queue.keys import service_queue
from tests.bus.test_service import LONG_S, SOON_S
from tests.conftest import Fresh
from tests.peers.node import Peer


async def away(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """The peer is asked in a thread: our end has to go on meanwhile."""
    return await asyncio.to_thread(function, *args, **keywords)


# Node provides


async def node_serves(
    node: Peer, bus: Bus, name: str, handler: str, work: Callable[[Any], Awaitable[Any]]
) -> None:
    await away(node.call, "serviceServe", tag=name, name=name, handler=handler)
    async with bus.service(name) as service:
        await service.connect(timeout_s=LONG_S)
        await work(service)
    await away(node.call, "serviceDisconnect", tag=name, grace=0)


@pytest.mark.parametrize("data", [{"q": 1}, "text", 5, None, [], "ü 世 😀"])
async def test_node_replies_to_us(
    node: Peer, place: dict[str, Any], fresh: Fresh, data: Any
) -> None:
    async def work(service: Any) -> None:
        assert await service.request(data) == {"echo": data}

    async with Bus(**place) as bus:
        await node_serves(node, bus, name := fresh("svc"), "echo", work)
    assert node.event(name, "request") == [data, True]


async def test_errors_of_node_are_raised_here(
    node: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    async def text(service: Any) -> None:
        with pytest.raises(RequestFailed, match="bad"):
            await service.request(1)

    async def thing(service: Any) -> None:
        with pytest.raises(RequestFailed, match="boom") as caught:
            await service.request(1)
        assert caught.value.details["error"]["code"] == "E_X"
        with pytest.raises(RequestFailed, match="boom"):
            await anext(service.stream(1))

    async with Bus(**place) as bus:
        await node_serves(node, bus, fresh("svc"), "text", text)
        await node_serves(node, bus, fresh("svc"), "error", thing)


async def test_a_silent_node_is_a_timeout_and_its_late_reply_is_ignored(
    node: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    async def work(service: Any) -> None:
        with pytest.raises(RequestTimeout):
            await service.request(1, timeout_s=SOON_S)
        await away(node.call, "serviceRelease")
        asked = asyncio.ensure_future(service.request(2))
        await away(node.event, name, "request")
        await away(node.event, name, "request")
        await away(node.call, "serviceRelease")
        assert await asked == 2

    async with Bus(**place) as bus:
        await node_serves(node, bus, name := fresh("svc"), "hold", work)


async def test_partial_and_streamed_replies_of_node_are_our_stream(
    node: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    async def partial(service: Any) -> None:
        assert [part async for part in service.stream(1)] == ["p1", "p2", "last"]
        assert await service.request(1) == "p1"

    async def stream(service: Any) -> None:
        assert [part async for part in service.stream(50)] == [{"n": n} for n in range(1, 51)]

    async with Bus(**place) as bus:
        await node_serves(node, bus, fresh("svc"), "partial", partial)
        await node_serves(node, bus, fresh("svc"), "stream", stream)


async def test_a_request_of_ours_without_reply_reaches_node_as_one(
    node: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    async def work(service: Any) -> None:
        await service.send({"n": 1})
        assert await away(node.event, name, "request") == [{"n": 1}, False]

    async with Bus(**place) as bus:
        await node_serves(node, bus, name := fresh("svc"), "silent", work)


async def test_a_node_that_is_killed_with_our_request_is_a_timeout(
    npm: None, redis_url: str, fresh: Fresh
) -> None:
    name = fresh("svc")
    with Peer([redis_url]) as doomed:
        await away(doomed.call, "serviceServe", tag="doomed", name=name, handler="hold")
        async with (
            Bus(redis_url) as bus,
            bus.service(name) as service,
            bus.service(name) as successor,
        ):
            await service.connect(timeout_s=SOON_S)
            asked = asyncio.ensure_future(service.request(1))
            await away(doomed.event, "doomed", "request")
            doomed.kill()
            await successor.serve(lambda data: -data)
            with pytest.raises(RequestTimeout, match=f"no answer within {SOON_S:g} s"):
                await asked
            assert await service.request(2, timeout_s=LONG_S) == -2


# Ours provide


@pytest.fixture
def asker(node: Peer, fresh: Fresh) -> str:
    return fresh("svc")


async def node_asks(node: Peer, name: str, data: Any, **options: Any) -> None:
    await away(
        node.call,
        "serviceRequest",
        tag=name,
        data=data,
        options={"reqTimeout": LONG_S * 1000, **options},
    )


@pytest.mark.parametrize("data", [{"q": 1}, "text", 5, None, [], "ü 世 😀"])
async def test_we_reply_to_node(node: Peer, place: dict[str, Any], asker: str, data: Any) -> None:
    async with Bus(**place) as bus, bus.service(asker) as service:
        await service.serve(lambda data: data)
        await away(node.call, "serviceConnect", tag=asker, name=asker)
        await node_asks(node, asker, data)
        assert await away(node.event, asker, "reply") == [None, data, False]


async def test_our_errors_reach_node_in_its_own_shape_and_without_a_stack(
    node: Peer, place: dict[str, Any], asker: str
) -> None:
    async def handler(data: str, request: Request) -> None:
        if data == "text":
            await request.fail("bad")
        else:
            raise LookupError("boom")

    async with Bus(**place) as bus, bus.service(asker) as service:
        await service.serve(handler)
        await away(node.call, "serviceConnect", tag=asker, name=asker)
        for data, error in (("text", "bad"), ("exception", {"message": "boom"})):
            await node_asks(node, asker, data)
            assert (await away(node.event, asker, "reply"))[::2] == [error, False]


async def test_node_times_out_when_we_are_silent_and_ignores_what_comes_late(
    node: Peer, place: dict[str, Any], asker: str
) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def handler(data: int) -> int:
        begun.set()
        await go.wait()
        return data

    async with Bus(**place) as bus, bus.service(asker) as service:
        await service.serve(handler)
        await away(node.call, "serviceConnect", tag=asker, name=asker)
        await node_asks(node, asker, 1, reqTimeout=SOON_S * 1000)
        assert (await away(node.event, asker, "reply"))[::2] == ["timeout", False]
        await begun.wait()
        await node_asks(node, asker, 2)
        go.set()
        assert await away(node.event, asker, "reply") == [None, 2, False]


async def test_our_partial_replies_and_generators_reach_node(
    node: Peer, place: dict[str, Any], asker: str
) -> None:
    async def handler(data: int) -> AsyncIterator[dict[str, int]]:
        for n in range(data):
            yield {"n": n}

    async with Bus(**place) as bus, bus.service(asker) as service:
        await service.serve(handler)
        await away(node.call, "serviceConnect", tag=asker, name=asker)
        await node_asks(node, asker, 20, streamReply=True)
        assert [await away(node.event, asker, "item") for _ in range(21)] == [
            *([{"n": n}] for n in range(20)),
            [],
        ]
        await node_asks(node, asker, 2, allowPartial=True)
        replies = [await away(node.event, asker, "reply") for _ in range(3)]
        assert [reply[::2] for reply in replies] == [[None, True], [None, True], [None, False]]
        await node_asks(node, asker, 2)
        assert await away(node.event, asker, "reply") == [None, {"n": 0}, True]


async def test_a_request_of_node_without_reply_is_served_and_not_answered(
    node: Peer, place: dict[str, Any], asker: str
) -> None:
    came: asyncio.Queue[Request] = asyncio.Queue()
    async with Bus(**place) as bus, bus.service(asker) as service:
        service.on("request", came.put_nowait)
        await service.serve(lambda data: data)
        await away(node.call, "serviceConnect", tag=asker, name=asker)
        await away(node.call, "serviceSend", tag=asker, data={"n": 1})
        request = await came.get()
        assert (request.data, request.reply_to) == ({"n": 1}, None)


# Both


async def test_providers_of_both_kinds_share_the_load_and_leave_gracefully(
    node: Peer, place: dict[str, Any], fresh: Fresh
) -> None:
    name, ours = fresh("svc"), asyncio.Event()

    async def handler(data: Any) -> str:
        ours.set()
        return "python"

    await away(node.call, "serviceServe", tag=name, name=name, handler="tagged")
    async with Bus(**place) as bus, bus.service(name) as provider, bus.service(name) as service:
        await provider.serve(handler)
        await service.connect(timeout_s=LONG_S)
        seen: set[str] = set()
        while seen != {"python", name}:
            replies = await asyncio.gather(*(service.request(n) for n in range(50)))
            assert set(replies) <= {"python", name}
            seen |= set(replies)
        asked = [asyncio.ensure_future(service.request(n)) for n in range(50)]
        await provider.disconnect(grace_s=LONG_S)
        await asyncio.gather(*asked)
        assert {await service.request(n) for n in range(20)} == {name}
        await away(node.call, "serviceDisconnect", tag=name, grace=LONG_S * 1000)
        await away(node.event, name, "disconnect")
        await provider.serve(handler)
        assert {await service.request(n) for n in range(20)} == {"python"}
        assert await bus.queue(service_queue(name)).count() == 0
