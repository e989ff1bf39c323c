"""What is in the wheel: everything an installation needs, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

import busmq_spark
from busmq_spark.queue.scripts import ROOMS
from tests.jvm import module
from tests.peers.node import need

ROOT = Path(__file__).parents[1]
BUILT = f"busmq_spark/jars/{module.JAR.name}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    if not module.missing():
        module.built()
    out = tmp_path_factory.mktemp("wheel")
    # No isolation: hatchling is installed with the test tools, so this needs no network.
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(out),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = out.glob("*.whl")
    return ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def in_tree() -> set[str]:
    files = [
        path
        for path in (ROOT / "busmq_spark").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return {str(path.relative_to(ROOT)) for path in files}


def test_the_wheel_holds_the_package_and_the_modules_spark_looks_for_and_nothing_else(
    wheel: ZipFile,
) -> None:
    content = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert content - {BUILT} == in_tree() | {"pyspark_busmq.py", "pyspark_busmq_realtime.py"}


@pytest.mark.jvm
def test_the_wheel_holds_the_jar_where_one_was_built(wheel: ZipFile) -> None:
    need(module.missing())
    assert wheel.read(BUILT) == module.JAR.read_bytes()


def test_the_wheel_holds_the_lua_scripts_the_type_marker_and_the_licence(wheel: ZipFile) -> None:
    names = wheel.namelist()
    assert "busmq_spark/py.typed" in names
    assert {name.split("/")[1] for name in names if "/lua/" in name and name.endswith(".lua")} == {
        *ROOMS
    }
    assert [name for name in names if name.endswith("/licenses/LICENSE")]


def test_the_command_is_called_busmq(wheel: ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert wheel.read(name).decode().split() == [
        "[console_scripts]",
        "busmq",
        "=",
        "busmq_spark.__main__:main",
    ]


def test_the_wheel_has_the_version_the_package_says(metadata: Message) -> None:
    assert metadata["Version"] == busmq_spark.__version__
    assert metadata["Requires-Python"] == ">=3.11"


def test_a_plain_install_brings_neither_spark_nor_web_sockets(metadata: Message) -> None:
    plain = {
        line.split(">")[0].split("[")[0]
        for line in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in line
    }
    assert plain == {"redis", "hiredis", "numpy", "pyarrow"}


def test_the_documentation_says_of_each_extra_what_it_is_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    table = (
        (ROOT / "docs" / "getting-started.md")
        .read_text("utf-8")
        .partition("| extra |")[2]
        .partition("\n\n")[0]
    )
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(extras)


def test_a_source_package_has_the_jar_and_makes_a_wheel_with_it_and_a_tree_without_says_so(
    tmp_path: Path,
) -> None:
    """In a copy of the tree, where the jar may come and go."""
    listed = (
        subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
        .stdout.decode()
        .split("\0")
    )
    for name in filter(None, listed):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "notebooks/")):
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "tree" / name)
    jar = tmp_path / "tree" / module.JAR.relative_to(ROOT)
    for content in (b"", b"a jar"):
        if content:
            jar.parent.mkdir()
            jar.write_bytes(content)
        out = tmp_path / f"out{len(content)}"
        command = [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            str(out),
            str(tmp_path / "tree"),
        ]  # as make dist does
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=880)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("lacks the Java module" in done.stdout + done.stderr) == (not content)
        [path] = out.glob("*.whl")
        assert [
            ZipFile(path).read(name) for name in ZipFile(path).namelist() if name.endswith(".jar")
        ] == [content] * bool(content)
        assert list(out.glob("*.tar.gz"))


@pytest.mark.parametrize(
    "file", sorted(path.name for path in (ROOT / "conf").glob("constraints*.txt"))
)
def test_every_dependency_is_pinned_for_ci(file: str) -> None:
    pins = {
        line.split("==")[0].lower()
        for line in (ROOT / "conf" / file).read_text().splitlines()
        if "==" in line
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ["dev", "demo", "cli"] if file == "constraints.txt" else []
    wanted = [
        *project["dependencies"],
        *(
            item
            for extra in ["spark", "local", *extras]
            for item in project["optional-dependencies"][extra]
        ),
    ]
    names = {item.split(">")[0].split("=")[0].split("[")[0].lower() for item in wanted}
    assert names - {"busmq_spark"} <= pins
