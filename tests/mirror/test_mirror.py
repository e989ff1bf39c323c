"""Mirrors of data centres in every layout, direct and behind a federation server: the same ids,
bytes and life, and everything else that is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import BusError, ConfigError, FederationRefused, LinkLost, StateError
from busmq_spark.federation.bulk.client import BulkWebSocket, FederationBulkClient
from busmq_spark.mirror import runner as runners
from busmq_spark.mirror.copy_planning import MAX_CALL_BYTES, CopyRange, CopyRangeReadResult
from busmq_spark.mirror.origin_reader import read_windows
from busmq_spark.mirror.settings import MirrorSettings
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue as queues
from busmq_spark.reading import reader_operations
from busmq_spark.reading.reader_subscriptions import register
from busmq_spark.store.protocol import MirrorOriginReadStore
from tests.clocks import npm_push
from tests.conftest import Fresh
from tests.federation.bulk_site import SECRET, site
from tests.layouts import LAYOUTS, servers_of
from tests.mirror.centres import Centre, centre, copied, looked, mirroring, of, url
from tests.support import wait_until

pytestmark = pytest.mark.redis


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("side", ["origin", "here"])
def test_queues_are_copied_between_data_centres_of_every_layout(
    side: str, layout: str, request: pytest.FixtureRequest, far: Centre, fresh: Fresh
) -> None:
    names = [fresh("layout") for _ in range(4)]
    with centre(RedisOptions(**servers_of(layout, request.getfixturevalue))) as other:
        origin, here = (other, far) if side == "origin" else (far, other)
        for name in names:
            origin.create(name)
            origin.push(name, 30)
        with mirroring(
            url(origin), here, *names, layout=origin.options.layout, groups=True
        ) as runner:
            copied(runner, origin, names)
            for name in names:
                origin.push(name, 30)
                origin.run(name, register(origin.keys(name), "billing", 7))
            copied(runner, origin, names)
            looked(runner)
        for name in names:
            assert here.stored(name) == origin.stored(name)
            assert here.state(name) == origin.state(name)
            assert here.run(name, reader_operations.subscriptions([here.keys(name)])) == [
                {"billing": 7}
            ]


def test_queues_behind_a_federation_server_are_copied_too(
    far: Centre, near: Centre, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fresh("federated")
    far.create(name)
    far.push(name, 3_000, size=500)
    far.run(name, register(far.keys(name), "billing", 7))
    asked, send = list[str](), FederationBulkClient._send_call_on

    def noted(link: FederationBulkClient, socket: BulkWebSocket, operation: str, *more: Any) -> int:
        asked.append(operation)
        return send(link, socket, operation, *more)

    monkeypatch.setattr(FederationBulkClient, "_send_call_on", noted)
    with site(url(far)) as served:
        with mirroring(served.url, near, f"{name}*", secret=SECRET, groups=True) as runner:
            copied(runner, far, [name])
            assert "read_with_spans" in asked
            assert not {"read", "read_many"} & {*asked}, (
                "fingerprints and rows come in one round trip"
            )
            far.push(name, 3)
            copied(runner, far, [name])
            later = fresh(name)
            far.create(later)
            far.push(later, 5)
            looked(runner)
            copied(runner, far, [later])
            looked(runner)
        assert near.stored(name) == far.stored(name)
        assert near.stored(later) == far.stored(later)
        assert near.run(name, reader_operations.subscriptions([near.keys(name)])) == [
            {"billing": 7}
        ]
        with (
            pytest.raises(FederationRefused),
            mirroring(served.url, near, name, secret="another-secret-of-somebody"),
        ):
            pass


def test_a_push_is_copied_at_once_and_wakes_readers_of_the_mirror(
    far: Centre, near: Centre, fresh: Fresh, redis_url: str
) -> None:
    """Without waiting for the next poll: some of these fifty would take longer than a second."""
    name = fresh("wakes")
    far.create(name)

    async def read() -> list[int]:
        found = []
        async with Bus(redis_url) as bus, bus.queue(name) as queue:
            async for message in queue.consume(max=50):
                found.append(message.id)
                if message.id < 50:
                    far.push(name, 1)
        return found

    with mirroring(url(far), near, name) as runner:
        wait_until(lambda: near.state(name).exists)
        far.push(name, 1)
        assert asyncio.run(read()) == [*range(1, 51)]
        copied(runner, far, [name])


def test_two_mirrors_of_one_queue_lose_and_double_nothing(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name = fresh("two")
    far.create(name)
    with mirroring(url(far), near, name) as one, mirroring(url(far), near, name) as other:
        for _ in range(20):
            far.push(name, 500)
        copied(one, far, [name])
        copied(other, far, [name])
    assert near.stored(name) == far.stored(name)


def test_queues_that_come_later_are_found_and_those_of_channels_and_services_left_out(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    mark = fresh("late")
    for name in (f"channel:local:{mark}", f"service:{mark}", f"other-{mark}"):
        far.create(name)
    with mirroring(url(far), near, f"*{mark}-a*") as runner:
        far.create(f"{mark}-a1")
        far.push(f"{mark}-a1", 2)
        far.create(f"channel:local:{mark}-a2")
        looked(runner)
        copied(runner, far, [f"{mark}-a1"])
        assert [each.queue for each in runner.status()] == [f"{mark}-a1"]
        assert not near.state(f"channel:local:{mark}-a2").exists


def test_messages_of_every_size_are_copied_and_memory_is_bounded_by_what_is_read_at_once(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    """The first window of the queue is of 1,000 messages, and would be of 60 MB: it is read again
    in parts.
    """
    name = fresh("large")
    far.create(name)
    for size in (10, 100_000, 1_500_000, 60_000):
        far.push(name, 10 if size > 1_000_000 else 200, size=size)
    far.push(name, 300, size=100_000)
    with mirroring(url(far), near, name) as runner:
        copied(runner, far, [name])
    assert near.stored(name) == far.stored(name)


def test_what_is_read_in_one_call_is_bounded_over_all_of_its_queues(
    far: Centre, near: Centre, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of new queues nobody knows how long their values are: 40 of them, with 1 MB each, would be
    read in one call.
    """
    names = [fresh("wide") for _ in range(40)]
    for name in names:
        far.create(name)
        far.push(name, 10, size=100_000)
    came = list[int]()

    def noted(
        store: MirrorOriginReadStore, windows: Sequence[CopyRange]
    ) -> list[CopyRangeReadResult]:
        found = read_windows(store, windows)
        came.append(sum(rows.bytes for rows in found))
        return found

    monkeypatch.setattr(runners, "read_windows", noted)
    with mirroring(url(far), near, *names) as runner:
        copied(runner, far, names)
    for name in names:
        assert near.stored(name) == far.stored(name)
    assert MAX_CALL_BYTES < max(came) < MAX_CALL_BYTES + 2 * 1024 * 1024


