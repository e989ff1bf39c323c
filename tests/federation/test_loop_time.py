"""How long peers use the server's loop: in short steps, in turns of their secret."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from busmq_spark.federation.bounded_json import (
    MAX_JSON_VALUES,
    PIECE_BYTES,
    decode_steps,
    takes_long,
    text_pieces,
)
from busmq_spark.federation.gate import per_secret_quotas, socket_limiter
from busmq_spark.federation.gate.limits import MIB, PeerLimits
from busmq_spark.federation.gate.per_secret_quotas import MAX_TURN_S, LoopTurns, SecretTurns
from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection
from busmq_spark.federation.npm_wire.dnode import DnodeMessage, message_tail, message_tail_steps
from tests.bus.tools import until
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.raw import CHANNEL, PING, Raw, all_closed, frame
from tests.federation.tools import SECRET, Wire

PATH = f"/bus?secret={SECRET}"


def result(steps: Generator[None, None, Any]) -> Any:
    """What the steps come to."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


# -- JSON in steps ---------------------------------------------------------------------------------

LETTERS = st.text(st.sampled_from('a"\\\n\x01é😀\ud83d\ude00,[{'), max_size=8)
LONG = st.integers(1, 3).map(lambda times: 'é😀\n"\\\ud83d' * (times * PIECE_BYTES // 12))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | LETTERS
    | LONG,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(LETTERS, inner, max_size=5),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, 1, "\t\n"]))
def test_a_text_read_in_steps_has_the_value_that_json_reads(value: Any, indent: Any) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert result(decode_steps(text, 100)) == json.loads(text)


@given(
    VALUES,
    st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from(list(b'[]{},:"\\0-.e x\xff\n'))), max_size=4
    ),
)
@example("", [(0.0, ord("["))])
def test_a_text_is_refused_in_steps_where_json_refuses_it(
    value: Any, changes: list[tuple[float, int]]
) -> None:
    text = bytearray(json.dumps(value).encode()[:400])
    for place, byte in changes:
        text[int(place * (len(text) - 1))] = byte
    try:
        expected = json.loads(bytes(text).decode(), parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        with pytest.raises(ValueError, match=r"."):
            result(decode_steps(bytes(text), 100))
    else:
        assert result(decode_steps(bytes(text), 100)) == expected


def test_values_and_nesting_are_bounded_in_steps_too() -> None:
    with pytest.raises(ValueError, match="too many values"):
        result(decode_steps(b"[" + b",".join([b"0"] * (MAX_JSON_VALUES + 1)) + b"]", 10))
    with pytest.raises(ValueError, match="nested too deeply"):
        result(decode_steps(b"[" * 11 + b"]" * 11, 10))
    assert result(decode_steps(b"[" * 10 + b"]" * 10, 10)) == json.loads("[" * 10 + "]" * 10)


@pytest.mark.parametrize(
    "text",
    [
        b'"' + b"x" * MIB + b'"',
        b'"' + b"\\n" * MIB + b'"',
        b" " * MIB + b"1",
        b"[" + b",".join([b'{"a":1}'] * 50_000) + b"]",
    ],
    ids=len,
)
def test_long_texts_take_many_steps(text: bytes) -> None:
    steps = 0
    assert takes_long(text)
    for _ in decode_steps(text, 10):
        steps += 1
    assert steps >= len(text) // PIECE_BYTES // 2


@given(st.binary(max_size=50).map(lambda part: part * 2_000), st.integers(1, 2**53))
def test_the_tail_of_a_long_message_is_that_of_a_short_one(value: bytes, number: int) -> None:
    assert result(message_tail_steps(value, number, 10 * MIB)) == message_tail(
        value.decode("utf-8", "replace"), number
    )
    assert (
        b"".join(text_pieces(value))
        == json.dumps(value.decode("utf-8", "replace"), ensure_ascii=False).encode()
    )


def test_a_tail_that_is_too_long_is_not_kept_and_its_length_is_known() -> None:
    assert result(message_tail_steps(b"\0" * MIB, 1, MIB)) == 6 * MIB + 2


# -- turns -----------------------------------------------------------------------------------------


@asynccontextmanager
async def per_turn(turn: list[int]) -> AsyncIterator[None]:
    """Count turns of the loop."""

    async def turns() -> None:
        while True:
            turn[0] += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turns())
    try:
        yield
    finally:
        turning.cancel()


