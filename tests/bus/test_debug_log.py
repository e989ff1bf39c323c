"""With the level DEBUG the logger ``busmq_spark`` says what a bus does: names, counts and ids."""

from __future__ import annotations

import logging

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.queue.push import log as push_log
from busmq_spark.errors import BusError
from tests.bus.conftest import OpenBus
from tests.bus.federated import SECRET
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.far import far

VALUE = "nobody's business"


def said(caplog: pytest.LogCaptureFixture, *parts: str) -> bool:
    """Whether one line has all of these."""
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
    return any(all(part in line for part in parts) for line in lines)


async def test_what_a_queue_does_is_said_without_its_values(
    open_bus: OpenBus,
    fresh: Fresh,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "busmq_spark"):
        async with open_bus() as bus:
            async with bus.queue(name := fresh()) as queue:
                assert said(caplog, repr(name), "attached")
                assert await queue.push(VALUE) == 1
                assert await queue.push_many([VALUE, VALUE]) == [2, 3]
                assert said(caplog, repr(name), "pushed", "1")
                assert said(caplog, repr(name), "pushed", "3")
                async for message in queue.consume(max=3, reliable=True):
                    await queue.ack(message.id)
                assert said(caplog, repr(name), "took", "3")
                assert said(caplog, repr(name), "acked", "3")
            assert said(caplog, repr(name), "detached")
        assert VALUE not in caplog.text
        assert SECRET not in caplog.text


async def test_the_other_objects_say_it_too(
    open_bus: OpenBus,
    fresh: Fresh,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "busmq_spark"):
        async with open_bus() as bus:
            async with bus.pubsub(name := fresh()):
                assert said(caplog, repr(name), "subscribed")
            assert said(caplog, repr(name), "unsubscribed")
            async with await bus.channel(name := fresh()).connect():
                assert said(caplog, f"Channel({name!r}", "connect")
            assert said(caplog, f"Channel({name!r}", "disconnect")
            async with bus.service(name := fresh()) as service:
                await service.connect()
                assert said(caplog, f"Service({name!r}", "connected")
            assert said(caplog, f"Service({name!r}", "disconnect")


async def test_connecting_and_leaving_name_the_servers_without_passwords(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "busmq_spark"):
        async with Bus(redis_url) as bus:
            assert said(caplog, "bus", "connected", redis_url.rpartition(":")[2].split("/")[0])
            async with bus.queue(fresh()) as queue, queue.group("g") as ordered:
                await queue.push(VALUE)
                async for batch in ordered.batches():
                    await ordered.ack(batch)
                    break
                assert said(caplog, repr(queue.name), "'g'", "acked", "1")
            async with bus.queue(fresh()) as queue, queue.group("s", shared=True) as shared:
                await queue.push(VALUE)
                async for leased in shared.batches():
                    await shared.ack(leased)
                    break
                assert said(caplog, repr(queue.name), "'s'", "ack", "1")
        assert said(caplog, "bus", "disconnected")
    assert VALUE not in caplog.text


async def test_a_federation_link_says_whom_it_reached_and_who_refused(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "busmq_spark"):
        async with far(redis_url) as both:
            await both.queue("a").exists()
            assert said(caplog, "federation", "connected to ws://")
            wrong = both.bus.federate(both.bus.queue("a"), secret="wrong" * 8)
            with pytest.raises(BusError):
                await wrong.exists()
            await until(lambda: said(caplog, "federation", "refused"))
        assert SECRET not in caplog.text
        assert "wrongwrong" not in caplog.text


async def test_nothing_is_made_for_a_log_that_is_off(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push asks once for each call to Redis whether it is on."""
    asked = []
    monkeypatch.setattr(push_log, "isEnabledFor", asked.append)
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        asked.clear()
        await queue.push_many(range(500))
        assert asked == [logging.DEBUG]
