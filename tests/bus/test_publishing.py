"""Events and commands: which queues have them, and what is said where one has not."""

from __future__ import annotations

import asyncio
import re

import pytest

from busmq_spark import Event
from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.embedded.layouts import EmbeddedStandaloneServers
from busmq_spark.errors import (
    BusError,
    ConfigError,
    MessageRefused,
    PublishIncomplete,
    QueueBusy,
    QueueFull,
    ServerRefused,
    TooFewDestinations,
)
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import EVENT_SUBSCRIPTIONS_KEY, QueueKeys, server_index
from busmq_spark.redis_io import endpoint
from busmq_spark.routing.event_routing import EventPublishReceipt
from tests.conftest import Fresh
from tests.faults.proxy import Proxy
from tests.layouts import LAYOUTS, servers_of


@pytest.fixture(params=LAYOUTS)
def anywhere(request: pytest.FixtureRequest) -> Bus:
    """A bus on each layout."""
    return Bus(**servers_of(request.param, request.getfixturevalue))


async def events_of(bus: Bus, queue: str) -> list[Event]:
    """What the queue holds."""
    async with bus.queue(queue) as found:
        return (
            [
                Event.decode(message.value)
                async for message in found.consume(max=await found.count())
            ]
            if await found.count()
            else []
        )


# -- events ----------------------------------------------------------------------------------------


async def test_an_event_is_once_in_each_queue_that_is_subscribed_to_one_of_its_keys(
    anywhere: Bus, fresh: Fresh
) -> None:
    async with anywhere as bus:
        word, emails, audit, other = fresh("k"), fresh("emails"), fresh("audit"), fresh("other")
        assert await bus.subscribe([f"{word}.*", f"{word}.signup"], into=emails) == 2
        assert await bus.subscribe([f"{word}.#"], into=audit) == 1
        assert await bus.subscribe([f"{word}.*.deep"], into=other) == 1
        receipt = await bus.publish(
            [f"{word}.signup", f"{word}.first"],
            {"user": 7},
            subject="7",
            extensions={"traceparent": "00"},
        )
        assert receipt == EventPublishReceipt(receipt.id, tuple(sorted((audit, emails))))
        deeper = await bus.publish([f"{word}.signup.now"], "text")
        assert deeper.destinations == (audit,)
        [event] = await events_of(bus, emails)
        assert (event.id, event.source, event.type, event.subject, event.data) == (
            receipt.id,
            "/busmq",
            f"{word}.signup",
            "7",
            {"user": 7},
        )
        assert event.extensions == {"keys": f"{word}.signup {word}.first", "traceparent": "00"}
        assert [
            (each.id, each.data, each.datacontenttype) for each in await events_of(bus, audit)
        ] == [
            (receipt.id, {"user": 7}, "application/json"),
            (deeper.id, "text", "text/plain"),
        ]
        assert await events_of(bus, other) == []


async def test_subscribing_and_its_end_may_be_said_twice(anywhere: Bus, fresh: Fresh) -> None:
    async with anywhere as bus:
        word, one, two = fresh("k"), fresh("one queue"), fresh("two")
        patterns = [f"{word}.a", f"{word}.b", f"{word}.c"]
        assert [await bus.subscribe(patterns, into=one) for _ in range(2)] == [3, 0]
        assert await bus.subscribe(patterns, into=two) == 3
        assert [await bus.unsubscribe(patterns[:1], into=one) for _ in range(2)] == [1, 0]
        assert [each for each in await bus.subscriptions() if each[1] == one] == [
            (f"{word}.b", one),
            (f"{word}.c", one),
        ]
        assert (await bus.publish([f"{word}.a"])).destinations == (two,)
        assert [await bus.forget(one) for _ in range(2)] == [2, 0]
        assert [await bus.forget(two) for _ in range(2)] == [3, 0]
        assert [each for each in await bus.subscriptions() if each[1] in (one, two)] == []


async def test_that_nobody_is_subscribed_is_seen_and_an_error_where_the_publisher_says_so(
    anywhere: Bus, fresh: Fresh
) -> None:
    async with anywhere as bus:
        key, queue = fresh("k"), fresh()
        assert (await bus.publish([key], "x")).destinations == ()
        await bus.subscribe([key], into=queue)
        with pytest.raises(
            TooFewDestinations,
            match=r"1 queues are subscribed to .*; expected at least 2. Nothing was pushed",
        ):
            await bus.publish([key], "x", require=2)
        assert await bus.queue(queue).count() == 0
        assert (await bus.publish([key], "x", require=1)).destinations == (queue,)


