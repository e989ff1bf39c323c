"""Two clients of one persisted object against a model, on a real Redis."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from busmq_spark.bus.bus import Bus
from busmq_spark.queue.command_generators import command
from tests.conftest import Fresh

NAMES = ["a", "b", "c"]
steps = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(
            st.tuples(st.just("set"), st.sampled_from(NAMES), st.integers(0, 9)),
            st.sampled_from([("save",), ("load",), ("save while setting",)]),
        ),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(steps)
def test_two_clients_see_and_store_what_the_model_does(
    redis_url: str, fresh: Fresh, steps: list[tuple[int, tuple[Any, ...]]]
) -> None:
    asyncio.run(against_a_model(redis_url, fresh(), steps))


async def against_a_model(url: str, name: str, steps: list[tuple[int, tuple[Any, ...]]]) -> None:
    async with Bus(url) as one, Bus(url) as other:
        things = [one.persist(name), other.persist(name)]
        redis: dict[str, int] = {}
        views: list[dict[str, int]] = [{}, {}]
        dirty: list[set[str]] = [set(), set()]
        for who, (what, *args) in steps:
            thing, view = things[who], views[who]
            if what == "set":
                thing[args[0]] = view[args[0]] = args[1]
                dirty[who].add(args[0])
            elif what == "load":
                assert await thing.load() is bool(redis)
                views[who] = {**redis, **{field: view[field] for field in dirty[who]}}
            else:
                redis |= {field: view[field] for field in dirty[who]}
                saving = asyncio.ensure_future(thing.save())
                await asyncio.sleep(0)
                before, dirty[who] = dirty[who], set()
                if what == "save while setting":
                    thing["a"] = view["a"] = 77
                    dirty[who] = {"a"}
                assert await saving is bool(before)
            assert dict(thing) == views[who]
            assert thing.dirty == dirty[who]
            assert await stored(one, thing.key) == {
                field.encode(): b"%d" % value for field, value in redis.items()
            }


async def stored(bus: Bus, key: str) -> dict[bytes, bytes]:
    reply = await bus.servers.commands[0].execute(command("HGETALL", key))
    return dict(zip(reply[0::2], reply[1::2], strict=True))
