"""Wakes a waiting thread at a push to any of some queues. Notifications are counted as bytes, not
parsed: 70 000 a second must cost nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import monotonic

import redis.exceptions as rx

from busmq_spark.errors import BusError
from busmq_spark.queue.command_generators import slices
from busmq_spark.redis_io.endpoint import RedisEndpoint
from busmq_spark.redis_io.moving_endpoints import dial
from busmq_spark.redis_io.resp_codec import pack_words

_NAMES_PER_CALL = 500


class PushListenerThread:
    """A daemon thread that sets ``notified`` when something arrives for one of the names it listens
    to; the subclass knows how.

    It only makes things faster: while it cannot connect, the owner's own polling goes on. ``stop``
    ends it; so does the end of the process.
    """

    def __init__(self, notified: threading.Event) -> None:
        self._notified = notified
        self._names: tuple[str, ...] = ()
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def listen(self, names: Sequence[str]) -> None:
        """Listen to exactly these names from now on."""
        if tuple(names) == self._names:
            return
        self._names = tuple(names)
        self._changed.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="busmq-push-listener", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread; returns at once."""
        self._stopped.set()

    def _run(self) -> None:
        """Listen until ``_stopped``, to other names whenever ``_changed``."""
        raise NotImplementedError


class RedisPushListenerThread(PushListenerThread):
    """Subscribes to notification channels, the names, of one server."""

    def __init__(self, endpoint: RedisEndpoint, notified: threading.Event) -> None:
        super().__init__(notified)
        self._endpoint = endpoint

    def _run(self) -> None:
        while not self._stopped.is_set():
            connection = None
            try:
                connection = dial(self._endpoint)
                self._changed.clear()
                for part in slices(self._names, _NAMES_PER_CALL):
                    connection.send_packed_command(
                        [pack_words(("SUBSCRIBE", *part))], check_health=False
                    )
                # The confirmations notify too, as they should: there was no notification of pushes
                # before them.
                self._notify_on_data(
                    connection._sock
                )  # the socket itself: redis-py offers no way to read without parsing
            except (rx.RedisError, OSError, BusError):
                self._stopped.wait(1.0)
            finally:
                if connection is not None:
                    connection.disconnect()

    def _notify_on_data(self, sock: object) -> None:
        sock.settimeout(0.5)  # type: ignore[attr-defined]  # a socket
        last_data_at = monotonic()
        while not (self._stopped.is_set() or self._changed.is_set()):
            try:
                if not sock.recv(262_144):  # type: ignore[attr-defined]  # a socket
                    return
            except TimeoutError:
                if monotonic() - last_data_at > 60:
                    return  # half-open links say nothing for ever: connect anew now and then
                continue
            last_data_at = monotonic()
            self._notified.set()
            self._stopped.wait(0.001)  # wakes the reader a thousand times a second at most
