"""Who may do what at a live server, and what its port answers to those who may nothing."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from busmq_spark.bus.bus import Bus
from busmq_spark.errors import ConfigError
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.rights import Grants
from busmq_spark.federation.serve.server import FederationServer
from tests.conftest import Fresh
from tests.federation.conftest import Serve
from tests.federation.tools import SECRET, Thing, Wire
from tests.support import PATIENCE_S


def ring(**lists: list[str]) -> Keyring:
    """One secret that may do this."""
    return Keyring({"peer": (SECRET, Grants.parse(lists, "test"))})


async def refused(thing: Thing, method: str, *arguments: Any) -> bool:
    """Whether a call is answered with a refusal."""
    values = await thing.call(method, *arguments)
    return isinstance(values[0], dict) and values[0]["code"] == "BUSMQ_FEDERATION_REFUSED"


async def test_a_reader_reads_and_neither_writes_nor_deletes(
    federation: Serve, fresh: Fresh
) -> None:
    name = fresh("orders")
    async with (
        federation(ring(read=["orders-*"], deny=["orders-private*"])) as (bus, server),
        Wire(server) as wire,
        bus.queue(name) as owner,
    ):
        queue = await wire.open("queue", name)
        await queue.listen("message", "attached", "error")
        await queue.send("attach", {"maxsize": 1})
        await owner.push_many(["a", "b"])
        for method, given in (
            ("push", ["x"]),
            ("flush", []),
            ("close", []),
            ("metadata", ["k", "v"]),
            ("metadata", [{"k": "v"}]),
        ):
            assert await refused(queue, method, *given)
        await queue.send("push", "without a function: an event")
        assert "may not push" in (await queue.event("error"))[0]
        assert await queue.call("count") == [None, 2]
        await queue.send("consume", {})
        assert await queue.event("message") == ["a", 1]
        private = await wire.open("queue", "orders-private-1")
        for method, given in (
            ("attach", [{}]),
            ("consume", [{}]),
            ("count", []),
            ("exists", []),
            ("find", []),
            ("isAttached", []),
            ("metadata", []),
        ):
            assert await refused(private, method, *given)


async def test_who_only_reads_sets_nothing_for_the_writers_of_a_queue_it_creates(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation(ring(read=["*"])) as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.send("attach", {"maxsize": 1, "discoverable": True})
        fields = (await queue.call("metadata"))[1]
        assert (fields["maxsize"], fields["discover"]) == ("0", "false")


async def test_a_writer_pushes_and_does_not_read(federation: Serve, fresh: Fresh) -> None:
    async with federation(ring(write=["*"])) as (_, server), Wire(server) as wire:
        queue = await wire.open("queue", fresh())
        await queue.send("attach", {})
        assert await queue.call("push", "x") == [None, 1]
        assert await refused(queue, "consume", {})
        assert await refused(queue, "ack", 1)
        news = await wire.open("pubsub", fresh())
        assert await news.call("publish", "x") == []
        assert await refused(news, "subscribe")
        thing = await wire.open("persistify", fresh(), {}, [])
        assert await refused(thing, "pread", f"bus:persisted:{thing.name}")


async def test_a_channel_needs_reading_and_writing(federation: Serve, fresh: Fresh) -> None:
    for lists in ({"read": ["*"]}, {"write": ["*"]}):
        async with federation(ring(**lists)) as (_, server), Wire(server) as wire:
            chat = await wire.open("channel", fresh(), "local", "remote")
            for method in ("connect", "attach", "listen"):
                assert await refused(chat, method, {})


async def test_the_queues_behind_channels_and_services_are_no_way_round(
    federation: Serve, fresh: Fresh
) -> None:
    grants = {"read": ["queue:*", "channel:open", "service:open"], "write": ["queue:*"]}
    async with federation(ring(**grants)) as (_, server), Wire(server) as wire:
        for name, shut in (
            ("channel:local:secret", True),
            ("channel:local:open", False),
            ("channel:x", True),
            ("service:secret", True),
            ("service:secret:replyTo:0123456789abcdef", True),
            ("service:open", False),
        ):
            queue = await wire.open("queue", name)
            assert await refused(queue, "exists") == shut, name


async def test_no_key_but_its_own_is_reached_through_a_persisted_object(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        thing = await wire.open("persistify", fresh(), {}, ["a"])
        key = f"bus:persisted:{thing.name}"
        assert await thing.call("pread", key) == [None, None, key]
        assert await thing.call("pwrite", key, {"a": {"ü": 1}, "b": "text"}) == [None, "OK", key]
        assert await thing.call("pread", key) == [None, {"a": '{"ü":1}', "b": '"text"'}, key]
        await thing.send("ptouch")
        for other in ("bus:persisted:other", "bus:queue:q:metadata", ""):
            assert await refused(thing, "pread", other)
            assert await refused(thing, "pwrite", other, {"a": 1})
        assert (await thing.call("pread"))[0]["code"] == "BUSMQ_CONFIG"
        assert (await thing.call("pwrite", key, {}))[0]["code"] == "BUSMQ_CONFIG"


async def test_notifications_reach_all_who_may_use_the_queue_and_are_sent_by_admins(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation(ring(read=["mine-*"])) as (bus, server), Wire(server) as wire:
        news = await wire.open("pubsub", "bus:notifications")
        await news.listen("message", "subscribed")
        await news.send("subscribe")
        await news.event("subscribed")
        assert await refused(news, "publish", "{}")
        for name in (fresh("theirs"), fresh("mine")):
            await bus.queue(name).attach(ttl_s=20, discoverable=True)
        for text in ("no JSON", "[]", '{"key":5}'):
            await bus.pubsub("bus:notifications").publish(text)
        [said] = await news.event("message")
        assert json.loads(said) == {
            "event": "queue",
            "key": f"bus:queue:{name}:metadata",
            "ttl": 20,
        }
        assert news.heard == []


async def test_a_peer_whose_token_runs_out_is_cut_off(
    federation: Serve, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    keyring = Keyring({"peer": (SECRET, Grants.all_allowed())}, clock=lambda: now[0])
    monkeypatch.setattr(
        "busmq_spark.federation.serve.server.time", SimpleNamespace(time=lambda: now[0])
    )
    async with federation(keyring) as (_, server), Wire(server, keyring.sign("peer", 3600)) as wire:
        await wire.open("queue", fresh())
        [connection] = server._connections
        assert connection.identity.expires is not None
        now[0] += 3601
        await wire.socket.wait_closed()
        assert (
            server.metrics.text().count('busmq_federation_cut_off_total{reason="expired"} 1') == 1
        )


# -- the port --------------------------------------------------------------------------------------


async def ask(server: FederationServer, *lines: str) -> bytes:
    """What a plain request gets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write("\r\n".join([*lines, "Host: x", "", ""]).encode())
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return answer


UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: MTMtMTc5NTIxMzc0OTQ5NQ==",
)


async def test_a_wrong_secret_gets_the_answer_of_npms_server(federation: Serve) -> None:
    async with federation() as (_, server):
        answer = await ask(server, "GET /bus?secret=wrong HTTP/1.1", *UPGRADE)
        assert answer == b"HTTP/1.1 401 Unauthorized\r\nContent-type: text/html\r\n\r\n"
        assert (await ask(server, f"GET /other?secret={SECRET} HTTP/1.1", *UPGRADE)).startswith(
            b"HTTP/1.1 404 "
        )
        with pytest.raises(InvalidStatus, match="401"):
            async with Wire(server, "wrong"):
                pass


async def test_health_and_metrics_stand_beside_it(federation: Serve, fresh: Fresh) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        await wire.open("queue", fresh())
        health = await ask(server, "GET /healthz HTTP/1.1")
        assert (health.startswith(b"HTTP/1.1 200 OK"), b"\r\nConnection: close\r\n" in health) == (
            True,
            True,
        )
        await ask(server, "GET /bus?secret=wrong HTTP/1.1", *UPGRADE)
        text = (await ask(server, "GET /metrics HTTP/1.1")).decode()
        assert "busmq_federation_channels 1" in text
        assert 'busmq_federation_accepted_total{protocol="busmq"} 1' in text
        assert 'busmq_federation_refused_total{reason="secret"} 1' in text
        assert SECRET not in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
