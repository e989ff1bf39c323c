"""The links of a bus to buses elsewhere. Federation and mirrors stand on the bus; they are named
here and imported at the first use, so that only a program that federates needs web sockets. No
other file of the bus imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypedDict

from busmq_spark.extras import DeferredImport

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.errors import BusError
    from busmq_spark.metrics import Metrics


class FederationLinks(Protocol):
    """The federation objects of one bus."""

    def start(self) -> None: ...
    async def close(self) -> None: ...
    def federate(
        self, thing: Any, url: str | None, secret: str | None, secret_in_url: bool | None
    ) -> Any: ...


class MirrorKeywords(TypedDict, total=False):
    """The options of a mirror; see MirrorSettings."""

    secret: str
    layout: Literal["direct", "sentinel", "cluster"]
    user: str | None
    password: str | None
    master: str
    tls_ca: str | PathLike[str] | None
    tls_certificate: str | PathLike[str] | None
    tls_key: str | PathLike[str] | None
    groups: bool
    retention: Literal["origin", "own"]
    new_life: Literal["stop", "follow"]
    bytes_per_s: int
    name: str
    origin_name: str
    replace: bool


class MirrorHandle(Protocol):
    """Copies queues of another data centre here, while its block runs (mirror/runner.py)."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *failed: Any) -> None: ...
    async def start(self) -> Self: ...
    async def detach(self) -> None: ...
    @property
    def error(self) -> BusError | None: ...
    def status(self) -> list[Any]: ...
    async def caught_up(self, timeout_s: float = 60.0) -> list[Any]: ...


def make_federation_links(bus: BusContext) -> FederationLinks:
    """New links. Raises ToolMissing, which names the extra to install."""
    clients: DeferredImport[
        Callable[[BusContext], FederationLinks]
    ]  # no constant: a bus in a function that Spark pickles would take federation along
    clients = DeferredImport(
        "federation.client.federation_clients", "FederationClients", needed_by="federation"
    )
    return clients.get()(bus)


def make_mirror(
    bus: BusContext,
    origin: str | Sequence[str],
    queues: tuple[str, ...],
    metrics: Metrics | None,
    options: MirrorKeywords,
) -> MirrorHandle:
    """A mirror (mirror/runner.py), which stands on stores, as federation does."""
    mirror: DeferredImport[Callable[..., MirrorHandle]] = DeferredImport(
        "mirror.runner", "BusMirror"
    )
    return mirror.get()(bus, origin, queues, metrics, options)
