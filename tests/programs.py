"""A process that runs programs one after the other and keeps its Java: a program then costs what
it does, not the start of a Spark.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from tests.support import PATIENCE_S


class Programs:
    """The process. Programs have one working directory, ``folder``; the namespace, the package
    and the Spark session of each are its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cwd"
        self.folder.mkdir()
        self._streams = [folder / "out", folder / "err"]
        spawn = multiprocessing.get_context("spawn")
        self._link, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, self.folder, self._streams))
        self._process.start()
        theirs.close()

    def run(self, program: str) -> tuple[str, str]:
        """What it has printed, and the error that ended it with what is on stderr, or ""."""
        before = [path.stat().st_size if path.exists() else 0 for path in self._streams]
        self._link.send(program)
        if not self._link.poll(10 * PATIENCE_S):
            raise AssertionError(f"not ended: {self._streams[1].read_text(errors='replace')}")
        error = self._link.recv()
        out, err = (
            path.read_bytes()[start:].decode(errors="replace")
            for path, start in zip(self._streams, before, strict=True)
        )
        return out, error and f"{error}\n{err}"

    def close(self) -> None:
        self._link.close()
        self._process.join(PATIENCE_S)
        self._process.kill()


def _serve(link: Connection, folder: Path, streams: list[Path]) -> None:
    os.chdir(folder)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for number, path in enumerate(streams, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)  # of Java too
        os.close(opened)
    while True:
        try:
            program = link.recv()
        except EOFError:
            return
        for name in [name for name in sys.modules if name.partition(".")[0] == "busmq_spark"]:
            del sys.modules[name]  # each imports it itself
        error = ""
        try:
            exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        except BaseException:  # noqa: BLE001  # SystemExit, too: the test says what ended it
            error = traceback.format_exc()
        from pyspark.sql import SparkSession

        if SparkSession._instantiatedSession is not None:
            SparkSession._instantiatedSession.stop()
        sys.stdout.flush()
        link.send(error)