def test_what_the_origin_drops_goes_here_too_or_stays_for_the_readers_here(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name = fresh("trim")
    born = far.create(name)
    far.push(name, 10)
    with mirroring(url(far), near, name) as runner:
        copied(runner, far, [name])
        far.run(name, queues.trim(far.keys(name), 6))
        looked(runner)
        wait_until(lambda: [id for id, _ in near.stored(name)] == [7, 8, 9, 10])
    with mirroring(url(far), near, name, retention="own") as runner:
        far.run(name, queues.trim(far.keys(name), 10))
        looked(runner)
        looked(runner)
        assert [id for id, _ in near.stored(name)] == [7, 8, 9, 10]
        far.push(name, 2)
        copied(runner, far, [name])
    assert [id for id, _ in near.stored(name)] == [7, 8, 9, 10, 11, 12]
    assert near.state(name).born == born


def test_what_was_taken_at_the_origin_before_it_was_copied_is_counted(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name = fresh("taken")
    far.create(name)
    far.push(name, 2)
    with mirroring(url(far), near, name) as runner:
        copied(runner, far, [name])
    far.push(name, 8)
    far.run(name, queues.trim(far.keys(name), 7))
    with mirroring(url(far), near, name) as runner:
        copied(runner, far, [name])
        looked(runner)
        found = of(runner, name)
    assert found is not None
    assert (found.copied, found.skipped, found.last) == (3, 5, 10)
    assert near.stored(name) == [(id, b"v%d" % id) for id in (8, 9, 10)]


def test_a_life_that_npm_has_made_gets_a_name_and_a_mirror(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name = fresh("npm")
    keys = far.keys(name)
    far.redis(
        name,
        "HSET",
        keys.metadata,
        "ttl",
        600,
        "source",
        "local",
        "discover",
        "false",
        "maxsize",
        0,
    )
    far.redis(name, "EXPIRE", keys.metadata, 600)
    npm_push(lambda *words: far.redis(name, *words), keys, 3)
    with mirroring(url(far), near, name) as runner:
        copied(runner, far, [name])
    assert near.stored(name) == far.stored(name)
    assert near.state(name).born == far.state(name).born != ""


def test_a_mirror_lives_as_long_as_its_origin(far: Centre, near: Centre, fresh: Fresh) -> None:
    name = fresh("alive")
    far.create(name, ttl_s=600)
    far.push(name, 2)
    with mirroring(url(far), near, name) as runner:
        copied(runner, far, [name])
        near.redis(name, "EXPIRE", near.keys(name).metadata, 300)
        runner._copier.queues[name].touched = 0.0  # as a quarter of its ttl later
        looked(runner)
        wait_until(lambda: int(near.redis(name, "TTL", near.keys(name).metadata)) > 300)
        far.run(name, queues.delete(far.keys(name)))
        looked(runner)
        assert near.stored(name), "what is gone at the origin lives here for its ttl"


def test_a_rate_is_kept(far: Centre, near: Centre, fresh: Fresh) -> None:
    """By what is planned: after so many bytes the next reading is put off for as long as they
    take.
    """
    name = fresh("rate")
    far.create(name)
    far.push(name, 3_000, size=100)
    with mirroring(url(far), near, name, bytes_per_s=100_000) as runner:
        copier = runner._copier
        wait_until(lambda: copier._read_at > 0)
        ends = copier._read_at
        copied(runner, far, [name])
        assert copier._read_at >= ends + 1.9, (
            "300 KB at 100 KB/s, of which a third came with the first window"
        )


def test_settings_that_make_no_sense_are_refused_before_anything_is_connected() -> None:
    for wrong in (
        {"patterns": ()},
        {"retention": "some"},
        {"new_life": "x"},
        {"bytes_per_s": -1},
        {"layout": "ring"},
        {"origin": "http://x"},
        {"origin": "ws://u:p@x"},
    ):
        with pytest.raises(ConfigError):
            MirrorSettings(**{"origin": "redis://localhost", "patterns": ("q",), **wrong})  # type: ignore[arg-type]
    assert "secret" not in repr(
        MirrorSettings(
            origin="redis://:secret@localhost", patterns=("q",), secret="secret", password="secret"
        )
    )


async def test_bus_mirror_says_how_far_it_is_and_ends_with_its_scope(
    far: Centre, fresh: Fresh, redis_url: str
) -> None:
    name = fresh("scope")
    far.create(name)
    far.push(name, 100)
    async with Bus(redis_url) as bus:
        with pytest.raises(ConfigError, match="colour"):
            bus.mirror(url(far), name, colour="red")  # type: ignore[call-arg]
        async with bus.mirror(url(far), name, groups=True) as mirror:
            [found] = await mirror.caught_up()
            assert (
                found.queue,
                found.last,
                found.behind,
                found.behind_s,
                found.copied,
                found.error,
            ) == (name, 100, 0, 0.0, 100, None)
            assert mirror.error is None
        assert mirror.status() == []
        left = bus.mirror(url(far), name)
        with pytest.raises(StateError, match="not started"):
            await left.caught_up()
        assert await left.start() is left
        with pytest.raises(StateError, match="started already"):
            await left.start()
        with pytest.raises(BusError) as late:
            await left.caught_up(timeout_s=0)
        assert isinstance(late.value, TimeoutError)
        with pytest.raises(LinkLost):
            await bus.mirror("redis://127.0.0.1:1", name).start()
    assert left.status() == [], "the bus ends it"


def test_the_same_without_a_loop(
    far: Centre, fresh: Fresh, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = fresh("sync")
    far.create(name)
    far.push(name, 7)
    with Bus.sync(redis_url) as bus, bus.mirror(url(far), name) as mirror:
        [found] = mirror.caught_up()
        assert found.last == 7
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_the_rights_of_the_page_are_enough_at_the_origin_and_here(fresh: Fresh) -> None:
    page = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text("utf-8")
    [here] = [line for line in page.splitlines() if line.startswith("ACL SETUSER spark")]
    [there] = [
        line.strip("`.")
        for line in page.splitlines()
        if line.startswith("`+client|setname +ping +role +eval")
    ]
    name = fresh("acl")
    with (
        EmbeddedRedis() as first,
        EmbeddedRedis() as second,
        centre(first.url) as far,
        centre(second.url) as near,
    ):
        first.command(
            "ACL",
            "SETUSER",
            "reader",
            "on",
            ">secret",
            "~bus:*",
            "resetchannels",
            "&bus:*",
            *there.split(),
        )
        second.command(*here.split())
        far.create(name)
        far.push(name, 2_000)
        far.run(name, register(far.keys(name), "billing", 7))
        with (
            centre(RedisOptions(url=second.url, user="spark", password="secret")) as place,
            mirroring(
                first.url, place, f"{name}*", user="reader", password="secret", groups=True
            ) as runner,
        ):
            far.push(name, 10)
            copied(runner, far, [name])
            looked(runner)
            assert runner.error is None
        assert near.stored(name) == far.stored(name)
        assert near.run(name, reader_operations.subscriptions([near.keys(name)])) == [
            {"billing": 7}
        ]
