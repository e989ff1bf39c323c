"""A server that answers what it should not: the line ends with an error, and the bus and its other
objects live.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import BusError
from busmq_spark.federation.client import remote_reconnector
from tests.conftest import Fresh
from tests.federation.far import quick
from tests.federation.tools import SECRET

BAD: list[Any] = ["seven", {"a": 1}, [1], -1, 1.5, 2**60, True, "9" * 30, ""]
NO_PROTOCOL = r"WIRE|does not speak"
EVENTS: dict[str, dict[str, list[Any]]] = {
    "attach": {"attached": [True]},
    "subscribe": {"subscribed": []},
    "connect": {"connect": []},
}
LATER_S = 60.0


@pytest.fixture(autouse=True)
def _end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server confirms no end, and each test would wait for it."""
    monkeypatch.setattr(remote_reconnector, "END_TIMEOUT_S", 0.05)


class Wrong:
    """Speaks the protocol as npm servers do, except where ``answers`` or ``events`` say something
    else.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.events: dict[str, list[Any]] = {}
        self.methods: Callable[[list[str]], dict[str, Any]] = lambda names: {
            str(at): ["0", name] for at, name in enumerate(names)
        }
        self.url = ""

    async def serve(self, socket: ServerConnection) -> None:
        names: dict[bytes, list[str]] = {}
        listening: dict[tuple[bytes, str], int] = {}
        async for message in socket:
            assert isinstance(message, bytes)
            channel, kind, body = message[:16], message[16:17], message[17:]
            if kind != b"1":
                continue
            line = json.loads(body)
            if "type" in line:
                names[channel] = line["methods"]
                await socket.send(channel + b"1ready")
                await self._say(socket, channel, "methods", [{}], self.methods(line["methods"]))
            elif line["method"] != "methods":
                name = names[channel][line["method"]]
                callback = int(next(iter(line["callbacks"]), -1))
                if name == "on":
                    listening[channel, line["arguments"][0]["0"]] = callback
                    continue
                if callback >= 0:
                    await self._say(socket, channel, callback, self.answers.get(name, [None, 30]))
                for event, arguments in EVENTS.get(name, {}).items():
                    await self._say(socket, channel, listening[channel, event], arguments)
                    for other, wrong in self.events.items():
                        if (channel, other) in listening:
                            await self._say(socket, channel, listening[channel, other], wrong)

    async def _say(
        self,
        socket: ServerConnection,
        channel: bytes,
        method: int | str,
        arguments: list[Any],
        callbacks: Any = None,
    ) -> None:
        line = {"method": method, "arguments": arguments, "callbacks": callbacks or {}, "links": []}
        await socket.send(channel + b"1" + json.dumps(line).encode() + b"\n")


@asynccontextmanager
async def wrong_server() -> AsyncIterator[Wrong]:
    wrong = Wrong()
    async with serve(wrong.serve, "127.0.0.1", 0) as server:
        wrong.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/bus"
        yield wrong


@asynccontextmanager
async def between(redis_url: str, fresh: Fresh) -> AsyncIterator[tuple[Wrong, Bus]]:
    """A bus that is well at the end, whatever its server answers."""
    async with (
        wrong_server() as wrong,
        Bus(redis_url, federate=wrong.url, federate_secret=SECRET) as bus,
        bus.queue(fresh()) as local,
    ):
        yield wrong, bus
        assert await local.push("well") == 1


@pytest.mark.parametrize("bad", BAD, ids=repr)
async def test_a_wrong_answer_is_an_error_of_its_call(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, bad: Any
) -> None:
    quick(monkeypatch)
    async with between(redis_url, fresh) as (wrong, bus):
        queue: Any = bus.federate(bus.queue("q"))
        await queue.attach()
        wrong.answers = {
            name: [None, bad] for name in ("push", "count", "exists", "ttl", "metadata")
        }
        async with asyncio.timeout(LATER_S):
            with pytest.raises(BusError, match=NO_PROTOCOL):
                await queue.push("x")
            with pytest.raises(BusError, match=NO_PROTOCOL):
                await queue.count()
            if bad and not isinstance(bad, dict):
                with pytest.raises(BusError, match=NO_PROTOCOL):
                    await queue.metadata()
            await queue.ttl()
            await queue.exists()
            wrong.answers = {"push": [None, 7]}
            assert await queue.push("x") == 7


@pytest.mark.parametrize(
    "arguments",
    [[], [7, "text"], ["text"], ["text", "seven"], [None, None], [["a"], -1], ["text", 2**70]],
    ids=repr,
)
async def test_a_wrong_message_ends_the_line(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, arguments: list[Any]
) -> None:
    quick(monkeypatch)
    async with between(redis_url, fresh) as (wrong, bus):
        wrong.events = {"message": arguments}
        queue: Any = bus.federate(bus.queue("q"))
        lost = asyncio.Event()
        queue.on("reconnecting", lambda _: lost.set())
        queue.on("error", lambda _: lost.set())
        attaching = asyncio.ensure_future(_attached(queue))
        async with asyncio.timeout(LATER_S):
            await asyncio.wait(
                {attaching, asyncio.ensure_future(lost.wait())}, return_when=asyncio.FIRST_COMPLETED
            )
        wrong.events = {}
        async with asyncio.timeout(LATER_S):
            await attaching
            wrong.answers = {"push": [None, 7]}
            assert await queue.push("x") == 7


@pytest.mark.parametrize(
    "methods",
    [lambda _: {}, lambda names: {"0": ["0", names[0]]}, lambda names: {"seven": ["0", names[0]]}],
)
async def test_a_wrong_list_of_methods_is_an_error(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, methods: Any
) -> None:
    quick(monkeypatch)
    async with between(redis_url, fresh) as (wrong, bus):
        await bus.federate(bus.queue("p")).attach()  # there is a link
        monkeypatch.setattr(remote_reconnector, "PATIENCE_S", 0.5)
        wrong.methods = methods
        queue: Any = bus.federate(bus.queue("q"))
        async with asyncio.timeout(LATER_S):
            with pytest.raises(BusError, match=NO_PROTOCOL):
                await queue.attach()


async def _attached(queue: Any) -> None:
    """However often the line ends meanwhile."""
    while not queue.attached:
        try:
            await queue.attach()
        except BusError:
            await asyncio.sleep(0)
