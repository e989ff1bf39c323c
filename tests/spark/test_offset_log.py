"""What is put on the disk before a batch is recorded; OffsetLogTest.java is the same for the sink in Java."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from busmq_spark.spark.checkpoint_offset_log import sync_batch_to_disk

ENTRY = [".crc", "entry", "offsets"]
ALL = sorted([*ENTRY, ".metadata.crc", "above", "checkpoint", "metadata"])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "above" / "checkpoint"
    (folder / "offsets").mkdir(parents=True)
    for path in (folder / "metadata", folder / ".metadata.crc", *(folder / "offsets" / name for name in ("0", ".0.crc", "1", ".1.crc"))):
        path.write_text(path.name)
    return folder


@pytest.fixture
def failing() -> set[str]:
    return set()


@pytest.fixture
def synced(checkpoint: Path, failing: set[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
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


def test_what_says_which_query_it_is_is_synced_once_and_the_entry_of_the_log_with_each_batch(synced: Callable[[int], list[str]]) -> None:
    assert [synced(0), synced(1), synced(1)] == [ALL, ENTRY, ENTRY]


def test_another_query_in_the_same_place_is_synced_as_is_a_copy_of_the_same(checkpoint: Path, synced: Callable[[int], list[str]]) -> None:
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
