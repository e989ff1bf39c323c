"""What a message may cost once it is read, and what the peers of one secret may cost together."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import FederationLost, WireError
from busmq_spark.federation.bounded_json import MAX_JSON_VALUES, has_too_many_values
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.client import BulkWebSocket
from busmq_spark.federation.bulk.frames import BulkFrameKind, BulkProtocolFrame
from busmq_spark.federation.bulk.rpc_handler import BulkRpcHandler
from busmq_spark.federation.bulk.server import MAX_LARGE_HEADS_IN_WORK, SMALL_HEAD_BYTES
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.federation.npm_wire.dnode import decode_json
from tests.conftest import Fresh
from tests.federation.bulk_site import site
from tests.federation.conftest import Serve
from tests.federation.raw import Raw
from tests.federation.test_bulk_limits import call
from tests.federation.tools import Wire
from tests.support import PATIENCE_S, wait_until

MANY = b"[" + b",".join([b'{"":0}'] * (MAX_JSON_VALUES // 2 + 1)) + b"]"


def values(value: Any) -> int:
    """What too_many counts: containers, and commas."""
    if isinstance(value, list | dict):
        parts: Sequence[Any] = [*value.values()] if isinstance(value, dict) else value
        return 1 + max(0, len(parts) - 1) + sum(map(values, parts))
    return 0


JSON = st.recursive(
    st.text('",[{\\ab') | st.integers() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(',[{"\\'), inner),
)


@given(JSON, st.integers(0, 30))
def test_values_are_counted_and_what_is_in_quotes_is_not(value: Any, most: int) -> None:
    assert has_too_many_values(json.dumps(value).encode(), most) == (values(value) > most)


def test_a_text_with_many_values_is_not_read() -> None:
    with pytest.raises(WireError, match="more than 200000 values"):
        decode_json(MANY, "a line")
    with pytest.raises(WireError, match="more than 200000 values"):
        frames.decode_frame(
            BulkProtocolFrame(BulkFrameKind.CALL, 1).encode()[:5]
            + len(MANY).to_bytes(4, "little")
            + MANY
        )
    text = json.dumps(["[{," * MAX_JSON_VALUES])
    assert decode_json(text.encode(), "a line") == ["[{," * MAX_JSON_VALUES]


async def test_a_line_of_many_values_ends_its_channel(federation: Serve, fresh: Fresh) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        queue, other = await wire.open("queue", fresh()), await wire.open("queue", fresh())
        await wire.send(queue.channel, b'{"method":0,"arguments":[{"0":' + MANY + b"}]}\n")
        assert await wire.next(queue.channel) is None
        assert await other.call("isAttached") == [False]


@pytest.mark.redis
def test_heads_wait_as_bytes_until_it_is_their_turn(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, decode, read = threading.Event(), frames.decode_frame, list[int]()

    def decoding(message: Any) -> Any:
        if len(message) > SMALL_HEAD_BYTES:
            read.append(len(message))
        return decode(message)

    def doing(self: BulkRpcHandler, name: str, arguments: Any, body: Any) -> Any:
        assert released.wait(PATIENCE_S)
        return []

    monkeypatch.setattr(frames, "decode_frame", decoding)
    monkeypatch.setattr(BulkRpcHandler, "run_call", doing)
    with site(redis_url) as there:
        sockets = [BulkWebSocket(there.address()) for _ in range(MAX_LARGE_HEADS_IN_WORK + 2)]
        for socket in sockets:
            for id in range(1, 6):
                socket.send(call(id, "counters", ["x" * 1000] * 200))
        wait_until(
            lambda: (
                sum(budget.bytes for budget in there.bulk.quotas._quotas.values())
                > 5 * len(sockets) * 200_000
            )
        )
        wait_until(lambda: len(read) == MAX_LARGE_HEADS_IN_WORK)
        released.set()
        for socket in sockets:
            for _ in range(5):
                assert decode(socket.receive()).kind is BulkFrameKind.REPLY
            socket.close()


async def test_the_sockets_of_one_secret_are_counted_and_shown(federation: Serve) -> None:
    ring = Keyring(
        {name: (f"the-secret-of-{name}", Grants.all_allowed()) for name in ("greedy", "other")}
    )
    async with federation(ring, limits=PeerLimits(connections_per_secret=2)) as (_, server):
        first, second = [
            await Raw.open(server.port, "/bus?secret=the-secret-of-greedy") for _ in range(2)
        ]
        with pytest.raises(ConnectionRefusedError, match="503"):
            await Raw.open(server.port, "/bus?secret=the-secret-of-greedy")
        other = await Raw.open(server.port, "/bus?secret=the-secret-of-other")
        text = server.metrics.text()
        assert 'busmq_federation_secret_sockets{secret="greedy"} 2' in text
        assert 'busmq_federation_secret_sockets{secret="other"} 1' in text
        for each in (first, second, other):
            await each.close()


@pytest.mark.redis
def test_what_one_secret_has_sent_and_is_not_worked_off_is_bounded_over_its_sockets(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def doing(self: BulkRpcHandler, name: str, arguments: Any, body: Any) -> Any:
        assert released.wait(PATIENCE_S)
        return 1, 0

    monkeypatch.setattr(BulkRpcHandler, "run_call", doing)
    with site(redis_url, limits=PeerLimits(bytes_per_secret=1_000_000)) as there:
        sockets = [BulkWebSocket(there.address()) for _ in range(5)]
        message = BulkProtocolFrame(
            BulkFrameKind.CALL,
            1,
            {"op": "push", "args": ["q"]},
            frames.pack_values([b"x" * 300_000]),
        ).encode()
        for socket in sockets:
            for _ in range(3):
                socket.send(message)
        [budget] = there.bulk.quotas._quotas.values()
        wait_until(lambda: budget.is_full)
        assert budget.bytes < 1_000_000 + len(sockets) * len(message)
        released.set()
        for socket in sockets:
            for _ in range(3):
                assert frames.decode_frame(socket.receive()).kind is BulkFrameKind.REPLY
            socket.close()
        wait_until(lambda: budget.bytes == 0 and budget.sockets == 0)


@pytest.mark.redis
def test_a_peer_that_breaks_the_rules_in_its_turn_is_cut_off(redis_url: str) -> None:
    with site(redis_url) as there:
        socket = BulkWebSocket(there.address())
        socket.send(
            BulkProtocolFrame(BulkFrameKind.CALL, 1).encode()[:5]
            + len(MANY).to_bytes(4, "little")
            + MANY
        )
        with pytest.raises(FederationLost, match="code 1008"):
            socket.receive()
        socket.close()
