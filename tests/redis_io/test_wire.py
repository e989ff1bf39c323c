"""Commands as bytes."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED = """
import signal
from busmq_spark.redis_io.wire import pack_words

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
words = tuple(range(1_000_000))
for _ in range(10):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        while True:
            pack_words(words)
    except KeyboardInterrupt:
        pass
print("interrupted ten times")
"""


def test_a_signal_that_raises_while_a_command_is_packed_raises() -> None:
    """Ctrl-C, or the interrupt of a notebook. In a process of its own: hiredis ended it with a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted ten times\n"), done.stderr
