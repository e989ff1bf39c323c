"""When a forwarder rests: behind all that waited, never before it, and never longer than its outbox
is open.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from busmq_spark.outbox import forwarder, sql
from busmq_spark.outbox.outbox import SyncOutbox
from busmq_spark.outbox.target_bus import RedisOutboxTarget
from busmq_spark.queue.message import CHUNK_BYTES, CHUNK_MESSAGES
from tests.conftest import Fresh
from tests.outbox.conftest import Place, drain
from tests.support import PATIENCE_S, lasting_port, wait_until

pytestmark = pytest.mark.redis
CLOSED_S = 60.0
"""Far more than closing takes on a machine with much other work, and less than the rest of that
test.
"""


class Rests:
    """Rests of a forwarder that are as long as it is told, and whether it went to wait for work
    without one behind what it had sent.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun, self._awaited, self._sent, self._missed = 0, 0, False, False
        self.over = threading.Semaphore(0)
        push, wait = RedisOutboxTarget.push, forwarder.OutboxForwarder._wait_for_change

        def noted(target: RedisOutboxTarget, queue: str, chunk: sql.OutboxChunk) -> tuple[int, int]:
            self._sent = True
            return push(target, queue, chunk)

        def idle(of: forwarder.OutboxForwarder, for_s: float | None) -> None:
            self._missed = self._missed or self._sent
            wait(of, for_s)

        monkeypatch.setattr(RedisOutboxTarget, "push", noted)
        monkeypatch.setattr(forwarder.OutboxForwarder, "_wait_for_change", idle)
        monkeypatch.setattr(forwarder.OutboxForwarder, "_pause_between_turns", self._rest)

    def _rest(self) -> None:
        self._sent = False
        self._begun += 1
        self.over.acquire()

    def wait_begun(self) -> None:
        """Until the next one begins."""
        self._awaited += 1
        wait_until(lambda: self._begun >= self._awaited or self._missed, what="a rest begins")
        assert not self._missed, (
            "the forwarder has sent something, and waits for work without a rest"
        )


def test_what_comes_while_the_forwarder_rests_goes_together(
    path: Path, here: Place, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, rests, sent, push = fresh("orders"), Rests(monkeypatch), [], RedisOutboxTarget.push

    def noted(target: RedisOutboxTarget, queue: str, chunk: sql.OutboxChunk) -> tuple[int, int]:
        sent.append(len(chunk.numbers))
        return push(target, queue, chunk)

    monkeypatch.setattr(RedisOutboxTarget, "push", noted)
    with here.outbox(path) as outbox:
        for count in (1, 3, 5):
            for n in range(count):
                outbox.push(queue, n)
            if count > 1:
                rests.over.release()
            rests.wait_begun()
        rests.over.release()
        drain(outbox)
    assert sent == [1, 3, 5]


def test_nothing_rests_before_all_is_sent(
    path: Path, here: Place, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it goes in many chunks: commands apart from messages, and large messages apart."""
    queue = fresh("orders")
    with SyncOutbox(path, f"redis://127.0.0.1:{lasting_port()}") as outbox:
        outbox.push(queue, *range(CHUNK_MESSAGES))
        outbox.send(queue, 1)
        outbox.push(queue, *[b"x" * (CHUNK_BYTES // 2 + 1)] * 3)
    rests = Rests(monkeypatch)
    with here.outbox(path) as outbox:
        rests.wait_begun()
        assert len(here.values(queue)) == CHUNK_MESSAGES + 4
        rests.over.release()
        drain(outbox)


def test_nothing_rests_between_the_routing_of_an_event_and_its_sending(
    path: Path, here: Place, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, word, events = fresh("orders"), fresh("k"), fresh("events")
    with SyncOutbox(path, f"redis://127.0.0.1:{lasting_port()}") as outbox:
        outbox.push(queue, 1)
        outbox.subscribe([word], into=events)
        outbox.publish_many([word], [2, 3])
    rests = Rests(monkeypatch)
    with here.outbox(path) as outbox:
        rests.wait_begun()
        assert (len(here.values(queue)), len(here.values(events))) == (1, 2)
        rests.over.release()
        drain(outbox)


def test_an_outbox_that_is_closed_does_not_wait_for_a_rest(
    path: Path, here: Place, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "PAUSE_BETWEEN_TURNS_S", 100 * PATIENCE_S)
    queue = fresh("orders")
    with here.outbox(path) as outbox:
        outbox.push(queue, 1)
        wait_until(lambda: here.values(queue) == [b"1"])
        closing = threading.Thread(
            target=outbox.__exit__, args=(None, None, None), daemon=True
        )  # a rest that keeps the lock would hold it up
        closing.start()
        wait_until(
            lambda: not closing.is_alive(),
            CLOSED_S,
            "an outbox is closed while its forwarder rests",
        )
    assert not any(each._thread.is_alive() for each in outbox._engine._forwarders), (
        "the forwarder rests on behind the end of its outbox"
    )
