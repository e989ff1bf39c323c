"""``busmq checkpoint`` reads the checkpoints of real queries, of both engines, and another query
goes on where it says.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from busmq_spark.groups.dead_letter import decode_letter
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.retention import set_retention
from tests.cli import forked
from tests.cli.conftest import Done, environment
from tests.conftest import Fresh
from tests.spark.conftest import Bus
from tests.support import PATIENCE_S

Copy = Callable[..., None]
Run = Callable[..., Done]

pytestmark = [pytest.mark.usefixtures("shim_jar")]


@pytest.fixture
def run(bus: Bus) -> Run:
    def command(*arguments: str, group: str = "checkpoint") -> Done:
        words = [*filter(None, [group]), *arguments]
        code, out, err = forked.run(words, b"", environment(bus.url))
        assert b"Traceback" not in err, err.decode()
        return Done(code, out, err.decode())

    return command


@pytest.fixture
def copy(spark: SparkSession, bus: Bus, queue: str, target: str, language: str) -> Copy:
    """Copies the new messages of a queue into another one, as a query with this checkpoint."""

    def drain(
        checkpoint: Path,
        sink: dict[str, str] | None = None,
        value: str = "value",
        **options: str,
    ) -> None:
        rows = (
            spark.readStream.format("busmq")
            .options(**{"subscribe": queue, **options, "redis.url": bus.url, "engine": language})
            .load()
        )
        query = (
            rows.selectExpr(f"{value} AS value")
            .writeStream.format("busmq")
            .options(**{"queue": target, **(sink or {}), "redis.url": bus.url, "engine": language})
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(PATIENCE_S))

    return drain


@pytest.fixture
def target(fresh: Fresh) -> str:
    return fresh("target")


def forget_last(checkpoint: Path, log: str) -> int:
    """Delete the newest entry of a log."""
    last = max(int(file.name) for file in (checkpoint / log).iterdir() if file.name.isdigit())
    for file in (checkpoint / log / str(last), checkpoint / log / f".{last}.crc"):
        file.unlink(missing_ok=True)
    return last


def values(queue: str, *ids: int) -> list[bytes]:
    return [f"{queue}:{id}".encode() for id in ids]


def test_show_and_lag_have_position_and_batch_of_either_engine(
    bus: Bus, queue: str, copy: Copy, run: Run, tmp_path: Path
) -> None:
    bus.fill(queue, 5)
    copy(checkpoint := tmp_path / "c")
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    [shown] = run("show", str(checkpoint), "--json").records
    assert (shown["query"], shown["sink"]) == (query, query)
    assert shown["planned"] == shown["committed"]
    [row] = shown["queues"]
    assert (row["queue"], row["done"], row["first"]) == (queue, 5, None)
    assert f"{query}" in run("show", f"file://{checkpoint}/").text
    bus.fill(queue, 7, first=6)
    [lag] = run("lag", str(checkpoint), "--json").records
    assert (lag["done"], lag["newest"], lag["behind"], lag["read"]) == (5, 12, 7, False)
    assert lag["problem"] is None
    assert lag["behind_s"] >= 0
    while (checkpoint / "commits" / str(shown["planned"])).exists():
        forget_last(checkpoint, "commits")
    bus.close_queue(queue)
    assert run("lag", str(checkpoint), "--json").records[0]["problem"] == "BUSMQ_QUEUE_EXPIRED"
    assert queue in run("lag", str(checkpoint)).text


def test_a_batch_that_is_planned_and_not_committed_shows_its_ids(
    bus: Bus, queue: str, copy: Copy, run: Run, tmp_path: Path
) -> None:
    bus.fill(queue, 5)
    copy(checkpoint := tmp_path / "c")
    bus.fill(queue, 4, first=6)
    copy(checkpoint)
    while run("show", str(checkpoint), "--json").records[0]["queues"][0]["last"] != 9:
        last = forget_last(checkpoint, "commits")
        if json.loads(run("show", str(checkpoint), "--json").out)["queues"][0]["first"] is None:
            forget_last(checkpoint, "offsets")
        assert last > 0
    [row] = run("show", str(checkpoint), "--json").records[0]["queues"]
    assert (row["done"], row["first"], row["last"]) == (5, 6, 9)
    assert "6..9" in run("show", str(checkpoint)).text


@pytest.mark.parametrize("lost", ["nothing", "the commit"])
def test_a_query_with_a_new_checkpoint_goes_on_with_its_sink_exactly_once(  # noqa: PLR0917
    bus: Bus, queue: str, target: str, copy: Copy, run: Run, tmp_path: Path, lost: str
) -> None:
    """Also where Spark did not commit a batch that the sink has appended."""
    bus.fill(queue, 5)
    copy(checkpoint := tmp_path / "c")
    if lost != "nothing":
        _lose_commit_of_rows(checkpoint)
    bus.fill(queue, 3, first=6)
    [found] = run("export", str(checkpoint), "--json").records
    assert json.loads(found["source"]["startingOffsets"]) == {queue: 5}
    assert not found["running"]
    text = run("export", str(checkpoint)).text
    compile(text, "snippet", "exec")
    assert found["sinkId"] in text
    copy(tmp_path / "new", {"sinkId": found["sinkId"]}, **found["source"])
    assert bus.stored(target) == values(queue, *range(1, 9))


def _lose_commit_of_rows(checkpoint: Path) -> None:
    """As after a driver that died between its sink and the commit log."""
    while True:
        forget_last(checkpoint, "commits")
        entries = sorted(
            int(f.name) for f in (checkpoint / "offsets").iterdir() if f.name.isdigit()
        )
        lines = (checkpoint / "offsets" / str(entries[-1])).read_text().splitlines()
        if '"idle"' not in lines[-1]:
            return
        forget_last(checkpoint, "offsets")


def test_a_rewound_checkpoint_reads_again_what_is_still_stored_and_the_old_one_stays(
    bus: Bus, queue: str, target: str, copy: Copy, run: Run, tmp_path: Path
) -> None:
    bus.fill(queue, 9)
    bus.link.run(set_retention(QueueKeys(queue), "0:4:0"))
    copy(checkpoint := tmp_path / "c")
    bus.link.run(set_retention(QueueKeys(queue), "0:4:0"))  # once more: lets messages go now
    assert bus.ids(queue) == [6, 7, 8, 9]
    before = _contents(checkpoint)
    done = run("rewind", str(checkpoint), "--to", "2")
    assert done.code == 0
    assert "3 messages (ids 3..5) left the queue" in done.err
    new = Path(done.text.strip())
    assert new.parent == checkpoint.parent
    assert _contents(checkpoint) == before
    copy(new)
    assert bus.stored(target) == values(queue, *range(1, 10), *range(6, 10))
    copy(new)
    assert len(bus.stored(target)) == 13
    [found] = run("rewind", str(new), "--to=-10m", "--json", "--into", str(tmp_path / "t")).records
    assert found["queues"] == [{"queue": queue, "from": 9, "to": 5, "removed": 5}]


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("own", [{}, {"subscription": "mine"}], ids=["alone", "subscription"])
def test_a_poison_row_is_located_and_skipped_and_every_other_row_comes_once(  # noqa: PLR0917
    bus: Bus,
    queue: str,
    target: str,
    copy: Copy,
    run: Run,
    tmp_path: Path,
    language: str,
    own: dict[str, str],
) -> None:
    bus.fill(queue, 5)
    poison = f"if(cast(value AS string) = '{queue}:3', raise_error('poison'), value)"
    with pytest.raises(StreamingQueryException, match="poison") as failed:
        copy(checkpoint := tmp_path / "c", value=poison, **own)
    if language == "java":
        said = f"[busmq] this task reads queue '{queue}' ids 1..5, and the last row it handed out"
        assert f"Suppressed: {said} is id 3 of queue '{queue}'" in vars(failed.value)["_stackTrace"]
    [row] = run("show", str(checkpoint), "--json").records[0]["queues"]
    assert (row["first"], row["last"]) == (1, 5)
    reader = ("--reader", own["subscription"]) if own else ()
    bus("DEL", QueueKeys(queue).lease(own.get("subscription", "")))
    done = run("skip", queue, "3", "--to-dead", *reader, "--json", group="")
    assert done.records == [
        {
            "queue": queue,
            "id": 3,
            "reader": own.get("subscription", ""),
            "skipped": True,
            "dead": f"{queue}.dead",
        }
    ]
    again = run("skip", queue, "3", "--to-dead", *reader, group="")
    assert "skipped before" in again.text
    letters = [decode_letter(value) for value in bus.stored(f"{queue}.dead")]
    assert [(each.queue, each.id, each.value) for each in letters] == [
        (queue, 3, f"{queue}:3".encode())
    ]
    bus.fill(queue, 2, first=6)
    copy(checkpoint, value=poison, **own)
    assert bus.stored(target) == values(queue, 1, 2, 4, 5, 6, 7)
    copy(checkpoint, value=poison, **own)
    assert bus.stored(target) == values(queue, 1, 2, 4, 5, 6, 7)
    assert bus.ids(queue) == [], "the skipped message is acknowledged with the others"


@pytest.mark.only("python", reason="files of a checkpoint; both engines write the same")
def test_what_is_no_checkpoint_of_ours_is_one_typed_error(
    bus: Bus, queue: str, copy: Copy, run: Run, tmp_path: Path
) -> None:
    bus.fill(queue, 3)
    copy(good := tmp_path / "good")

    def broken(change: Callable[[Path], Any]) -> str:
        copied = tmp_path / f"broken-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(good, copied)
        change(copied)
        return str(copied)

    def write(name: str, text: str) -> Callable[[Path], Any]:
        return lambda folder: (folder / name).write_text(text)

    def newest(text: str) -> Callable[[Path], Any]:
        last = max(int(f.name) for f in (good / "offsets").iterdir() if f.name.isdigit())
        return write(f"offsets/{last}", text)

    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    kafka = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":23}}'
    for place, said in (
        (str(tmp_path / "none"), "no such folder"),
        (str(tmp_path / "empty"), "an empty folder"),
        (str(tmp_path / "file"), "is a file"),
        (str(tmp_path / "a"), "symbolic links"),
        (str(tmp_path), "no metadata"),
        (broken(newest(kafka)), "offsets of another source"),
        (broken(newest('v1\n{}\n{"logOffset":4}')), "offsets of another source"),
        (broken(newest("v1\n{}")), "half written"),
        (broken(newest("")), "half written"),
        (broken(newest('v1\n{}\n{"v":1,"que')), "half written"),
        (broken(newest('v1\n{}\n{"v":7,"queues":{}}')), "of version 7"),
        (broken(newest("v2\n{}\nx")), "in version v2"),
        (broken(write("metadata", '{"i')), "half written"),
        (broken(lambda folder: shutil.rmtree(folder / "offsets")), "no batch in its offset log"),
    ):
        done = run("show", place, "--json")
        assert (done.code, done.error["code"]) == (1, "BUSMQ_CHECKPOINT_UNUSABLE"), done
        assert said in done.error["message"], (place, done.error["message"])
    for place in ("", "dbfs:/x", "ftp://host/x"):
        assert run("show", place, "--json").error["code"] == "BUSMQ_CONFIG"


@pytest.mark.only("python", reason="the logs of both engines are alike")
def test_a_rewind_that_cannot_be_is_refused_and_writes_nothing(
    bus: Bus, queue: str, copy: Copy, run: Run, tmp_path: Path
) -> None:
    bus.fill(queue, 5)
    bus.link.run(set_retention(QueueKeys(queue), "0:100:0"))
    copy(good := tmp_path / "good")

    def refused(*words: str) -> str:
        done = run("rewind", str(good), "--into", str(tmp_path / "new"), *words, "--json")
        assert done.code
        assert not (tmp_path / "new").exists()
        return f"{done.error['code']} {done.error['message']}"

    assert "is after the position of the query, 5" in refused("--to", "77")
    assert "still to come" in refused("--to", "2190-01-01T00:00:00Z")
    assert "no batch 99 in its offset log" in refused("--to", "batch:99")
    assert "expected an id, batch:NUMBER" in refused("--to", "yesterday")
    assert "expected a queue of the checkpoint" in refused("--to", "1", "--queue", "other")
    lease = QueueKeys(queue).lease("")
    bus("SET", lease, "x|elsewhere|1", "PX", 60_000)
    assert refused("--to", "1").startswith("BUSMQ_QUEUE_BUSY")
    bus("DEL", lease)
    (good / "state").mkdir()
    assert "keeps state" in refused("--to", "1")
    (good / "state").rmdir()
    bus("LTRIM", QueueKeys(queue).messages, 10, -1)
    assert refused("--to", "1").startswith("BUSMQ_MESSAGE_MISSING")
    bus.close_queue(queue)
    bus.fill(queue, 9)
    assert refused("--to", "1").startswith("BUSMQ_QUEUE_RECREATED")
    (tmp_path / "new").mkdir()
    done = run("rewind", str(good), "--into", str(tmp_path / "new"), "--to", "1", "--json")
    assert "a folder of this name" in done.error["message"]


RUN_BOOK = Path(__file__).parents[2] / "docs" / "operating.md"


@pytest.mark.only("python", reason="commands of a page")
def test_the_commands_of_the_run_book_do_what_it_says(
    bus: Bus, queue: str, target: str, copy: Copy, run: Run, tmp_path: Path
) -> None:
    bus.fill(queue, 5)
    bus.link.run(set_retention(QueueKeys(queue), "0:100:0"))
    (folder := tmp_path / "data" / "checkpoints").mkdir(parents=True)
    copy(folder / "orders")
    sections = {
        part.partition("\n")[0]: part
        for part in RUN_BOOK.read_text("utf-8").split("\n### ")
        if "busmq checkpoint" in part
    }
    for title, part in sections.items():
        for block in re.findall(r"```bash\n(.*?)```", part, re.DOTALL):
            for line in block.splitlines():
                words = shlex.split(line.replace("/data/", f"{tmp_path}/data/"))
                words = [re.sub(r"^orders(\.dead)?$", rf"{queue}\1", word) for word in words]
                assert words.pop(0) == "busmq"
                done = run(*words, group="")
                assert done.code == 0, (title, line, done)
    assert len(sections) == 2
    copy(folder / "orders-again")
    assert bus.stored(target) == values(queue, 1, 2, 3, 4, 5, 4, 5), "id 3 is skipped this time"
