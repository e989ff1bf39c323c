"""The links of a bus to buses elsewhere. Federation stands on the bus and registers here when it is imported: at the first use, so that only who
federates needs web sockets. No other file of the bus knows of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self

from busmq_spark.extras import without_extra

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus
    from busmq_spark.errors import BusError
    from busmq_spark.metrics import Metrics


class FederationLinks(Protocol):
    """What federation makes for one bus."""

    def start(self) -> None: ...
    async def close(self) -> None: ...
    def federate(self, thing: Any, url: str | None, secret: str | None, secret_in_url: bool | None) -> Any: ...


class Mirror(Protocol):
    """Copies queues of another data centre here, while its block runs (mirror/bus_mirror.py)."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *failed: Any) -> None: ...
    async def start(self) -> None: ...
    async def detach(self) -> None: ...
    @property
    def error(self) -> BusError | None: ...
    def status(self) -> list[Any]: ...
    async def caught_up(self, timeout_s: float = 60.0) -> list[Any]: ...


FEDERATION_CLIENT_MODULE = "busmq_spark.federation.client"
MIRROR_MODULE = "busmq_spark.mirror"


def make_federation_links(bus: Bus) -> FederationLinks:
    """New links. Raises LocalToolMissing, which names the extra to install."""
    try:
        return import_module(f"{FEDERATION_CLIENT_MODULE}.federation_clients").FederationClients(bus)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        raise without_extra(error, "federation") from None


def make_mirror(bus: Bus, origin: str, queues: tuple[str, ...], metrics: Metrics | None, options: dict[str, Any]) -> Any:
    """A mirror (mirror/bus_mirror.py), which stands on stores, as federation does."""
    return import_module(f"{MIRROR_MODULE}.bus_mirror").MirrorIntoBus(bus, origin, queues, metrics, options)
