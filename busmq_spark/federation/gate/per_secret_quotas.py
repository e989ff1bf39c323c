"""The cost of all peers of one secret: no peer takes resources from the peers of another secret.

Rule 1. Bytes are counted before they are held (:class:`ByteBudget`).
Rule 2. A secret that has used the loop for MAX_TURN_S waits for the next turn of the loop. Its
        sockets get their turns in the order in which they asked, one in a turn of the loop.
Rule 3. While another secret uses the loop too, a secret waits for as long as it has used it.

Each secret has so many sockets, objects, listeners, threads, reads and bytes of its own (limits
``…_per_secret``), and its turns on the loop. A token counts for the secret it was signed with.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from busmq_spark.federation.gate.handshake import HandshakeAcceptance
    from busmq_spark.federation.gate.limits import PeerLimits
    from busmq_spark.metrics import MetricFamily, Metrics

MAX_TURN_S = 0.002
"""Seconds that all peers of one secret use the loop before others have their turn."""
CONTENDED_S = 0.1
"""For so many seconds after its last work a secret counts as one that uses the loop."""


class LoopTurns:
    """The secrets that have used the loop lately."""

    def __init__(self) -> None:
        self._latest: SecretTurns | None = None
        self._latest_at = self._other_at = -CONTENDED_S

    def note_use(self, user: SecretTurns) -> bool:
        """Return whether a secret other than ``user`` has used the loop lately."""
        if self._latest is not user:
            self._other_at, self._latest = self._latest_at, user
        self._latest_at = now = monotonic()
        return now - self._other_at < CONTENDED_S


class SecretTurns:
    """The turns of one secret."""

    def __init__(self, shared: LoopTurns) -> None:
        self._shared = shared
        self._used = 0.0
        self._contended = False
        self._waiting: deque[Callable[[], object]] = deque()
        self._pause: asyncio.Handle | None = None

    @property
    def is_due(self) -> bool:
        """Whether work of the secret may begin at once."""
        return self._pause is None

    def charge(self, seconds: float) -> None:
        """Count ``seconds`` of the loop as used by the secret."""
        self._contended = self._shared.note_use(self)
        self._used += seconds
        if self._used >= MAX_TURN_S and self._pause is None:
            self._start_pause()

    def call_in_turn(self, work: Callable[[], object]) -> None:
        """Call ``work`` once it is the secret's turn, never within this call."""
        self._waiting.append(work)
        if self._pause is None:
            self._start_pause()

    async def wait(self) -> None:
        """Return when it is the secret's turn: at once, without a turn of the loop, if it is."""
        if self._pause is None:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_in_turn(partial(_settle, turn))
        await turn

    def _start_pause(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), self._used if self._contended else 0.0
        self._used = 0.0
        again = self._end_pause
        self._pause = loop.call_later(pause_s, again) if pause_s else loop.call_soon(again)

    def _end_pause(self) -> None:
        self._pause = None
        if self._used >= MAX_TURN_S:  # work that could not wait
            self._start_pause()
        elif self._waiting:
            work = self._waiting.popleft()
            if self._waiting:
                self._start_pause()
            work()


