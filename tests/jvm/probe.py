"""Links and push signals of the Java module, driven from Python: servers, fakes and faults are at
home here.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyspark

from tests.java import QUICK_JAVA
from tests.jvm import module

SOURCE = module.MODULE / "src" / "test" / "java" / "busmq" / "spark" / "redis" / "Probe.java"
NAMES = count(1)
QUICK = (*QUICK_JAVA.split(), "-Dbusmq.silenceMs=3000")
IMPATIENT = ("-Dbusmq.replyMs=2500", "-Dbusmq.patienceMs=800")
"""What links wait for where no answer must come: a server that is silent, or away, need not be
waited for as long as in production. As there, a reply may take longer than all patience.
"""


class Refused(Exception):
    """What the Java side threw; ``code`` is that of a BusException, else the name of the class."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Probe:
    """One Java process. Questions are answered in turn; ``ask`` and ``answer`` apart leave time for
    a fault in between.
    """

    def __init__(self, *options: str) -> None:
        """``options``: of Java."""
        compiler = module.javac()
        assert compiler is not None, module.missing()
        jars = Path(pyspark.__file__).parent / "jars" / "*"
        command = [
            str(compiler.with_name("java")),
            *QUICK,
            *options,
            "-cp",
            f"{module.built()}:{jars}",
            str(SOURCE),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, name: str, **what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "name": name, **what}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        if "error" in said:
            raise Refused(said["code"], said["error"])
        return said["reply"]

    def __call__(self, do: str, name: str, **what: Any) -> Any:
        self.ask(do, name, **what)
        return self.answer()

    def open(self, url: str, **options: str) -> Links:
        return Links(self, url, options)

    def close(self) -> None:
        with self._process:  # closes the pipes; the end of its input ends it
            pass


class Links:
    """The links to one address. Options are named with ``_`` instead of ``.``: redis_layout."""

    def __init__(self, probe: Probe, url: str, options: Mapping[str, str]) -> None:
        self.probe, self.name = probe, f"l{next(NAMES)}"
        self.shown = probe(
            "open",
            self.name,
            options={
                "redis.url": url,
                **{name.replace("_", "."): text for name, text in options.items()},
            },
        )

    def run(self, *words: object, **how: Any) -> Any:
        """One command; or a script with ``script`` and ``keys``, their number."""
        return self.run_all([call(*words, **how)])[0]

    def run_all(self, calls: Sequence[Mapping[str, Any]], link: int = 0) -> list[Any]:
        self.ask_all(calls, link)
        found: list[Any] = self.probe.answer()
        return found

    def ask_all(self, calls: Sequence[Mapping[str, Any]], link: int = 0) -> None:
        self.probe.ask("run", self.name, calls=calls, link=link)

    def locate(self, *queues: str) -> dict[str, int]:
        found: dict[str, int] = self.probe("locate", self.name, queues=queues)
        return found

    def discover(self) -> dict[str, int]:
        found: dict[str, int] = self.probe("discover", self.name)
        return found

    def listen(self, **queues: int) -> None:
        """A push signal for these queues, each with the index of its server; it replaces none."""
        self.probe("subscribe", self.name, queues=queues)

    def rings(self, ms: int) -> bool:
        return bool(self.probe("await", self.name, ms=ms))


def call(
    *words: object, script: str | None = None, keys: int = 0, idempotent: bool = True
) -> dict[str, Any]:
    return {
        "words": [str(word) for word in words],
        "script": script,
        "keys": keys,
        "idempotent": idempotent,
    }
