"""topics, and push --key."""

from __future__ import annotations

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedStandaloneServers
from busmq_spark.groups.topic import partition_of
from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io.sync_link import SyncLink
from tests.bus.tools import until
from tests.cli.conftest import Busmq
from tests.conftest import Fresh

pytestmark = pytest.mark.redis


def test_a_topic_is_made_shown_pushed_to_and_grows(busmq: Busmq, fresh: Fresh) -> None:
    name = fresh("t")
    made = busmq("topics", name, "--partitions", "4", "--json")
    assert [(each["partition"], each["queue"], each["messages"]) for each in made.records] == [
        (i, f"{name}/{i}", 0) for i in range(4)
    ]
    for key in ("a", "b", "c", "a"):
        pushed = busmq("push", name, "--key", key, f"of {key}", "--json").records[0]
        assert pushed["queue"] == f"{name}/{partition_of(key, 4)}"
    assert busmq("topics", name, "--partitions", "6").code == 0
    shown = busmq("topics", name)
    assert f"{name}/5" in shown.text
    assert "has no groups" in shown.err
    [listed] = [each for each in busmq("topics", "--json").records if each["topic"] == name]
    assert listed == {"topic": name, "partitions": 6, "messages": 4, "groups": {}}
    assert name in busmq("topics").text


async def test_groups_are_shown_with_what_is_left_and_who_reads(
    busmq: Busmq, redis_url: str, fresh: Fresh
) -> None:
    name = fresh("t")
    async with Bus(redis_url) as bus, bus.topic(name, 3) as topic:
        await topic.push_many("abcdef", keys="123456")
        async with topic.group("agg") as member, topic.group("agg"):
            await until(lambda: len(member.partitions) == 2)
            async with topic.group("agg") as third:
                await until(lambda: third.partitions == [2])
                [group] = [
                    each for each in busmq("topics", name, "--json").records if "group" in each
                ]
                assert (
                    group["group"],
                    group["behind"],
                    group["read"],
                    group["partitions"],
                    group["members"],
                ) == ("agg", 6, 3, 3, 3)
                assert group["behind_s"] is not None
                assert "3 of 3 partitions" in busmq("topics", name).text
        [listed] = [each for each in busmq("topics", "--json").records if each["topic"] == name]
        assert listed["groups"] == {"agg": 6}


def test_over_several_servers_partitions_are_where_the_bus_would_have_them(
    busmq: Busmq, three_servers: EmbeddedStandaloneServers, fresh: Fresh
) -> None:
    name, url = fresh("t"), ",".join(three_servers.urls)
    found = busmq("topics", name, "--partitions", "4", "--json", url=url).records
    assert [three_servers.urls.index(each["server"]) for each in found] == [0, 1, 2, 0]
    assert busmq("push", name, "--key", "k", "v", url=url).code == 0
    assert [each["messages"] for each in busmq("topics", name, "--json", url=url).records] == [
        int(i == partition_of("k", 4)) for i in range(4)
    ]


def test_a_topic_that_is_damaged_is_named_and_the_others_are_listed(
    busmq: Busmq, fresh: Fresh, link: SyncLink
) -> None:
    name, damaged = fresh("t"), fresh("t")
    busmq("topics", name, "--partitions", "2")
    link.execute(command("HSET", f"bus:topic:{damaged}", "partitions", "many"))
    done = busmq("topics", "--json")
    assert name in [each["topic"] for each in done.records]
    assert damaged in done.err
    assert busmq("topics", damaged, "--json").error["code"] == "BUSMQ_QUEUE_DAMAGED"


def test_what_cannot_be_is_told(busmq: Busmq, fresh: Fresh) -> None:
    name = fresh("t")
    assert busmq("topics", name, "--json").error["code"] == "BUSMQ_TOPIC_MISSING"
    assert busmq("push", name, "--key", "k", "v", "--json").error["code"] == "BUSMQ_TOPIC_MISSING"
    assert busmq("topics", "--partitions", "3").code == 2
    assert busmq("topics", ":x", "--json").code == 2
    assert busmq("topics", name, "--partitions", "1001", "--json").code == 2
    busmq("topics", name, "--partitions", "3")
    done = busmq("topics", name, "--partitions", "2", "--json")
    assert (done.code, done.error["code"]) == (1, "BUSMQ_TOPIC_SHRINKS")
