"""The checkpoint file manager of the Java module beside Spark's own: what one writes the other goes
on with.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from busmq_spark.spark.tune import CHECKPOINT_MANAGER_SETTING
from tests.support import PATIENCE_S

SPARKS = "org.apache.spark.sql.execution.streaming.checkpointing"
OURS = "busmq.spark.LocalCheckpointFileManager"
MANAGERS = [
    OURS,
    f"{SPARKS}.FileSystemBasedCheckpointFileManager",
    f"{SPARKS}.FileContextBasedCheckpointFileManager",
]


class Files:
    """One manager over a folder, as Spark's logs use it."""

    def __init__(self, jvm: Any, manager: str, folder: str) -> None:
        self._jvm = jvm
        settings = jvm.org.apache.hadoop.conf.Configuration()
        settings.set(CHECKPOINT_MANAGER_SETTING, manager)
        self._root = jvm.org.apache.hadoop.fs.Path(folder)
        self._manager = (
            jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create(
                self._root, settings
            )
        )
        self._manager.createCheckpointDirectory()

    def path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(
            self._root, self._jvm.org.apache.hadoop.fs.Path(None, None, name)
        )

    def begin(self, name: str, text: str, *, replace: bool = False) -> Any:
        stream = self._manager.createAtomic(self.path(name), replace)
        stream.write(text.encode())
        return stream

    def write(self, name: str, text: str, *, replace: bool = False) -> None:
        self.begin(name, text, replace=replace).close()

    def read(self, name: str) -> str:
        stream = self._manager.open(self.path(name))
        text = bytes(stream.readAllBytes()).decode()
        stream.close()
        return text

    def names(self, name: str = "") -> dict[str, int]:
        """Name and length of what is there."""
        found = self._manager.list(self.path(name) if name else self._root)
        return {each.getPath().getName(): each.getLen() for each in found}

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda name, *more: getattr(self._manager, method)(self.path(name), *more)


@pytest.fixture
def files(spark: SparkSession, shim_jar: Path, tmp_path: Path) -> Callable[[str], Files]:
    # A blank and a sign that addresses escape.
    return lambda manager: Files(spark._jvm, manager, f"{tmp_path}/check %20point")


@pytest.fixture(params=MANAGERS, ids=["ours", "file system", "file context"])
def any_manager(request: pytest.FixtureRequest, files: Callable[[str], Files]) -> Files:
    return files(request.param)


def test_what_a_killed_writer_left_is_not_there_for_spark(
    spark: SparkSession, files: Callable[[str], Files], tmp_path: Path
) -> None:
    """Spark refuses to begin a query whose first entry was being written when its driver was
    killed: "offsets should be empty on batch 0".
    """
    ours = files(OURS)
    ours.begin("offsets/0", "half of it")
    [folder] = tmp_path.glob("*/offsets")
    assert [path.suffix for path in folder.iterdir()] == [".tmp"]
    assert ours.names("offsets") == {}
    rows = spark.readStream.format("rate").load()
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(folder.parent))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(PATIENCE_S))
    assert query.exception() is None


def test_all_managers_behave_the_same(any_manager: Files) -> None:
    any_manager.mkdirs("sub/deep")
    any_manager.write("sub/deep/7", "seven")
    any_manager.begin("sub/deep/8", "never").cancel()
    assert any_manager.read("sub/deep/7") == "seven"
    assert any_manager.names("sub/deep") == {"7": 5}
    assert set(any_manager.names("sub")) == {"deep"}
    assert any_manager.exists("sub/deep/7")
    assert not any_manager.exists("sub/deep/8")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExists"):
        any_manager.write("sub/deep/7", "no")
    assert any_manager.read("sub/deep/7") == "seven"
    any_manager.delete("sub")
    any_manager.delete("sub")
    for refused in (any_manager.names, any_manager.read):
        with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
            refused("sub")


