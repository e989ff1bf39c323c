"""Commands as bytes."""

from __future__ import annotations

import subprocess
import sys

from busmq_spark.queue.command_generators import command, script
from busmq_spark.redis_io.resp_codec import pack, pack_words, script_as_eval

INTERRUPTED = """
import signal
from busmq_spark.redis_io.resp_codec import pack_words

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


def test_words_that_are_packed_already_go_behind_the_others() -> None:
    words = pack_words(("k", b"\r\n", 5, "v"))
    wired = (2, memoryview(words)[words.index(b"$1\r\n5") :])
    for call in (command("SET", "k", b"\r\n"), script("push", ["k"], ["available"])):
        plain = pack([call._replace(words=(*call.words, 5, "v"))], whole=True)
        assert pack([call._replace(wired=wired)], whole=True) == plain
        assert pack([script_as_eval(call._replace(wired=wired))]) == plain
    assert pack([command("PING"), command("SET", "k")._replace(wired=wired)]) == pack(
        [command("PING"), command("SET", "k", 5, "v")]
    )


def test_a_signal_that_raises_while_a_command_is_packed_raises() -> None:
    """Ctrl-C, or the interrupt of a notebook. In a process of its own: hiredis ended it with a
    segmentation fault.
    """
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "interrupted ten times\n"), done.stderr
