"""A data centre for the demo: a Redis, ``busmq serve`` in front of it in a process of its own, and
a thread that pushes all the time.
"""

import os
import secrets
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from busmq_spark.cli.queue_lookup import locate_queue, open_links
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost
from busmq_spark.options import RedisOptions
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach, push_many
from busmq_spark.redis_io.queue_location import new_token

PUSH_INTERVAL_S = 0.025
MESSAGES_PER_PUSH = 50
"""Messages pushed every PUSH_INTERVAL_S: 2,000 a second."""
STOP_TIMEOUT_S = 10.0


class DemoDataCentre:
    """Open while the block runs. Its Redis stays; ``stop_server`` and ``start_server`` take its
    federation server away and bring it back.
    """

    def __init__(self, name: str, queue: str, folder: Path) -> None:
        self.name, self.url = name, ""
        self.secret = secrets.token_urlsafe(24)
        self.pushed = 0
        self._queue, self._log = queue, folder / f"{name}.log"
        self._keyring = folder / f"{name}.toml"
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self._ended = threading.Event()
        self._producer = threading.Thread(
            target=self._push_until_stopped, name=f"busmq-demo-{name}", daemon=True
        )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._redis = stack.enter_context(EmbeddedRedis())
            self._keyring.touch(0o600)
            self._keyring.write_text(
                f'[demo]\nsecret = "{self.secret}"\nread = ["{self._queue}"]\nwrite ='
                f' ["{self._queue}"]\n'
            )
            stack.callback(self.stop_server)
            self.start_server()
            stack.callback(self._ended.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start_server(self) -> None:
        """Serve; returns when it does."""
        command = [
            sys.executable,
            "-m",
            "busmq_spark",
            "serve",
            "--listen",
            self._listen,
            "--secrets",
            str(self._keyring),
            "--json",
        ]
        environ = {**os.environ, "BUSMQ_REDIS_URL": self._redis.url}
        with self._log.open("ab") as log:
            # A session of its own: a Ctrl-C reaches the demo only, which ends it in its turn.
            self._process = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text("utf-8", "replace").strip().splitlines()
            raise LinkLost(
                url=self._listen,
                reason=(
                    "the federation server did not start"
                    f" ({said[-1] if said else 'it said nothing'})"
                ),
            )
        self.url = line.partition('"url": "')[2].partition('"')[0]
        self._listen = self.url.partition("//")[2].partition("/")[0]

    def stop_server(self) -> None:
        """End the federation server, unless it is gone."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def start_producer(self) -> None:
        """Begin to push."""
        self._producer.start()

    def stop_producer(self) -> int:
        """End the producer; the number of messages it has pushed in all."""
        self._ended.set()
        self._producer.join()
        return self.pushed

    def _push_until_stopped(self) -> None:
        with open_links(RedisOptions(url=self._redis.url)) as links:
            place = locate_queue(self._queue, links)
            place.link.run(attach(place.keys, new_token(), ttl_s=MIN_RECORD_TTL_S))
            while not self._ended.wait(PUSH_INTERVAL_S):
                messages = [
                    b'{"n": %d}' % n
                    for n in range(self.pushed + 1, self.pushed + MESSAGES_PER_PUSH + 1)
                ]
                place.link.run(push_many(place.keys, messages))
                self.pushed += MESSAGES_PER_PUSH
