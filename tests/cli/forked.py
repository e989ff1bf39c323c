"""Command lines in processes forked from one that has loaded the commands: each then costs what it
does, not half a second of imports.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from busmq_spark.__main__ import main
from tests.support import PATIENCE_S

_FORKS = multiprocessing.get_context("forkserver")
LOADED = [
    __name__,
    "busmq_spark.cli_app",
    "busmq_spark.mirror.runner",
    "typer.rich_utils",
    "typer._adapters",
    "typer._click.decorators",
    "rich.emoji",
    "rich.markdown",
    "encodings.idna",
]
"""What commands import, some only as they run. One that a release of Typer lacks is passed over."""


def run(
    arguments: list[str],
    stdin: bytes,
    environment: dict[str, str],
    *,
    closed: tuple[int, ...] = (),
    pipe: bool = False,
) -> tuple[int, bytes, bytes]:
    """Run ``busmq`` with these arguments to its end: exit code, stdout and stderr. Some streams may
    be ``closed``; with ``pipe`` stdout is one that nobody reads any more.
    """
    _FORKS.set_forkserver_preload(LOADED)
    with TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_bytes(stdin)
        process = _FORKS.Process(
            target=_command, args=(arguments, streams, environment, closed, pipe), daemon=True
        )
        process.start()
        process.join(PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(
                f"busmq {' '.join(arguments)} has not ended; its stderr:"
                f" {streams[2].read_text(errors='replace')}"
            )
        found = [each.read_bytes() if each.exists() else b"" for each in streams[1:]]
        return process.exitcode, found[0], found[1]


def _command(
    arguments: list[str],
    streams: list[Path],
    environment: dict[str, str],
    closed: tuple[int, ...],
    pipe: bool,
) -> None:
    for number, (stream, flags) in enumerate(
        zip(streams, (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT), strict=True)
    ):
        opened = os.open(stream, flags)
        os.dup2(opened, number)
        os.close(opened)
    if pipe:
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
        os.close(writing)
    for number in closed:
        os.close(number)
    # Multiprocessing has put an empty one in its place; Python itself has none for a closed one.
    sys.stdin = None if 0 in closed else open(0, closefd=False)  # type: ignore[assignment]  # noqa: SIM115
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    for number, name in ((1, "stdout"), (2, "stderr")):
        made = None if number in closed else open(number, "w", encoding=encoding, closefd=False)  # noqa: SIM115
        setattr(sys, name, made)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    main()
