"""Waiting messages are listed with ids and contents, removed, replaced and purged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ConfigError, StateError
from busmq_spark.outbox.outbox import Outbox, SyncOutbox
from tests.conftest import Fresh
from tests.outbox.conftest import Place, drain
from tests.outbox.running import Program, numbers
from tests.support import lasting_port, wait_until

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def nowhere() -> str:
    return f"redis://127.0.0.1:{lasting_port()}"


def test_messages_are_removed_and_replaced_and_the_rest_arrives(
    path: Path, here: Place, nowhere: str, fresh: Fresh
) -> None:
    queue, commands = fresh("orders"), fresh("commands")
    with SyncOutbox(path, nowhere) as outbox:
        outbox.push(queue, "one", "two", "three")
        command = outbox.send(commands, {"n": 1})
        assert [
            (each.number, each.kind, each.queues, each.value) for each in outbox.waiting(queue)
        ] == [
            (1, "message", (queue,), b"one"),
            (2, "message", (queue,), b"two"),
            (3, "message", (queue,), b"three"),
        ]
        assert outbox.remove(2, 99) == 1
        assert outbox.replace(3, "drei")
        assert not outbox.replace(2, "zwei")
        assert outbox.replace(command.number, {"n": 2})
        assert [each.id for each in outbox.waiting(commands)] == [*command.ids]
    with pytest.raises(StateError):
        outbox.remove(1)
    with here.outbox(path) as outbox:
        outbox.push(queue, "four")
        drain(outbox)
    assert here.values(queue) == [b"one", b"drei", b"four"]
    [found] = [json.loads(value) for value in here.values(commands)]
    assert (found["data"], found["id"]) == ({"n": 2}, command.ids[0])


def test_one_queue_or_everything_is_purged(
    path: Path, here: Place, nowhere: str, fresh: Fresh
) -> None:
    one, two = fresh("one"), fresh("two")
    with SyncOutbox(path, nowhere) as outbox:
        outbox.push(one, 1, 2)
        outbox.push(two, 3)
        outbox.publish(["key"], 4)
        assert outbox.purge(one) == 2
        assert outbox.purge(one) == 0
        assert outbox.waiting()[0].value == b"3"
        assert outbox.purge() == 2
        outbox.wait_drained(1)
        outbox.push(two, 5)
    with here.outbox(path) as outbox:
        drain(outbox)
    assert (here.values(one), here.values(two)) == ([], [b"5"])


def test_an_event_for_two_queues_is_purged_from_one_and_arrives_in_the_other(
    path: Path, redis_url: str, here: Place, fresh: Fresh
) -> None:
    one, two, key = fresh("one"), fresh("two"), fresh("k")
    with Bus.sync(redis_url) as bus:
        bus.subscribe([key], into=one)
        bus.subscribe([key], into=two)
        with bus.queue(one) as full, bus.queue(two) as other:
            for each in (full, other):
                each.push("in the way")
                here.run(each.name, "HSET", here.keys(each.name).metadata, "maxsize", 1)
            with here.outbox(path) as outbox:
                sent = outbox.publish([key], 7)
                wait_until(
                    lambda: (
                        [each.queues for each in outbox.waiting()] == [tuple(sorted((one, two)))]
                    )
                )
                assert [each.id for each in outbox.waiting(one)] == [*sent.ids]
                assert outbox.purge(one) == 1
                assert [each.queues for each in outbox.waiting()] == [(two,)]
                list(other.consume(max=1))
                drain(outbox)
    assert [json.loads(value)["data"] for value in here.values(two)] == [7]


def test_the_same_with_asyncio(path: Path, nowhere: str) -> None:
    async def main() -> None:
        async with Outbox(path, nowhere) as outbox:
            await outbox.push("q", 1, 2, 3)
            await outbox.subscribe(["k"], into="q")
            assert await outbox.remove(1) == 1
            assert await outbox.replace(2, "two")
            assert [each.value for each in await outbox.waiting("q")] == [b"two", b"3"]
            with pytest.raises(ConfigError, match="subscription"):
                await outbox.replace(4, "x")
            assert await outbox.purge() == 3

    asyncio.run(main())


def test_what_was_removed_stays_so_when_the_process_is_killed(
    path: Path, here: Place, nowhere: str, fresh: Fresh
) -> None:
    queue = fresh("orders")
    with Program(path, nowhere, queue) as program:
        program.wait("open")
        program.do("push", 5)
        program.do("remove", 2)
        program.kill()
    with here.outbox(path) as outbox:
        drain(outbox)
    assert numbers(here.values(queue)) == [1, 3, 4, 5]
