"""Machines whose clocks do not agree: a request expires by the clock of the server."""

from __future__ import annotations

import asyncio
import re
import time
from types import SimpleNamespace

import pytest

from busmq_spark.bus import service as service_module
from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue import base_queue
from busmq_spark.errors import LinkLost
from busmq_spark.objects.service_and_channel_messages import ServiceRequest, decode_request
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import service_queue
from tests.conftest import Fresh

HOUR_S = 3600
LONG_S = 60


@pytest.mark.parametrize("off_s", [-HOUR_S, HOUR_S])
async def test_a_machine_whose_clock_is_wrong_asks_and_serves(
    redis_url: str, fresh: Fresh, off_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = SimpleNamespace(time=lambda: time.time() + off_s)
    for module in (base_queue, service_module):
        monkeypatch.setattr(module, "time", wrong)
    async with (
        Bus(redis_url) as bus,
        bus.service(fresh("svc")) as serving,
        bus.service(serving.name) as service,
    ):
        await service.connect(timeout_s=LONG_S)
        await service.send("first")  # waits in the queue, where its time can be seen
        async with bus.queue(service_queue(service.name)) as requests:
            [text] = await bus.servers.commands[requests.server].execute(
                [command("LINDEX", requests.keys.messages, 1)]
            )
        expires_ms = decode_request(text.decode()).expires_ms
        assert expires_ms is not None
        assert abs(expires_ms - LONG_S * 1000 - time.time() * 1000) < HOUR_S * 1000 / 2
        served: list[str] = []
        # Append gives None
        await serving.serve(lambda data: served.append(data) or data)  # type: ignore[func-returns-value]
        assert await service.request("second") == "second"
        assert served == ["first", "second"]


async def test_requests_that_are_too_late_are_mentioned_at_first_and_then_rarely(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Bus(redis_url) as bus,
        bus.service(fresh("svc")) as serving,
        bus.service(serving.name) as service,
        bus.queue(service_queue(serving.name)) as requests,
    ):
        late = ServiceRequest("old", expires_ms=time.time() * 1000 - 5000).encode()
        await requests.push_many([late] * 12)
        await serving.serve(lambda data: data)
        await service.connect(timeout_s=LONG_S)
        assert await service.request("new") == "new"
    found = [
        text for text in caplog.messages if "is dropped, as its requester waits no more" in text
    ]
    assert len(found) == 2
    assert "1 dropped so far" in found[0]
    assert "10 dropped so far" in found[1]


async def test_a_push_cut_off_by_the_end_of_the_link_names_the_address(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        link = bus.servers.commands[queue.server]
        future = queue.push(b"x")
        await asyncio.sleep(0)  # it is under way
        link.drop()  # type: ignore[union-attr]  # of a single server
        with pytest.raises(
            LinkLost,
            match=(
                f"cannot reach Redis at {re.escape(link.endpoint.masked_url)}: the link was closed"
            ),
        ):
            await future
        assert await queue.push(b"y") in {1, 2}, "what follows is sent on a new connection"
