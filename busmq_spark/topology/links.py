"""The links of a bus, one per server a queue may live on."""

from __future__ import annotations

from busmq_spark.topology.address import Address
from busmq_spark.topology.async_link import AsyncLink

AnyAsyncLink = AsyncLink


def async_links(address: Address) -> list[AnyAsyncLink]:
    """Asyncio links, not connected yet."""
    return [AsyncLink(endpoint) for endpoint in address.endpoints]
