"""A Python for Spark's Python processes that starts each by a fork of one that has loaded what they
import. Started anew, one takes a second of processor time: each streaming query has such
processes of its own.

The executable that Spark starts stands for the fork: it gives it its arguments, environment and
streams, and ends when it does; if Spark ends it, the fork ends.
"""

from __future__ import annotations

import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOADED = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "busmq_spark.spark.read.batch_reader",
    "busmq_spark.spark.read.planning",
    "busmq_spark.spark.read.stream_reader",
    "busmq_spark.spark.write.writers",
)
EXECUTABLE = """#!{python} -IS
import marshal, os, socket, sys
if sys.argv[1] != "-m":
    os.execv("{python}", ["{python}", *sys.argv[1:]])
link = socket.socket(socket.AF_UNIX)
link.connect("{address}")
told = marshal.dumps((sys.argv[2:], dict(os.environ), os.getcwd()))
socket.send_fds(link, [len(told).to_bytes(8, "big")], [0, 1, 2])
link.sendall(told)
for stream in 0, 1, 2:
    os.close(stream)
link.recv(1)
"""


@contextmanager
def preloaded_python(folder: Path) -> Iterator[str]:
    """The path of the executable."""
    address, python = folder / "socket", folder / "python"
    python.write_text(EXECUTABLE.format(python=sys.executable, address=address))
    python.chmod(0o755)
    as_spark_has_it = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES"}
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(address)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **as_spark_has_it},
    )
    with process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield str(python)


def main() -> None:
    for name in LOADED:
        with suppress(ImportError):  # an older Spark lacks some
            importlib.import_module(name)
    warnings.filterwarnings("ignore", module="runpy")  # it runs what is imported already
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen()
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([server, sys.stdin], [], [])[0]:
                return  # who wants these processes has ended
            link, _ = server.accept()
            if os.fork() == 0:
                break
            link.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    become(link)


def become(link: socket.socket) -> None:
    """Be the process that was asked for over ``link``."""
    size, streams, _, _ = socket.recv_fds(link, 8, 3)
    with link.makefile("rb") as told:
        arguments, environment, folder = marshal.loads(told.read(int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    threading.Thread(target=end_with, args=(link,), daemon=True).start()
    sys.argv[1:] = arguments[1:]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def end_with(link: socket.socket) -> None:
    link.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
