"""The ``busmq`` command, also as ``python -m busmq_spark`` for where scripts are not on PATH."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line in ``sys.argv`` and leave with its exit code."""
    # While Python loads the commands there is nothing to tidy up, and its import system may swallow
    # an exception.
    interrupts = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # else ignored, as for a job in the background of a script
    if interrupts:
        signal.signal(signal.SIGINT, _leave)
    try:
        from busmq_spark.cli_app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"error: [BUSMQ_TOOL_MISSING] the busmq command needs {error.name}. Run: pip install"
            " 'busmq_spark[cli]'",
            file=sys.stderr,
        )
        sys.exit(1)
    sys.exit(run(sys.argv[1:], interrupts=interrupts))


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(130)


if __name__ == "__main__":
    main()