async def test_sockets_of_one_secret_have_one_turn_each_in_the_order_in_which_they_asked() -> None:
    secret, order, turn, found = SecretTurns(LoopTurns()), list[int](), [0], Counter[int]()

    async def work(number: int) -> None:
        await secret.wait()
        order.append(number)
        found[turn[0]] += 1
        secret.charge(MAX_TURN_S)

    secret.charge(MAX_TURN_S)
    async with per_turn(turn):
        await asyncio.gather(*(work(number) for number in range(20)))
    assert order == list(range(20))
    assert max(found.values()) == 1


async def test_a_secret_waits_for_as_long_as_it_used_the_loop_while_another_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    loop, shared = asyncio.get_running_loop(), LoopTurns()
    call_later = loop.call_later

    def noted(pause_s: float, *rest: Any) -> asyncio.TimerHandle:
        pauses.append(pause_s)
        return call_later(0, *rest)

    monkeypatch.setattr(loop, "call_later", noted)
    greedy, other = SecretTurns(shared), SecretTurns(shared)
    greedy.charge(0.5)
    await greedy.wait()
    assert pauses == []
    other.charge(0.0001)
    greedy.charge(0.5)
    assert not greedy.is_due
    assert other.is_due
    await greedy.wait()
    assert pauses == [0.5]
    later = loop.time() + 60
    monkeypatch.setattr(per_secret_quotas, "monotonic", lambda: later)
    greedy.charge(0.5)
    await greedy.wait()
    assert pauses == [0.5]


# -- frames ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines", [(), ("Sec-WebSocket-Protocol: busmq.bulk.v1",)], ids=["npm", "bulk"]
)
async def test_a_message_has_only_so_many_fragments(
    federation: Serve, lines: tuple[str, ...]
) -> None:
    async with federation() as (_, server), all_closed():
        raw = await Raw.open(server.port, "/bus", f"Authorization: Bearer {SECRET}", *lines)
        raw.send(frame(b"0", final=False) + frame(b"", 0, final=False) * 5_000)
        assert b"fragments" in await raw.drained()
        whole = await Raw.open(server.port, "/bus", f"Authorization: Bearer {SECRET}", *lines)
        whole.send(frame(b"0", final=False) + frame(b"", 0, final=False) * 4_000 + frame(b"", PING))
        assert (await whole.message())[0] == 10


@pytest.mark.parametrize(
    "flood",
    [frame(b"", PING), frame(b"", 10), frame(b"", 0, final=False), frame(CHANNEL + b"2")],
    ids=["pings", "pongs", "fragments", "packets"],
)
async def test_frames_are_taken_apart_in_turns(
    federation: Serve, monkeypatch: pytest.MonkeyPatch, flood: bytes
) -> None:
    turn, found, count = [0], Counter[int](), 4_000
    monkeypatch.setattr(socket_limiter, "MAX_TURN_S", 0)  # one piece, then others
    receive = LimitedServerConnection._receive_frame

    def counted(self: LimitedServerConnection, received: Any) -> None:
        found[turn[0]] += 1
        receive(self, received)

    monkeypatch.setattr(LimitedServerConnection, "_receive_frame", counted)
    async with federation() as (_, server), all_closed():
        raw = await Raw.open(server.port, PATH)
        raw.send(frame(b"0" * 16 + b"2", final=False) if flood[0] == 0 else b"")
        async with per_turn(turn):
            raw.send(flood * count)
            await until(lambda: found.total() >= count)
        assert max(found.values()) <= socket_limiter.PIECE_BYTES // len(flood) + 1


