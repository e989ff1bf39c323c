"""Mirrors while links are cut, processes killed and servers lost, at random: the same ids, the same
bytes, none lost, doubled or out of order.
"""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis, EmbeddedSentinel
from busmq_spark.errors import BusError, MirrorStopped
from busmq_spark.federation.bulk import client
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue as queues
from busmq_spark.redis_io import connection_factory
from busmq_spark.writing import mirror as flows
from tests.cli.conftest import COMMAND, environment
from tests.federation.bulk_site import SECRET, site
from tests.federation.cutting import Cutter, cutter
from tests.layouts import servers_of
from tests.mirror.centres import Centre, centre, copied, looked, mirroring, of
from tests.support import FACTOR, wait_in_sync, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(600)]
QUEUES = ("a", "b", "c")
KILLS = 4 if FACTOR == 1 else 10 * FACTOR
"""Of two processes that mirror the same queues, by turns, over one link."""
FAULTS = ("cut", "bytes", "bytes", "hush", "far", "slow")
"""Of a line: each seed has all of them, in an order of its own."""


class Place:
    """Two data centres, and producers in the first."""

    def __init__(self, far: Centre, near: Centre, url: str, secret: str = "") -> None:
        self.far, self.near, self.url, self.secret = far, near, url, secret
        self._done = threading.Event()
        for name in QUEUES:
            far.create(name)

    @contextmanager
    def producing(self, seed: int) -> Iterator[None]:
        """Pushes of all sizes, all the time."""
        chance = random.Random(seed)

        def push() -> None:
            far = Centre(self.far.options)
            while not self._done.wait(chance.uniform(0, 0.04)):
                with suppress(
                    BusError
                ):  # its server was killed: what was pushed or not is in the queue or not
                    far.push(
                        chance.choice(QUEUES),
                        chance.choice((1, 3, 50, 400)),
                        size=chance.choice((0, 100, 3_000)),
                    )

            far.close()

        thread = threading.Thread(target=push)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def check(self) -> None:
        """At any time: what is here is what the origin has, up to some id, without a gap."""
        for name in QUEUES:
            here = self.near.stored(name)
            assert [id for id, _ in here] == [*range(1, len(here) + 1)]
            assert here == self.far.stored(name)[: len(here)]

    def alike(self) -> bool:
        return all(self.near.stored(name) == self.far.stored(name) for name in QUEUES)


class Scene(Place):
    """The same with a line from one to the other."""

    def __init__(self, far: Centre, near: Centre, line: Cutter, *, federated: bool) -> None:
        self.line = line
        super().__init__(
            far,
            near,
            f"ws://127.0.0.1:{line.port}/bus" if federated else f"redis://127.0.0.1:{line.port}",
            SECRET if federated else "",
        )


