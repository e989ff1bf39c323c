"""The Spark settings of ``tune``."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest
from pyspark.sql import SparkSession

from busmq_spark import tune
from busmq_spark.errors import ToolMissing
from busmq_spark.spark import java_runtime
from busmq_spark.spark.tune import CHECKPOINT_MANAGER_SETTING, ENGINE_SETTING, WORKER_PATH, settings

ROOT = Path(__file__).parents[2]
INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def no_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most people have none."""
    monkeypatch.setattr(java_runtime, "find_jar", lambda: None)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)  # no Java runs
    for name in (
        java_runtime.CLASS_PATH_VARIABLE,
        java_runtime.CHECKPOINT_MANAGER_VARIABLE,
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "SPARK_REMOTE",
        "PYSPARK_GATEWAY_PORT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # put back after each test


@pytest.fixture
def a_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / java_runtime.JAR_NAME
    monkeypatch.setattr(java_runtime, "find_jar", lambda: path)
    return path


def builder() -> SparkSession.Builder:
    return SparkSession.Builder()


def test_every_setting_is_on_the_builder() -> None:
    tuned = builder()
    assert tune(tuned) is tuned
    assert tuned._options == settings(version("pyspark"))


def test_what_the_user_set_before_or_sets_after_wins() -> None:
    tuned = tune(builder().config(CHECKPOINT_MANAGER_SETTING, "mine")).config(
        "spark.python.unix.domain.socket.enabled", "false"
    )
    assert tuned._options == {
        CHECKPOINT_MANAGER_SETTING: "mine",
        "spark.python.unix.domain.socket.enabled": "false",
    }


def test_the_configuration_file_says_the_same() -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    assert dict(line.split() for line in lines if line and not line.startswith("#")) == settings(
        "4.3.0"
    )


def test_the_class_exists_in_the_installed_spark() -> None:
    """A wrong name fails every query only when it starts."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_2.13-*.jar")
    assert (
        settings(version("pyspark"))[CHECKPOINT_MANAGER_SETTING].replace(".", "/") + ".class"
        in ZipFile(jar).namelist()
    )


@pytest.mark.parametrize(
    ("spark", "package"),
    [("4.0.5", "streaming"), ("4.1.0", "checkpointing"), ("5.0.0.dev0", "checkpointing")],
)
def test_the_class_moved_with_spark_4_1(spark: str, package: str) -> None:
    assert settings(spark)[CHECKPOINT_MANAGER_SETTING].split(".")[-2] == package


def test_a_session_that_asks_for_java_without_the_jar_is_refused() -> None:
    with pytest.raises(ToolMissing, match="mvn -f jvm-shim package"):
        tune(builder().config(ENGINE_SETTING, "java"))
    tune(builder().config(ENGINE_SETTING, "java").config("spark.jars", "mine.jar"))
    tune(builder().config(ENGINE_SETTING, "python"))


def test_without_the_jar_nothing_is_said_of_it() -> None:
    tune(builder())
    assert java_runtime.CLASS_PATH_VARIABLE not in os.environ
    assert java_runtime.CHECKPOINT_MANAGER_VARIABLE not in os.environ


def test_with_the_jar_the_class_is_named_only_in_the_environment_that_brings_the_jar(
    a_jar: Path,
) -> None:
    """A Spark that has one has the other: setting, session and machine may be anybody's."""
    tuned = tune(builder())._options
    usual = settings(version("pyspark"))[CHECKPOINT_MANAGER_SETTING]
    manager = f"${{env.BUSMQ_CHECKPOINT_MANAGER:-{usual}}}"
    assert tuned == {
        **settings(version("pyspark")),
        CHECKPOINT_MANAGER_SETTING: manager,
        "spark.jars": str(a_jar),
    }
    assert os.environ[java_runtime.CLASS_PATH_VARIABLE] == str(a_jar)
    assert (
        os.environ[java_runtime.CHECKPOINT_MANAGER_VARIABLE]
        == "busmq.spark.LocalCheckpointFileManager"
    )


def test_the_class_path_of_others_stays_and_the_jar_is_added_once(
    a_jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(java_runtime.CLASS_PATH_VARIABLE, "theirs.jar")
    tune(builder())
    tune(builder())
    assert os.environ[java_runtime.CLASS_PATH_VARIABLE] == f"theirs.jar{os.pathsep}{a_jar}"


def test_a_spark_whose_own_script_sets_the_class_path_is_left_alone(
    a_jar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-env.sh").write_text("export SPARK_DIST_CLASSPATH=$(hadoop classpath)\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert tune(builder())._options == {**settings(version("pyspark")), "spark.jars": str(a_jar)}
    assert java_runtime.CHECKPOINT_MANAGER_VARIABLE not in os.environ


def test_the_jar_comes_once_beside_the_jars_of_the_builder_or_of_the_defaults(
    a_jar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.jars no.jar\nspark.jars.packages  a:b:1\nspark.jars  theirs.jar, other.jar\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert tune(tune(builder()))._options["spark.jars"] == f"theirs.jar, other.jar,{a_jar}"
    assert (
        tune(tune(builder().config("spark.jars", "mine.jar")))._options["spark.jars"]
        == f"mine.jar,{a_jar}"
    )


@pytest.mark.parametrize("elsewhere", ["running", "submitted", "connect"])
def test_a_java_that_this_process_does_not_start_is_told_of_no_jar(
    a_jar: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    made = builder()
    if elsewhere == "running":
        monkeypatch.setattr("pyspark.SparkContext._gateway", object())
    elif elsewhere == "submitted":
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    else:
        made = made.config("spark.remote", "sc://far")
    assert "spark.jars" not in tune(made)._options


def test_spark_4_0_which_lacks_what_the_jar_builds_on_is_left_alone(
    a_jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("busmq_spark.spark.tune.version", lambda package: "4.0.5")
    assert tune(builder())._options == settings("4.0.5")
    assert java_runtime.CLASS_PATH_VARIABLE not in os.environ


def worker(*path: Path) -> list[str]:
    """Where a Python that is started with this PYTHONPATH has pyspark from, and its path."""
    program = "import sys, pyspark, py4j; print(pyspark.__file__, *sys.path, sep='\\n')"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def archives() -> list[Path]:
    """What Spark puts in front of a worker's path."""
    return [
        *(INSTALLED / "python" / "lib").glob("*.zip"),
        *(INSTALLED / "jars").glob("spark-core_*.jar"),
    ]


def test_the_python_workers_of_a_tuned_spark_import_the_compiled_pyspark(
    spark: SparkSession,
) -> None:
    found = (
        spark.sparkContext.parallelize([0], 1)
        .map(lambda _: (__import__("pyspark").__file__, list(sys.path)))
        .collect()
    )
    [(file, path)] = found
    assert file == pyspark.__file__
    assert not {str(archive) for archive in archives()} & set(path)


def test_the_variable_is_set_once_and_keeps_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "theirs")
    tune(builder())
    tune(builder())
    assert os.environ["PYTHONPATH"] == f"{WORKER_PATH}{os.pathsep}theirs"


def test_the_archives_of_the_installed_pyspark_leave_the_path_of_a_worker() -> None:
    assert len(archives()) == 3
    file, *path = worker(*archives(), WORKER_PATH)
    assert file == pyspark.__file__
    assert not {str(entry) for entry in (*archives(), WORKER_PATH)} & set(path)


def test_the_archive_of_a_pyspark_that_is_not_installed_stays_first(tmp_path: Path) -> None:
    """A cluster's own Spark may be of another version than the pyspark beside its Python."""
    archive = tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with ZipFile(archive, "w") as made:
        made.writestr("pyspark/__init__.py", "")
    assert worker(archive, WORKER_PATH)[0] == str(archive / "pyspark" / "__init__.py")


def test_another_sitecustomize_is_imported_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.path.append('added by theirs')")
    file, *path = worker(*archives(), WORKER_PATH, tmp_path)
    assert file == pyspark.__file__
    assert "added by theirs" in path
