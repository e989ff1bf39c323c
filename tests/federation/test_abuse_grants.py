"""What a secret may not do does not happen: every method of every kind, verb by verb, on a live
server.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.rights import GRANT_SETTINGS, VERB_SETS, VERBS, Grants
from busmq_spark.federation.npm_wire.channels import METHODS_OF_TYPE
from busmq_spark.federation.serve.server import FederationServer
from tests.conftest import Fresh
from tests.federation.raw import CHANNEL, CLOSE, Object, Raw, frame, request

pytestmark = pytest.mark.redis
NEEDS = {
    "queue": {"consume": "consume ack", "push": "push", "admin": "close flush"},
    "channel": {
        "consume": "ack",
        "push": "send sendTo end",
        "consume push": "connect attach listen",
    },
    "pubsub": {"browse": "subscribe attach", "push": "publish"},
    "persistify": {"browse": "pread", "push": "pwrite ptouch"},
    "service": {"consume": "serve", "push": "connect request"},
}
NEVER = {"disconnecting", "disconnected"}
"""Helpers inside npm's service that its clients list, too: there is nothing to call behind them."""
FREE = {"on", "once", "promisify"}
SENTINEL = {
    "queue": "isAttached",
    "channel": "isAttached",
    "pubsub": "isSubscribed",
    "persistify": "pread",
    "service": "isServing",
}


def granted(kind: str, method: str, verbs: set[str]) -> bool:
    """The table above; what is not in it needs any verb."""
    for needed, methods in NEEDS[kind].items():
        if method in methods.split():
            return {*needed.split()} <= {
                verb for each in verbs for verb in VERB_SETS.get(each, (each,))
            }
    return method not in NEVER and (method in FREE or bool(verbs))


def secret_of(name: str) -> str:
    return f"{name}-0123456789abcdef"


@asynccontextmanager
async def serving(
    url: str, grants: dict[str, dict[str, list[str]]], **settings: Any
) -> AsyncIterator[int]:
    """A server with a secret for each name; its port."""
    ring = Keyring(
        {name: (secret_of(name), Grants.parse(table, name)) for name, table in grants.items()}
    )
    async with Bus(url) as bus, FederationServer(bus, ring, **settings) as server:
        yield server.port


ARGUMENTS = {
    "push": ["x"],
    "ack": [1],
    "send": ["x"],
    "sendTo": ["remote", "x"],
    "publish": ["x"],
    "request": [{"a": 1}],
    "on": ["e"],
    "once": ["e"],
}


def arguments(kind: str, method: str, name: str) -> list[Any]:
    """Some that make sense, so that a refusal is no accident."""
    if kind == "persistify":
        return [f"bus:persisted:{name}", {"a": 1}][: {"pread": 1, "pwrite": 2, "ptouch": 0}[method]]
    return ARGUMENTS.get(method, [])


async def refused(raw: Raw, kind: str, method: str, name: str, number: int) -> bool:
    """Whether this call is refused for want of a grant."""
    args: list[Any] = [name, {}, ["a"]] if kind == "persistify" else [name]
    # One of the five
    made = await Object(raw, b"%016d" % number).create(kind, list(METHODS_OF_TYPE[kind]), *args)  # type: ignore[index]
    callback = made.cast(method, *arguments(kind, method, name), callback=True)
    await made.call(
        SENTINEL[kind], *arguments(kind, SENTINEL[kind], name) if kind == "persistify" else []
    )
    answers = [
        heard[1]
        for heard in made.heard
        if heard[0] == callback and len(heard) > 1 and isinstance(heard[1], dict)
    ]
    raw.send(frame(made.channel + b"2"))
    return any(answer.get("code") == "BUSMQ_FEDERATION_REFUSED" for answer in answers)


@pytest.mark.parametrize("kind", NEEDS)
async def test_every_method_needs_its_verb(redis_url: str, fresh: Fresh, kind: str) -> None:
    name = fresh("granted")
    sets: dict[str, set[str]] = {
        "nothing": set[str](),
        **{each: {each} for each in GRANT_SETTINGS},
        "most": {"read", "write"},
        "all": {*VERBS},
    }
    tables = {key: {verb: [f"{kind}:{name}"] for verb in verbs} for key, verbs in sets.items()}
    found, expected = {}, {}
    async with serving(redis_url, tables) as port:
        for key, verbs in sets.items():
            raw = await Raw.open(port, f"/bus?secret={secret_of(key)}")
            # One of the five
            for number, method in enumerate(METHODS_OF_TYPE[kind]):  # type: ignore[index]
                if method != SENTINEL[kind] or kind != "persistify":
                    found[key, method] = await refused(raw, kind, method, name, number)
                    expected[key, method] = not granted(kind, method, verbs)
            await raw.close()
    assert found == expected


