"""Objects of another bus behind a slow link: what takes its time is not lost, and no object waits
for all that others have to send.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, cast

import pytest

from busmq_spark.errors import FederationLost
from busmq_spark.federation.client import remote_reconnector, socket
from busmq_spark.federation.client import socket as sockets
from busmq_spark.federation.client.messaging import RemoteChannel
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.far import far, quick

SLOW = 300_000.0
"""Bytes per second: what these tests send takes several times as long as a server may be silent."""


def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is silent for two seconds is gone."""
    monkeypatch.setattr(sockets, "HEARTBEAT_INTERVAL_S", 0.05)
    monkeypatch.setattr(sockets, "SILENCE_TIMEOUT_S", 2.0)


def hearing(queue: Any) -> list[str]:
    """Why the link was lost, each time."""
    lost: list[str] = []
    queue.on("reconnecting", lambda error: lost.append(str(error)))
    return lost


async def test_a_pong_may_wait_behind_what_we_send(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict(monkeypatch)
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        lost = hearing(queue)
        both.cutter.bytes_per_s = SLOW
        assert await queue.push_many(["x" * 1024] * 1500) == list(range(1, 1501))
        assert not lost
        assert both.cutter.connections == 1


async def test_one_long_message_is_pushed_over_a_slow_link(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict(monkeypatch)
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        both.cutter.bytes_per_s = SLOW
        assert await queue.push("x" * 1_500_000) == 1
        assert both.cutter.connections == 1


async def test_a_pong_may_wait_behind_a_message_that_comes(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict(monkeypatch)
    async with (
        far(redis_url) as both,
        both.home.queue(fresh()) as near,
        both.queue(near.name) as queue,
    ):
        await near.push("x" * 1_500_000)
        both.cutter.bytes_per_s = SLOW
        assert [len(message.value) async for message in queue.consume(reliable=True, max=1)] == [
            1_500_000
        ]
        assert both.cutter.connections == 1


async def test_a_link_on_which_nothing_passes_is_given_up_with_the_reason(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict(monkeypatch)
    quick(monkeypatch)
    monkeypatch.setattr(socket, "SLOWEST_LINK_BYTES_PER_S", 1024 * 1024)
    async with (
        far(redis_url) as both,
        both.home.queue(fresh()) as near,
        both.queue(near.name) as queue,
    ):
        lost = hearing(queue)
        both.cutter.hush()
        counting = asyncio.ensure_future(queue.count())
        await until(lambda: lost)
        monkeypatch.undo()
        assert await counting == 0  # on another connection
        assert both.cutter.connections == 2
        assert "nothing has passed for 2 s" in lost[0]


async def test_calls_wait_longer_than_patience_while_a_link_is_there(
    redis_url: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with far(redis_url) as both, both.queue(fresh()):
        monkeypatch.setattr(remote_reconnector, "PATIENCE_S", 0.2)
        both.cutter.delay_s = 0.3
        async with both.queue(fresh()) as late:
            assert await late.push("x") == 1
        assert both.cutter.connections == 1


async def test_who_comes_late_does_not_wait_for_all_that_others_send(
    redis_url: str, fresh: Fresh
) -> None:
    many, each = 20, 256
    async with far(redis_url) as both:
        queues = [both.queue(fresh()) for _ in range(many)]
        await asyncio.gather(*(queue.attach() for queue in queues))
        both.cutter.bytes_per_s = 2_000_000.0
        pushes = [queue.push_many(["x" * 1024] * each) for queue in queues]
        async with both.queue(fresh()):
            before = [queue.pushed for queue in queues]
        await asyncio.gather(*pushes)
        assert sum(before) < many * each / 2
        assert {queue.pushed for queue in queues} == {each}


async def test_objects_of_one_socket_share_what_may_be_under_way(
    redis_url: str, fresh: Fresh
) -> None:
    async with far(redis_url) as both:
        queues = [both.queue(fresh()) for _ in range(8)]
        await asyncio.gather(*(queue.attach() for queue in queues))
        window = queues[0].handle.remote.send_window
        most, began = 0, window.resume_if_room

        def look() -> None:
            nonlocal most
            most = max(most, window.under_way)
            began()

        window.resume_if_room = look
        await asyncio.gather(*(queue.push_many(["x" * 10_000] * 100) for queue in queues))
        assert socket.MAX_UNANSWERED_BYTES / 2 < most < socket.MAX_UNANSWERED_BYTES + 20_000
        assert window.under_way == window.waiting == 0


async def test_what_is_sent_to_a_link_that_breaks_is_no_flood_of_warnings(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    async with far(redis_url) as both, both.queue(fresh()) as queue:
        with caplog.at_level(logging.DEBUG, logger="asyncio"):
            pushed = queue.push_many(["x" * 1024] * 500)
            queue.handle._pool.abort_connections()
            with pytest.raises(FederationLost):
                await pushed
        assert not [
            record for record in caplog.records if "socket.send() raised" in record.getMessage()
        ]


async def test_an_event_that_came_together_with_the_message_before_it_is_handed_out_behind_it(
    redis_url: str, fresh: Fresh
) -> None:
    async with far(redis_url) as both:
        peer = both.home.channel(fresh())
        mine, seen = both.bus.federate(both.bus.channel(peer.name)), list[str]()
        await peer.connect()
        await peer.send("first")
        await peer.disconnect()
        await peer.send_to("remote", "later")
        for event in ("remote_connect", "remote_disconnect"):
            mine.on(event, partial(seen.append, event))
        await mine.listen()
        await until(
            lambda: len(cast("RemoteChannel", mine)._received) == 3
        )  # all but remote_connect, which waits for no reader
        async for message in mine:
            seen.append(message.text)
            if message.text == "later":
                break
        assert seen == ["remote_connect", "first", "remote_disconnect", "later"]
