"""Checks of a Spark session and of a checkpoint folder. Pure."""

from __future__ import annotations

from collections.abc import Callable
from shlex import quote

from busmq_spark.doctor.findings import Finding, codes_of, unknown
from busmq_spark.spark.facts import PythonFacts, SparkFacts
from busmq_spark.spark.java_runtime import OLDEST_JAVA

OLDEST_PYTHON = (3, 11)


def check_spark(facts: SparkFacts) -> list[Finding]:
    """Return the findings of a session: one of each code but the checkpoint's."""
    where = f"Spark {facts.version}" if facts.version else "Spark"
    rest = [code for code in codes_of("spark") if code not in ("spark-session", "spark-checkpoint")]
    if facts.error or facts.driver is None:
        failed = Finding("spark-session", "failure", where, facts.error, "pyspark --version")
        return [failed, *unknown(rest, where, "no session")]
    text = f"tasks ran in {len(facts.executors)} different environments of Python"
    return [
        Finding("spark-session", "ok", where, text),
        _alike(facts, "spark-python", "Python", lambda each: _head(each.python, 2)),
        _alike(facts, "spark-pyarrow", "pyarrow", lambda each: _head(each.pyarrow, 1)),
        _alike(facts, "spark-package", "busmq_spark", lambda each: each.package),
        _jar(facts, where),
        _java(facts, where),
        _settings(facts, where),
    ]


def _head(version: str, parts: int) -> str:
    return ".".join(version.split(".")[:parts])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _alike(
    facts: SparkFacts, code: str, what: str, version: Callable[[PythonFacts], str]
) -> Finding:
    driver = facts.driver
    assert driver is not None
    here = version(driver)
    other = next((each for each in facts.executors if version(each) != here), None)
    if other is not None:
        there = version(other) or "missing"
        text = f"{what} is {here or 'missing'} on the driver and {there} on {other.host}"
        fix = "export PYSPARK_PYTHON=/path/to/one/python"
        if what != "Python":
            fix = f"pip install {what}=={here}" if here else f"pip install {what}"
        return Finding(code, "failure", other.host, text, fix)
    if not here or (what == "Python" and _numbers(here) < OLDEST_PYTHON):
        text = f"{what} is {here or 'missing'}"
        return Finding(code, "failure", driver.host, text, f"install another {what}")
    return Finding(code, "ok", driver.host, f"{what} is {here} everywhere")


def _jar(facts: SparkFacts, where: str) -> Finding:
    code = "spark-jar"
    if facts.jar is None:
        return unknown([code], where, "Spark Connect does not tell its jars")[0]
    assert facts.driver is not None
    fix = "spark-submit --jars $(busmq jar)"
    if not facts.jar:
        return Finding(code, "warning", where, "the jar is not loaded", fix)
    if facts.jar != facts.driver.package:
        text = f"the jar is {facts.jar}, and the package is {facts.driver.package}"
        return Finding(code, "failure", where, text, fix)
    return Finding(code, "ok", where, f"the jar is {facts.jar}")


def _java(facts: SparkFacts, where: str) -> Finding:
    if facts.java is None:
        return unknown(["spark-java"], where, "Spark Connect does not tell its Java")[0]
    old = _numbers(facts.java)[:1] < (OLDEST_JAVA,)
    fix = f"export JAVA_HOME=/path/to/java-{OLDEST_JAVA}" if old else ""
    return Finding("spark-java", "failure" if old else "ok", where, f"Java is {facts.java}", fix)


def _settings(facts: SparkFacts, where: str) -> Finding:
    """Our own manager of checkpoints is as good as the one that ``tune`` names without the jar."""
    lacks = [
        name
        for name, (wanted, found) in facts.settings.items()
        if wanted not in found and "busmq" not in found
    ]
    if not lacks:
        return Finding("spark-settings", "ok", where, "the session has the settings of tune")
    name = lacks[0]
    fix = f"spark-submit --conf {name}={facts.settings[name][0]}"
    return Finding("spark-settings", "warning", where, f"not set: {', '.join(lacks)}", fix)


def check_checkpoint(folder: str, problem: str) -> Finding:
    """Return the finding of a checkpoint folder."""
    if "://" in folder and not folder.startswith("file:"):
        return unknown(["spark-checkpoint"], folder, "the folder is not on this machine")[0]
    if problem:
        return Finding("spark-checkpoint", "failure", folder, problem, f"mkdir -p {quote(folder)}")
    return Finding("spark-checkpoint", "ok", folder, "fsync and rename work")