def _settle(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class ByteBudget:
    """Held bytes, and room that was reserved for bytes whose number is not known yet."""

    def __init__(self, most: int) -> None:
        self.most_bytes = most
        self.bytes = 0
        """Held and reserved bytes."""
        self._reservations = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be taken."""
        return self.bytes >= self.most_bytes

    def count_bytes(self, size: int) -> None:
        """Count ``size`` bytes more, or fewer, as held."""
        self.bytes += size
        if size < 0 and self._waiting:
            self._grant_waiting()

    def has_room(self, size: int) -> bool:
        """Whether ``size`` bytes fit; a single reservation need not fit, or it would wait for
        ever.
        """
        return not self.is_full and (not self._reservations or self.bytes + size <= self.most_bytes)

    async def reserve(self, size: int) -> None:
        """Reserve ``size`` bytes, once there is room, in the order of the callers."""
        if self._waiting or not self.has_room(size):
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, granted))
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self.replace_reservation(size, 0)
                else:
                    self._waiting = deque(each for each in self._waiting if each[1] is not granted)
                    self._grant_waiting()
                raise
        else:
            self._take_reservation(size)

    def replace_reservation(self, size: int, held: int) -> None:
        """Count ``held`` bytes in place of a reservation of ``size`` bytes."""
        self._reservations -= 1
        self.count_bytes(held - size)

    def _take_reservation(self, size: int) -> None:
        self._reservations += 1
        self.count_bytes(size)

    def _grant_waiting(self) -> None:
        while self._waiting and self.has_room(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            if not granted.done():
                self._take_reservation(size)
                granted.set_result(None)


MIN_UNFINISHED_BYTES = 16 * 1024
"""So many bytes of an unfinished message must come within ``unfinished_s`` where room is short."""


class QuotaReader(Protocol):
    """A socket that reads for a secret, as its quota sees it."""

    received: int
    """Bytes that the socket has received."""
    accepted: HandshakeAcceptance | None
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    @property
    def unfinished_bytes(self) -> int: ...
    @property
    def has_unread_bytes(self) -> bool: ...
    @property
    def is_taking_pause(self) -> bool: ...
    def adjust_reading(self) -> None: ...


class PerSecretQuota(ByteBudget):
    """The resources that all peers with one secret use together.

    If its bytes are used up, nothing more is read from its sockets. If unfinished messages alone
    use them up, the one with the longest is read: it makes room by ending its message.
    """

    def __init__(
        self,
        limits: PeerLimits,
        shared: LoopTurns | None = None,
        calls: MetricFamily | None = None,
    ) -> None:
        super().__init__(limits.bytes_per_secret)
        self._limits, self._calls = limits, calls
        self.turns = SecretTurns(shared or LoopTurns())
        self.sockets = self.working = self.channels = self.pubsubs = self.listeners = 0
        """Sockets; calls and reads under way; objects, pubsubs among them, and their listeners."""
        self.threads, self.discovering = (
            asyncio.Semaphore(limits.threads_per_secret),
            asyncio.Semaphore(1),
        )
        self._reads: dict[int, asyncio.Semaphore] = {}
        self._readers: dict[QuotaReader, None] = {}
        self._paused = False
        self._favoured: QuotaReader | None = None
        self._progress: dict[QuotaReader, tuple[int, float]] = {}

    def note_call(self, protocol: str, began: float) -> None:
        """Count a call that is answered; ``began`` is a time of ``time.monotonic``."""
        if self._calls is not None:
            self._calls.observe(monotonic() - began, protocol=protocol)

    def read_slots(self, server: int) -> asyncio.Semaphore:
        """Range reads at one Redis."""
        return self._reads.setdefault(server, asyncio.Semaphore(self._limits.reads_per_secret))

    def uncount_channel(self) -> None:
        """An object has ended."""
        self.channels -= 1

    def count_bytes(self, size: int) -> None:
        """Count ``size`` bytes more, or fewer, as held for its peers."""
        super().count_bytes(size)
        if self.is_full if not self._paused else self.bytes < self.most_bytes * 7 // 8:
            self._paused, self._favoured = not self._paused, None
            if self._paused:
                self._favour_another()
            for reader in tuple(self._readers):
                reader.adjust_reading()

    # -- reading ----------------------------------------------------------------------------------

    def add_reader(self, socket: QuotaReader) -> None:
        """A socket has been let in."""
        self._readers[socket] = None

    def remove_reader(self, socket: QuotaReader) -> None:
        """A socket is closed."""
        self._readers.pop(socket, None)
        self._progress.pop(socket, None)
        if self._favoured is socket:
            self._favoured = None
            self._favour_another()

    def may_read(self, socket: QuotaReader) -> bool:
        """Whether more may be read from a socket now."""
        if self._paused and self._favoured is socket and not socket.unfinished_bytes:
            self._favour_another()
        return not self._paused or self._favoured is socket

    def overdue(self, now: float) -> QuotaReader | None:
        """Return the socket that holds most room with a message that it does not go on with.

        To be asked from time to time. There is none while more may be read from all sockets.
        """
        if not self._paused:
            return None
        if self._favoured is None:
            self._favour_another()
        late: list[QuotaReader] = []
        for socket in self._readers:
            if not socket.unfinished_bytes or socket.is_taking_pause:
                self._progress.pop(socket, None)
                continue
            received, since = self._progress.setdefault(socket, (socket.received, now))
            if socket.received - received >= MIN_UNFINISHED_BYTES or (
                socket is not self._favoured and socket.has_unread_bytes
            ):
                self._progress[socket] = socket.received, now
            elif now - since > self._limits.unfinished_s:
                late.append(socket)
        return max(late, key=lambda each: each.unfinished_bytes, default=None)

    def _favour_another(self) -> None:
        sizes = {each: each.unfinished_bytes for each in self._readers if not each.is_taking_pause}
        found = max(sizes, key=lambda each: sizes[each], default=None)
        self._favoured = found if sum(sizes.values()) >= self.most_bytes * 7 // 8 else None
        if self._favoured is not None:
            self._favoured.loop.call_soon(self._favoured.adjust_reading)


class PerSecretQuotas:
    """The quotas of the secrets that have connected; their number is that of the secrets."""

    def __init__(self, limits: PeerLimits, metrics: Metrics, names: tuple[str, ...]) -> None:
        self._limits, self._turns = limits, LoopTurns()
        self._quotas: dict[str, PerSecretQuota] = {}
        self._gauges = {
            "sockets": metrics.gauge(
                "busmq_federation_secret_sockets",
                "Sockets of the peers of one secret",
                secret=names,
            ),
            "bytes": metrics.gauge(
                "busmq_federation_secret_bytes", "Bytes held for them", secret=names
            ),
            "working": metrics.gauge(
                "busmq_federation_secret_working",
                "Bulk calls and reads of theirs under way",
                secret=names,
            ),
        }
        self._calls = metrics.histogram(
            "busmq_federation_call_seconds",
            "Time from taking a call to its answer, by protocol",
            protocol=("busmq", BULK_SUBPROTOCOL),
        )
        metrics.before_text(self._set_gauges)

    def __iter__(self) -> Iterator[PerSecretQuota]:
        return iter(tuple(self._quotas.values()))

    def quota_of(self, name: str) -> PerSecretQuota:
        """The quota of a secret."""
        if (found := self._quotas.get(name)) is None:
            found = self._quotas[name] = PerSecretQuota(self._limits, self._turns, self._calls)
        return found

    def _set_gauges(self) -> None:
        quotas = tuple(self._quotas.items())  # the loop adds to the dict meanwhile
        for what, gauge in self._gauges.items():
            for name, quota in quotas:
                gauge.set(getattr(quota, what), secret=name)
