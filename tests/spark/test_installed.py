"""The wheel, installed into a folder of its own and used from another place: Python, SQL,
spark-submit, Spark Connect.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pyspark
import pytest
from packaging.requirements import Requirement

from busmq_spark.spark.java_runtime import ensure_java
from busmq_spark.spark.tune import WORKER_PATH
from tests.java import QUICK_JAVA, archive
from tests.spark.centres import SECRET, DataCentre
from tests.spark.conftest import PATIENCE_S, ROOT, Bus, MakeBus
from tests.support import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
JOB = Path(__file__).with_name("installed_job.py")
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
EXPECTED = {"batch": [[1, "1"], [2, "2"]], "sql": ["1", "2"], "ended": True, "stream": ["1", "2"]}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    out = tmp_path_factory.mktemp("wheel")
    run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(ROOT),
        ]
    )
    [made] = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The folder into which the wheel is installed."""
    target = tmp_path_factory.mktemp("installed")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    run([*pip, "--target", str(target), str(wheel)])
    return target


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory from which nothing of this tree can be seen."""
    return tmp_path_factory.mktemp("elsewhere")


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=880)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def job(
    starter: Sequence[str], bus: Bus, queue: str, environment: Any, cwd: Path, *more: str
) -> subprocess.CompletedProcess[str]:
    """The job at its end. A worker has 10 s of the clock to connect, which no setting of Spark
    changes: where that was too short, it runs again.
    """
    for attempt in range(10):
        command = [*starter, JOB.name, bus.url, f"{queue}-{attempt}", *more]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=880,
            env=dict(environment),
            cwd=cwd,
        )
        if "Python worker failed to connect back" not in done.stderr:
            break
    return done


def clean(python_path: str, **more: str) -> dict[str, str]:
    """An environment that knows no Spark but the one of this interpreter, and no package but those
    on ``python_path``.

    As after ``tune``, workers do not compile pyspark.zip: on a busy machine that takes longer than
    the 10 s that Spark gives them to connect.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON", "BUSMQ_"))
    }
    local = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": ensure_java(),
        "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
    }
    path = os.pathsep.join([str(WORKER_PATH), python_path])
    return {
        **kept,
        **local,
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **more,
    }


COMPILED = "export PYTHONPATH=$(echo \"$PYTHONPATH\" | sed 's#[^:]*/pyspark.zip:##')\n"
"""A line of sh, after which pyspark comes from where it is installed: each process would compile
that of the zip.
"""


def without_site(folder: Path, *, zipped: bool = False) -> str:
    """A Python without any packages but those of PYTHONPATH; ``zipped``: pyspark may come from the
    zip that Spark puts there.
    """
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\n{"" if zipped else COMPILED}exec {sys.executable} -S "$@"\n'
    )  # -S reads no .pth files, and no sitecustomize
    python.chmod(0o755)
    return str(python)


