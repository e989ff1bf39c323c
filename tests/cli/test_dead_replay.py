"""dead replay: nobody who may push to a dead-letter queue reaches another queue through the
operator.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from busmq_spark import Bus
from busmq_spark.groups import dead_letter
from busmq_spark.groups.shared_group import LeasedMessage
from busmq_spark.queue import queue as flows
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import states
from busmq_spark.redis_io.queue_location import new_token
from busmq_spark.redis_io.sync_link import SyncLink
from tests.cli.conftest import Busmq
from tests.cli.test_groups import give_up, values_of
from tests.conftest import Fresh

pytestmark = pytest.mark.redis


@pytest.fixture
def payments(fresh: Fresh, link: SyncLink) -> QueueKeys:
    keys = QueueKeys(fresh("payments"))
    link.run(flows.attach(keys, new_token(), ttl_s=600))
    return keys


def forged(keys: QueueKeys, value: bytes = b"PAY MALLORY", group: str = "send") -> bytes:
    return dead_letter.make_dead_letter(
        keys.name, group, LeasedMessage(1, value, 3, 1000, "t"), "boom \x1b[2J", 5000
    )


def push(link: SyncLink, name: str, *values: bytes) -> QueueKeys:
    """As a peer that may push to a dead-letter queue."""
    to = QueueKeys(name)
    link.run(flows.attach(to, new_token(), ttl_s=600))
    assert link.run(flows.push_many(to, values)) == len(values)
    return to


@pytest.mark.parametrize("where", ["a queue of its own", "the default", "among letters of record"])
def test_a_letter_that_no_group_wrote_is_refused_and_said(
    busmq: Busmq, payments: QueueKeys, link: SyncLink, fresh: Fresh, where: str
) -> None:
    dead = push(
        link, fresh("mine.dead") if where == "a queue of its own" else f"{payments.name}.dead"
    )
    if where == "among letters of record":
        give_up(link, payments, [b"a", b"b"])
    push(link, dead.name, forged(payments))
    for words in ((), ("--yes",)):
        done = busmq("dead", "replay", dead.name, *words)
        assert done.code == 2
        assert (
            f"1 letter of group 'send' of queue '{payments.name}', not of record: refused"
            in done.err
        )
        assert "--to QUEUE" in done.err
        assert "\x1b" not in done.err
    assert values_of(link, payments) == []
    assert [each["recorded"] for each in busmq("dead", "list", dead.name, "--json").records][
        -1
    ] is False
    if where == "among letters of record":
        busmq("dead", "replay", dead.name, "--most", "2", "--yes")
        assert values_of(link, payments) == [b"a", b"b"]
    rescue = fresh("rescue")
    assert busmq("dead", "replay", dead.name, "--to", rescue, "--yes", "--json").records == [
        {"queue": dead.name, "replayed": {rescue: 1}}
    ]
    assert values_of(link, QueueKeys(rescue)) == [b"PAY MALLORY"]
    assert b"PAY MALLORY" not in values_of(link, payments)


def test_nothing_is_put_back_before_the_plan_was_seen(
    busmq: Busmq, payments: QueueKeys, link: SyncLink
) -> None:
    dead = give_up(link, payments, [b"a", b"b"])
    for words in ((), ("--json",)):
        done = busmq("dead", "replay", dead.name, *words)
        assert done.code == 2
        assert (
            f"2 letters of group 'send' of queue '{payments.name}': to queue '{payments.name}'"
            in done.err
        )
        assert "--yes" in done.err
    assert values_of(link, payments) == []


def test_several_queues_that_are_named_take_the_letters_that_name_them(
    busmq: Busmq, payments: QueueKeys, link: SyncLink, fresh: Fresh
) -> None:
    other, mine = QueueKeys(fresh("other")), fresh("mine.dead")
    dead = push(link, mine, forged(payments, b"1"), forged(other, b"2"), forged(payments, b"3"))
    assert (
        busmq(
            "dead", "replay", dead.name, "--to", payments.name, "--to", fresh("third"), "--yes"
        ).code
        == 2
    )
    assert values_of(link, payments) == []
    busmq("dead", "replay", dead.name, "--to", payments.name, "--to", other.name, "--yes")
    assert (values_of(link, payments), values_of(link, other), values_of(link, dead)) == (
        [b"1", b"3"],
        [b"2"],
        [],
    )
    assert busmq("dead", "replay", dead.name, "--to", dead.name, "--yes").code == 2


def test_letters_of_a_shared_group_are_of_record_and_go_back(
    busmq: Busmq, redis_url: str, link: SyncLink, fresh: Fresh
) -> None:
    name, dead = fresh("mail"), fresh("graveyard")

    async def give_up_two() -> None:
        async with (
            Bus(redis_url) as bus,
            bus.queue(name) as queue,
            queue.group("g", shared=True, dead=dead) as group,
        ):
            await queue.push_many([b"one", b"two", b"three"])
            batch = await anext(group.batches())
            await group.reject(batch[:1], "no")
            await group.reject(batch[1:], "no")

    asyncio.run(give_up_two())
    keys = QueueKeys(dead)
    [run] = link.execute(command("ZRANGE", keys.letters, 0, -1))
    assert run.endswith(b":1")
    assert [each["recorded"] for each in busmq("dead", "list", dead, "--json").records] == [
        True
    ] * 3
    assert busmq("dead", "replay", dead, "--yes", "--json").records == [
        {"queue": dead, "replayed": {name: 3}}
    ]


def test_the_record_is_of_one_life_of_the_queue_and_goes_with_its_letters(
    busmq: Busmq, payments: QueueKeys, link: SyncLink
) -> None:
    dead = give_up(link, payments, [b"a"])
    link.execute(command("DEL", *dead.peer_keys))  # as when it has expired
    push(link, dead.name, forged(payments))
    assert busmq("dead", "replay", dead.name, "--yes").code == 2
    give_up(link, payments, [b"b"])
    [state] = link.run(states([(dead, -1)]))
    assert link.run(dead_letter.recorded_runs(dead, state.born, 1)) == [range(2, 3)]
    link.run(flows.trim(dead, 2))
    give_up(link, payments, [b"c"])
    assert [
        int(score)
        for score in link.execute(command("ZRANGE", dead.letters, 0, -1, "WITHSCORES"))[1::2]
    ] == [3]


def test_a_plan_of_many_origins_is_short(
    busmq: Busmq, payments: QueueKeys, link: SyncLink, fresh: Fresh
) -> None:
    long = QueueKeys("q" * 10_000)
    dead = push(
        link,
        fresh("mine.dead"),
        forged(long),
        *(forged(payments, group=f"g{n}") for n in range(100)),
    )
    done = busmq("dead", "replay", dead.name, "--json")
    assert "and letters of 81 more origins" in done.error["message"]
    assert len(json.dumps(done.error)) < 20_000
