"""What a mirror cannot keep: new lives, lost and reissued ids, foreign pushes, promotions. It is
told with its ids, and nothing is written over.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost, MirrorStopped, QueueIsMirror, StateError
from busmq_spark.metrics import Metrics
from busmq_spark.mirror.origin_reader import look_at_queues
from busmq_spark.mirror.runner import MirrorRunner
from busmq_spark.mirror.settings import MirrorSettings
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue as queues
from busmq_spark.writing import mirror as flows
from tests.clocks import npm_push
from tests.conftest import Fresh
from tests.mirror.centres import Centre, centre, copied, looked, mirroring, of, url
from tests.support import lasting_port, wait_until

pytestmark = pytest.mark.redis


def test_a_new_life_at_the_origin_begins_here_where_it_shall_be_followed_and_is_told(
    far: Centre, near: Centre, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    name = fresh("life")
    before = far.create(name)
    far.push(name, 5)
    metrics = Metrics()
    runner = MirrorRunner(
        MirrorSettings(origin=url(far), patterns=(name,), new_life="follow"), near.options, metrics
    )
    runner.start()
    try:
        copied(runner, far, [name])
        far.run(name, queues.delete(far.keys(name)))
        after = far.create(name)
        far.push(name, 9, word="w")
        wait_until(lambda: near.state(name).born == after)
        copied(runner, far, [name])
        assert near.stored(name) == far.stored(name)
        assert "busmq_mirror_lives_total 1" in metrics.text()
        assert any(
            before in each and after in each and "up to id 5" in each for each in caplog.messages
        )
    finally:
        runner.stop()


def test_a_new_life_stops_the_mirror_and_the_copy_of_the_old_one_is_kept(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name = fresh("keep")
    before = far.create(name, ttl_s=600)
    far.push(name, 5)
    with mirroring(url(far), near, name) as runner:
        copied(runner, far, [name])
        kept = near.stored(name)
        far.run(name, queues.delete(far.keys(name)))
        after = far.create(name, ttl_s=600)
        far.push(name, 9)
        stopped(runner, name)
    with mirroring(url(far), near, name) as runner:
        error = stopped(runner, name)
        assert (error.details["kind"], error.details["last"]) == ("life", 5)
        assert before in str(error)
        assert after in str(error)
        near.redis(name, "EXPIRE", near.keys(name).metadata, 300)
        runner._copier.queues[name].touched = 0.0  # as a quarter of its ttl later
        looked(runner)
        wait_until(
            lambda: int(near.redis(name, "TTL", near.keys(name).metadata)) > 300,
            what="the copy lives while it is mirrored no further",
        )
        assert near.stored(name) == kept
    assert near.run(name, flows.promote(near.keys(name))) == (True, 5, 5)


def test_an_origin_that_comes_back_empty_does_not_take_the_copy_with_it(
    near: Centre, fresh: Fresh
) -> None:
    """The disaster that mirrors are for. Whether the copy or the new life is wanted, a person
    decides, who then says so.
    """
    name = fresh("empty")
    with EmbeddedRedis() as there, centre(there.url) as far:
        far.create(name)
        far.push(name, 50)
        with mirroring(there.url, near, f"{name}*") as runner:
            copied(runner, far, [name])
            kept = near.stored(name)
            there.kill()
            wait_until(lambda: runner.error is not None, what="the mirror has seen it")
            there.restart()
            far.create(name)
            far.push(name, 3, word="new")
            assert stopped(runner, name).details["kind"] == "life"
            for _ in range(2):
                looked(runner)
        assert near.stored(name) == kept
        with mirroring(there.url, near, name, new_life="follow") as runner:
            copied(runner, far, [name])
        assert near.stored(name) == far.stored(name) == [(1, b"new1"), (2, b"new2"), (3, b"new3")]


def test_a_new_life_is_followed_where_nothing_was_copied_of_the_one_before(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name = fresh("nothing")
    far.create(name)
    with mirroring(url(far), near, name) as runner:
        wait_until(lambda: near.state(name).exists, what="the mirror has begun")
        far.run(name, queues.delete(far.keys(name)))
        born = far.create(name)
        far.push(name, 2)
        wait_until(lambda: near.state(name).born == born, what="the new life has begun")
        copied(runner, far, [name])
    assert near.stored(name) == far.stored(name)


def test_a_copy_lives_while_its_origin_is_away(near: Centre, fresh: Fresh) -> None:
    """Else what is copied for the day on which a data centre is lost would expire on that day:
    npm's queues have a ttl of 30 s.
    """
    name = fresh("away")
    with (
        EmbeddedRedis() as server,
        centre(server.url) as away,
        mirroring(server.url, near, name) as runner,
    ):
        away.create(name, ttl_s=600)
        away.push(name, 2)
        copied(runner, away, [name])
        server.kill()
        wait_until(lambda: runner.error is not None)
        near.redis(name, "EXPIRE", near.keys(name).metadata, 300)
        runner._copier.queues[name].touched = 0.0  # as a quarter of its ttl later
        wait_until(lambda: int(near.redis(name, "TTL", near.keys(name).metadata)) > 300)
        assert [id for id, _ in near.stored(name)] == [1, 2]


@pytest.mark.parametrize("pattern", ["{}", "{}*"])
def test_a_mirror_that_starts_while_its_origin_is_away_keeps_its_copies_alive_and_raises(
    near: Centre, fresh: Fresh, pattern: str
) -> None:
    """Whoever supervises it starts it again and again, for as long as the outage lasts."""
    name, others, mine = fresh("away"), fresh("away"), fresh("away")
    with (
        EmbeddedRedis() as server,
        EmbeddedRedis() as third,
        centre(server.url) as away,
        centre(third.url) as asia,
    ):
        for place, each in ((away, name), (asia, others)):
            place.create(each, ttl_s=600)
            place.push(each, 2)
            with mirroring(url(place), near, each) as runner:
                copied(runner, place, [each])
        near.create(mine, ttl_s=600)
        server.kill()
        for each in (name, others, mine):
            near.redis(each, "EXPIRE", near.keys(each).metadata, 300)
        settings = MirrorSettings(
            origin=server.url,
            patterns=tuple(pattern.format(each) for each in (name, others, mine, fresh("none"))),
        )
        runner = MirrorRunner(settings, near.options)
        try:
            with pytest.raises(LinkLost) as lost:
                runner.start()
        finally:
            runner.stop()
    assert lost.value.details["url"] == server.url
    assert int(near.redis(name, "TTL", near.keys(name).metadata)) > 300
    assert near.stored(name) == [(1, b"v1"), (2, b"v2")]
    for each in (others, mine):
        assert int(near.redis(each, "TTL", near.keys(each).metadata)) <= 300, (
            "of another origin, or no copy"
        )


@pytest.mark.parametrize("pattern", ["{}", "{}*"])
def test_an_origin_that_goes_away_before_the_first_look_keeps_its_copy_and_goes_on_later(
    near: Centre, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """Its name is known by then, and what is here is the copy of another process."""
    name, mine = fresh("first"), fresh("first")
    with EmbeddedRedis(aof=True) as server, centre(server.url) as away:
        for each in (name, mine):
            away.create(each, ttl_s=600)
            away.push(each, 2)
        near.create(mine, ttl_s=600)
        near.push(mine, 1)
        with mirroring(server.url, near, name) as runner:
            copied(runner, away, [name])
        away.push(name, 3)
        for each in (name, mine):
            near.redis(each, "EXPIRE", near.keys(each).metadata, 300)

        def look(*asked: Any) -> Any:
            monkeypatch.undo()
            server.kill()
            return look_at_queues(*asked)

        monkeypatch.setattr("busmq_spark.mirror.runner.look_at_queues", look)
        with mirroring(server.url, near, pattern.format(name), pattern.format(mine)) as runner:
            wait_until(
                lambda: int(near.redis(name, "TTL", near.keys(name).metadata)) > 300,
                what="the copy lives on",
            )
            assert isinstance(runner.error, LinkLost)
            found = of(runner, name)
            assert found is not None
            assert (found.last, found.error) == (2, None), "as far as is known"
            assert int(near.redis(mine, "TTL", near.keys(mine).metadata)) <= 300, "no copy"
            server.restart()
            copied(runner, away, [name])
            assert near.stored(name) == away.stored(name)
            wait_until(lambda: runner.error is None, what="the mirror goes on")
            assert stopped(runner, mine).details["kind"] == "own"


def test_a_mirror_that_starts_while_both_sides_are_away_raises_what_its_origin_does() -> None:
    here, there = (f"redis://127.0.0.1:{lasting_port()}" for _ in range(2))
    runner = MirrorRunner(MirrorSettings(origin=there, patterns=("q*",)), RedisOptions(url=here))
    try:
        with pytest.raises(LinkLost) as lost:
            runner.start()
    finally:
        runner.stop()
    assert lost.value.details["url"] == there


def stopped(runner: MirrorRunner, name: str) -> MirrorStopped:
    """The error it stops with."""
    wait_until(lambda: (found := of(runner, name)) and found.error, what=f"{name} stops")
    found = of(runner, name)
    assert found is not None
    assert isinstance(found.error, MirrorStopped)
    return found.error


def test_an_origin_that_lost_its_last_pushes_stops_the_mirror_with_their_range(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name, other = fresh("lost"), fresh("lost")
    keys = far.keys(name)
    for each in (name, other):
        far.create(each)
        far.push(each, 10)
    with mirroring(url(far), near, name, other) as runner:
        copied(runner, far, [name, other])
        far.redis(name, "LTRIM", keys.messages, 0, 13)
        far.redis(name, "SET", keys.msgid, 7)
        error = stopped(runner, name)
        assert (error.details["kind"], error.details["first"], error.details["last"]) == (
            "diverged",
            8,
            10,
        )
        assert "ids 8..10" in str(error)
        far.push(name, 9, word="other")
        wait_until(lambda: "are other messages" in str(of(runner, name).error))  # type: ignore[union-attr]
        error = stopped(runner, name)
        assert (error.details["kind"], error.details["first"], error.details["last"]) == (
            "diverged",
            8,
            10,
        )
        far.push(other, 5)
        copied(runner, far, [other])
    assert near.stored(name) == [(id, b"v%d" % id) for id in range(1, 11)]
    assert near.stored(other) == far.stored(other)
    with mirroring(url(far), near, name) as runner:
        assert stopped(runner, name).details["first"] == 8, "another process finds the same"
    near.run(name, flows.promote(near.keys(name)))
    with mirroring(url(far), near, name, replace=True) as runner:
        copied(runner, far, [name])
        assert near.stored(name) == far.stored(name)


def test_a_program_that_does_not_know_mirrors_stops_one_and_is_named(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name = fresh("foreign")
    far.create(name)
    far.push(name, 3)
    with mirroring(url(far), near, name) as runner:
        copied(runner, far, [name])
        npm_push(lambda *words: near.redis(name, *words), near.keys(name), 2)
        far.push(name, 1)
        assert "ids 4..5 were given here" in str(stopped(runner, name))
    assert len(near.stored(name)) == 5


def test_a_queue_of_this_place_is_left_alone_and_an_empty_one_taken(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    mine, empty = fresh("own"), fresh("own")
    for name in (mine, empty):
        far.create(name)
        far.push(name, 3)
        near.create(name)
    near.push(mine, 1)
    with mirroring(url(far), near, mine, empty) as runner:
        copied(runner, far, [empty])
        assert stopped(runner, mine).details["kind"] == "own"
    assert near.stored(mine) == [(1, b"v1")]
    assert near.stored(empty) == far.stored(empty)
    with mirroring(url(far), near, mine, replace=True) as runner:
        copied(runner, far, [mine])
    assert near.stored(mine) == far.stored(mine)


def test_two_origins_do_not_end_each_other_s_copies(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name = fresh("taken")
    far.create(name)
    far.push(name, 3)
    with EmbeddedRedis() as third, centre(third.url) as asia:
        asia.create(name)
        asia.push(name, 5, word="asia")
        with mirroring(url(far), near, name) as first:
            copied(first, far, [name])
            with mirroring(url(asia), near, name) as second:
                assert f"here it is a mirror of {url(far)}" in str(stopped(second, name))
                far.push(name, 3)
                copied(first, far, [name])
        assert near.stored(name) == far.stored(name)
        with mirroring(url(asia), near, name, replace=True) as second:
            copied(second, asia, [name])
        assert near.stored(name) == asia.stored(name)


def test_after_a_promotion_ids_go_on_and_what_the_old_origin_has_besides_is_told(
    far: Centre, near: Centre, fresh: Fresh, redis_url: str
) -> None:
    name = fresh("promoted")
    born = far.create(name)
    far.push(name, 10)
    with mirroring(url(far), near, name) as runner:
        copied(runner, far, [name])
    far.push(name, 4)

    async def fail_over() -> tuple[int, int]:
        async with Bus(redis_url) as bus, bus.queue(name) as queue:
            with pytest.raises(QueueIsMirror):
                await queue.push("too early")
            promoted = await queue.promote()
            assert await queue.push("new") == 11
            with pytest.raises(StateError, match="no mirror"):
                await queue.promote()
            return promoted

    assert asyncio.run(fail_over()) == (10, 10)
    with mirroring(url(far), near, name) as runner:
        error = stopped(runner, name)
        assert (error.details["kind"], error.details["first"], error.details["last"]) == (
            "promoted",
            11,
            14,
        )
        assert "ids 11..14 of its old origin were not copied" in str(error)
        assert "here ids 11..11 were given to others" in str(error)
    assert near.stored(name)[-1] == (11, b"new")
    assert near.state(name).born == born
    # And back: the old origin becomes a mirror of the new one, on request only.
    with mirroring(url(near), far, name) as runner:
        assert stopped(runner, name).details["kind"] == "own"
    with mirroring(url(near), far, name, replace=True) as runner:
        copied(runner, near, [name])
    assert far.stored(name) == near.stored(name)


def test_both_sides_promoted_keep_what_they_have(far: Centre, near: Centre, fresh: Fresh) -> None:
    name = fresh("both")
    with EmbeddedRedis() as third, centre(third.url) as root:
        root.create(name)
        root.push(name, 5)
        with mirroring(url(root), far, name) as one, mirroring(url(root), near, name) as other:
            copied(one, root, [name])
            copied(other, root, [name])
    far.run(name, flows.promote(far.keys(name)))
    near.run(name, flows.promote(near.keys(name)))
    far.push(name, 2, word="far")
    near.push(name, 3, word="near")
    with mirroring(url(far), near, name) as runner:
        error = stopped(runner, name)
        assert (error.details["kind"], error.details["first"], error.details["last"]) == (
            "promoted",
            6,
            7,
        )
    assert [value for _, value in near.stored(name)][5:] == [b"near6", b"near7", b"near8"]


def test_a_mirror_of_a_mirror_names_its_path_and_none_is_its_own_origin(
    far: Centre, near: Centre, fresh: Fresh
) -> None:
    name = fresh("chain")
    with EmbeddedRedis() as third, centre(third.url) as asia:
        far.create(name)
        far.push(name, 5)
        with (
            mirroring(url(far), near, name, name="us", origin_name="eu") as first,
            mirroring(url(near), asia, name, name="asia", origin_name="us") as second,
        ):
            copied(first, far, [name])
            copied(second, near, [name])
            far.push(name, 5)
            copied(first, far, [name])
            copied(second, near, [name])
        assert asia.stored(name) == far.stored(name)
        [found] = asia.run(name, flows.read_mirror_states([asia.keys(name)]))
        assert found is not None
        assert found.of.path == ("eu", "us")
        with mirroring(url(asia), far, name, name="eu", origin_name="asia", replace=True) as runner:
            error = stopped(runner, name)
            assert (error.details["kind"], "eu → us" in str(error)) == ("loop", True)
        assert len(far.stored(name)) == 10


@pytest.mark.parametrize("taken", [120, 150, 100])
@pytest.mark.parametrize("process", ["goes on", "is started again"])
def test_ids_that_were_issued_again_stop_the_mirror_also_when_the_last_copied_message_was_taken(
    near: Centre, fresh: Fresh, taken: int, process: str
) -> None:
    """The origin comes back from an older RDB; what was pushed anew is consumed beyond the copy."""
    name = fresh("again")
    with EmbeddedRedis() as server, centre(server.url) as far:
        far.create(name)
        far.push(name, 50)
        far.redis(name, "SAVE")
        far.push(name, 50)
        with ExitStack() as running:
            runner = running.enter_context(mirroring(server.url, near, name))
            copied(runner, far, [name])
            kept = near.stored(name)
            if process == "is started again":
                running.close()
            copied_in = far.second(name)
            server.kill()
            server.restart()
            assert far.state(name).last_id == 50
            # Histories differ in the seconds of their ids: within one second they look alike.
            wait_until(lambda: far.second(name) > copied_in, what="a second has passed")
            last = max(taken, 100) if taken == 100 else 150
            far.push(name, last - 50, word="other")
            far.redis(name, "LPOP", far.keys(name).messages, 2 * taken)
            if process == "is started again":
                runner = running.enter_context(mirroring(server.url, near, name))
            error = stopped(runner, name)
            assert (error.details["kind"], error.details["first"], error.details["last"]) == (
                "diverged",
                51,
                100,
            )
            assert "history" in str(error)
            for _ in range(2):
                looked(runner)
            assert stopped(runner, name).details["first"] == 51
            assert near.stored(name) == kept


def test_an_origin_that_lost_nothing_is_mirrored_on_though_the_last_copied_one_was_taken(
    near: Centre, fresh: Fresh
) -> None:
    name = fresh("whole")
    with EmbeddedRedis(aof=True) as server, centre(server.url) as far:
        far.create(name)
        far.push(name, 100)
        with mirroring(server.url, near, name, retention="own") as runner:
            copied(runner, far, [name])
            for round_ in range(1, 4):
                server.kill()
                server.restart()
                far.push(name, 50)
                far.redis(name, "LPOP", far.keys(name).messages, 2 * 20 if round_ == 1 else 2 * 50)
                copied(runner, far, [name])
                looked(runner)
                assert of(runner, name).error is None  # type: ignore[union-attr]