# -- listeners -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "channel", "pubsub"])
async def test_a_message_is_encoded_once_for_all_listeners_of_an_object(
    federation: Serve, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    made = list[int]()

    def counted(value: bytes) -> Any:
        made.append(len(value))
        return text_pieces(value)

    monkeypatch.setattr("busmq_spark.federation.npm_wire.dnode.text_pieces", counted)
    long, listeners = "x" * 300_000, 50
    async with federation() as (bus, server), Wire(server) as wire:
        thing = await wire.open(kind, name := fresh())
        await thing.listen(*["message"] * listeners)
        if kind == "queue":
            await thing.send("attach", {})
            await thing.send("consume", {})
            async with bus.queue(name) as queue:
                await queue.push(long)
        elif kind == "channel":
            await thing.send("connect", {})
            async with await bus.channel(name).listen() as other:
                await other.send(long)
        else:
            await thing.listen("subscribed")
            await thing.send("subscribe")
            await thing.event("subscribed")
            await bus.pubsub(name).publish(long)
        for _ in range(listeners):
            assert (await thing.event("message"))[0] == long
        assert made == [300_000]


async def test_short_messages_are_encoded_once_too(
    federation: Serve, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Typeshed lacks it
    made, encode = list[str](), json.encoder.encode_basestring  # type: ignore[attr-defined]

    def counted(text: str) -> Any:
        if text.startswith("short"):
            made.append(text)
        return encode(text)

    monkeypatch.setattr("busmq_spark.federation.npm_wire.dnode.quoted", counted)
    async with federation() as (bus, server), Wire(server) as wire, bus.queue(fresh()) as queue:
        thing = await wire.open("queue", queue.name)
        await thing.listen(*["message"] * 30)
        await thing.send("attach", {})
        await thing.send("consume", {})
        await queue.push("short one")
        for _ in range(30):
            assert await thing.event("message") == ["short one", 1]
        assert made == ["short one"]


async def test_an_object_has_few_listeners(federation: Serve, fresh: Fresh) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue, other = await wire.open("queue", fresh()), await wire.open("queue", fresh())
        await queue.listen(*["message"] * PeerLimits().listeners_per_channel)
        assert await queue.call("isAttached") == [False]
        await queue.send("on", "message", print)
        assert await wire.next(queue.channel) is None
        assert await other.call("isAttached") == [False]


@pytest.mark.parametrize("setting", ["channels_per_secret", "pubsubs_per_secret"])
async def test_objects_are_bounded_over_all_sockets_of_a_secret(
    federation: Serve, fresh: Fresh, setting: str
) -> None:
    limits = PeerLimits(**{setting: 3})  # type: ignore[arg-type]  # an int
    async with (
        federation(limits=limits) as (_, server),
        Wire(server) as first,
        Wire(server) as second,
    ):
        things = [await wire.open("pubsub", fresh()) for wire in (first, second, first)]
        refused = second.channel()
        await second.send(refused, b'{"type":"pubsub","methods":["on"],"args":["x"]}')
        assert await second.next(refused) is None
        await things[0].close()
        [quota] = server._quotas
        await until(lambda: quota.channels == quota.pubsubs == 2)
        await second.open("pubsub", fresh())


async def test_a_call_that_takes_long_to_read_is_the_call_that_it_says(
    federation: Serve, fresh: Fresh
) -> None:
    value = {"many": list(range(20_000)), "long": "é\n" * 50_000}
    async with federation() as (bus, server), Wire(server) as wire, bus.queue(fresh()) as queue:
        thing = await wire.open("queue", queue.name)
        await thing.send("attach", {})
        assert await thing.call("push", value) == [None, 1]
        assert await thing.call("push", "next") == [None, 2]
        assert [message.text async for message in queue.consume(max=2)] == [
            json.dumps(value, separators=(",", ":"), ensure_ascii=False),
            "next",
        ]
    line = DnodeMessage(3, [value]).encode()
    assert result(DnodeMessage.decode_steps(line)) == DnodeMessage.decode(line)
