"""What the peers of one secret cost together: nothing that one of them takes is taken from those of another.

Each secret has so many sockets, threads, reads and bytes of its own (limits ``…_per_secret``). A token counts for the secret it was signed with.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from busmq_spark.federation.gate.limits import PeerLimits
    from busmq_spark.metrics import Metrics


class PerSecretQuota:
    """What all peers with one secret use together."""

    def __init__(self, limits: PeerLimits) -> None:
        self._limits = limits
        self.sockets = self.bytes = self.working = 0
        """Sockets; bytes taken from them and not worked off; calls and reads under way."""
        self.threads, self.discovering = asyncio.Semaphore(limits.threads_per_secret), asyncio.Semaphore(1)
        self._reads: dict[int, asyncio.Semaphore] = {}
        self._waiting: set[asyncio.Event] = set()

    def read_slots(self, server: int) -> asyncio.Semaphore:
        """Range reads at one Redis."""
        return self._reads.setdefault(server, asyncio.Semaphore(self._limits.reads_per_secret))

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read from its peers."""
        return self.bytes >= self._limits.bytes_per_secret

    def count_bytes(self, size: int) -> None:
        """Count ``size`` bytes more, or fewer, as taken from peers and not worked off."""
        full = self.is_full
        self.bytes += size
        if full and not self.is_full:
            for room in self._waiting:
                room.set()

    def count_socket(self, room: asyncio.Event) -> None:
        """Count a socket; ``room`` is set when there is room again."""
        self.sockets += 1
        self._waiting.add(room)

    def uncount_socket(self, room: asyncio.Event) -> None:
        """Count the socket no more: it is closed."""
        self.sockets -= 1
        self._waiting.discard(room)


class PerSecretQuotas:
    """One for each secret that has shown up; their number is that of the secrets."""

    def __init__(self, limits: PeerLimits, metrics: Metrics, names: tuple[str, ...]) -> None:
        self._limits = limits
        self._quotas: dict[str, PerSecretQuota] = {}
        self._gauges = {
            "sockets": metrics.gauge("busmq_federation_secret_sockets", "Sockets of the peers of one secret", secret=names),
            "bytes": metrics.gauge("busmq_federation_secret_bytes", "Bytes taken from them and not worked off", secret=names),
            "working": metrics.gauge("busmq_federation_secret_working", "Bulk calls and reads of theirs under way", secret=names),
        }
        metrics.before_text(self._set_gauges)

    def quota_of(self, name: str) -> PerSecretQuota:
        """The quota of a secret."""
        return self._quotas.setdefault(name, PerSecretQuota(self._limits))

    def _set_gauges(self) -> None:
        for what, gauge in self._gauges.items():
            for name, quota in self._quotas.items():
                gauge.set(getattr(quota, what), secret=name)
