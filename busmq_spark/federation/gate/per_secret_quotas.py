"""The cost of all peers of one secret: no peer takes resources from the peers of another secret.

Each secret has so many sockets, objects, listeners, threads, reads and bytes of its own (limits
``…_per_secret``), and its turns on the loop. A token counts for the secret it was signed with.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from busmq_spark.federation.gate.byte_budget import ByteBudget
from busmq_spark.federation.gate.loop_turns import LoopTurns, SecretTurns
from busmq_spark.federation.send_stall_meter import has_unread_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from busmq_spark.federation.gate.limits import PeerLimits
    from busmq_spark.federation.gate.socket_limiter import LimitedServerConnection
    from busmq_spark.metrics import Metrics

MIN_UNFINISHED_BYTES = 16 * 1024
"""So many bytes of an unfinished message must come within ``unfinished_s`` where room is short."""


class PerSecretQuota(ByteBudget):
    """The resources that all peers with one secret use together.

    If its bytes are used up, nothing more is read from its sockets. If unfinished messages alone
    use them up, the one with the longest is read: it makes room by ending its message.
    """

    def __init__(self, limits: PeerLimits, shared: LoopTurns | None = None) -> None:
        super().__init__(limits.bytes_per_secret)
        self._limits = limits
        self.turns = SecretTurns(shared or LoopTurns())
        self.sockets = self.working = self.channels = self.pubsubs = self.listeners = 0
        """Sockets; calls and reads under way; objects, pubsubs among them, and their listeners."""
        self.threads, self.discovering = (
            asyncio.Semaphore(limits.threads_per_secret),
            asyncio.Semaphore(1),
        )
        self._reads: dict[int, asyncio.Semaphore] = {}
        self._readers: dict[LimitedServerConnection, None] = {}
        self._paused = False
        self._favoured: LimitedServerConnection | None = None
        self._progress: dict[LimitedServerConnection, tuple[int, float]] = {}

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

    def add_reader(self, socket: LimitedServerConnection) -> None:
        """A socket has been let in."""
        self._readers[socket] = None

    def remove_reader(self, socket: LimitedServerConnection) -> None:
        """A socket is closed."""
        self._readers.pop(socket, None)
        self._progress.pop(socket, None)
        if self._favoured is socket:
            self._favoured = None
            self._favour_another()

    def may_read(self, socket: LimitedServerConnection) -> bool:
        """Whether more may be read from a socket now."""
        if self._paused and self._favoured is socket and not socket.unfinished_bytes:
            self._favour_another()
        return not self._paused or self._favoured is socket

    def overdue(self, now: float) -> LimitedServerConnection | None:
        """Return the socket that holds most room with a message that it does not go on with.

        To be asked from time to time. There is none while more may be read from all sockets.
        """
        if not self._paused:
            return None
        if self._favoured is None:
            self._favour_another()
        late: list[LimitedServerConnection] = []
        for socket in self._readers:
            if not socket.unfinished_bytes or socket.is_taking_pause:
                self._progress.pop(socket, None)
                continue
            received, since = self._progress.setdefault(socket, (socket.received, now))
            if socket.received - received >= MIN_UNFINISHED_BYTES or (
                socket is not self._favoured and has_unread_bytes(socket)
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
        metrics.before_text(self._set_gauges)

    def __iter__(self) -> Iterator[PerSecretQuota]:
        return iter(tuple(self._quotas.values()))

    def quota_of(self, name: str) -> PerSecretQuota:
        """The quota of a secret."""
        if (found := self._quotas.get(name)) is None:
            found = self._quotas[name] = PerSecretQuota(self._limits, self._turns)
        return found

    def _set_gauges(self) -> None:
        for what, gauge in self._gauges.items():
            for name, quota in self._quotas.items():
                gauge.set(getattr(quota, what), secret=name)