@pytest.mark.parametrize("kind", NEEDS)
async def test_a_grant_is_for_its_kind_and_its_names_and_deny_wins(
    redis_url: str, fresh: Fresh, kind: str
) -> None:
    base = fresh("granted")
    other = next(each for each in NEEDS if each != kind)
    everything = {verb: ["*"] for verb in VERBS}
    tables = {
        "pattern": {verb: [f"{base}-a*"] for verb in VERBS},
        "kind": {verb: [f"{other}:*"] for verb in VERBS},
        "denied": {**everything, "deny": [f"{base}-*"]},
        "kind-denied": {**everything, "deny": [f"{kind}:*"]},
        "other-denied": {**everything, "deny": [f"{other}:*"]},
    }
    method = {
        "queue": "push",
        "channel": "send",
        "pubsub": "publish",
        "persistify": "pwrite",
        "service": "request",
    }[kind]
    found = {}
    async with serving(redis_url, tables) as port:
        for key in tables:
            raw = await Raw.open(port, f"/bus?secret={secret_of(key)}")
            for number, name in enumerate((f"{base}-ab", f"{base}-b")):
                found[key, number] = await refused(raw, kind, method, name, number)
            await raw.close()
    assert {key for key, was in found.items() if was} == {
        ("pattern", 1),
        *((key, n) for key in ("kind", "denied", "kind-denied") for n in (0, 1)),
    }


async def test_a_refused_call_changes_nothing(redis_url: str, fresh: Fresh) -> None:
    name = fresh("kept")
    async with (
        Bus(redis_url) as bus,
        bus.queue(name) as queue,
        serving(redis_url, {"reader": {"read": [name]}, "writer": {"write": [name]}}) as port,
    ):
        await queue.push("kept")
        reader = await Object(await Raw.open(port, f"/bus?secret={secret_of('reader')}")).create(
            "queue", list(METHODS_OF_TYPE["queue"]), name
        )
        writer = await Object(await Raw.open(port, f"/bus?secret={secret_of('writer')}")).create(
            "queue", list(METHODS_OF_TYPE["queue"]), name
        )
        for each in (reader, writer):
            each.cast("attach")
            for method, *values in (
                ("push", "x"),
                ("flush",),
                ("close",),
                ("consume",),
                ("metadata", "a", "b"),
            ):
                if (each, method) not in (
                    (reader, "consume"),
                    (writer, "push"),
                    (writer, "metadata"),
                ):
                    assert (await each.call(method, *values))[0][
                        "code"
                    ] == "BUSMQ_FEDERATION_REFUSED"
        assert await queue.count() == 1
        assert "a" not in await queue.metadata()
        await reader.raw.close()
        await writer.raw.close()


@pytest.mark.parametrize("kind", ["channel", "service"])
async def test_the_queues_behind_other_kinds_are_no_way_around(
    redis_url: str, fresh: Fresh, kind: str
) -> None:
    name = fresh("behind")
    table = {**{verb: ["*"] for verb in VERBS}, "deny": [f"{kind}:{name}"]}
    names = {
        "channel": [f"channel:local:{name}", f"channel:x:{name}"],
        "service": [f"service:{name}", f"service:{name}:replyTo:0123456789abcdef"],
    }
    async with serving(redis_url, {"denied": table}) as port:
        raw = await Raw.open(port, f"/bus?secret={secret_of('denied')}")
        assert [
            await refused(raw, "queue", "push", each, number)
            for number, each in enumerate(names[kind])
        ] == [True, True]
        await raw.close()


async def test_a_persisted_objects_channel_reaches_no_other_key(
    redis_url: str, fresh: Fresh
) -> None:
    name, other = fresh("mine"), fresh("theirs")
    async with serving(redis_url, {"mine": {verb: [name] for verb in VERBS}}) as port:
        raw = await Raw.open(port, f"/bus?secret={secret_of('mine')}")
        made = await Object(raw).create(
            "persistify", list(METHODS_OF_TYPE["persistify"]), name, {}, ["a"]
        )
        for key in (f"bus:persisted:{other}", f"bus:queue:{other}:metadata", "", name):
            assert (await made.call("pwrite", key, {"a": 1}))[0][
                "code"
            ] == "BUSMQ_FEDERATION_REFUSED"
            assert (await made.call("pread", key))[0]["code"] == "BUSMQ_FEDERATION_REFUSED"
        assert await made.call("pwrite", f"bus:persisted:{name}", {"a": 1}) == [
            None,
            "OK",
            f"bus:persisted:{name}",
        ]
        await raw.close()


