"""Two data centres and a mirror between them, as tests see them: each through links of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from busmq_spark.mirror.runner import MirrorRunner
from busmq_spark.mirror.settings import MirroredQueueStatus, MirrorSettings
from busmq_spark.options import RedisOptions
from busmq_spark.queue import queue as queues
from busmq_spark.queue.command_generators import Flow, T, command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import QueueState, states
from busmq_spark.redis_io.layout import redis_layout, sync_links
from busmq_spark.redis_io.queue_location import locate, new_token
from tests.support import wait_until


class Centre:
    """The queues of one data centre."""

    def __init__(self, options: RedisOptions) -> None:
        self.options = options
        self._where = redis_layout(options)
        self._links = sync_links(self._where)

    def keys(self, queue: str) -> QueueKeys:
        return QueueKeys(queue, self._where.cluster)

    def run(self, queue: str, flow: Flow[T]) -> T:
        [server] = locate([self.keys(queue)], self._links)
        return self._links[server].run(flow)

    def redis(self, queue: str, *words: Any) -> Any:
        [server] = locate([self.keys(queue)], self._links)
        return self._links[server].execute(command(*words))

    def second(self, queue: str) -> int:
        """The second of the clock of the queue's server."""
        return int(self.redis(queue, "TIME")[0])

    def create(self, queue: str, ttl_s: int = 3600) -> str:
        return self.run(queue, queues.attach(self.keys(queue), new_token(), ttl_s=ttl_s)).born

    def push(self, queue: str, many: int, size: int = 0, word: str = "v") -> None:
        """``v1``, ``v2`` … by their ids."""
        last = self.state(queue).last_id
        values = [
            f"{word}{id}".encode().ljust(size, b".") for id in range(last + 1, last + many + 1)
        ]
        assert self.run(queue, queues.push_many(self.keys(queue), values)) == many

    def stored(self, queue: str) -> list[tuple[int, bytes]]:
        items = self.redis(queue, "LRANGE", self.keys(queue).messages, 0, -1)
        return [(int(id), value) for id, value in zip(items[0::2], items[1::2], strict=True)]

    def state(self, queue: str) -> QueueState:
        return self.run(queue, states([(self.keys(queue), -1)]))[0]

    def close(self) -> None:
        for link in self._links:
            link.close()


def url(place: Centre) -> str:
    return str(place.options.url)


@contextmanager
def centre(options: RedisOptions | str) -> Iterator[Centre]:
    made = Centre(RedisOptions(url=options) if isinstance(options, str) else options)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def mirroring(origin: str, here: Centre, *patterns: str, **options: Any) -> Iterator[MirrorRunner]:
    runner = MirrorRunner(MirrorSettings(origin=origin, patterns=patterns, **options), here.options)
    try:
        runner.start()
        yield runner
    finally:
        runner.stop()


def of(runner: MirrorRunner, queue: str) -> MirroredQueueStatus | None:
    return next((each for each in runner.status() if each.queue == queue), None)


def copied(runner: MirrorRunner, origin: Centre, queues: Sequence[str]) -> None:
    """Wait until the mirror has all that the origin has, of the life that the queue has there; one
    that npm has made may get its name only now.
    """
    for queue in queues:
        there = origin.state(queue)
        wait_until(
            lambda q=queue, s=there: (
                (found := of(runner, q)) and s.born in ("", found.born) and found.last >= s.last_id
            ),  # type: ignore[misc]
            what=f"{queue} copied up to {there.last_id}",
        )


def looked(runner: MirrorRunner) -> None:
    """Wait for a look at all queues that begins now."""
    wanted = runner.look_now()
    wait_until(lambda: runner.looked >= wanted, what="a look at all queues")
