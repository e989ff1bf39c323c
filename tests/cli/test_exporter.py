"""``busmq exporter``: the state of a bus as metrics."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

import busmq_spark
from busmq_spark.cli import exporter
from busmq_spark.cli.exporter import BusExporter
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.metrics import Metrics
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.reading.reader_record import ReaderRecord
from busmq_spark.reading.readers import READER_STATES
from tests.cli.conftest import Busmq, Start
from tests.serving import Serving

Series = dict[tuple[str, ...], float]


@pytest.fixture
def redis_url() -> Iterator[str]:
    """A server without the queues of other tests."""
    with EmbeddedRedis() as server:
        yield server.url


def scraped(source: BusExporter) -> dict[str, Series]:
    metrics = Metrics()
    metrics.add_source(source)
    return parsed(metrics.text())


def parsed(text: str) -> dict[str, Series]:
    """Return the series of each metric, by label values in the order of their names."""
    return {
        family.name: {
            tuple(sample.labels[name] for name in sorted(sample.labels)): sample.value
            for sample in family.samples
        }
        for family in text_string_to_metric_families(text)
    }


@contextmanager
def exporting(url: str, *patterns: str, most: int = 1000) -> Iterator[BusExporter]:
    source = BusExporter(RedisOptions(url=url), patterns or ("*",), most)
    try:
        yield source
    finally:
        source.close()


def fetch(url: str, path: str, *, secret: str = "") -> tuple[int, str]:
    link = http.client.HTTPConnection(url.split("/")[2], timeout=60)
    link.request("GET", path, headers={"Authorization": f"Bearer {secret}"} if secret else {})
    answer = link.getresponse()
    return answer.status, answer.read().decode()


async def test_queues_readers_and_dead_letters(redis_url: str) -> None:
    async with busmq_spark.Bus(redis_url) as bus:
        queue = bus.queue("orders")
        await queue.attach(maxsize=10)
        await queue.push_many([b"a", b"b", b"c"])
        group = queue.group("mail", shared=True, tries=1)
        async with group:
            [message], _ = await group.take(1)
            await group.reject(message, "bad")
    with exporting(redis_url) as source:
        found = scraped(source)
    assert found["busmq_queue_waiting_messages"]["orders",] == 2
    assert found["busmq_queue_newest_id"]["orders",] == 3
    assert found["busmq_queue_maxsize_messages"] == {("orders",): 10}
    assert found["busmq_queue_bytes"]["orders",] > 0
    assert 0 < found["busmq_queue_expires_seconds"]["orders",] <= 604800
    assert found["busmq_queue_dead_letters"] == {("orders.dead",): 1}
    assert found["busmq_reader_lag_messages"]["shared", "orders", "mail"] == 2
    [state] = [state for *at, state in found["busmq_reader_state"] if "mail" in at]
    assert state in READER_STATES
    [(server,)] = found["busmq_redis_up"]
    assert found["busmq_redis_memory_bytes"][server,] > 0


async def test_queues_beyond_the_limit_are_summed(redis_url: str) -> None:
    async with busmq_spark.Bus(redis_url) as bus:
        for name in ("a", "b", "c", "other"):
            async with bus.queue(name) as queue:
                await queue.push_many([b"x", b"y"])
    with exporting(redis_url, most=2) as source:
        found = scraped(source)
    assert found["busmq_queue_waiting_messages"] == {("a",): 2, ("b",): 2, ("other",): 4}
    assert found["busmq_exporter_queues"] == {(): 4}
    with exporting(redis_url) as source:  # the queue named "other" is not the sum's double
        waiting = scraped(source)["busmq_queue_waiting_messages"]
    assert waiting == {("a",): 2, ("b",): 2, ("c",): 2, ("other",): 2}
    with exporting(redis_url, "b", "c*") as source:
        waiting = scraped(source)["busmq_queue_waiting_messages"]
    assert waiting == {("b",): 2, ("c",): 2}


async def test_strange_names_and_damaged_queues_do_not_break_the_text(redis_url: str) -> None:
    names = ["x" * 300, 'a"b\\c\nd\x00e', "ü\u202e"]
    async with busmq_spark.Bus(redis_url) as bus:
        for name in names:
            async with bus.queue(name) as queue:
                await queue.push(b"x")
        async with bus.queue("broken") as queue:
            await queue.push(b"x")
    with exporting(redis_url) as source:
        link = source._links[0]
        link.execute(command("SET", "bus:queue:broken:msgid", "no number"))
        found = scraped(source)
    assert len(found["busmq_queue_waiting_messages"]) == 3
    assert ("x" * 300,) in found["busmq_queue_waiting_messages"]
    assert not any(re.search(r"[\x00-\x1f]", label) for (label,) in found["busmq_queue_newest_id"])
    assert found["busmq_exporter_damaged_queues"] == {(): 1}


def test_a_redis_that_is_away_is_a_metric_and_not_an_error() -> None:
    with EmbeddedRedis() as server, exporting(server.url) as source:
        assert source.not_ready() is None
        assert list(scraped(source)["busmq_redis_up"].values()) == [1]
        server.stop()
        assert list(scraped(source)["busmq_redis_up"].values()) == [0]
        assert "BUSMQ_LINK_LOST" in str(source.not_ready())


def test_a_redis_that_hangs_is_down_and_readers_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporter, "REPLY_S", 0.2)
    with EmbeddedRedis() as server, exporting(server.url) as source:
        assert list(scraped(source)["busmq_redis_up"].values()) == [1]
        with source._lock:
            assert list(scraped(source)["busmq_redis_up"].values()) == [1]
            assert source.not_ready() == "busy"
        pid = _process_id(source)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert list(scraped(source)["busmq_redis_up"].values()) == [0]
        finally:
            os.kill(pid, signal.SIGCONT)


def _process_id(source: BusExporter) -> int:
    info = source._links[0].execute(command("INFO", "server")).decode()
    return int(re.search(r"process_id:(\d+)", info)[1])


def test_odd_keys_cost_only_their_queues(redis_url: str) -> None:
    record = '{"kind":"made up","committed":[' + "9" * 400 + ",1]}"
    with exporting(redis_url) as source:
        link = source._links[0]
        for name in ("good", "copy"):
            link.execute(command("HSET", f"bus:queue:{name}:metadata", "ttl", "60"))
        link.execute(command("HSET", "bus:queue:copy:metadata", "mirror_of", "x", "mirrored", "?"))
        link.execute(command("SET", "bus:queue:x:metadata", "y"))
        assert ReaderRecord.decode(record).committed is None
        found = scraped(source)
    assert list(found["busmq_redis_up"].values()) == [1]
    assert found["busmq_exporter_damaged_queues"] == {(): 2}
    assert set(found["busmq_queue_ttl_seconds"]) == {("good",), ("copy",)}


def test_a_user_of_few_keys_is_an_answer_and_no_lost_redis(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with EmbeddedRedis() as server:
        with exporting(server.url) as source:
            execute = source._links[0].execute
            for user, *rights in (("few", "~bus:queue:orders*", "+@all"), ("eye", "~*", "-scan")):
                words = ("on", ">pass", "&*", "+@all", *rights)
                execute(command("ACL", "SETUSER", user, *words))
        with exporting(server.url.replace("redis://", "redis://few:pass@")) as source:
            assert source.not_ready() is None
        with exporting(server.url.replace("redis://", "redis://eye:pass@")) as source:
            for _ in range(2):
                assert list(scraped(source)["busmq_redis_up"].values()) == [1]
        with exporting(server.url.replace("redis://", "redis://few:wrong@")) as source:
            assert "BUSMQ_UNAUTHORIZED" in str(source.not_ready())
    assert len([one for one in caplog.records if "left out" in one.message]) == 1


def test_a_user_without_rights_gets_the_metrics_that_it_may_read() -> None:
    with EmbeddedRedis() as server:
        with exporting(server.url) as source:
            execute = source._links[0].execute
            execute(command("HSET", "bus:queue:q:metadata", "ttl", "60"))
            rights = ("~*", "&*", "+@all", "-info", "-memory")
            execute(command("ACL", "SETUSER", "eye", "on", ">pass", *rights))
        url = server.url.replace("redis://", "redis://eye:pass@")
        with exporting(url) as source:
            found = scraped(source)
    assert list(found["busmq_redis_up"].values()) == [1]
    assert found["busmq_redis_memory_bytes"] == {}
    assert found["busmq_queue_ttl_seconds"] == {("q",): 60}
    assert found["busmq_queue_bytes"] == {}


def test_the_command_serves_its_pages_until_it_is_ended(start: Start) -> None:
    process = start("exporter", "--listen", "127.0.0.1:0", "--json")
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    status, text = fetch(url, "/metrics")
    assert status == 200
    assert list(parsed(text)["busmq_redis_up"].values()) == [1]
    assert fetch(url, "/livez") == (200, "ok\n")
    assert fetch(url, "/readyz") == (200, "ok\n")
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "nowhere:x"], "--listen"),
        (["--most", "0"], "--most"),
        (["--most", "many"], "--most"),
    ],
)
def test_bad_arguments_are_one_line(busmq: Busmq, arguments: list[str], words: str) -> None:
    done = busmq("exporter", *arguments)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_serve_shows_queues_to_the_holder_of_the_secret_for_metrics(
    redis_url: str, tmp_path: object, busmq: Busmq
) -> None:
    assert busmq("push", "orders", "a").code == 0
    secrets = '[prom]\nsecret = "prometheus-0123456789"\nread = ["none"]\n'
    options = ("--export-queues", "--metrics-secret", "prom")
    with Serving(redis_url, tmp_path, secrets, *options) as server:
        url = server.url.replace("ws", "http", 1)
        assert "orders" not in fetch(url, "/metrics")[1]
        text = fetch(url, "/metrics", secret="prometheus-0123456789")[1]
    assert parsed(text)["busmq_queue_waiting_messages"] == {("orders",): 1}
    assert "busmq_federation_sockets" in text


@pytest.mark.parametrize(
    "place", [("--listen", "0.0.0.0:0"), ("--listen", "127.0.0.1:0", "--trust-proxy", "127.0.0.1")]
)
def test_serve_shows_no_queues_to_other_machines(
    busmq: Busmq, tmp_path: object, place: tuple[str, ...]
) -> None:
    file = tmp_path / "secrets.toml"
    file.touch(0o600)
    file.write_text('[prom]\nsecret = "prometheus-0123456789"\nread = ["none"]\n')
    done = busmq("serve", *place, "--export-queues", "--secrets", str(file))
    assert done.code == 2
    assert "--metrics-secret" in done.err


def test_the_findings_of_the_doctor_are_those_of_its_last_round(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with exporting(redis_url) as source:
        assert scraped(source)["busmq_doctor_findings"] == {}
        source._doctor.wait()
        found = scraped(source)["busmq_doctor_findings"]
        assert found["redis-persistence", "warning"] == 1  # there is no append-only file
        assert (found["redis-reach", "failure"], found["queue-damaged", "failure"]) == (0, 0)
        source._links[0].execute(command("HSET", "bus:queue:broken:metadata", "ttl", "60"))
        source._links[0].execute(command("HSET", "bus:queue:broken:msgid", "no", "number"))
        source._doctor.wait()
        assert scraped(source)["busmq_doctor_findings"] == found  # not again for a minute
        monkeypatch.setattr(exporter, "DOCTOR_INTERVAL_S", 0.0)
        scraped(source)
        source._doctor.wait()
        found = scraped(source)["busmq_doctor_findings"]
        assert found["queue-damaged", "failure"] == 1


def test_a_scrape_does_not_wait_for_the_doctor(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, rounds = threading.Event(), list[object]()

    def examine_slowly(*facts: object) -> list[object]:
        rounds.append(facts)
        assert may_end.wait(60)
        return []

    monkeypatch.setattr(exporter, "examine", examine_slowly)
    monkeypatch.setattr(exporter, "DOCTOR_INTERVAL_S", 0.0)
    with exporting(redis_url) as source:
        for _ in range(3):
            assert list(scraped(source)["busmq_redis_up"].values()) == [1]
        may_end.set()
        source._doctor.wait()
        assert len(rounds) == 1


def test_a_doctor_that_fails_is_a_finding(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("an odd reply")

    with exporting(redis_url) as source:
        with monkeypatch.context() as patch:
            patch.setattr(exporter, "examine", fail)
            patch.setattr(exporter, "DOCTOR_INTERVAL_S", 0.0)
            scraped(source)
            source._doctor.wait()
        found = scraped(source)["busmq_doctor_findings"]
    assert found["redis-reach", "unknown"] == found["queue-damaged", "unknown"] == 1
    assert found["redis-reach", "failure"] == 0


def test_a_redis_that_is_away_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "DOCTOR_INTERVAL_S", 0.0)
    with EmbeddedRedis() as server, exporting(server.url) as source:
        server.stop()
        scraped(source)
        source._doctor.wait()
        found = scraped(source)["busmq_doctor_findings"]
        assert found["redis-reach", "failure"] == 1
        assert found["queue-damaged", "unknown"] == 1
