"""The federation server, word by word (protocol 5.10)."""

from __future__ import annotations

from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.tools import Wire


async def test_a_queue_attached_pushed_to_and_consumed(federation: Serve, fresh: Fresh) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.listen("attaching", "attached", "consuming", "message", "detaching", "detached", "error")
        await queue.send("attach", {"ttl": 30})
        assert await queue.call("push", "hello") == [None, 1]
        assert await queue.call("push", {"a": 1, "ü": "€"}) == [None, 2]
        await queue.send("push", "noret")
        await queue.send("consume", {"reliable": True})
        assert [await queue.event("message") for _ in range(3)] == [["hello", 1], ['{"a":1,"ü":"€"}', 2], ["noret", 3]]
        await queue.send("ack", 2)
        assert await queue.call("count") == [None, 0]
        assert await queue.call("exists") == [None, True]
        assert await queue.call("ttl") == [None, 30]
        assert await queue.call("isAttached") == [True]
        await queue.send("stop")
        await queue.send("detach")
        await queue.event("detached")
        assert [name for name, _ in queue.heard] == ["attaching", "attached", "consuming", "consuming", "detaching"]
        assert queue.heard[1:4] == [("attached", [False]), ("consuming", [True]), ("consuming", [False])]
