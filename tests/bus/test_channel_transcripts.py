"""What Redis holds after each operation of npm busmq 3.1.0's channels, as captured, and after ours:
the same keys, values and frames.

The captured commands are replayed on channels of one name, ours perform the operation on another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.channel import Channel
from busmq_spark.bus.queue.queue import Queue
from busmq_spark.errors import StateError
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys, channel_queue
from busmq_spark.redis_io.sync_link import SyncLink
from tests.bus.tools import until
from tests.conftest import Fresh

OPERATIONS = json.loads(
    (Path(__file__).parents[1] / "golden" / "channel-transcripts.json").read_text("utf-8")
)["operations"]
ROLES = {
    "ch": ("local", "remote"),
    "ch2": ("client", "server"),
    "ch3": ("local", "remote"),
    "rel": ("local", "remote"),
    "unk": ("a", "b"),
}
OBJECTS = {
    "server": ("ch",),
    "client": ("ch",),
    "x": ("ch2", "client", "server"),
    "y": ("ch2", "server", "client"),
    "l": ("ch3",),
    "r1": ("rel",),
    "r2": ("rel",),
    "u": ("unk", "a", "b"),
}
Side = dict[str, Channel]


async def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(StateError):
        await call()


async def push(side: Side, to: str, role: str, value: str) -> None:
    """As a client that does not know the frame format."""
    async with Queue(side[to].bus, channel_queue(role, side[to].name)) as queue:
        await queue.push(value)


async def both_reliable(side: Side) -> None:
    await side["r1"].listen(reliable=True)
    await side["r2"].connect(reliable=True)


async def send_two(side: Side) -> None:
    await side["r1"].send("m1")
    await side["r1"].send("m2")


async def nothing(side: Side) -> None:
    """The capture shows no command: what was called there had no effect."""


PERFORM: dict[str, Callable[[Side], Awaitable[Any]]] = {
    "server.listen()": lambda side: side["server"].listen(),
    "client.connect()": lambda side: side["client"].connect(),
    "client.send string": lambda side: side["client"].send("hi"),
    "server.send object (quirk: string concatenation)": (
        lambda side: side["server"].send("[object Object]")
    ),
    "server.send number": lambda side: side["server"].send(5),
    "client.disconnect()": lambda side: side["client"].disconnect(),
    "server.send while client away": lambda side: side["server"].send("while away"),
    "client.connect() again": lambda side: side["client"].connect(),
    "client.end()": lambda side: side["client"].end(),
    "send after end (ignored)": lambda side: refused(lambda: side["client"].send("x")),
    "explicit roles: channel(n,client,server) connect": lambda side: side["x"].connect(),
    "connect twice": lambda side: refused(side["x"].connect),
    "sendTo(server endpoint)": lambda side: side["x"].send_to("server", "direct"),
    "peer channel(n,server,client) connects": lambda side: side["y"].connect(),
    "garbage message in queue": lambda side: push(side, "x", "client", "garbage"),
    "x.listen after connect? (second end) - x.end()": lambda side: side["x"].end(),
    "sendTo error path / listen twice swaps again (quirk)": lambda side: side["l"].listen(),
    "l.disconnect": lambda side: side["l"].disconnect(),
    "l.listen again": (
        lambda side: side["l"].connect()
    ),  # there listening a second time swaps the roles back (Q9)
    "l.end": lambda side: side["l"].end(),
    "reliable connect": both_reliable,
    "reliable send 2": send_two,
    "reliable ack first": nothing,
    "r2 disconnects without ack": lambda side: side["r2"].disconnect(),
    "r2 reconnects reliable": lambda side: side["r2"].connect(reliable=True),
    "r2 acks": lambda side: side["r2"].ack(100),
    "r2 end": lambda side: side["r2"].end(),
    "unknown frame type": lambda side: side["u"].connect(),
    "push :9:x": lambda side: push(side, "u", "a", ":9:x"),
}
# There the automatic ack of the control frame behind them acks two messages that the reader has not
# acked (Q11).
UNACKED = {
    "r2 reconnects reliable": {"channel:local:rel": [b"2", b":2:m1", b"3", b":2:m2", b"4", b":1:"]}
}


def replay(link: SyncLink, commands: list[list[str]], mark: str) -> None:
    for name, *words in commands:
        if name not in ("evalsha", "> publish"):
            own = [re.sub(r"^(bus:queue:channel:\w+:)", rf"\1{mark}", word) for word in words]
            link.execute(command(name.removeprefix("> "), *own))


def holds(link: SyncLink, mark: str) -> dict[str, Any]:
    """What there is of every queue, by its name in the captures."""
    held: dict[str, Any] = {}
    for name, roles in ROLES.items():
        for role in roles:
            keys = QueueKeys(channel_queue(role, mark + name))
            metadata = link.run(flows.metadata(keys))
            metadata.pop("born", None)
            metadata.pop("sizes", None)
            metadata.pop("clock", None)
            lists = {
                kind: link.execute(command("LRANGE", key, 0, -1))
                for kind, key in (("messages", keys.messages), ("toack", keys.toack))
            }
            lives = [link.execute(command("TTL", key)) > 0 for key in keys.peer_keys]
            held[f"channel:{role}:{name}"] = {
                "metadata": metadata,
                **lists,
                "msgid": link.execute(command("GET", keys.msgid)),
                "lives": lives,
            }
    return held


def handed_over(channel: Channel) -> bool:
    """Whether everything that this side took from Redis was handed over: the rest goes back to the
    queue when the side leaves.
    """
    if not channel.connected or channel._connection is None:
        return True
    consumption = channel._connection.inbox._consumption
    return (
        consumption.head is None and not consumption._doubt
    )  # in doubt until the reply to a take is here


async def test_our_operations_leave_redis_as_those_of_npm_busmq_do(
    redis_url: str, link: SyncLink, fresh: Fresh
) -> None:
    theirs, ours = f"{fresh('npm')}-", f"{fresh('we')}-"
    async with Bus(redis_url) as bus:
        side = {name: bus.channel(ours + of[0], *of[1:]) for name, of in OBJECTS.items()}
        seen: dict[str, list[str]] = {name: [] for name in side}
        for name, channel in side.items():
            channel.on("message", lambda message, texts=seen[name]: texts.append(message.text))
        for operation in OPERATIONS:
            replay(link, operation["commands"], theirs)
            await PERFORM[operation["op"]](side)
            expected = holds(link, theirs)
            for name, frames in UNACKED.get(operation["op"], {}).items():
                assert expected[name]["toack"] == []
                expected[name]["toack"] = frames
                expected[name]["lives"][3] = True
            try:
                await until(
                    lambda expected=expected: (
                        holds(link, ours) == expected and all(map(handed_over, side.values()))
                    )
                )  # type: ignore[misc]
            except TimeoutError:
                assert holds(link, ours) == expected, operation["op"]
                raise
        texts = {
            "server": ["hi"],
            "client": ["[object Object]", "5", "while away"],
            "y": ["direct"],
            "r2": ["m1", "m2"] * 2,
        }
        assert {name: got for name, got in seen.items() if got} == texts


def test_every_captured_operation_is_compared() -> None:
    assert [operation["op"] for operation in OPERATIONS] == list(PERFORM)