def found(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    [line] = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    result: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return result


def test_the_format_is_found_where_the_wheel_is_installed(
    bus: Bus, queue: str, installed: Path, elsewhere: Path
) -> None:
    shutil.copy(JOB, elsewhere)
    result = found(
        job([str(SUBMIT), "--master", "local[2]"], bus, queue, clean(str(installed)), elsewhere)
    )
    assert result.pop("package") is None  # neither the program nor the user named it
    assert result == EXPECTED


def linked(folder: Path, *names: str) -> Path:
    """A folder with these distributions of this interpreter, and what each asks for without any
    extra, as an installation makes it.
    """
    wanted, met = [Requirement(name) for name in names], set[str]()
    while wanted:
        asked = wanted.pop()
        if (name := asked.name.lower()) in met or (
            asked.marker and not asked.marker.evaluate({"extra": ""})
        ):
            continue
        met.add(name)
        found = distribution(name)
        wanted += [Requirement(each) for each in found.requires or ()]
        for top in {
            file.parts[0]
            for file in found.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }:
            (folder / top).symlink_to(Path(str(found.locate_file(top))))
    return folder


def test_the_wheel_beside_a_bare_pyspark_needs_nothing_that_it_does_not_ask_for(
    bus: Bus, queue: str, installed: Path, elsewhere: Path, tmp_path: Path
) -> None:
    shutil.copy(JOB, elsewhere)
    [asks] = [file.read_text() for file in installed.glob("*.dist-info/METADATA")]
    plain = [
        line.partition(": ")[2]
        for line in asks.splitlines()
        if line.startswith("Requires-Dist") and "extra ==" not in line
    ]
    (tmp_path / "site").mkdir()
    packages = linked(tmp_path / "site", "pyspark", *plain)
    assert not (packages / "pandas").exists()
    python = without_site(tmp_path)
    path = os.pathsep.join([str(installed), str(packages)])
    result = found(
        job(
            [python],
            bus,
            queue,
            clean(path, PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python),
            elsewhere,
        )
    )
    assert result.pop("package") is None
    assert result == EXPECTED


@contextmanager
def connect_server(environment: dict[str, str], cwd: Path) -> Iterator[str]:
    """A Spark Connect server in a process of its own; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    command = [
        str(SUBMIT),
        "--master",
        "local[2]",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with (cwd / "server.log").open("w+") as log:
        server = subprocess.Popen(
            [*command, "spark-internal"], env=environment, cwd=cwd, stdout=log, stderr=log
        )
        try:
            wait_until(
                lambda: listens(port) or server.poll() is not None,
                PATIENCE_S,
                "the Connect server listens",
            )
            assert server.poll() is None, (cwd / "server.log").read_text()
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_connect_client_uses_what_is_installed_on_the_server(
    bus: Bus, queue: str, installed: Path, elsewhere: Path
) -> None:
    pytest.importorskip("grpc")
    shutil.copy(JOB, elsewhere)
    with connect_server(clean(str(installed)), elsewhere) as remote:
        result = found(job([sys.executable], bus, queue, clean(""), elsewhere, remote))
    assert result.pop("package") is None
    assert result == EXPECTED


@pytest.fixture
def without_package(tmp_path: Path) -> Callable[[], dict[str, str]]:
    """An environment whose Python sees the dependencies but, even where this tree is installed in
    editable form, not the package.
    """

    def make() -> dict[str, str]:
        python = without_site(tmp_path)
        folders = os.pathsep.join(
            dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        )
        return clean(folders, PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python)

    return make


@pytest.fixture
def linked_url(bus_of: MakeBus, data_centres: dict[str, DataCentre]) -> str:
    """A federation server with a message "x" in its queue "linked"."""
    bus_of(data_centres["eu"].redis).push("linked", "x")
    return data_centres["eu"].url


def test_a_registered_source_travels_to_a_server_that_does_not_have_the_package(
    bus: Bus,
    queue: str,
    linked_url: str,
    installed: Path,
    elsewhere: Path,
    without_package: Callable[[], dict[str, str]],
) -> None:
    pytest.importorskip("grpc")
    shutil.copy(JOB, elsewhere)
    environment = without_package()
    imports = [environment["PYSPARK_PYTHON"], "-c", "import redis, pyarrow, busmq_spark"]
    importing = subprocess.run(
        imports, capture_output=True, env=environment, cwd=elsewhere, check=False
    )
    assert b"No module named 'busmq_spark'" in importing.stderr
    with connect_server(environment, elsewhere) as remote:
        result = found(
            job(
                [sys.executable],
                bus,
                queue,
                clean(str(installed)),
                elsewhere,
                remote,
                "register",
                linked_url,
                SECRET,
            )
        )
    assert Path(result.pop("package")).is_relative_to(installed)
    assert result == {**EXPECTED, "linked": ["x"]}


def cluster() -> list[str]:
    """A master whose executors are processes of their own, with folders of their own, as on a
    cluster.
    """
    quick = f"spark.executor.extraJavaOptions={QUICK_JAVA} {archive()}"
    return ["--master", "local-cluster[1,1,1024]", "--conf", quick]


def test_a_wheel_in_py_files_works_once_it_is_registered(
    bus: Bus,
    queue: str,
    wheel: Path,
    elsewhere: Path,
    without_package: Callable[[], dict[str, str]],
) -> None:
    shutil.copy(JOB, elsewhere)
    environment = {
        **without_package(),
        "SPARK_CONF_DIR": str(elsewhere),
    }  # no defaults of this tree
    submitted = [str(SUBMIT), *cluster(), "--py-files", str(wheel)]
    result = found(job(submitted, bus, queue, environment, elsewhere, "submitted", "register"))
    assert result.pop("package") == str(wheel / "busmq_spark" / "__init__.py")
    assert result == EXPECTED


def test_an_archive_with_the_wheel_installed_works_where_the_driver_has_it_unpacked(
    bus: Bus,
    queue: str,
    installed: Path,
    elsewhere: Path,
    tmp_path: Path,
    without_package: Callable[[], dict[str, str]],
) -> None:
    """An environment as venv-pack makes it, but that its Python takes the dependencies from this
    one.
    """
    packed = tmp_path / "packed"
    shutil.copytree(installed, packed / "lib")
    (packed / "bin").mkdir()
    python = packed / "bin" / "python"
    python.write_text(
        f'#!/bin/sh\n{COMPILED}PYTHONPATH="$(dirname "$0")/../lib:$PYTHONPATH"'
        f' exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    archive = shutil.make_archive(str(tmp_path / "environment"), "gztar", packed)
    (elsewhere / "environment").mkdir()
    shutil.unpack_archive(archive, elsewhere / "environment")
    shutil.copy(JOB, elsewhere)
    own = "./environment/bin/python"
    environment = {
        **without_package(),
        "PYSPARK_PYTHON": own,
        "PYSPARK_DRIVER_PYTHON": own,
        "SPARK_CONF_DIR": str(elsewhere),
    }
    submitted = [str(SUBMIT), *cluster(), "--archives", f"{archive}#environment"]
    result = found(job(submitted, bus, queue, environment, elsewhere, "submitted"))
    assert result.pop("package") is None
    assert result == EXPECTED


def test_workers_that_lack_a_dependency_are_named_with_what_they_lack(
    bus: Bus, queue: str, installed: Path, elsewhere: Path, tmp_path: Path
) -> None:
    shutil.copy(JOB, elsewhere)
    environment = {**clean(str(installed)), "PYSPARK_PYTHON": without_site(tmp_path, zipped=True)}
    del environment["PYSPARK_DRIVER_PYTHON"]
    done = job([sys.executable], bus, queue, environment, elsewhere)
    assert done.returncode
    assert "[BUSMQ_TOOL_MISSING] Python package" in done.stderr, done.stderr
    assert "set PYSPARK_PYTHON to a Python that has them" in done.stderr