async def test_a_full_queue_is_named_and_the_others_have_the_event(
    anywhere: Bus, fresh: Fresh
) -> None:
    async with anywhere as bus:
        key, full, roomy = fresh("k"), fresh("full"), fresh("roomy")
        async with bus.queue(full) as queue:
            await queue.delete()
            await queue.attach(maxsize=1)
            await queue.push("there")
            for name in (full, roomy):
                await bus.subscribe([key], into=name)
            with pytest.raises(PublishIncomplete) as failed:
                await bus.publish([key], "x", id="mine")
        assert (failed.value.details["event"], failed.value.details["stored"]) == ("mine", [roomy])
        assert "[BUSMQ_QUEUE_FULL]" in failed.value.details["missing"][full]
        assert [each.id for each in await events_of(bus, roomy)] == ["mine"]


@pytest.mark.parametrize("data", [b"\xff\x00", bytearray(b"ab"), memoryview(b"ab")])
async def test_bytes_arrive_as_bytes(redis_url: str, fresh: Fresh, data: bytes) -> None:
    key, queue = fresh("k"), fresh()
    async with Bus(redis_url) as bus:
        await bus.subscribe([key], into=queue)
        await bus.publish([key], data)
        [event] = await events_of(bus, queue)
    assert (event.data, event.datacontenttype) == (bytes(data), "application/octet-stream")


async def test_a_whole_event_goes_as_it_is(redis_url: str, fresh: Fresh) -> None:
    key, queue = fresh("k"), fresh()
    event = Event(id="1", source="/s", type="t", data=[1], extensions={"a": True})
    async with Bus(redis_url) as bus:
        await bus.subscribe([key], into=queue)
        assert await bus.publish([key, "other"], event) == EventPublishReceipt("1", (queue,))
        assert await events_of(bus, queue) == [event]
        with pytest.raises(ConfigError, match="subject is given beside a whole Event"):
            await bus.publish([key], event, subject="x")