def test_our_manager_goes_through_no_hadoop(files: Callable[[str], Files]) -> None:
    """Spark's cannot do the first, and one of them leaves out the second in silence."""
    ours = files(OURS)
    ours.write("a:b", "as good a name as any")
    ours.write("a:b", "replaced", replace=True)
    assert ours.read("a:b") == "replaced"
    assert ours.names() == {"a:b": 8}


@pytest.mark.parametrize("manager", MANAGERS[1:], ids=["file system", "file context"])
def test_what_our_manager_writes_sparks_own_read_and_remove_and_the_other_way_round(
    files: Callable[[str], Files], manager: str
) -> None:
    """Hadoop keeps a checksum beside a file: one that outlived its file would make the next of this
    name unreadable.
    """
    ours, sparks = files(OURS), files(manager)
    sparks.write("0", "first")
    assert (ours.read("0"), ours.names()) == ("first", {"0": 5})
    ours.write("0", "second of another length", replace=True)
    assert sparks.read("0") == "second of another length"
    sparks.delete("0")
    sparks.write("0", "third")
    ours.delete("0")
    ours.write("0", "fourth, in the place of one that was removed")
    assert (sparks.read("0"), set(sparks.names())) == (
        "fourth, in the place of one that was removed",
        {"0"},
    )


def test_a_path_that_is_no_local_file_is_left_to_sparks_own_manager(
    spark: SparkSession, shim_jar: Path, tmp_path: Path
) -> None:
    """``viewfs`` stands for any store: it is a file system of its own, here over a folder."""
    jvm: Any = spark._jvm
    settings = jvm.org.apache.hadoop.conf.Configuration()
    settings.set("fs.viewfs.mounttable.shop.link./kept", tmp_path.as_uri())
    settings.set(CHECKPOINT_MANAGER_SETTING, OURS)
    folder = jvm.org.apache.hadoop.fs.Path("viewfs://shop/kept/c")
    manager = (
        jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.create(
            folder, settings
        )
    )
    manager.createCheckpointDirectory()
    manager.createAtomic(jvm.org.apache.hadoop.fs.Path(folder, "0"), False).close()
    assert (tmp_path / "c" / "0").exists()
    assert not manager.isLocal()


def test_a_tuned_session_opens_its_checkpoints_with_our_manager(
    spark: SparkSession, shim_jar: Path
) -> None:
    opened = spark._jsparkSession.sessionState().newHadoopConf().get(CHECKPOINT_MANAGER_SETTING)
    assert opened == OURS


def test_a_java_without_the_jar_opens_them_with_sparks_own(spark: SparkSession) -> None:
    """Such as that of Spark Connect: it does not have the variable either."""
    assert spark._jvm is not None
    settings = spark._jvm.org.apache.hadoop.conf.Configuration()
    settings.set(CHECKPOINT_MANAGER_SETTING, "${env.BUSMQ_NOT_HERE:-org.example.Sparks}")
    assert settings.get(CHECKPOINT_MANAGER_SETTING) == "org.example.Sparks"


def test_state_is_kept_and_gone_on_with(
    spark: SparkSession, shim_jar: Path, tmp_path: Path
) -> None:
    """Spark's state stores write through the manager, too, in tasks."""
    (tmp_path / "in").mkdir()

    def count(batch: int) -> dict[str, int]:
        (tmp_path / "in" / f"{batch}.txt").write_text("a\nb\na\n")
        rows = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count()
        found: dict[str, int] = {}
        writer = (
            rows.writeStream.outputMode("complete")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
        )
        writer.foreachBatch(
            lambda frame, _: found.update({row["value"]: row["count"] for row in frame.collect()})
        ).start().awaitTermination()
        return found

    assert count(1) == {"a": 2, "b": 1}
    before = spark.conf.get(CHECKPOINT_MANAGER_SETTING)  # others have this session, too
    spark.conf.set(CHECKPOINT_MANAGER_SETTING, MANAGERS[1])
    try:
        assert count(2) == {"a": 4, "b": 2}
    finally:
        spark.conf.set(CHECKPOINT_MANAGER_SETTING, before)
