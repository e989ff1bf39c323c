"""``busmq checkpoint`` over folders as Spark writes them: what it refuses, and what it counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from redis import Redis

from busmq_spark.errors import CheckpointUnusable, ConfigError
from busmq_spark.queue.keys import QueueKeys, sink_record
from busmq_spark.store.spark_checkpoint import CheckpointFolder
from tests.cli.conftest import Busmq
from tests.clocks import HOUR, pass_by
from tests.conftest import Fresh

QUERY = "2f6c0d5e-query"


def write_checkpoint(
    folder: Path, batches: list[Mapping[str, tuple[str, int]]], committed: int, *others: str
) -> Path:
    """Batches with the born and the last id of each queue; ``others``: lines of other sources."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    for number, batch in enumerate(batches):
        queues = {
            name: {"born": born, "last": last, "mark": ""} for name, (born, last) in batch.items()
        }
        lines = ["v1", "{}", json.dumps({"v": 1, "queues": queues}), *others]
        (folder / "offsets" / str(number)).write_text("\n".join(lines))
        if number <= committed:
            (folder / "commits" / str(number)).write_text("v1\n{}")
    return folder


class Queues:
    """Two queues of the server with five kept messages each."""

    def __init__(self, busmq: Busmq, redis_url: str, fresh: Fresh) -> None:
        self.redis = Redis.from_url(redis_url)
        self.one, self.two = fresh("one"), fresh("two")
        for name in (self.one, self.two):
            assert busmq("push", name, *"abcde").code == 0
        self.born = {
            name: self.redis.hget(QueueKeys(name).metadata, "born").decode()
            for name in (self.one, self.two)
        }

    def at(self, one: int, two: int) -> dict[str, tuple[str, int]]:
        return {self.one: (self.born[self.one], one), self.two: (self.born[self.two], two)}


@pytest.fixture
def queues(busmq: Busmq, redis_url: str, fresh: Fresh) -> Queues:
    return Queues(busmq, redis_url, fresh)


def last_positions(folder: str) -> dict[str, int]:
    newest = max((Path(folder) / "offsets").iterdir(), key=lambda each: int(each.name))
    queues = json.loads(newest.read_text().split("\n")[2])["queues"]
    return {name: each["last"] for name, each in queues.items()}


@pytest.mark.redis
def test_a_query_that_reads_other_sources_too_is_refused(
    busmq: Busmq, queues: Queues, tmp_path: Path
) -> None:
    kafka = '{"orders":{"0":23}}'
    folder = write_checkpoint(tmp_path / "c", [queues.at(2, 2), queues.at(3, 3)], 0, kafka)
    for words in (("export",), ("rewind", "--to", "1", "--queue", queues.one)):
        done = busmq("checkpoint", words[0], str(folder), *words[1:], "--json")
        assert done.error["code"] == "BUSMQ_CHECKPOINT_UNUSABLE"
        assert "other sources beside queues" in done.error["message"]
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


@pytest.mark.redis
@pytest.mark.parametrize("appended", [True, False])
def test_a_rewind_of_one_queue_leaves_the_others_where_the_sink_is(
    busmq: Busmq, queues: Queues, tmp_path: Path, appended: bool
) -> None:
    """Spark has not committed the last batch."""
    folder = write_checkpoint(tmp_path / "c", [queues.at(2, 2), queues.at(4, 4)], 0)
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "sources" / "0" / ".0.crc").write_bytes(b"crc\0\xff\xfe")
    if appended:
        record = {"batch": 1, "query": QUERY, "manifest": '{"v":2,"lists":[]}'}
        queues.redis.hset(sink_record("mine"), mapping=record)
    words = ("rewind", str(folder), "--to", "1", "--queue", queues.one, "--sink", "mine")
    done = busmq("checkpoint", *words)
    assert done.code == 0, done.err
    queues.redis.delete(sink_record("mine"))
    at = last_positions(done.text.strip())
    assert at == {queues.one: 1, queues.two: 4 if appended else 2}
    assert ("knows no busmq sink mine" in done.err) != appended


@pytest.mark.redis
def test_a_queue_that_has_nothing_to_read_again_does_not_hinder_the_others(
    busmq: Busmq, queues: Queues, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "c", [queues.at(2, 3), queues.at(4, 3)], 1)
    done = busmq("checkpoint", "rewind", str(folder), "--to", "batch:0", "--json")
    [found] = done.records
    assert [(each["queue"], each["to"]) for each in found["queues"]] == [(queues.one, 2)]
    assert last_positions(found["checkpoint"]) == {queues.one: 2, queues.two: 3}
    into = ("--into", str(tmp_path / "new"), "--json")  # a name by the second may be taken
    done = busmq("checkpoint", "rewind", str(folder), "--to", "batch:1", *into)
    assert "nothing to read again" in done.error["message"]
    queues.redis.ltrim(QueueKeys(queues.two).messages, 10, -1)
    done = busmq("checkpoint", "rewind", str(folder), "--to", "batch:0", *into)
    assert done.code == 1, "messages are gone that were never read"
    assert queues.two in done.error["message"]


@pytest.mark.redis
def test_a_time_after_the_position_of_a_queue_is_its_position(
    busmq: Busmq, queues: Queues, tmp_path: Path
) -> None:
    """Of a queue that lags behind for longer than the time."""
    folder = write_checkpoint(tmp_path / "c", [queues.at(1, 1), queues.at(2, 2)], 1)
    for name in (queues.one, queues.two):
        pass_by(queues.redis.execute_command, QueueKeys(name), 2 * HOUR)
    done = busmq("checkpoint", "rewind", str(folder), "--to=-1h", "--json")
    assert "nothing to read again" in done.error["message"]


@pytest.mark.redis
def test_a_reader_or_sink_that_is_not_named_is_warned_about(
    busmq: Busmq, queues: Queues, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "c", [queues.at(2, 2), queues.at(3, 3)], 1)
    assert busmq("subscribe", queues.one, "billing").code == 0
    done = busmq("checkpoint", "export", str(folder), "--json")
    [found] = done.records
    assert (found["running"], found["sinkKnown"]) == (None, False)
    assert "have the subscriptions 'billing'" in done.err
    assert f"knows no busmq sink {QUERY}" in done.err
    done = busmq("checkpoint", "rewind", str(folder), "--to", "1", "--queue", queues.two)
    assert "have the subscriptions 'billing'" in done.err


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("s3://KEY:SECRET@bucket/c?region=x", "s3://***@bucket/c?region=x"),
        ("s3a://KEY:SEC/RET@bucket/c", "s3a://***@bucket/c"),
        ("abfss://orders@account.dfs.core.windows.net/c", None),
        ("file:///tmp/a:b@c", None),
        ("/tmp/a:b@c?d", None),
    ],
)
def test_no_credentials_of_a_folder_are_shown(place: str, shown: str | None) -> None:
    try:
        folder = CheckpointFolder(place)
        text = folder.shown
        assert "SECRET" not in str(folder.unusable("x", "y"))
    except (ConfigError, CheckpointUnusable) as error:
        text = str(error)
        assert "SEC/RET" not in text
    assert (shown or place) in text


def test_a_folder_beside_one_with_options_keeps_them() -> None:
    beside = CheckpointFolder("s3://bucket/c/?endpoint_override=host:9000").sibling(".rewound")
    assert beside.place == "s3://bucket/c.rewound?endpoint_override=host:9000"
    assert CheckpointFolder("/tmp/a?b").sibling(".rewound").place == "/tmp/a?b.rewound"