async def test_what_makes_no_sense_is_refused_before_anything_is_sent(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus:
        for keys in ([], "", 7, ["a.*"], ["#"], [""], [7]):
            with pytest.raises(ConfigError, match=r"the keys? "):
                await bus.publish(keys)  # type: ignore[arg-type]  # what users give
        for patterns in ([], "", ["a.#.b"], [""], [None]):
            for call in (bus.subscribe, bus.unsubscribe):
                with pytest.raises(ConfigError, match=r"the patterns? "):
                    await call(patterns, into="q")  # type: ignore[arg-type]  # what users give
        for queue in ("", None, "\ud800"):
            # What users give
            for work in (bus.subscribe(["a"], into=queue), bus.forget(queue), bus.send(queue)):  # type: ignore[arg-type]
                with pytest.raises(ConfigError, match="expected the name of a queue"):
                    await work
        with pytest.raises(
            ConfigError, match="an event has no attribute 'traceparent'; it has id, source"
        ):
            await bus.publish(["a"], traceparent="x")  # type: ignore[call-arg]  # what users give
        for bad in ({"time": "now"}, {"extensions": {"A": 1}}, {"id": ""}):
            with pytest.raises(MessageRefused):
                await bus.publish(["a"], **bad)  # type: ignore[arg-type]  # what users give
        with pytest.raises(MessageRefused, match="is no data"):
            await bus.publish(["a"], object())


def test_the_same_without_a_loop(redis_url: str, fresh: Fresh) -> None:
    key, queue = fresh("k"), fresh()
    with Bus.sync(redis_url) as bus:
        bus.subscribe([key], into=queue)
        assert bus.publish([key], {"n": 1}).destinations == (queue,)
        assert (key, queue) in bus.subscriptions()
        assert bus.send(queue, "do").destinations == (queue,)
        with bus.queue(queue) as found:
            assert [Event.decode(message.value).type for message in found.consume(max=2)] == [
                key,
                queue,
            ]
        assert bus.forget(queue) == 1


# -- commands --------------------------------------------------------------------------------------


async def test_a_queue_of_commands_takes_one_group(anywhere: Bus, fresh: Fresh) -> None:
    async with anywhere as bus:
        name = fresh("emails")
        receipt = await bus.send(name, {"to": 7})
        assert receipt.destinations == (name,)
        async with bus.queue(name) as queue:
            async with queue.group("mail", shared=True) as group:
                async for [delivery] in group.batches(most=1):
                    assert Event.decode(delivery.value).type == name
                    await group.ack(delivery)
                    break
                for enter in (
                    queue.subscribe("second"),
                    queue.group("second", shared=True).__aenter__(),
                    queue.group("third").__aenter__(),
                ):
                    with pytest.raises(
                        QueueBusy,
                        match=(
                            r"takes commands, which are for one group, and has group 'mail'. Read"
                            r" as that group, or drop it"
                        ),
                    ):
                        await enter
            async with queue.group("mail", shared=True):
                pass
            assert await queue.unsubscribe("mail")
            async with queue.group("second"):
                await bus.send(name, {"to": 8})


async def test_a_queue_of_several_groups_takes_no_command(anywhere: Bus, fresh: Fresh) -> None:
    async with anywhere as bus, bus.queue(fresh()) as queue:
        for group in ("a", "b"):
            await queue.subscribe(group)
        with pytest.raises(
            QueueBusy,
            match=r"has the groups 'a', 'b', and a command is for one. Drop all of them but one",
        ):
            await bus.send(queue.name, "x")
        assert await queue.count() == 0
        await queue.subscribe("c")  # it is no queue of commands
        for group in ("b", "c"):
            await queue.unsubscribe(group)
        await bus.send(queue.name, "x")
        assert await queue.count() == 1


async def test_a_new_life_of_the_queue_is_one_of_commands_when_the_next_is_sent(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        await bus.send(queue.name)
        await queue.delete()
        await queue.attach()
        for group in ("a", "b"):
            await queue.subscribe(group)
        with pytest.raises(QueueBusy, match="has the groups"):
            await bus.send(queue.name)


async def test_a_full_queue_refuses_a_command(redis_url: str, fresh: Fresh) -> None:
    async with Bus(redis_url) as bus:
        queue = bus.queue(fresh())
        await queue.attach(maxsize=1)
        await bus.send(queue.name)
        with pytest.raises(QueueFull, match="holds its maxsize of 1 messages; 1 rows"):
            await bus.send(queue.name)


async def test_the_mark_of_a_queue_of_commands_is_no_field_of_users(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, bus.queue(fresh()) as queue:
        with pytest.raises(ConfigError, match="metadata field 'command' belongs to the bus"):
            await queue.set_metadata({"command": "1"})


# -- several servers, and servers that are away ----------------------------------------------------


async def test_the_table_is_at_the_server_that_its_key_hashes_to(
    three_servers: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    key, queue = fresh("k"), fresh()
    async with Bus(",".join(three_servers.urls)) as bus:
        await bus.subscribe([key], into=queue)
        found = [
            await link.execute(command("HEXISTS", EVENT_SUBSCRIPTIONS_KEY, f"{key} {queue}"))
            for link in bus.servers.commands
        ]
    assert [index for index, there in enumerate(found) if there] == [
        server_index(EVENT_SUBSCRIPTIONS_KEY, 3)
    ]


@pytest.mark.timeout(120)
async def test_a_queue_whose_server_is_away_is_named_and_the_event_can_be_published_again(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedStandaloneServers(2) as group:
        key = fresh("k")
        home = server_index(EVENT_SUBSCRIPTIONS_KEY, 2)
        near, far = (
            next(
                name
                for name in iter(fresh, "")
                if server_index(QueueKeys(name).metadata, 2) == index
            )
            for index in (home, 1 - home)
        )
        async with Bus(",".join(group.urls)) as bus:
            for queue in (near, far):
                await bus.subscribe([key], into=queue)
                async with bus.queue(queue):
                    pass
            group.servers[1 - home].kill()
            monkeypatch.setattr(endpoint, "PATIENCE_S", 0.5)
            with pytest.raises(PublishIncomplete) as failed:
                await bus.publish([key], "x", id="mine")
            assert (
                failed.value.retriable,
                failed.value.details["stored"],
                [*failed.value.details["missing"]],
            ) == (True, [near], [far])
            assert "[BUSMQ_LINK_LOST]" in failed.value.details["missing"][far]
            monkeypatch.undo()
            await asyncio.to_thread(group.servers[1 - home].restart)
            again = await bus.publish([key], "x", id=failed.value.details["event"])
            assert again == EventPublishReceipt("mine", tuple(sorted((near, far))))
            assert [each.id for each in await events_of(bus, near)] == ["mine", "mine"]
            assert [each.id for each in await events_of(bus, far)] == ["mine"]


async def test_a_reply_that_is_lost_is_an_event_of_which_it_is_not_known_where_it_is(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    key, queue = fresh("k"), fresh()
    with Proxy(redis_server.port) as proxy:
        async with Bus(proxy.url) as bus:
            await bus.subscribe([key], into=queue)
            async with bus.queue(queue):
                gate = proxy.hold(lambda sent: sent.name == "push", reply=True)
                publishing = asyncio.ensure_future(bus.publish([key], "x", id="mine"))
                held = await asyncio.to_thread(gate.wait)
                gate.open()
                held.cut()
                with pytest.raises(PublishIncomplete, match="is not, or not known to be, in"):
                    await publishing
                await bus.publish([key], "x", id="mine")
            assert [each.id for each in await events_of(bus, queue)] == [
                "mine",
                "mine",
            ]  # who reads it recognises the second


async def test_a_table_that_is_something_else_is_named(fresh: Fresh) -> None:
    with EmbeddedRedis() as server:
        server.command("SET", EVENT_SUBSCRIPTIONS_KEY, "x")
        async with Bus(server.url) as bus:
            with pytest.raises(ServerRefused, match="WRONGTYPE"):
                await bus.publish([fresh("k")])


async def test_publishers_and_those_who_subscribe_at_once_lose_nothing(
    redis_url: str, fresh: Fresh
) -> None:
    """An event published after a subscription is in its queue, in the order in which one publisher
    awaited them.
    """
    key, queue = fresh("k"), fresh()
    async with Bus(redis_url) as bus, Bus(redis_url) as other:
        seen: list[int] = []
        for n in range(40):
            if n == 20:
                await other.subscribe([key], into=queue)
            receipt = await bus.publish([key], n)
            seen += [n] if receipt.destinations else []
        assert seen == list(range(20, 40))
        assert [each.data for each in await events_of(bus, queue)] == seen


async def test_a_table_that_is_rolled_back_or_written_by_another_program_is_read_anew(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    """Its version tells: also one that Redis had before, since it is that of the same table."""
    key, one, two, three = fresh("k"), fresh("one"), fresh("two"), fresh("three")
    async with Bus(redis_server.url) as bus, Bus(redis_server.url) as other:
        await other.subscribe([key], into=one)
        assert (await bus.publish([key])).destinations == (one,)
        before = redis_server.command("DUMP", EVENT_SUBSCRIPTIONS_KEY)
        await other.subscribe([key], into=two)
        assert (await bus.publish([key])).destinations == tuple(sorted((one, two)))
        redis_server.command("DEL", EVENT_SUBSCRIPTIONS_KEY)
        assert (await bus.publish([key])).destinations == ()
        redis_server.command("RESTORE", EVENT_SUBSCRIPTIONS_KEY, 0, before)
        await other.subscribe([key], into=three)
        assert (await bus.publish([key])).destinations == tuple(sorted((one, three)))
        redis_server.command("HDEL", EVENT_SUBSCRIPTIONS_KEY, ":version", f"{key} {one}")
        assert (await bus.publish([key])).destinations == (three,)
        assert await other.forget(three) == 1
        assert (await bus.publish([key])).destinations == ()


async def test_the_table_is_read_again_only_when_it_has_changed(
    redis_server: EmbeddedRedis, fresh: Fresh
) -> None:
    def reads() -> int:
        found = re.search(
            r"cmdstat_hgetall:calls=(\d+)", str(redis_server.command("INFO", "commandstats"))
        )
        return int(found[1]) if found else 0

    key, queue = fresh("k"), fresh()
    async with Bus(redis_server.url) as bus:
        await bus.subscribe([key], into=queue)
        before = reads()
        for _ in range(5):
            await bus.publish([key])
        assert reads() - before == 1


async def test_subscriptions_of_thousands_of_patterns_change_in_parts(
    redis_url: str, fresh: Fresh
) -> None:
    word, queue = fresh("k"), fresh()
    patterns = [f"{word}.{n}" for n in range(2500)]
    async with Bus(redis_url) as bus:
        assert await bus.subscribe(patterns, into=queue) == 2500
        assert (await bus.publish([patterns[0], patterns[-1]])).destinations == (queue,)
        assert await bus.unsubscribe(patterns[:1200], into=queue) == 1200
        assert [(await bus.publish([key])).destinations for key in (patterns[0], patterns[-1])] == [
            (),
            (queue,),
        ]
        assert await bus.forget(queue) == 1300


async def test_a_bus_without_redis_says_so() -> None:
    async with Bus(federate="ws://127.0.0.1:9", federate_secret="x" * 20) as bus:
        with pytest.raises(BusError, match="a bus without Redis"):
            await bus.publish(["a"])
