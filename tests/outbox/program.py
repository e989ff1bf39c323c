"""A program that publishes, for tests that kill it or fill its disk:
``python -m tests.outbox.program PATH TO QUEUE ORDER…``.

TO is a URL, or the settings of an outbox in JSON.

It writes a line ``kept FIRST LAST`` for what a call has returned for, and is told by lines of stdin
what to do next: ``push COUNT [SIZE]``, ``publish``, ``forever SIZE``, ``until-full SIZE``,
``limit BYTES``, ``drain``, ``close``. ``publish`` has QUEUE as its key.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from busmq_spark.errors import BusError
from busmq_spark.outbox.outbox import SyncOutbox


class Publisher:
    def __init__(self, outbox: SyncOutbox, queue: str, first: int) -> None:
        self.outbox, self.queue, self.next = outbox, queue, first

    def push(self, count: int, size: int) -> None:
        values = [b"%d %s" % (self.next + n, b"x" * size) for n in range(count)]
        self.outbox.push(self.queue, *values)
        say("kept", self.next, self.next + count - 1)
        self.next += count

    def publish(self) -> None:
        self.outbox.publish([self.queue], self.next)
        say("kept", self.next, self.next)
        self.next += 1

    def until_full(self, size: int) -> None:
        while True:
            try:
                self.push(1, size)
            except BusError as error:
                say("because", str(error).replace("\n", " "))
                say("refused", error.code)
                return


def say(*words: object) -> None:
    print(*words, flush=True)


def limit_file_size(size: int) -> None:
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (size or resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )


def main(path: str, to: str, queue: str, first: str) -> None:
    settings = json.loads(to) if to.startswith("{") else {"url": to}
    limit_file_size(int(os.environ.get("BUSMQ_TEST_FILE_SIZE", "0")))
    with SyncOutbox(Path(path), settings.pop("url"), **settings) as outbox:
        publisher = Publisher(outbox, queue, int(first))
        say("open")
        for line in sys.stdin:
            order, *numbers = line.split()
            given = [*map(int, numbers), 0]
            if order == "push":
                publisher.push(given[0], given[1])
            elif order == "publish":
                publisher.publish()
            elif order == "forever":
                while True:
                    publisher.push(1 + publisher.next % 7, given[0])
            elif order == "until-full":
                publisher.until_full(given[0])
            elif order == "limit":
                limit_file_size(given[0])
            elif order == "remove":
                outbox.remove(given[0])
            elif order == "drain":
                outbox.wait_drained(300)
            elif order == "close":
                break
            say("done")


if __name__ == "__main__":
    main(*sys.argv[1:5])
