"""``busmq skip``: an ordered group passes over a message. Where it cannot, it is refused."""

from __future__ import annotations

import asyncio

import pytest

from busmq_spark import Bus
from busmq_spark.queue.message import Range
from busmq_spark.queue.queue import delete
from busmq_spark.reading.skipping import MAX_SKIPPED_IDS, ranges_without
from tests.cli.conftest import Busmq
from tests.conftest import Fresh
from tests.support import PATIENCE_S

pytestmark = pytest.mark.redis


def test_a_group_passes_over_skipped_messages_at_any_place_and_acks_them(
    busmq: Busmq, redis_url: str, fresh: Fresh
) -> None:
    queue = fresh()

    async def read(most: int, until: int, *, ack: bool = True) -> list[int]:
        found: list[int] = []
        async with (
            asyncio.timeout(PATIENCE_S),
            Bus(redis_url) as bus,
            bus.queue(queue) as handle,
            handle.group("billing") as group,
        ):
            async for batch in group.batches(most=most):
                found += [each.id for each in batch]
                if ack:
                    await group.ack(batch)
                if found[-1] >= until:
                    return found
        return found

    async def push() -> None:
        async with Bus(redis_url) as bus, bus.queue(queue) as handle:
            await handle.push_many([str(id) for id in range(1, 10)])

    asyncio.run(push())
    assert busmq("subscribe", queue, "billing").code == 0
    assert asyncio.run(read(3, 9, ack=False)) == [*range(1, 10)]
    for id in (1, 4, 5, 6, 9):
        assert busmq("skip", queue, str(id), "--reader", "billing", "--yes").code == 0
    assert asyncio.run(read(3, 8)) == [2, 3, 7, 8]
    [group] = busmq("groups", queue, "--json").records
    assert (group["acked"], group["unread"]) == (9, 0)


def test_a_skipped_id_is_read_in_a_later_life_of_its_queue(
    busmq: Busmq, redis_url: str, fresh: Fresh
) -> None:
    queue = fresh()
    assert busmq("push", queue, "a", "b", "c").code == 0
    assert busmq("subscribe", queue, "billing").code == 0
    done = busmq("skip", queue, "2", "--reader", "billing", "--yes")
    assert "let reader 'billing' pass over message 2" in done.err
    assert "audit: " in done.err

    async def read() -> list[int]:
        found: list[int] = []
        async with (
            asyncio.timeout(PATIENCE_S),
            Bus(redis_url) as bus,
            bus.queue(queue) as handle,
            handle.group("billing") as group,
        ):
            async for batch in group.batches():
                found += [each.id for each in batch]
                await group.ack(batch)
                if found == [1, 3]:
                    await handle.run(delete(handle.keys))
                    async with Bus(redis_url) as other, other.queue(queue) as anew:
                        await anew.push_many(["d", "e", "f"])
                if len(found) > 3:
                    break
        return found

    assert asyncio.run(read()) == [1, 3, 1, 2, 3]


def test_a_skip_that_cannot_be_is_refused_and_marks_nothing(
    busmq: Busmq, redis_url: str, fresh: Fresh
) -> None:
    queue = fresh()
    assert busmq("push", queue, "a", "b").code == 0

    async def hold() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            Bus(redis_url) as bus,
            bus.queue(queue) as handle,
            handle.group("billing") as group,
        ):
            async for _ in group.batches(most=1):
                done = await asyncio.to_thread(
                    busmq, "skip", queue, "2", "--reader", "billing", "--to-dead", "--json"
                )
                assert (done.code, done.error["code"]) == (1, "BUSMQ_QUEUE_BUSY")
                return

    asyncio.run(hold())

    async def shared() -> None:
        async with (
            Bus(redis_url) as bus,
            bus.queue(queue) as handle,
            handle.group("mail", shared=True),
        ):
            pass

    asyncio.run(shared())
    for words, code, said in (
        (("9", "--reader", "billing"), "BUSMQ_MESSAGE_MISSING", "holds ids 1..2"),
        (("2",), "BUSMQ_CONFIG", "it has 'billing', 'mail'"),
        (("2", "--reader", "nobody"), "BUSMQ_CONFIG", "it has 'billing', 'mail'"),
        (("2", "--reader", "mail"), "BUSMQ_CONFIG", "a shared group"),
        (("2", "--reader", "billing"), "BUSMQ_CONFIG", "Add --yes"),
        (("0", "--reader", "billing"), "BUSMQ_MESSAGE_MISSING", "holds ids 1..2"),
    ):
        done = busmq("skip", queue, *words, "--json")
        assert done.error["code"] == code, (words, done.err)
        assert said in done.error["message"], (words, done.err)
    assert busmq("skip", fresh(), "1", "--json").error["code"] == "BUSMQ_QUEUE_MISSING"
    with Bus.sync(redis_url) as bus:
        assert not bus.queue(f"{queue}.dead").exists()
    done = busmq("skip", queue, "2", "--reader", "billing", "--to-dead", "--json")
    assert done.records[0]["dead"] == f"{queue}.dead"
    [letter] = busmq("dead", "list", f"{queue}.dead", "--json").records
    assert (letter["originalid"], letter["group"], letter["recorded"]) == (2, "billing", True)
    assert busmq("unsubscribe", queue, "billing", "--yes").code == 0


def test_a_range_is_cut_at_each_skipped_id() -> None:
    whole = Range("q", "b", 3, 9, 1)
    for skipped, expected in (
        ((), [(3, 9)]),
        ((2, 10), [(3, 9)]),
        ((3,), [(4, 9)]),
        ((9,), [(3, 8)]),
        ((5, 6), [(3, 4), (7, 9)]),
        (tuple(range(1, MAX_SKIPPED_IDS)), []),
    ):
        cut = ranges_without([whole], {"q": skipped, "other": (4,)})
        assert [(part.first, part.last) for part in cut] == expected
        assert {part._replace(first=0, last=0) for part in cut} <= {whole._replace(first=0, last=0)}
