"""What npm busmq 3.1.0 pushed and left in Redis at each operation of a service, as captured, and
what ours does: the same.

The captured commands are replayed on one service, ours performs the operation on another. Our
frames may differ in ids, times and names only, and an error carries no stack trace.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.bus.service import Request, Service
from busmq_spark.errors import RequestFailed, RequestTimeout
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, service_queue
from busmq_spark.redis_io.sync_link import SyncLink
from tests.bus.test_service import LONG_S, end_time_of_requests
from tests.conftest import Fresh

CAPTURED = json.loads(
    (Path(__file__).parents[1] / "golden" / "service-transcripts.json").read_text("utf-8")
)["operations"]
CAPTURES = {operation["op"]: operation["commands"] for operation in CAPTURED}
REPLY_TO = "service:svc:replyTo:70d2834dbf790168"


class Boom(Exception):
    code = "E_X"


class Handler:
    """Behaves as the provider of the captures did at the operation."""

    op = ""

    def __init__(self) -> None:
        self.late = asyncio.Event()

    async def __call__(self, data: Any, request: Request) -> Any:
        match "" if data == "settled" else self.op.split()[0]:
            case "reply":
                await self._fail(request)
            case "timeout":
                await asyncio.Event().wait()
            case "late":
                await self.late.wait()
                return "late"
            case "partial":
                await request.partial("p1")
                await request.partial("p2")
                return "last"
            case "streamReply" | "createWriteStream":
                return self._items()
        return {"echo": data}

    async def _fail(self, request: Request) -> None:
        if "string" not in self.op:
            raise Boom("boom")
        await request.fail("bad")

    async def _items(self) -> AsyncIterator[dict[str, int]]:
        for n in (1, 2, 3):
            yield {"n": n}


async def failing(asked: Awaitable[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await asked


async def out_of_time(service: Service) -> None:
    asked = asyncio.ensure_future(service.request("t"))
    await asyncio.sleep(0)
    end_time_of_requests(service)
    await failing(asked, RequestTimeout)


async def parts(service: Service, data: str) -> None:
    assert len([part async for part in service.stream(data)]) == 3


PERFORM: dict[str, Callable[[Service], Awaitable[Any]]] = {
    "request/reply object": lambda service: service.request({"q": 1}),
    "request string": lambda service: service.request("str"),
    "request number/null": lambda service: asyncio.gather(
        service.request(5), service.request(None)
    ),
    "request without reply (no cb)": lambda service: service.send("noreply"),
    "reply with string error": lambda service: failing(service.request("e"), RequestFailed),
    "reply with Error object": lambda service: failing(service.request("e"), RequestFailed),
    "timeout (handler never replies, reqTimeout 300)": out_of_time,
    "late reply after timeout (ignored)": out_of_time,
    "partial replies allowPartial": lambda service: parts(service, "p"),
    "partial replies without allowPartial (only first delivered)": lambda service: service.request(
        "p"
    ),
    "streamReply": lambda service: parts(service, "s"),
    "createWriteStream consumed by plain callback": lambda service: service.request("s"),
}


def alike(frame: str) -> str:
    """The frame without what differs each time."""
    frame = re.sub(r'("reqId"|"replyTo"):"[^"]*"', r'\1:"…"', frame)
    return re.sub(r'"expires":\d+', '"expires":0', frame).replace(
        '"stack":"<stack trace text>",', ""
    )


def pushed_by_npm(op: str) -> list[str]:
    return [alike(words[7]) for words in CAPTURES[op] if words[:2] == ["evalsha", "sha1:PUSH"]]


def replay(link: SyncLink, op: str, service: str) -> None:
    for name, *args in CAPTURES[op]:
        if name not in ("evalsha", "> publish"):
            link.execute(
                command(
                    name.removeprefix("> "),
                    *(word.replace("service:svc", service) for word in args),
                )
            )


def holds(link: SyncLink, name: str) -> dict[str, Any]:
    keys = QueueKeys(name)
    metadata = link.run(flows.metadata(keys))
    metadata.pop("born", None)
    metadata.pop("sizes", None)
    metadata.pop("clock", None)
    values = {
        kind: link.execute(command("LRANGE", key, 0, -1))
        for kind, key in (("messages", keys.messages), ("toack", keys.toack))
    }
    lives = [link.execute(command("TTL", key)) for key in keys.peer_keys]
    return {
        "metadata": metadata,
        **values,
        "msgid": link.execute(command("GET", keys.msgid)),
        "lives": [life > 0 and round(life, -1) for life in lives],
    }


async def test_our_operations_push_and_leave_what_those_of_npm_busmq_do(
    redis_url: str, link: SyncLink, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: asyncio.Queue[str] = asyncio.Queue()
    push = Queue.push

    def recorded(queue: Queue, value: object) -> Any:
        assert isinstance(value, bytes)
        pushed.put_nowait(alike(value.decode()))
        return push(queue, value)

    monkeypatch.setattr(Queue, "push", recorded)
    they, handler = service_queue(fresh("npm")), Handler()
    async with (
        Bus(redis_url) as bus,
        bus.service(name := fresh("svc")) as provider,
        bus.service(name) as service,
    ):
        reply_to: list[str] = []
        provider.on("request", lambda request: reply_to.append(request.reply_to))
        provider.on("error", lambda error: None)
        await provider.serve(handler)
        await service.connect(timeout_s=LONG_S)
        for op in ("serve", "connect"):
            replay(link, op, they)
        for op, perform in PERFORM.items():
            handler.op = op
            handler.late.clear()
            await perform(service)
            handler.late.set()
            expected = pushed_by_npm(op)
            assert [await pushed.get() for _ in expected] == expected, op
            await service.request("settled")
            assert pushed.qsize() == 2, op
            _ = pushed.get_nowait(), pushed.get_nowait()
            replay(link, op, they)
            replay(link, "request string", they)  # what settled it
            assert holds(link, service_queue(name)) == holds(link, they), op
            assert holds(link, reply_to[0]) == holds(link, REPLY_TO.replace("service:svc", they)), (
                op
            )


def test_every_captured_request_is_performed() -> None:
    requests = {
        op
        for op, commands in CAPTURES.items()
        if op != "serve with max 2"
        and any('"expires"' in word for words in commands for word in words)
    }
    assert requests - {*PERFORM} == {"expired request discarded"}
