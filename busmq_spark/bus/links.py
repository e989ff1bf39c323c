"""The links of a bus to buses elsewhere. Federation stands on the bus and registers here when it is imported: at the first use, so that only who
federates needs web sockets. No other file of the bus knows of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from busmq_spark.extras import without_extra

if TYPE_CHECKING:
    from busmq_spark.bus.bus import Bus


class FederationLinks(Protocol):
    """What federation makes for one bus."""

    def start(self) -> None: ...
    async def close(self) -> None: ...
    def federate(self, thing: Any, url: str | None, secret: str | None, secret_in_url: bool | None) -> Any: ...


HOME = "busmq_spark.federation.client"


def links_of(bus: Bus) -> FederationLinks:
    """New links. Raises LocalToolMissing, which names the extra to install."""
    try:
        return import_module(f"{HOME}.links").FederationClients(bus)  # type: ignore[no-any-return]  # found by its name
    except ModuleNotFoundError as error:
        raise without_extra(error, "federation") from None
