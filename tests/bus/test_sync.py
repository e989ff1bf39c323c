"""The synchronous API: the same objects and names, without a loop."""

from __future__ import annotations

import asyncio
import queue as stdlib
import random
import sys
import threading
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.sync import LoopThread
from busmq_spark.errors import ConfigError, QueueFull, StateError
from tests.bus.test_service import LONG_S
from tests.bus.tools import UNTIL_S
from tests.conftest import Fresh
from tests.layouts import servers_of


def test_names_and_results_are_those_of_the_asyncio_objects(
    layout: str, request: pytest.FixtureRequest, fresh: Fresh
) -> None:
    name = fresh()
    with Bus.sync(**servers_of(layout, request.getfixturevalue)) as bus, bus.queue(name) as queue:
        assert (queue.push({"n": 1}), queue.push_many(["a", b"b"])) == (1, [2, 3])
        assert (queue.name, queue.attached, queue.count(), queue.exists(), queue.pushed) == (
            name,
            True,
            3,
            True,
            3,
        )
        assert [(message.id, message.text) for message in queue.consume(max=3)] == [
            (1, '{"n":1}'),
            (2, "a"),
            (3, "b"),
        ]
        assert queue.consumed == 3
    assert not queue.attached


def test_the_bus_is_open_only_inside_of_with(redis_url: str, fresh: Fresh) -> None:
    bus = Bus.sync(redis_url)
    with pytest.raises(StateError, match="with Bus"):
        bus.queue(fresh()).count()
    before = threading.active_count()
    with bus:
        queue = bus.queue(fresh())
        queue.attach()
    assert threading.active_count() == before
    with pytest.raises(StateError, match="with Bus"):
        queue.count()


def test_errors_come_as_they_are(redis_url: str, fresh: Fresh) -> None:
    with pytest.raises(ConfigError, match="known scheme"), Bus.sync("http://localhost"):
        pass
    with pytest.raises(ConfigError, match="did you mean 'layout'"):
        Bus.sync(redis_url, layuot="direct")
    with Bus.sync(redis_url) as bus:
        queue = bus.queue(fresh())
        with pytest.raises(StateError, match="not attached"):
            queue.push("x")
        queue.attach(maxsize=1)
        queue.push("x")
        with pytest.raises(QueueFull):
            queue.push("y")


