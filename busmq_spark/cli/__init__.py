"""The ``busmq`` command: look into queues, push, follow, and see the whole thing run. One file a command; ``app.py`` lists them.

What every command keeps to:

1. Stdout carries the answer and nothing else; notes, progress and errors go to stderr. With ``--json`` stdout is JSON, one object a line.
2. Exit codes: 0 done (also when the reader of a pipe has seen enough), 1 an error met at run time, 2 a wrong option or argument,
   130 Ctrl-C, 143 SIGTERM. No stack trace for anything that a user can cause.
3. Nothing from a queue reaches the terminal as it is: ``safe.py`` escapes control characters, and no value is read as markup.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line in ``sys.argv`` and leave with its exit code."""
    # While Python loads the commands there is nothing to tidy up, and its import system may swallow an exception.
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else ignored, as for a job in the background of a script
    if interrupts:
        signal.signal(signal.SIGINT, _leave)
    try:
        from busmq_spark.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"error: [BUSMQ_TOOL_MISSING] the busmq command needs {error.name}. Run: pip install 'busmq_spark[cli]'", file=sys.stderr)
        sys.exit(1)
    sys.exit(run(sys.argv[1:], interrupts=interrupts))


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(130)
