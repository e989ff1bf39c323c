"""The process of ``driver.py`` and everything it started: given orders, and killed as a whole."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.support import wait_until

ROOT = Path(__file__).parents[2]
START_S = 240.0


class DriverProcess:
    """A Spark driver in a session of its own: the JVM and its Python workers share it, whatever
    process groups they make.
    """

    def __init__(
        self,
        folder: Path,
        master: str = "local[2]",
        *,
        live: bool = False,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """``live``: its session is ready for real-time mode; ``more``: variables of its
        environment.
        """
        folder.mkdir(exist_ok=True)
        self.log = folder / "driver.log"
        self._answers: queue.Queue[str | None] = queue.Queue()
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {
            "PYTHONPATH": path,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, "-m", "tests.faults.driver", master, *(["live"] if live else [])]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **environment, **(more or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._ears = threading.Thread(target=self._listen, daemon=True)
        self._ears.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self, **order: Any) -> None:
        """Start a query; see driver.py."""
        self.ask("start", **order)

    def stop(self) -> None:
        """Stop the query in an orderly way; the session stays."""
        self.ask("stop")

    @property
    def error(self) -> str:
        """What ended the query; empty while it runs."""
        return str(self.ask("status")["error"])

    @property
    def active(self) -> bool:
        """Whether the query runs."""
        return bool(self.ask("status")["active"])

    def ask(self, do: str, **order: Any) -> Any:
        """Give an order and wait for its answer."""
        self.ready()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def ready(self) -> None:
        """Wait until Spark is up."""
        if not getattr(self, "_up", False):
            assert self._answer() == "ready"
            self._up = True

    @property
    def lives(self) -> bool:
        """Whether the driver itself runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the driver itself."""
        return self._process.pid

    def processes(self) -> list[psutil.Process]:
        """The driver, its JVMs and its Python workers, orphans included."""
        return [psutil.Process(pid) for pid in psutil.pids() if _session(pid) == self._process.pid]

    def kill(self, *, orphan: psutil.Process | None = None) -> None:
        """``kill -9`` for every process, the orphan-to-be excepted; returns when they are gone."""
        if orphan is not None:
            # Pyspark's daemon, which would take its workers along when it misses the JVM
            orphan.parent().kill()

        def all_gone() -> bool:
            left = [
                each
                for each in self.processes()
                if each != orphan and each.status() != psutil.STATUS_ZOMBIE
            ]
            for each in left:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            return not left

        def all_gone_quietly() -> bool:
            with suppress(psutil.NoSuchProcess):
                return all_gone()
            return False

        wait_until(all_gone_quietly, what="the driver and everything it started is dead")
        self._process.wait()
        self._ears.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def worker_at(self, ports: tuple[int, int]) -> psutil.Process:
        """The process that has a TCP connection between these local and remote ports; connections
        to other servers may share the local one.
        """
        for process in self.processes():
            with suppress(psutil.Error):
                if any(
                    link.raddr and (link.laddr.port, link.raddr.port) == ports
                    for link in process.net_connections("tcp")
                ):
                    return process
        raise AssertionError(f"no process of the driver has a connection between the ports {ports}")

    def executor_of(self, worker: psutil.Process) -> psutil.Process:
        """The executor's JVM: the grandparent of its Python worker."""
        found = next(
            (
                each
                for each in worker.parents()
                if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline())
            ),
            None,
        )
        assert found is not None, f"{worker} is of no executor, its parents are {worker.parents()}"
        assert "org.apache.spark.deploy.SparkSubmit" not in " ".join(found.cmdline())
        return found

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _answer(self) -> Any:
        line = self._answers.get(timeout=START_S)
        assert line is not None, (
            f"the driver ended; its log ends with\n{self.log.read_text(errors='replace')[-4000:]}"
        )
        return json.loads(line)


class Garage:
    """Hands out drivers that are up, and starts the next one meanwhile: a driver that is killed has
    cost seconds.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._spare: DriverProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._spare is not None:
            self._spare.kill()

    def take(self, *, last: bool = False) -> DriverProcess:
        """A driver of one's own; ``last``: none will be asked for soon."""
        driver = self._spare or self._new()
        driver.ready()
        self._spare = None if last else self._new()
        return driver

    def _new(self) -> DriverProcess:
        self._made += 1
        return DriverProcess(self._folder / str(self._made))


def is_over(process: psutil.Process) -> bool:
    """Whether it has ended, waited for by its parent or not."""
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def _session(pid: int) -> int:
    with suppress(OSError):
        return os.getsid(pid)
    return 0