def test_breaking_out_of_a_loop_loses_nothing(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        queue.push_many([str(n) for n in range(250)])
        seen = []
        for message in queue.consume():
            seen.append(message.id)
            if message.id == 130:
                break
        queue.stop()
        assert queue.count() == 120
        seen += [message.id for message in queue.consume(max=120)]
        assert seen == list(range(1, 251))


def test_a_reliable_message_acks_itself(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        queue.push_many("abc")
        for message in queue.consume(reliable=True, max=2):
            if message.id == 1:
                message.ack()
        queue.stop()
        assert [message.id for message in queue.consume(reliable=True, max=2)] == [2, 3]


def test_a_handler_gets_a_message_that_acks_itself(redis_url: str, fresh: Fresh) -> None:
    acked: stdlib.Queue[Any] = stdlib.Queue()
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        queue.on("message", lambda message: acked.put((message.id, message.ack())))
        queue.push_many("ab")
        queue.each(reliable=True, max=1).result()
        assert acked.get(timeout=UNTIL_S) == (1, None)
        queue.stop()
        assert [message.id for message in queue.consume(reliable=True, max=1)] == [2]


def test_a_message_of_a_reliable_channel_acks_itself(redis_url: str, fresh: Fresh) -> None:
    name = fresh()
    with (
        Bus.sync(redis_url) as bus,
        bus.channel(name).connect(reliable=True) as one,
        bus.channel(name).listen() as two,
    ):
        two.send("a")
        two.send("b")
        next(iter(one)).ack()
        one.disconnect()
        one.connect(reliable=True)
        assert next(iter(one)).text == "b"


def test_a_message_of_a_group_names_the_ack_of_its_group(redis_url: str, fresh: Fresh) -> None:
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue, queue.group("g") as group:
        queue.push("a")
        batch = next(iter(group.batches()))
        with pytest.raises(StateError, match=r"group\.ack\(batch\)"):
            batch[0].ack()


def test_a_bus_that_is_open_is_not_opened_again(redis_url: str, fresh: Fresh) -> None:
    before = threading.active_count()
    bus = Bus.sync(redis_url).start()
    with pytest.raises(StateError, match="open already"):
        bus.start()
    with pytest.raises(StateError, match="open already"), bus:
        pass
    assert bus.queue(fresh()).count() == 0
    bus.close()
    with bus:
        assert bus.queue(fresh()).count() == 0
    assert threading.active_count() == before


def test_a_handler_may_close_the_bus(redis_url: str, fresh: Fresh) -> None:
    closed = threading.Event()
    bus = Bus.sync(redis_url).start()

    @bus.once("offline")
    def over(error: object) -> None:
        bus.close()
        closed.set()

    queue = bus.queue(fresh())
    queue.attach()
    queue.on("message", lambda _: bus.close())
    queue.push("x")
    queue.each(max=1)
    assert closed.wait(UNTIL_S)
    bus.close()
    with pytest.raises(StateError, match="not open"):
        queue.count()


def test_two_threads_may_close_a_bus_at_once(redis_url: str) -> None:
    bus = Bus.sync(redis_url).start()
    both, failed = threading.Barrier(2), list[BaseException]()

    def close() -> None:
        both.wait()
        try:
            bus.close()
        except BaseException as error:  # noqa: BLE001  # whatever it is, the main thread shows it
            failed.append(error)

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(UNTIL_S)
    assert (failed, [thread.is_alive() for thread in threads]) == ([], [False, False])


def test_a_subclass_of_the_bus_stays_one(redis_url: str) -> None:
    class OwnBus(Bus):
        @property
        def online(self) -> bool:
            return False

    with OwnBus.sync(redis_url) as bus:
        assert not bus.online


def test_handlers_are_kept_until_the_bus_is_open_and_when_it_opens_again(redis_url: str) -> None:
    bus, seen = Bus.sync(redis_url), list[str]()

    @bus.on("online")
    def tell() -> None:
        seen.append("online")

    bus.on("offline", seen.append)
    bus.off("offline", seen.append)
    for _ in range(2):
        with bus:
            pass
    assert seen == ["online", "online"]


def test_a_call_on_a_loop_that_has_ended_says_so() -> None:
    async def made() -> LoopThread:
        return LoopThread.of_running_loop()

    calls = asyncio.run(made())
    calls._thread = None  # as in a thread of its own
    with pytest.raises(StateError, match="closed"):
        calls.call(asyncio.sleep(0))


def test_handlers_may_call_the_bus(redis_url: str, fresh: Fresh) -> None:
    heard: stdlib.Queue[Any] = stdlib.Queue()
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        queue.on("message", lambda message: heard.put((message.text, queue.count())))
        queue.push("x")
        running = queue.each(max=1)
        assert running.result() is None
        assert running.done()
        assert heard.get(timeout=UNTIL_S) == ("x", 0)


def test_a_handler_that_is_removed_is_not_called(redis_url: str, fresh: Fresh) -> None:
    heard: list[str] = []
    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        handler = queue.on("message", lambda message: heard.append(message.text))
        queue.off("message", handler)
        queue.push("x")
        queue.each(max=1).result()
    assert heard == []


def test_persisted_objects_and_pubsub_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    name = fresh()
    with Bus.sync(redis_url) as bus:
        with bus.persist(name) as settings:
            settings["theme"] = {"dark": True}
            settings["size"] = 3
            assert "theme" in settings
            assert len(settings) == 2
        with bus.persist(name) as again:
            assert again.existed
            assert dict(again) == {"theme": {"dark": True}, "size": 3}
        with bus.pubsub(name) as pubsub:
            pubsub.publish("x")
            assert next(iter(pubsub)).text == "x"


def test_every_object_of_the_bus_works_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    name = fresh()
    with Bus.sync(redis_url) as here, Bus.sync(redis_url) as there:
        with here.service(name) as provider, there.service(name) as asker:
            provider.serve(sum)
            asker.connect(timeout_s=LONG_S)
            assert asker.request([1, 2, 3]) == 6
            assert list(asker.stream([4, 5])) == [9]
        with here.channel(name).listen() as left, there.channel(name).connect() as right:
            assert left.send("hello") > 0
            assert next(iter(right)).text == "hello"
        with here.pubsub(name) as news:
            there.pubsub(name).publish({"n": 1})
            assert next(iter(news)).json() == {"n": 1}
        with here.persist(name) as record:
            record["color"] = "blue"
        with there.persist(name) as record:
            assert record["color"] == "blue"


def test_what_a_handler_raises_is_logged(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ValueError("no")

    with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
        queue.on("message", fail)
        queue.push("x")
        queue.each(max=1).result()
    assert [
        (record.message, str(record.exc_info and record.exc_info[1])) for record in caplog.records
    ] == [("a handler of 'message' failed", "no")]


def test_a_stop_from_another_thread_comes_between_two_messages(
    redis_url: str, fresh: Fresh
) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads alternate as often as they can
    chance = random.Random(7)
    seen: list[int] = []
    failed: list[Exception] = []

    def iterate() -> None:
        try:
            seen.extend(message.id for message in queue.consume())
        except Exception as error:  # noqa: BLE001  # whatever it is, the main thread shows it
            failed.append(error)

    try:
        with Bus.sync(redis_url) as bus, bus.queue(fresh()) as queue:
            for round_ in range(1, 601):
                queue.push_many(["m"] * 300)
                thread = threading.Thread(target=iterate)
                wanted = queue.consumed + chance.randrange(1, 300)
                thread.start()
                while queue.consumed < wanted and thread.is_alive():
                    pass  # no pause: the stop is to come while messages are handed over
                queue.stop()
                thread.join()
                assert not failed
                assert seen == list(range(1, len(seen) + 1))
                assert queue.count() == 300 * round_ - len(seen)
    finally:
        sys.setswitchinterval(before)
