"""Each argument of each public method is obeyed, or refused with one of our errors: nothing raises
from inside. The methods are found, so a new one is walked through, too.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from busmq_spark import Bus, FederationServer, Keyring, Outbox
from busmq_spark.bus.bus import Bus as LocalBus
from busmq_spark.bus.deferred_federation import MirrorKeywords
from busmq_spark.errors import BusError, ConfigError, FederationLost, LinkLost
from busmq_spark.federation.client.remote_reconnector import RemoteReconnector
from busmq_spark.federation.serve import server as server_module
from busmq_spark.mirror.settings import MirrorSettings
from busmq_spark.options import BusOptions
from busmq_spark.outbox.target_opener import OutboxKeywords
from busmq_spark.redis_io.async_link import AsyncLink
from busmq_spark.redis_io.resp_codec import calls_of, pack
from tests.conftest import Fresh

SECRET = "a-secret-of-this-test"
VALUES: list[Any] = [
    *(None, True, b"x", math.nan, math.inf, -math.inf, -1, 0, 1.5, 10**30, ("a", "b"), ["a"]),
    *([None], {"a": 1}, {None: 1}, object(), "", " ", "\ud800", "a\x00b", "x", "-1", lambda: None),
]
INTERNAL = frozenset(
    re.findall(
        r"\w+",
        """
        adopt check_loop check_event claim_lease end_revoked_event_rows release
        release_lease spawn ack_taken begin begin_push check_life not_touched note_time
        on_touch_reply push_call put run translate has_handlers attached_queue
        next_turn update_known check_handler without_outcome work_of write
        begin_reading keep_first_error next_offered offer report_failure
        on_remote_failed on_remote_lost on_remote_restored look_now start
        unsaved_fields sync
        """,
    )
)
"""Methods for the package itself, without an underscore since other files of it call them."""
GOOD: dict[str, Any] = {
    "values": ["v"],
    "keys": ["k"],
    "patterns": ["k"],
    "events": [],
    "event": "message",
    "handler": print,
    "messages": [],
    "up_to": 1,
    "fields": {"f": 1},
    "id": 1,
    "last": 1,
    "partitions": 4,
    "timeout_s": 1,
    "delay_s": 1,
    "job": None,
    "jobs": [],
    "groups": ["g"],
}
"""Arguments that a method needs beside the one that is walked through; any other is a text."""
TURNS = 60
"""Turns of the loop in which a call that sends nothing has ended."""


class Sent(LinkLost):
    """A call got as far as the wire."""


def sent() -> Sent:
    return Sent(url="redis://host", reason="it was to be sent")


@contextmanager
def nothing_leaves() -> Iterator[None]:
    """Every call ends where it would be sent to Redis, encoded, or to a federation server."""

    async def execute(self: AsyncLink, step: Any) -> Any:
        pack(calls_of(step))
        raise sent()

    async def wait_open(self: RemoteReconnector) -> Any:
        raise FederationLost(url="ws://host", reason="it was to be sent")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncLink, "execute", execute)
        patch.setattr(AsyncLink, "send_if_connected", lambda *_: False)
        patch.setattr(RemoteReconnector, "wait_open", wait_open)
        yield


def methods(thing: Any) -> list[tuple[str, list[inspect.Parameter]]]:
    """The public methods with arguments."""
    found = []
    for name, member in inspect.getmembers(type(thing)):
        if name.startswith("_") or name in INTERNAL or not inspect.isroutine(member):
            continue
        parameters = inspect.signature(getattr(thing, name)).parameters.values()
        some = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        if some:
            found.append((name, some))
    return found


def arguments(
    parameters: list[inspect.Parameter], walked: inspect.Parameter, value: Any
) -> tuple[list[Any], dict[str, Any]]:
    plain: list[Any] = []
    named: dict[str, Any] = {}
    for each in parameters:
        needed = each.default is each.empty and each.kind is not each.VAR_POSITIONAL
        if each is not walked and not needed:
            continue
        given = value if each is walked else GOOD.get(each.name, "x")
        is_next = len(plain) == parameters.index(each)
        is_plain = each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL)
        if is_plain or (each.kind is each.POSITIONAL_OR_KEYWORD and is_next):
            plain.append(given)
        else:
            named[each.name] = given
    return plain, named


async def outcome(call: Callable[[], Any]) -> BaseException | None:
    """The error that a call ends with in some turns of the loop."""

    async def work() -> None:
        made = call()
        if hasattr(made, "__anext__"):
            await anext(made)
        elif inspect.isawaitable(made):
            await made

    task = asyncio.create_task(work())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    return None if task.cancelled() else task.exception()


async def walk(make: Callable[[], Any], *, entered: bool) -> list[str]:
    """What raised from inside."""
    wrong = []
    for name, parameters in methods(make()):
        for walked in parameters:
            async with AsyncExitStack() as stack:
                thing = make()
                if entered:
                    await stack.enter_async_context(until_left(thing))
                with nothing_leaves():
                    for value in VALUES:
                        plain, named = arguments(parameters, walked, value)
                        on = thing if entered else make()
                        call = getattr(on, name)
                        error = await outcome(lambda c=call, p=plain, n=named: c(*p, **n))
                        if not isinstance(error, BusError | KeyError | None | StopAsyncIteration):
                            wrong.append(f"{name}({walked.name}={value!r}): {error!r}")
    return wrong


@asynccontextmanager
async def until_left(thing: Any) -> AsyncIterator[None]:
    await thing.__aenter__()
    try:
        yield
    finally:
        with suppress(BusError):
            await thing.__aexit__(None, None, None)


async def handler(job: Any) -> None:
    """Does nothing."""


LOCAL: dict[str, Callable[[LocalBus, str], Any]] = {
    "bus": lambda bus, _: bus,
    "queue": lambda bus, name: bus.queue(name),
    "channel": lambda bus, name: bus.channel(name),
    "pubsub": lambda bus, name: bus.pubsub(name),
    "service": lambda bus, name: bus.service(name),
    "persisted": lambda bus, name: bus.persist(name),
    "jobs": lambda bus, name: bus.jobs(name),
    "job": lambda bus, name: bus.jobs(name).new(),
    "worker": lambda bus, name: bus.jobs(name).worker("g")(handler),
    "topic jobs": lambda bus, name: bus.jobs(topic=name),
    "topic": lambda bus, name: bus.topic(name, 2),
    "member": lambda bus, name: bus.topic(name, 2).group("g"),
    "consumer": lambda bus, name: bus.consumer([bus.topic(name, 2)], group="g"),
    "ordered group": lambda bus, name: bus.queue(name).group("g"),
    "shared group": lambda bus, name: bus.queue(name).group("g", shared=True),
    "mirror": lambda bus, name: bus.mirror("redis://host", name),
}
FAR: dict[str, Callable[[LocalBus, str], Any]] = {
    "queue": lambda bus, name: bus.federate(bus.queue(name)),
    "channel": lambda bus, name: bus.federate(bus.channel(name)),
    "pubsub": lambda bus, name: bus.federate(bus.pubsub(name)),
    "service": lambda bus, name: bus.federate(bus.service(name)),
    "persisted": lambda bus, name: bus.federate(bus.persist(name)),
}


@pytest.mark.parametrize("kind", list(LOCAL))
async def test_no_argument_of_a_local_object_raises_from_inside(
    redis_url: str, fresh: Fresh, kind: str
) -> None:
    async with Bus(redis_url) as bus:
        assert await walk(lambda: LOCAL[kind](bus, fresh()), entered=False) == []


@pytest.mark.parametrize("kind", ["topic"])
async def test_no_argument_of_an_object_in_use_raises_from_inside(
    redis_url: str, fresh: Fresh, kind: str
) -> None:
    async with Bus(redis_url) as bus:
        assert await walk(lambda: LOCAL[kind](bus, fresh()), entered=True) == []


@pytest.mark.parametrize("kind", list(FAR))
async def test_no_argument_of_a_federated_object_raises_from_inside(
    redis_url: str, fresh: Fresh, kind: str
) -> None:
    async with (
        Bus(redis_url) as bus,
        FederationServer(bus, Keyring.single(SECRET)) as server,
        Bus(federate=server.url, federate_secret=SECRET) as far,
    ):
        assert await walk(lambda: FAR[kind](far, fresh()), entered=False) == []


async def test_no_argument_of_an_outbox_raises_from_inside(redis_url: str, tmp_path: Path) -> None:
    async with Outbox(tmp_path / "outbox.db", to=redis_url) as outbox:
        assert await walk(lambda: outbox, entered=False) == []


def wrong_settings(kind: Any, make: Callable[[dict[str, Any]], Any]) -> list[str]:
    """What raised from inside, of settings that are keywords."""
    wrong = []
    for name in kind.__annotations__:
        for value in VALUES:
            try:
                make({name: value})
            except BusError:
                continue
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is wrong
                wrong.append(f"{name}={value!r}: {error!r}")
    return wrong


@pytest.mark.parametrize("origin", ["redis://host", "ws://host/bus"])
def test_no_setting_of_a_mirror_raises_from_inside(origin: str) -> None:
    bus = Bus()
    secret = {"secret": SECRET} if origin.startswith("ws") else {}
    assert wrong_settings(MirrorKeywords, lambda s: bus.mirror(origin, "q", **secret | s)) == []
    for value in VALUES:
        for queues in ((value,), ("q", value)):
            with suppress(BusError):
                bus.mirror(origin, *queues, **secret)
        with suppress(BusError):
            bus.mirror(value, "q")


@pytest.mark.parametrize("to", ["redis://host", "ws://host/bus"])
def test_no_setting_of_an_outbox_raises_from_inside(to: str, tmp_path: Path) -> None:
    secret = {"federate_secret": SECRET} if to.startswith("ws") else {}
    for make in (Outbox, Outbox.sync):
        call: Any = make
        assert (
            wrong_settings(
                OutboxKeywords, lambda s, call=call: call(tmp_path / "outbox.db", to, **secret | s)
            )
            == []
        )


def test_an_outbox_that_is_given_its_target_twice_is_refused(tmp_path: Path) -> None:
    make: Any = Outbox
    for name in ("url", "federate"):
        with pytest.raises(ConfigError, match=f"has no setting '{name}'; its argument 'to'"):
            make(tmp_path / "outbox.db", "redis://host", **{name: "redis://other"})


def test_the_types_of_settings_have_the_names_of_the_settings() -> None:
    of_mirror = {each.name for each in fields(MirrorSettings)} - {"origin", "patterns"}
    of_bus = {each.name for each in fields(BusOptions)} - {"url", "federate"}
    assert (set(MirrorKeywords.__annotations__), set(OutboxKeywords.__annotations__)) == (
        of_mirror,
        of_bus,
    )


def test_no_argument_of_a_server_raises_from_inside(redis_url: str) -> None:
    bus, keyring = Bus(redis_url), Keyring.single(SECRET)
    wrong = []
    for name in inspect.signature(server_module.FederationServer).parameters:
        for value in VALUES:
            given = {"bus": bus, "keyring": keyring, name: value}
            try:
                FederationServer(given.pop("bus"), given.pop("keyring"), **given)
            except BusError:
                continue
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is wrong
                wrong.append(f"{name}={value!r}: {error!r}")
    assert wrong == []


@pytest.mark.parametrize("how", ["on", "once", "off"])
def test_no_argument_of_an_event_of_a_plain_bus_raises_from_inside(
    redis_url: str, fresh: Fresh, how: str
) -> None:
    with Bus.sync(redis_url) as bus:
        for thing in (bus, bus.queue(fresh())):
            for value in VALUES:
                for call in ((value, print), ("message", value)):
                    with suppress(BusError):
                        getattr(thing, how)(*call)
