"""A Kafka broker and Spark's connector for it, from Maven Central; only this benchmark has them, in
a folder that git ignores.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from busmq_spark.errors import ToolMissing
from busmq_spark.spark.java_runtime import ensure_java

BROKER = "4.1.2"
CACHE = Path(__file__).parent / ".kafka"
TOOL = Path(__file__).with_name("KafkaTool.java")
START_S = 60
# The connector's provider of tokens is not on Central for every Spark; this one serves those, too.
PROVIDER = "4.0.0"
# As kafka-server-start.sh and kafka-run-class.sh set them.
HEAP = ("-Xmx1G", "-Xms1G")
JAVA = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>peers</artifactId><version>1</version>
<dependencies>{}</dependencies></project>
"""  # noqa: E501
DEPENDENCY = """
<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions>{}</exclusions></dependency>"""
EXCLUSION = "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"
# What Spark brings itself; two Scala libraries in one Java would not go together.
OF_SPARK = (
    ("org.apache.hadoop", "*"),
    ("org.scala-lang", "*"),
    ("org.scala-lang.modules", "*"),
    ("org.slf4j", "*"),
    ("org.apache.spark", "*"),
)


def broker_jars() -> list[Path]:
    """The broker with what it needs, and a logger to stderr."""
    return _jars(
        f"broker-{BROKER}",
        [
            ("org.apache.kafka", "kafka_2.13", BROKER, ()),
            ("org.slf4j", "slf4j-simple", "1.7.36", ()),
        ],
    )


def connector_jars() -> list[Path]:
    """The Kafka connector of the Spark that is installed, without what Spark itself has."""
    spark, last = version("pyspark"), None
    for provider in (spark, PROVIDER):
        parts = [
            ("spark-sql-kafka-0-10_2.13", spark),
            ("spark-token-provider-kafka-0-10_2.13", provider),
        ]
        try:
            return _jars(
                f"connector-{spark}",
                [("org.apache.spark", name, of, OF_SPARK) for name, of in parts],
            )
        except ToolMissing as error:
            last = error
    assert last is not None
    raise last


def _jars(
    name: str, wanted: Sequence[tuple[str, str, str, Sequence[tuple[str, str]]]]
) -> list[Path]:
    """The jars of these dependencies (group, artifact, version, exclusions), fetched once."""
    folder = CACHE / name
    if not folder.is_dir():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            pom = Path(scratch) / "pom.xml"
            pom.write_text(
                POM.format(
                    "".join(
                        DEPENDENCY.format(*w[:3], "".join(EXCLUSION.format(*e) for e in w[3]))
                        for w in wanted
                    )
                )
            )
            _maven(
                name,
                [
                    "-f",
                    str(pom),
                    "dependency:copy-dependencies",
                    f"-DoutputDirectory={scratch}/jars",
                    "-DincludeScope=runtime",
                ],
            )
            (Path(scratch) / "jars").rename(folder)
    return sorted(folder.glob("*.jar"))


def _maven(name: str, arguments: Sequence[str]) -> None:
    if not shutil.which("mvn"):
        raise ToolMissing(
            tool="mvn",
            reason="it fetches Kafka",
            remedy="Install Maven (on Debian and Ubuntu: apt-get install maven).",
        )
    done = subprocess.run(
        ["mvn", "-q", "-B", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        said = next(
            (line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line),
            "it said nothing",
        )
        remedy = (
            "Is Maven Central reachable, and has it a connector of this Spark? make bench-peers"
            " takes Spark 4.2."
        )
        raise ToolMissing(tool=name, reason=f"mvn cannot fetch it: {said}", remedy=remedy)


def _java(jars: Sequence[Path], *words: str) -> list[str]:
    return [
        f"{ensure_java()}/bin/java",
        *words[:-1],
        "-cp",
        ":".join(map(str, jars)),
        *words[-1].split(),
    ]


class Kafka:
    """A broker that runs, and the client beside it."""

    def __init__(self, url: str, tool: subprocess.Popen[str]) -> None:
        self.url = url
        self._tool = tool

    def ask(self, *words: object) -> Any:
        """What KafkaTool answers."""
        assert self._tool.stdin is not None
        assert self._tool.stdout is not None
        self._tool.stdin.write(" ".join(map(str, words)) + "\n")
        self._tool.stdin.flush()
        if not (answer := self._tool.stdout.readline()):
            raise RuntimeError(
                f"KafkaTool ended at {' '.join(map(str, words))}; its error is above"
            )
        return json.loads(answer)


@contextmanager
def kafka() -> Iterator[Kafka]:
    """One node, its log on disk, for as long as the block lasts."""
    jars = broker_jars()
    with tempfile.TemporaryDirectory() as folder:
        ports = _free_ports(2)
        conf = Path(folder) / "server.properties"
        conf.write_text(_properties(folder, *ports))
        formatted = subprocess.run(
            _java(jars, f"kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qk -c {conf}"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert formatted.returncode == 0, formatted.stdout + formatted.stderr
        log = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error",)
        broker = subprocess.Popen(
            _java(jars, *HEAP, *JAVA, *log, f"kafka.Kafka {conf}"), stdout=subprocess.DEVNULL
        )
        try:
            _await_port(ports[0], broker)
            url = f"127.0.0.1:{ports[0]}"
            command = _java(jars, "-Xmx1G", *log, f"{TOOL} {url}")
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as tool:
                try:
                    yield Kafka(url, tool)
                finally:
                    tool.kill()
        finally:
            broker.kill()  # its log goes, too
            broker.wait()


def _properties(folder: str, port: int, controller: int) -> str:
    """What one node needs; all else is Kafka's default."""
    return f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
auto.create.topics.enable=false
"""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert process.poll() is None, "the broker ended; its error is above"
            assert time.monotonic() < until, f"the broker does not listen after {START_S} s"
            time.sleep(0.2)  # until it is asked again