@pytest.mark.parametrize(
    "kind",
    [
        "disconnect",
        "__proto__",
        "constructor",
        "bus",
        "federate",
        "__class__",
        "Queue",
        "",
        "queue\n",
    ],
)
async def test_only_the_five_types_exist(
    redis_url: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(redis_url, {"all": {verb: ["*"] for verb in VERBS}}) as port:
        raw = await Raw.open(port, f"/bus?secret={secret_of('all')}")
        raw.send(
            frame(
                CHANNEL
                + b"1"
                + json.dumps({"type": kind, "methods": ["on"], "args": ["x"]}).encode()
            )
        )
        assert await raw.message() == (2, CHANNEL + b"2")
        assert await (await Object(raw, b"another-channel!").create("queue", ["exists"], "x")).call(
            "exists"
        ) == [None, False]
        await raw.close()
    assert "failed" not in caplog.text


NAMES = [
    "disconnect",
    "emit",
    "removeListener",
    "end",
    "may",
    "allowed",
    "toString",
    "session",
    "handler",
]


async def test_a_method_outside_the_table_is_listed_and_refused(
    redis_url: str, fresh: Fresh
) -> None:
    async with serving(redis_url, {"all": {verb: ["*"] for verb in VERBS}}) as port:
        raw = await Raw.open(port, f"/bus?secret={secret_of('all')}")
        queue = await Object(raw).create("queue", ["exists", *NAMES], fresh())
        for name in NAMES:
            [error] = await queue.call(name)
            assert error["code"] == "BUSMQ_FEDERATION_REFUSED"
        assert await queue.call("exists") == [None, False]
        await raw.close()


@pytest.mark.parametrize(
    "name", ["__proto__", "constructor", "prototype", "__init__", "_queue", "a b", "a" * 65, ""]
)
async def test_a_method_that_is_no_name_ends_the_channel_and_nothing_else(
    redis_url: str, name: str
) -> None:
    async with serving(redis_url, {"all": {verb: ["*"] for verb in VERBS}}) as port:
        raw = await Raw.open(port, f"/bus?secret={secret_of('all')}")
        raw.send(
            frame(
                CHANNEL
                + b"1"
                + json.dumps({"type": "queue", "methods": ["on", name], "args": ["x"]}).encode()
            )
        )
        assert await raw.message() == (2, CHANNEL + b"2")
        await raw.close()


async def test_no_secret_is_logged_counted_or_shown(
    redis_url: str, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (None, "websockets", "websockets.server", "asyncio", "busmq_spark"):
        caplog.set_level(logging.DEBUG, logger=name)
    ring = Keyring({"all": (secret_of("all"), Grants.all_allowed())})
    token, wrong = ring.sign("all", 60), "wrong-secret-0123456789"
    heard = ""
    async with Bus(redis_url) as bus, FederationServer(bus, ring) as server:
        port = server.port
        for shown in (secret_of("all"), token):
            queue = await Object(await Raw.open(port, f"/bus?secret={shown}")).create(
                "queue", ["exists", "emit"], fresh()
            )
            heard += str(await queue.call("exists")) + str(await queue.call("emit"))
            queue.put(b"{nonsense")
            queue.raw.send(b"\xff" * 200)
            heard += str(await queue.raw.drained())
            await queue.raw.close()
        bad = [
            f"/bus?secret={wrong}",
            f"/other?secret={secret_of('all')}",
            f"/bus?secret={secret_of('all')}&secret={wrong}",
            "/healthz",
            "/metrics",
        ]
        for path in bad:
            raw = await Raw.dial(port)
            status, head, body = await raw.ask(request(path))
            heard += head + body.decode()
            assert status == {"/healthz": 200, "/metrics": 200, bad[1]: 404}.get(path, 401)
            await raw.close()
        for line in (
            f"Authorization: Bearer {wrong}",
            f"Authorization: {secret_of('all')}",
            f"Authorization: Bearer {secret_of('all')}",
        ):
            raw = await Raw.dial(port)
            heard += (
                await raw.ask(request("/bus", line, f"Sec-WebSocket-Protocol: {BULK_SUBPROTOCOL}"))
            )[1]
            await raw.close()
        for garbage in (
            f"GET /bus?secret={secret_of('all')} HTTP/9\r\n\r\n",
            f"GET /bus?secret={secret_of('all')}",
            f"POST {wrong}\r\n\r\n",
        ):
            raw = await Raw.dial(port)
            raw.send(garbage.encode())
            raw.writer.write_eof()
            heard += str(await raw.drained())
            await raw.close()
        heard += repr(server) + repr(vars(server))
    for secret in (secret_of("all"), token, wrong):
        assert secret not in caplog.text
        assert secret not in heard


async def test_origins_paths_and_bulk_secrets_are_checked_on_the_wire(redis_url: str) -> None:
    secret, app = secret_of("all"), "https://app.example.com"
    async with serving(redis_url, {"all": {"read": ["*"]}}, path="/the/bus", origins=[app]) as port:
        for path, lines, expected in (
            (f"/the/bus?secret={secret}", [], 101),
            (f"/the/bus?secret={secret}", [f"Origin: {app}"], 101),
            (f"/the/bus?secret={secret}", ["Origin: https://evil.example.com"], 403),
            (
                f"/the/bus?secret={secret}",
                [f"Origin: {app}", "Origin: https://evil.example.com"],
                403,
            ),
            (f"/the/bus/?secret={secret}", [], 404),
            (f"/bus?secret={secret}", [], 404),
            (f"/?secret={secret}", [], 404),
            (f"/the/bus?secret={secret}", [f"Sec-WebSocket-Protocol: {BULK_SUBPROTOCOL}"], 401),
            (
                "/the/bus",
                [f"Sec-WebSocket-Protocol: {BULK_SUBPROTOCOL}", f"Authorization: Bearer {secret}"],
                101,
            ),
            (
                "/the/bus",
                [
                    f"Sec-WebSocket-Protocol: {BULK_SUBPROTOCOL}",
                    f"Authorization: Bearer {secret}",
                    "Origin: null",
                ],
                403,
            ),
        ):
            raw = await Raw.dial(port)
            status, head, _ = await raw.ask(request(path, *lines))
            assert (status, BULK_SUBPROTOCOL in head) == (
                expected,
                expected == 101 and len(lines) == 2,
            )
            await raw.close()


async def test_a_peer_that_is_gone_or_leaves_is_closed_in_order(redis_url: str) -> None:
    async with serving(redis_url, {"all": {verb: ["*"] for verb in VERBS}}) as port:
        raw = await Raw.open(port, f"/bus?secret={secret_of('all')}")
        raw.send(frame((1000).to_bytes(2, "big"), CLOSE))
        assert await raw.message() == (CLOSE, (1000).to_bytes(2, "big"))
        await raw.close()


def rows_of_the_page(kind: str) -> dict[str, list[set[str]]]:
    """What ``docs/federation.md`` says that each method needs: one verb of each set."""
    page = (Path(__file__).parents[2] / "docs" / "federation.md").read_text("utf-8")
    part = page.partition("<!-- rights: busmq -->")[2].partition("<!-- /rights: busmq -->")[0]
    found: dict[str, list[set[str]]] = {}
    for methods, needed in re.findall(rf"^\| {kind} \| ([^|]+) \| ([^|]+) \|", part, re.MULTILINE):
        verbs = [
            {*VERBS} if each == "any verb" else {*re.findall(r"\w+", each)}
            for each in needed.split(" and ")
            if each != "none"
        ]
        found.update(dict.fromkeys(re.findall(r"`(\w+)`(?=, |$)", methods), verbs))
    return found


@pytest.mark.parametrize("kind", NEEDS)
def test_the_table_of_the_page_is_the_one_that_is_tried_here(kind: str) -> None:
    """Of each method with each set of verbs; the server is asked above."""
    rows = rows_of_the_page(kind)
    assert {*rows} == {*METHODS_OF_TYPE[kind]} - NEVER  # type: ignore[index]  # one of the five
    for verbs in (
        set[str](),
        *({each} for each in VERBS),
        {"consume", "push"},
        {"browse", "create"},
        {*VERBS},
    ):
        for method, needed in rows.items():
            assert granted(kind, method, verbs) == all(verbs & each for each in needed), (
                method,
                verbs,
            )
