"""Files that are put on the disk before a batch is recorded. CheckpointOffsetLogTest.java tests the
sink in Java.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from busmq_spark.spark.write.commit_message import BaseLocation
from busmq_spark.spark.write.committer import find_checkpoint, read_batch_span, sync_batch_to_disk
from busmq_spark.writing.sink import split_span

ENTRY = [".crc", "entry", "offsets"]
ALL = sorted([*ENTRY, ".metadata.crc", "above", "checkpoint", "metadata"])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "above" / "checkpoint"
    (folder / "offsets").mkdir(parents=True)
    for path in (
        folder / "metadata",
        folder / ".metadata.crc",
        *(folder / "offsets" / name for name in ("0", ".0.crc", "1", ".1.crc")),
    ):
        path.write_text(path.name)
    return folder


@pytest.fixture
def failing() -> set[str]:
    return set()


@pytest.fixture
def synced(
    checkpoint: Path, failing: set[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], list[str]]:
    """Sync for a batch; the result is what was."""
    found: list[str] = []

    def fsync(file: int) -> None:
        name = re.sub(r"^\.?\d+", "", Path(f"/proc/self/fd/{file}").readlink().name) or "entry"
        found.append(name)
        if name in failing:
            raise OSError(5, "the disk is broken")

    def run(batch: int) -> list[str]:
        found.clear()
        sync_batch_to_disk(f"file:{checkpoint}", batch)
        return sorted(found)

    monkeypatch.setattr(os, "fsync", fsync)
    return run


def test_what_says_which_query_it_is_is_synced_once_and_the_entry_of_the_log_with_each_batch(
    synced: Callable[[int], list[str]],
) -> None:
    assert [synced(0), synced(1), synced(1)] == [ALL, ENTRY, ENTRY]


def test_another_query_in_the_same_place_is_synced_as_is_a_copy_of_the_same(
    checkpoint: Path, synced: Callable[[int], list[str]]
) -> None:
    synced(0)
    metadata = checkpoint / "metadata"
    shutil.copy2(metadata, checkpoint / "copy")
    (checkpoint / "copy").rename(metadata)
    assert synced(1) == ALL
    metadata.unlink()
    metadata.write_text("another")
    assert synced(1) == ALL


@pytest.mark.parametrize("name", ["metadata", "checkpoint", "above"])
def test_what_could_not_be_synced_is_tried_again_and_keeps_nothing_else_from_it(
    name: str, failing: set[str], synced: Callable[[int], list[str]]
) -> None:
    failing.add(name)
    assert synced(0) == ALL
    failing.clear()
    assert [synced(0), synced(0)] == [ALL, ENTRY]


def test_the_setting_of_a_session_and_the_name_of_the_query_are_in_the_properties_of_a_task() -> (
    None
):
    properties = {
        "spark.sql.streaming.checkpointLocation": "/base",
        "spark.job.description": "n<br/>x<br/>id = 7<br/>runId = 8<br/>batch = 0",
    }
    of = lambda **more: BaseLocation.of_task("7", lambda name: {**properties, **more}.get(name, ""))  # noqa: E731
    assert of() == BaseLocation("/base", "n<br/>x")
    assert of(**{"spark.job.description": "id = 7<br/>runId = 8"}) == BaseLocation("/base", "")
    assert of(**{"spark.sql.streaming.checkpointLocation": ""}).folder == ""


def test_a_checkpoint_is_where_the_option_says_else_below_the_folder_of_the_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder, query in (("one", "1"), ("two", "2"), ("copy", "2"), ("none", "")):
        (tmp_path / folder).mkdir()
        if query:
            (tmp_path / folder / "metadata").write_text(f'{{"id":"{query}"}}')
    base = str(tmp_path)
    assert find_checkpoint("/option", BaseLocation(base, "n"), "1") == "/option"
    assert find_checkpoint("", BaseLocation(base, "n"), "1") == f"{base}/n"
    assert find_checkpoint("", BaseLocation("s3://b/c", "n"), "1") == "s3://b/c/n"
    assert find_checkpoint("", BaseLocation(tmp_path.as_uri()), "1") == f"{base}/one"
    assert caplog.text == ""
    for _ in range(2):
        assert find_checkpoint("", BaseLocation(base), "2") == "", "one of them is a copy"
    assert find_checkpoint("", BaseLocation(), "3") == ""
    assert [record.args for record in caplog.records] == [("2",), ("3",)]


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://host{}", "{}/"])
def test_a_checkpoint_is_one_however_its_place_is_written(checkpoint: Path, form: str) -> None:
    (checkpoint / "offsets" / "0").write_text("v1\n{}\n4")
    (checkpoint.parent / "link").symlink_to(checkpoint)
    spans = {
        read_batch_span(form.format(path), 0) for path in (checkpoint, checkpoint.parent / "link")
    }
    assert spans == {read_batch_span(str(checkpoint), 0)}
    assert split_span(spans.pop())[1] == "4"


def test_a_relative_checkpoint_is_the_same_too(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint / "offsets" / "0").write_text("v1\n{}\n4")
    monkeypatch.chdir(checkpoint.parent)
    assert read_batch_span("checkpoint", 0) == read_batch_span(str(checkpoint), 0)