async def test_without_secrets_it_listens_on_this_machine_only(redis_url: str, host: str) -> None:
    async with Bus(redis_url) as bus:
        with pytest.raises(ConfigError, match="needs a keyring" if host else "host is ''"):
            FederationServer(bus, host=host)


async def test_without_secrets_every_program_of_this_machine_is_served_but_no_web_page(
    redis_url: str, fresh: Fresh
) -> None:
    async with Bus(redis_url) as bus, FederationServer(bus) as server:
        async with Wire(server, "any") as wire:
            assert await (await wire.open("queue", fresh())).call("exists") == [None, False]
        assert (
            await ask(server, "GET /bus HTTP/1.1", *UPGRADE, "Origin: https://evil.example")
        ).startswith(b"HTTP/1.1 403 ")
        assert (await ask(server, "GET /other HTTP/1.1", *UPGRADE)).startswith(b"HTTP/1.1 404 ")
    async with (
        Bus(redis_url) as bus,
        FederationServer(bus, origins=["https://good.example"]) as server,
    ):
        assert (
            await ask(server, "GET /bus HTTP/1.1", *UPGRADE, "Origin: https://evil.example")
        ).startswith(b"HTTP/1.1 403 ")


async def test_an_address_that_is_taken_is_an_error_that_names_it(
    federation: Serve, redis_url: str
) -> None:
    async with federation() as (bus, server):
        with pytest.raises(Exception, match=rf"127.0.0.1:{server.port}.*cannot listen"):
            await FederationServer(bus, Keyring.single(SECRET), port=server.port).__aenter__()


# -- services --------------------------------------------------------------------------------------


async def test_a_service_of_ours_is_served_and_asked_through_the_server(
    federation: Serve, fresh: Fresh
) -> None:
    async with federation() as (_, server), Wire(server) as wire, Wire(server) as other:
        provider = await wire.open("service", fresh())
        await provider.listen("request", "serving", "error")
        assert await provider.call("serve", {}) == []
        requester = await other.open("service", provider.name)
        assert await requester.call("connect", {"reqTimeout": 10_000}) == []
        answers: list[list[Any]] = []
        for number in range(3):
            await requester.send(
                "request",
                {"n": number},
                {"allowPartial": number == 2},
                lambda *values: answers.append(list(values)),
            )
        for _ in range(3):
            data, reply = await provider.event("request")
            if data["n"] == 1:
                await provider.invoke(reply, "no such thing")
            elif data["n"] == 2:
                await provider.invoke(reply, None, "first", True)
                await provider.invoke(reply, None, "second", True)
                await provider.invoke(reply, None, None)
            else:
                await provider.invoke(reply, None, {"got": 0})
            await provider.invoke(reply, None, "again: ignored")
        while len(answers) < 5:
            await requester.step()
        assert [None, {"got": 0}, False] in answers
        [failed] = [values for values in answers if len(values) == 1]
        assert failed[0]["code"] == "BUSMQ_REQUEST_FAILED"
        assert "no such thing" in failed[0]["message"]
        parts = [values for values in answers if values[0] is None and values[1] != {"got": 0}]
        assert parts == [[None, "first", True], [None, "second", True], [None, None, False]]
        assert (await requester.call("isConnected"), await provider.call("isServing")) == (
            [True],
            [True],
        )


async def test_a_service_of_an_npm_client_has_no_name_and_is_refused_with_that_reason(
    federation: Serve,
) -> None:
    async with federation() as (_, server), Wire(server) as wire:
        channel = wire.channel()
        await wire.send(channel, b'{"type":"service","methods":["on","connect"]}')
        assert await wire.next(channel) == b"ready"
        await wire.next(channel)
        await wire.send(
            channel, b'{"method":1,"arguments":[{"0":"[Function]"}],"callbacks":{"4":["0","0"]}}\n'
        )
        body = await wire.next(channel)
        assert body is not None
        assert b"Q17" in body
