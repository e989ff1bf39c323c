"""Builds the Java module of ``jvm-shim/``, once for everybody who tests it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from busmq_spark.spark.java_runtime import JAR_NAME

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "jvm-shim"
JAR = MODULE / "target" / JAR_NAME
# What is in the jar is made of these.
SOURCES = (
    MODULE / "pom.xml",
    MODULE / "src" / "main",
    *sorted((ROOT / "busmq_spark").glob("*/lua")),
)


def javac() -> Path | None:
    """The compiler of a JDK that is new enough."""
    home = os.environ.get("JAVA_HOME")
    for found in (home and shutil.which("javac", path=f"{home}/bin"), shutil.which("javac")):
        if found:
            said = subprocess.run(
                [found, "-version"], capture_output=True, text=True, check=False, timeout=60
            )
            release = re.match(r"javac (\d+)", said.stdout + said.stderr)
            if release and int(release[1]) >= 17:
                return Path(found)
    return None


def missing() -> str:
    """What is missing to build the module, and how to get it; empty when nothing is."""
    if javac() and shutil.which("mvn"):
        return ""
    return (
        "no JDK 17 or newer with Maven: install them (on Debian and Ubuntu: apt-get install"
        " openjdk-17-jdk-headless maven)"
    )


def built() -> Path:
    """The jar, made anew only if a source has changed since."""
    with _alone():
        if _stale():
            # Not even compiled: the tests need libraries of their own, and the caller waits for the
            # jar only.
            _maven("package", "-Dmaven.test.skip=true")
            JAR.touch()  # Maven leaves a jar of unchanged classes as it is
        return JAR


def run_junit() -> None:
    """Run the module's own tests; AssertionError with what Maven said."""
    built()
    _maven("test")  # leaves the jar alone, so those who want it need not wait


def _stale() -> bool:
    if not JAR.exists():
        return True
    # Folders too: theirs is the time at which a file was removed.
    return any(
        path.stat().st_mtime > JAR.stat().st_mtime
        for source in SOURCES
        for path in (source, *source.rglob("*"))
    )


def _maven(*arguments: str) -> None:
    compiler = javac()
    assert compiler is not None, missing()
    # Maven starts the Java of JAVA_HOME, which may be one without a compiler.
    environment = {**os.environ, "JAVA_HOME": str(compiler.resolve().parents[1])}
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(MODULE), *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=280,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


@contextmanager
def _alone() -> Iterator[None]:
    """One Maven at a time in this tree, whichever process of pytest-xdist starts it."""
    JAR.parent.mkdir(exist_ok=True)
    with (JAR.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
