"""The comparison with Kafka in tests/benchmarks, as far as it goes without Kafka."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from busmq_spark.errors import ToolMissing
from tests.benchmarks import peers, peers_kafka
from tests.benchmarks.peers import Line, in_turn, table
from tests.benchmarks.peers_spark import Way


def test_a_line_shows_each_way_and_our_ratios_run_by_run() -> None:
    line = Line(
        "Drain",
        "s",
        {
            "python": [2.0, 4.0, 3.0],
            "java": [1.0, 1.0, 1.0],
            "kafka": [4.0, 4.0, 4.0],
            "tuned": [2.0, 1.0, 4.0],
        },
    )
    ways = ["3.00 (2.00–4.00)", "1.00 (1.00–1.00)", "4.00 (4.00–4.00)", "2.00 (1.00–4.00)"]
    assert line.cells() == ["Drain (s)", *ways, "1.00 (0.75–4.00)", "0.50 (0.25–1.00)"]
    assert [row.count("|") for row in table([line]).splitlines()] == [8, 8, 8]


def test_a_way_that_was_not_measured_leaves_its_cells_empty() -> None:
    line = Line("p50", "ms", {"java": [1.0], "tuned": [4.0]})
    assert line.cells() == [
        "p50 (ms)",
        "",
        "1.0 (1.0–1.0)",
        "",
        "4.0 (4.0–4.0)",
        "",
        "0.25 (0.25–0.25)",
    ]


def test_a_sink_that_added_nothing_gives_no_ratio() -> None:
    assert Line("sink", "s", {"python": [1.0], "java": [1.0], "tuned": [-0.1]}).cells()[-2:] == [
        "",
        "",
    ]


def test_the_ways_take_turns_and_the_warm_up_does_not_count() -> None:
    order: list[str] = []

    def measure(name: str) -> dict[str, float]:
        order.append(name)
        return {"whole": len(order)}

    # The default of a lambda
    found = in_turn(2, {name: lambda name=name: measure(name) for name in "ab"})  # type: ignore[misc]
    assert order == [*"ab", *"ba", *"ab"]
    assert found == {"a": {"whole": [4, 5]}, "b": {"whole": [3, 6]}}


def test_only_tuned_kafka_has_larger_fetches_and_batches() -> None:
    assert Way("kafka", "h:1").source("t") == {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": "t",
        "startingOffsets": "earliest",
    }
    assert {"kafka.max.poll.records", "subscribe"} < Way("tuned", "h:1").source("t").keys()
    assert "kafka.batch.size" in Way("tuned", "h:1").sink("t")
    assert Way("java", "redis://h").sink("t", "at-least-once") == {
        "redis.url": "redis://h",
        "queue": "t",
        "delivery": "at-least-once",
    }


def test_without_maven_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_kafka, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="mvn is missing: it fetches Kafka"):
        peers_kafka.connector_jars()


def test_an_error_of_maven_is_named_once_per_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mvn = tmp_path / "mvn"
    mvn.write_text("#!/bin/sh\ncat \"$4\" >> $0.poms; echo '[ERROR] no such artifact'; exit 1\n")
    mvn.chmod(0o755)
    monkeypatch.setattr(peers_kafka, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ToolMissing, match=r"no such artifact.*make bench-peers"):
        peers_kafka.connector_jars()
    poms = (tmp_path / "mvn.poms").read_text()
    assert (
        poms.count(
            f"<artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>{version('pyspark')}</version>"
        )
        == 2
    )
    assert (
        f"<artifactId>spark-token-provider-kafka-0-10_2.13</artifactId><version>{peers_kafka.PROVIDER}</version>"
        in poms
    )


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["--only", "nothing"])
    assert "drain1k" in capsys.readouterr().err
