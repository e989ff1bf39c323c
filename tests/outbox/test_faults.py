"""Processes that are killed, links that are cut, disks that lose what was not synced: 0 lost, 0
doubled, 0 reordered.

The rounds are seeded: a round that fails is found again by its number.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from random import Random

import pytest

from busmq_spark.bus.bus import Bus
from busmq_spark.embedded import EmbeddedCluster, EmbeddedRedis
from busmq_spark.options import RedisOptions
from busmq_spark.outbox import forwarder, report
from busmq_spark.outbox.outbox import SyncOutbox
from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io import connection_factory
from busmq_spark.redis_io.layout import redis_layout
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.store.redis_store import RedisStore
from tests.conftest import Fresh
from tests.faults.proxy import Command, Proxy
from tests.federation.cutting import Cutter
from tests.outbox.conftest import Place, drain, numbered
from tests.outbox.running import Program, numbers
from tests.soak.machine import Machine, can_be_set
from tests.support import FACTOR, lasting_port, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.fault]
ROUND = 1_000_000
"""Numbers of messages of one run of the program."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "RETRY_PAUSES_S", (0.02, 0.1))


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    """A Redis that survives a kill: AOF, fsync always."""
    with EmbeddedRedis(aof=True) as made:
        yield made


@pytest.fixture
def cutter(redis_server: EmbeddedRedis) -> Iterator[Cutter]:
    made = Cutter(redis_server.port)
    yield made
    made.close()


