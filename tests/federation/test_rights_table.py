"""The table of rights in ``docs/federation.md``: each operation with each right, and the keys that
it touches.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import BusError, FederationRefused
from busmq_spark.federation.bulk.operations import OPERATIONS
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.rights import GRANT_SETTINGS, VERB_SETS, VERBS, Grants
from busmq_spark.options import RedisOptions
from busmq_spark.queue.keys import EVENT_SUBSCRIPTIONS_KEY
from busmq_spark.store.redis_store import RedisStore, open_store
from tests.conftest import Fresh
from tests.federation.bulk_queues import filled
from tests.federation.bulk_site import Site, site
from tests.federation.every_operation import calls
from tests.support import PATIENCE_S

pytestmark = pytest.mark.redis
PAGE = Path(__file__).parents[2] / "docs" / "federation.md"
GRANTS: dict[str, dict[str, list[str]]] = {
    "none": {},
    **{verb: {verb: ["q-*"]} for verb in GRANT_SETTINGS},
    "events": {"events": ["#"]},
    "push-and-events": {"push": ["q-*"], "events": ["a.*"]},
    "push-and-other-events": {"push": ["q-*"], "events": ["b.*", "a.x"]},
    "elsewhere": {verb: ["elsewhere-*"] for verb in VERBS},
    "another-sink": {**{verb: ["q-*"] for verb in VERBS}, "push": ["q-*", "sink:other"]},
    "another-subscription": {
        **{verb: ["q-*"] for verb in VERBS},
        "consume": ["q-*", "subscription:other"],
    },
    "no-events": {verb: ["q-*"] for verb in VERBS},
    "all": {**{verb: ["q-*"] for verb in VERBS}, "events": ["#"]},
    "denied": {**{verb: ["*"] for verb in VERBS}, "events": ["#"], "deny": ["q-*", "event:a.b"]},
}
SECRETS = {name: f"the-secret-of-{name}-{secrets.token_hex(8)}" for name in GRANTS}
RIGHTS = {
    title.replace("`", ""): (rights.split("; "), re.findall(r"`([^`]+)`", keys))
    for title, rights, keys in re.findall(
        r"^\| (`\w+`[^|]*) \| ([^|]+) \| ([^|]+) \|$",
        PAGE.read_text("utf-8")
        .partition("<!-- rights: bulk -->")[2]
        .partition("<!-- /rights: bulk -->")[0],
        re.MULTILINE,
    )
}
"""What the page says of each operation."""


class Tried(NamedTuple):
    """A call, and whether it was refused."""

    call: str
    refused: bool


def verbs_of(who: str) -> set[str]:
    """The verbs of a secret on the queue."""
    table = GRANTS[who]
    named = {
        setting for setting, patterns in table.items() if "q-*" in patterns and setting != "deny"
    }
    return {verb for setting in named for verb in VERB_SETS.get(setting, (setting,))}


def has(who: str, right: str) -> bool:
    """Whether a secret has a right of the table."""
    table, verbs = GRANTS[who], verbs_of(who)
    if right == "`events` of each pattern":
        return table.get("events") in (["a.*"], ["#"]) and "deny" not in table
    wanted = {*VERBS} if right.startswith("any verb") else {*re.findall(r"`(\w+)`", right)}
    if right.endswith("on any queue"):
        return bool(
            wanted & (verbs or ({*VERBS} if "elsewhere" in who or who == "denied" else set()))
        )
    if right.endswith("on the sink"):
        return ("push" in verbs or who in ("elsewhere", "denied")) and who != "another-sink"
    if right.endswith("on the subscription"):
        return (
            "consume" in verbs or who in ("elsewhere", "denied")
        ) and who != "another-subscription"
    assert right.endswith(("on the queue", "on the first partition")), right
    return bool(wanted & verbs)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as made:
        yield made


@pytest.fixture(scope="module")
def here(server: EmbeddedRedis) -> Iterator[Site]:
    ring = Keyring(
        {name: (SECRETS[name], Grants.parse(table, name)) for name, table in GRANTS.items()}
    )
    with site(server.url, ring) as made:
        yield made


@pytest.fixture
def beside(server: EmbeddedRedis) -> Iterator[RedisStore]:
    store = open_store(RedisOptions(url=server.url))
    yield store
    store.close()


def ask(store: FederationBulkStore, name: str, arguments: list[Any]) -> Any:
    """Make one call, whatever kind it is."""
    operation = OPERATIONS[name]
    decoded = operation.decode_arguments(arguments)
    if name == "read_with_spans":
        return list(store.read_with_spans(list(decoded[0]))[1])
    if name in ("read", "read_many"):
        return list(
            store.read_many(list(decoded[0]) if name == "read_many" else [decoded[0]], False)
        )
    return store._link.call(
        name, *decoded, **({"values": [b"a", b"b"]} if operation.has_body else {})
    )


def is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except FederationRefused as error:
        return " may not " in str(error)
    except BusError:
        pass  # as of a direct store: no such life, nothing staged
    return False


def test_the_table_has_a_row_for_each_operation() -> None:
    assert {*RIGHTS} == {*calls("q")}


@pytest.mark.parametrize("who", GRANTS)
def test_each_operation_is_allowed_or_refused_as_the_table_says(
    here: Site, beside: RedisStore, fresh: Fresh, who: str
) -> None:
    store = FederationBulkStore(here.address(SECRETS[who], patience_s=PATIENCE_S))
    found, expected = [], []
    for title in calls("q"):
        queue = fresh("q")
        part = filled(beside, queue, [b"1", b"2", b"3"])
        beside.partitions(queue, 1)
        name, arguments = calls(queue, subscription="billing", topic=queue, born=part.born)[title]
        # Bound at once
        found.append(Tried(title, is_refused(lambda n=name, a=arguments: ask(store, n, a))))  # type: ignore[misc]
        expected.append(
            Tried(
                title,
                not all(has(who, right) for right in RIGHTS[title][0])
                or not has(who, "any verb on any queue"),
            )
        )
    store.close()
    assert found == expected


def keys_of_commands(lines: Iterable[bytes], upto: str) -> set[str]:
    """The keys and channels of the commands that MONITOR shows, up to a mark."""
    found: set[str] = set()
    for line in lines:
        words = re.findall(r'"((?:[^"\\]|\\.)*)"', line.decode())
        if words == ["ECHO", upto]:
            return found
        if words[0].upper() in ("EVALSHA", "EVAL"):
            found.update(words[3 : 3 + int(words[2])])
        else:
            found.update(word for word in words[1:3] if word.startswith("bus:"))
    raise AssertionError("the monitored server is gone")


def kind_of(key: str, queue: str, topic: str) -> str:
    """What the table calls a key. Any key that is none of the queue, the topic or the secret itself
    fails.
    """
    if key in ("bus:subscriptions", f"bus:topic:{topic}"):
        return key.split(":")[1]
    own = re.fullmatch(r"bus:(?:queue:q-[^:]+:)?(sink|sink-queues|stages):federated:all:sink", key)
    if own:  # its sink, in whichever queues that has staged for
        return own[1]
    assert key.startswith(f"bus:queue:{queue}:"), f"{key} is of nobody"
    rest = key.removeprefix(f"bus:queue:{queue}:").split(":")
    if rest[0] == "lease":
        assert rest[1:] in (["billing"], [""])
    if rest[0] == "stages":
        assert rest[1:3] == ["federated", "all"]
    return rest[0]


def test_each_operation_touches_only_the_keys_that_the_table_names(
    server: EmbeddedRedis, here: Site, beside: RedisStore, fresh: Fresh
) -> None:
    store = FederationBulkStore(here.address(SECRETS["all"], patience_s=PATIENCE_S))
    store.connect()
    server.command(
        "DEL", EVENT_SUBSCRIPTIONS_KEY
    )  # rows of others would have it look at their queues, which it may push to
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as monitor,
        monitor.makefile("rb") as lines,
    ):
        monitor.sendall(b"MONITOR\r\n")
        lines.readline()
        for title, (name, _) in calls("q").items():
            queue = fresh("q")
            part = filled(beside, queue, [b"1", b"2", b"3"])
            beside.partitions(queue, 1)
            arguments = calls(queue, subscription="billing", topic=queue, born=part.born)[title][1]
            server.command("ECHO", "begin")
            keys_of_commands(lines, "begin")
            # Bound at once
            refused = is_refused(lambda n=name, a=arguments: ask(store, n, a))  # type: ignore[misc]
            server.command("ECHO", "end")
            touched = {kind_of(key, queue, queue) for key in keys_of_commands(lines, "end")}
            assert not refused, title
            assert touched <= {*RIGHTS[title][1]}, title
            if name not in ("hello", "discover", "wait"):
                assert touched, title
    store.close()