@pytest.fixture(params=["direct", "federated"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with ExitStack() as stack:
        there, here = (stack.enter_context(EmbeddedRedis(aof=True)) for _ in range(2))
        port = (
            stack.enter_context(site(there.url)).port
            if request.param == "federated"
            else there.port
        )
        line = stack.enter_context(cutter(port))
        far, near = (stack.enter_context(centre(server.url)) for server in (there, here))
        yield Scene(far, near, line, federated=request.param == "federated")


@pytest.mark.parametrize("seed", range(2 * FACTOR))
def test_while_the_line_is_cut_silent_slow_or_far_away(scene: Scene, seed: int) -> None:
    chance = random.Random(seed)
    with (
        scene.producing(seed),
        mirroring(scene.url, scene.near, *QUEUES, secret=scene.secret) as one,
        mirroring(scene.url, scene.near, "*", secret=scene.secret) as other,
    ):
        for fault in chance.sample(FAULTS, len(FAULTS)):
            match fault:
                case "cut":
                    scene.line.cut()
                case "bytes":
                    scene.line.down = iter([chance.randrange(1, 200_000) for _ in range(4)])
                    scene.line.up = iter([chance.randrange(1, 3_000) for _ in range(2)])
                    scene.line.cut()
                case "hush":
                    scene.line.hush()
                    threading.Event().wait(chance.uniform(0, 0.3))  # the fault itself lasts
                    scene.line.cut()
                case "far":
                    scene.line.delay_s = 0.05
                case "slow":
                    scene.line.bytes_per_s = 300_000
            before = {name: scene.near.state(name).last_id for name in QUEUES}
            wait_until(
                lambda b=before: any(scene.near.state(name).last_id > b[name] for name in QUEUES),
                what="something is copied",
            )  # type: ignore[misc]
            scene.line.delay_s, scene.line.bytes_per_s = 0.0, None
            scene.check()
    with mirroring(scene.url, scene.near, *QUEUES, secret=scene.secret) as one:
        copied(one, scene.far, QUEUES)
    assert scene.alike()
    assert other is not one


def test_while_its_process_is_killed_again_and_again_under_load(
    scene: Scene, tmp_path: Path
) -> None:
    """Over each of the two links."""
    kill_again_and_again(scene, KILLS, tmp_path)


@pytest.mark.parametrize("layout", ["three", "sentinel", "cluster"])
def test_while_its_process_is_killed_and_the_copies_are_on_servers_of_every_layout(
    layout: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = RedisOptions(**servers_of(layout, request.getfixturevalue))
    with EmbeddedRedis() as there, centre(there.url) as far, centre(where) as near:
        kill_again_and_again(Place(far, near, there.url), 2 * FACTOR, tmp_path)


def kill_again_and_again(place: Place, kills: int, folder: Path) -> None:
    chance = random.Random(20)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [
            *COMMAND,
            "mirror",
            "--from",
            place.url,
            "--layout",
            place.near.options.layout,
            *QUEUES,
        ]
        where = {**environment(str(place.near.options.url)), "BUSMQ_MIRROR_SECRET": place.secret}
        with (folder / "mirror.log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    command, env=where, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )
        return started[-1]

    def last() -> int:
        return sum(place.near.state(name).last_id for name in QUEUES)

    try:
        with place.producing(20):
            processes = [start(), start()]  # two at once, of which always one is killed
            for kill in range(kills):
                before = last()
                wait_until(
                    lambda b=before: last() > b + chance.randrange(200),
                    what=f"more is copied before kill {kill}",
                )  # type: ignore[misc]
                processes[kill % 2].kill()
                processes[kill % 2].wait()
                processes[kill % 2] = start()
            place.check()
        wait_until(place.alike, what="all is copied")
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("killed", ["origin", "here"])
def test_while_one_of_the_servers_is_killed(killed: str) -> None:
    with (
        EmbeddedRedis(aof=True) as there,
        EmbeddedRedis(aof=True) as here,
        centre(there.url) as far,
        centre(here.url) as near,
        cutter(there.port) as line,
    ):
        scene = Scene(far, near, line, federated=False)
        with scene.producing(5), mirroring(there.url, near, *QUEUES) as runner:
            for _ in range(4):
                before = near.state("a").last_id
                wait_until(lambda b=before: near.state("a").last_id > b, what="more is copied")  # type: ignore[misc]
                (there if killed == "origin" else here).kill()
                wait_until(lambda: runner.error is not None, what="the mirror has seen it")
                (there if killed == "origin" else here).restart()
            wait_until(lambda: runner.error is None, what="the mirror goes on")
        with mirroring(there.url, near, *QUEUES) as runner:
            copied(runner, far, QUEUES)
        assert scene.alike()


def test_servers_here_that_lost_everything_are_filled_anew() -> None:
    with (
        EmbeddedRedis() as there,
        EmbeddedRedis() as here,
        centre(there.url) as far,
        centre(here.url) as near,
    ):
        born = far.create("a")
        far.push("a", 2_000, size=100)
        with mirroring(there.url, near, "a") as runner:
            copied(runner, far, ["a"])
            here.kill()
            here.restart()
            assert not near.state("a").exists
            far.push("a", 10)
            wait_until(lambda: near.state("a").last_id == 2_010, what="all is copied again")
        assert near.stored("a") == far.stored("a")
        assert near.state("a").born == born


def test_calls_that_a_mirror_has_sent_before_it_was_promoted_change_nothing_afterwards(
    scene: Scene,
) -> None:
    """Under load, at a moment of its own in each of ten queues; pushes follow at once."""
    names = [f"p{n}" for n in range(10)]
    for name in names:
        scene.far.create(name)
    chance = random.Random(3)
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(mirroring(scene.url, scene.near, "p*", secret=scene.secret))
            for _ in range(2)
        )
        promoted: dict[str, int] = {}
        for name in names:
            wait_until(
                lambda q=name: of(one, q) and scene.near.state(q).exists, what=f"{name} is found"
            )  # type: ignore[misc]
        for name in names:
            scene.far.push(name, chance.randrange(1, 3_000), size=200)
            was, promoted[name], _ = scene.near.run(name, flows.promote(scene.near.keys(name)))
            assert was
            scene.near.run(name, queues.push_many(scene.near.keys(name), [b"mine"] * 3))
            scene.far.push(name, 5)
        looked(one)
        looked(other)
        for name in names:
            # Rows may have been under way during the look: then their refusal says it.
            wait_until(lambda q=name: (found := of(one, q)) and found.error, what=f"{name} stops")  # type: ignore[misc]
            found = of(one, name)
            assert found is not None
            assert isinstance(found.error, MirrorStopped)
            last = scene.far.state(name).last_id
            assert (
                found.error.details["kind"],
                found.error.details["first"],
                found.error.details["last"],
            ) == ("promoted", promoted[name] + 1, last)
    for name in names:
        here, there = scene.near.stored(name), scene.far.stored(name)
        assert here[: promoted[name]] == there[: promoted[name]]
        assert here[promoted[name] :] == [(promoted[name] + n, b"mine") for n in (1, 2, 3)]


def test_a_fail_over_at_the_origin_that_gave_ids_anew_is_noticed_and_mixes_no_histories() -> None:
    """The new master gives the ids of messages that were copied, and of some that the mirror was
    about to read, to others.
    """
    with (
        EmbeddedSentinel(down_after_s=2.5) as group,
        EmbeddedRedis() as here,
        centre(here.url) as near,
    ):
        options = RedisOptions(url=",".join(group.urls), layout="sentinel")
        with centre(options) as far, ExitStack() as stack:
            far.create("q")
            far.push("q", 50)
            runner = stack.enter_context(mirroring(str(options.url), near, "q", layout="sentinel"))
            copied(runner, far, ["q"])
            master = group.master
            wait_in_sync(master)
            replica = next(server for server in group.servers if server.port != master.port)
            replica.pause()
            master.command("CLIENT", "KILL", "TYPE", "replica")
            far.push("q", 30, word="lost")
            copied(runner, far, ["q"])
            master.kill()
            replica.resume()
            wait_until(lambda: _pushes(far), what="there is a new master")
            far.push("q", 60, word="other")
            wait_until(lambda: (found := of(runner, "q")) and found.error, what="the mirror stops")
            found = of(runner, "q")
            assert found is not None
            assert isinstance(found.error, MirrorStopped)
            wait_until(
                lambda: "are other messages" in str(of(runner, "q").error), what="which ids differ"
            )  # type: ignore[union-attr]
            error = of(runner, "q").error  # type: ignore[union-attr]
            assert isinstance(error, MirrorStopped)
            assert (error.details["kind"], error.details["first"], error.details["last"]) == (
                "diverged",
                51,
                80,
            )
            assert [value for _, value in near.stored("q")] == [
                *(b"v%d" % n for n in range(1, 51)),
                *(b"lost%d" % n for n in range(51, 81)),
            ]


def _pushes(far: Centre) -> bool:
    try:
        far.push("q", 1, word="other")
    except BusError:
        return False
    return True


def test_a_line_that_is_black_holed_at_any_step_is_left_and_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither side sees a close: the mirror notices by itself, sooner here than elsewhere, and goes
    on over a new connection.
    """
    monkeypatch.setattr(connection_factory, "REPLY_TIMEOUT_S", 3.0)
    monkeypatch.setattr(client, "PING_AFTER_SILENCE_S", 2.0)
    scene.far.push("a", 2_000, size=100)
    with mirroring(scene.url, scene.near, *QUEUES, secret=scene.secret) as runner:
        for _ in range(2):
            copied(runner, scene.far, QUEUES)
            scene.line.hush()
            scene.far.push("a", 500)
            copied(runner, scene.far, QUEUES)
    assert scene.alike()