def check_rounds(found: list[int], kept: list[int]) -> None:
    """Of each run everything that was returned for is there, once, in order; behind it at most what
    was under way when the run was killed.
    """
    by_round = {number: list(some) for number, some in groupby(found, key=lambda n: n // ROUND)}
    assert [*by_round] == sorted(by_round), "runs are in order, and each in one piece"
    for number, last in enumerate(kept, 1):
        some = by_round.get(number, [])
        assert some == [*range(number * ROUND + 1, number * ROUND + 1 + len(some))]
        assert len(some) >= last - number * ROUND, f"round {number}"


@pytest.mark.parametrize("seed", range(FACTOR))
def test_publisher_forwarder_and_redis_are_killed_at_any_moment(
    server: EmbeddedRedis, path: Path, fresh: Fresh, seed: int
) -> None:
    """Publisher and forwarder are one process: it is killed while both are at work, some rounds
    right after a call has returned.

    With seed 0 Redis is there in some rounds, is killed in some, and is killed and back again in
    one: its eight rounds are enough for ``make test``.
    """
    chance, queue, kept = Random(seed), fresh("orders"), []
    for number in range(1, 9):
        with Program(path, server.url, queue, number * ROUND + 1) as program:
            program.wait("open")
            program.tell("forever", chance.choice([10, 1000, 20_000]))
            program.wait("kept", chance.randrange(1, 60))
            if chance.random() < 0.5:
                server.kill()
                program.wait("kept", len(program.lines) + chance.randrange(1, 20))
                if chance.random() < 0.5:
                    server.restart()
                    wait_until(lambda: server.running)
            program.kill()
            kept.append(program.kept)
        if not server.running:
            server.restart()
    there = Place({"url": server.url})
    with there.outbox(path) as outbox:
        drain(outbox)
    check_rounds(numbers(there.values(queue)), kept)


@pytest.mark.parametrize("seed", range(FACTOR))
def test_publisher_and_forwarder_are_killed_on_every_layout(
    anywhere: Place, path: Path, fresh: Fresh, seed: int
) -> None:
    chance, queue, kept = Random(seed), fresh("orders"), []
    for number in range(1, 3):
        with Program(path, anywhere.words, queue, number * ROUND + 1) as program:
            program.wait("open")
            program.tell("forever", chance.choice([10, 1000]))
            program.wait("kept", chance.randrange(1, 60))
            program.kill()
            kept.append(program.kept)
    with anywhere.outbox(path) as outbox:
        drain(outbox)
    check_rounds(numbers(anywhere.values(queue)), kept)


@pytest.mark.parametrize("seed", range(4 * FACTOR))
def test_the_link_is_cut_at_any_byte(
    cutter: Cutter, here: Place, path: Path, fresh: Fresh, seed: int
) -> None:
    """Towards Redis: a script is executed or not. Back: it was, and nobody knows."""
    chance, queues = Random(seed), [fresh("orders") for _ in range(3)]
    cutter.up = iter([chance.randrange(1, 60_000) for _ in range(25)])
    cutter.down = iter([chance.randrange(1, 400) for _ in range(25)])
    with SyncOutbox(path, f"redis://127.0.0.1:{cutter.port}") as outbox:
        for n in range(1, 301):
            outbox.push(queues[n % 3], b"%d %s" % (n, b"x" * chance.randrange(3000)))
        drain(outbox)
    for at, queue in enumerate(queues):
        assert numbers(here.values(queue)) == [n for n in range(1, 301) if n % 3 == at]
    assert cutter.connections > 5


def test_a_link_that_is_silent_is_given_up_and_what_it_still_brings_is_known(
    redis_server: EmbeddedRedis,
    here: Place,
    path: Path,
    fresh: Fresh,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The packet arrives after its repetition, and again after what follows."""
    monkeypatch.setattr(connection_factory, "REPLY_TIMEOUT_S", 0.5)
    queue = fresh("orders")
    with Proxy(redis_server.port) as proxy, SyncOutbox(path, proxy.url) as outbox:
        outbox.push(queue, 0)
        drain(outbox)
        gate = proxy.hold(lambda asked: asked.name == "push_from", reply=False)
        outbox.push(queue, 1, 2)
        late = gate.wait()
        gate.open()
        outbox.push(queue, 3)
        drain(outbox)
        assert here.values(queue) == numbered(4, 0)
        late.arrive()
        assert here.values(queue) == numbered(4, 0)
        outbox.push(queue, 4)
        drain(outbox)
    assert here.values(queue) == numbered(5, 0)


def test_a_link_that_goes_silent_in_the_middle_is_replaced(
    cutter: Cutter, here: Place, path: Path, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_factory, "REPLY_TIMEOUT_S", 0.5)
    queue, cutter.delay_s = fresh("orders"), 0.01
    with SyncOutbox(path, f"redis://127.0.0.1:{cutter.port}") as outbox:
        for n in range(1, 6):
            outbox.push(queue, b"%d" % n)
            drain(outbox)
            cutter.hush()
    assert numbers(here.values(queue)) == [*range(1, 6)]


@pytest.mark.skipif(
    not can_be_set(), reason="cutting the power of a process needs Linux and a C compiler (cc)"
)
@pytest.mark.parametrize("seed", range(2 * FACTOR))
def test_what_was_returned_for_is_there_after_a_loss_of_power(
    tmp_path: Path, redis_url: str, here: Place, fresh: Fresh, seed: int
) -> None:
    """What was synced survives; of the rest chance decides. While nothing is forwarded, and while
    everything is.
    """
    chance, queue, kept = Random(seed), fresh("orders"), []
    machine, folder = Machine(tmp_path / "machine"), tmp_path / "disk"
    folder.mkdir()
    for number in range(1, 5):
        to = redis_url if chance.random() < 0.5 else f"redis://127.0.0.1:{lasting_port()}"
        with Program(
            folder / "outbox.db", to, queue, number * ROUND + 1, machine.environment
        ) as program:
            program.wait("open")
            program.tell("forever", chance.choice([10, 3000]))
            program.wait("kept", chance.randrange(1, 40))
            program.kill()
            kept.append(program.kept)
        machine.cut_power(folder, chance)
    with here.outbox(folder / "outbox.db") as outbox:
        drain(outbox)
    check_rounds(numbers(here.values(queue)), kept)


def test_a_node_of_a_cluster_that_is_silent_holds_up_its_own_queues_only(
    path: Path, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread sends to all nodes, and does not ask the silent one for each queue that is
    there.
    """
    monkeypatch.setattr(connection_factory, "REPLY_TIMEOUT_S", 0.5)
    with EmbeddedCluster(node_timeout_s=120) as cluster:  # nobody takes over meanwhile
        there = Place({"url": ",".join(cluster.urls), "layout": "cluster"})
        queues = [fresh("orders") for _ in range(12)]
        with there.outbox(path) as outbox:
            for queue in queues:
                outbox.push(queue, 1)
            drain(outbox)
            store = RedisStore(redis_layout(RedisOptions(**there.settings)))
            nodes = {queue: domain[2] for queue, domain in store.failure_domains(queues).items()}
            store.close()
            silent = nodes[queues[0]]
            assert len({*nodes.values()}) == 3
            [node] = [each for each in cluster.masters if silent.endswith(f":{each.port}")]
            node.pause()
            try:
                for queue in queues:
                    outbox.push(queue, 2)
                others = {queue for queue in queues if nodes[queue] != silent}
                wait_until(
                    lambda: (
                        {each.queue for each in report.read_outgoing(path)} == {*queues} - others
                    )
                )
            finally:
                node.resume()
            drain(outbox)
        assert all(there.values(queue) == [b"1", b"2"] for queue in queues)


# -- the sign-up story -----------------------------------------------------------------------------


def test_a_sign_up_is_one_mail_though_the_bus_is_down_and_the_web_is_killed_after_publish(
    server: EmbeddedRedis, path: Path
) -> None:
    port, url = server.port, server.url
    with Bus.sync(url) as bus:
        bus.subscribe(["signup"], into="mail")
    server.kill()
    with Program(path, url, "signup") as web:
        web.wait("open")
        web.do("publish")
        web.kill()
        assert web.kept == 1
    assert [each.keys for each in report.read_incoming(path)] == [("signup",)]
    server.restart()
    assert server.port == port
    with Program(path, url, "signup", 2) as web:
        web.wait("open")
        web.do("drain")
    assert [json.loads(value)["data"] for value in Place({"url": url}).values("mail")] == [1]


def test_who_subscribes_while_the_publisher_is_down_has_what_it_still_keeps(
    anywhere: Place, path: Path, fresh: Fresh
) -> None:
    key, mail = fresh("signup"), fresh("mail")
    with Program(path, f"redis://127.0.0.1:{lasting_port()}", key) as web:
        web.wait("open")
        web.do("publish")
        web.kill()
    with Bus.sync(**anywhere.settings) as bus:
        bus.subscribe([key], into=mail)
    with Program(path, anywhere.words, key, 2) as web:
        web.wait("open")
        web.do("publish")
        web.do("drain")
    assert [json.loads(value)["data"] for value in anywhere.values(mail)] == [1, 2]


def test_of_four_destinations_three_of_which_have_confirmed_only_the_fourth_is_sent_again(
    server: EmbeddedRedis, path: Path
) -> None:
    queues = [f"into-{n}" for n in range(4)]
    with Bus.sync(server.url) as bus, Proxy(server.port) as proxy:
        for queue in queues:
            bus.subscribe(["signup"], into=queue)
            bus.queue(queue).attach()
        gate = proxy.hold(
            lambda asked: (
                asked.name == "push_from" and asked.keys[0] == f"bus:queue:{queues[3]}:metadata"
            ),
            reply=True,
        )
        with Program(path, proxy.url, "signup") as web:
            web.wait("open")
            web.do("publish")
            held = gate.wait()
            wait_until(
                lambda: (
                    [(each.queue, each.messages) for each in report.read_outgoing(path)]
                    == [(queues[3], 1)]
                )
            )
            web.kill()
            held.drop()
        gate.open()
        sent: list[Command] = []
        proxy.seen.append(lambda asked: sent.append(asked) if asked.name == "push_from" else None)
        with Program(path, proxy.url, "signup", 2) as web:
            web.wait("open")
            web.do("drain")
        assert [asked.keys[0] for asked in sent] == [f"bus:queue:{queues[3]}:metadata"]
    for queue in queues:
        assert len(Place({"url": server.url}).values(queue)) == 1, queue


# -- Redis in another state ------------------------------------------------------------------------


def test_a_redis_that_lost_its_data_gets_what_it_had_not_confirmed(
    here: Place, path: Path, fresh: Fresh, link: SyncLink
) -> None:
    """It is empty, or as it was before; what it had confirmed is its own loss."""
    queue = fresh("orders")
    keys = here.keys(queue)
    with here.outbox(path) as outbox:
        outbox.push(queue, 1, 2)
        drain(outbox)
        saved = [
            link.execute(command("DUMP", key))
            for key in (keys.metadata, keys.messages, keys.msgid, keys.senders)
        ]
        outbox.push(queue, 3)
        drain(outbox)
        for key, value in zip(
            (keys.metadata, keys.messages, keys.msgid, keys.senders), saved, strict=True
        ):
            link.execute(command("RESTORE", key, 0, value, "REPLACE"))
        outbox.push(queue, 4)
        drain(outbox)
        assert here.values(queue) == [b"1", b"2", b"4"]
        link.execute(
            [
                command("DEL", key)
                for key in (keys.metadata, keys.messages, keys.msgid, keys.senders)
            ]
        )
        outbox.push(queue, 5)
        drain(outbox)
    assert here.values(queue) == [b"5"]


def test_readers_of_a_live_store_disturb_nobody(here: Place, path: Path, fresh: Fresh) -> None:
    queue, over = fresh("orders"), threading.Event()

    def look() -> None:
        while not over.is_set():
            report.read_status(path)
            report.read_outgoing(path)

    with here.outbox(path) as outbox:
        looking = threading.Thread(target=look)
        looking.start()
        try:
            for n in range(300):
                outbox.push(queue, n)
            drain(outbox)
        finally:
            over.set()
            looking.join()
    assert here.values(queue) == numbered(300, 0)
