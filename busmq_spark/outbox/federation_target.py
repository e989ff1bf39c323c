"""A federation server as the place to forward to, of ours or of npm busmq."""

from __future__ import annotations

from collections.abc import Sequence

from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.client.federation_clients import secret_for_url
from busmq_spark.federation.npm_servers.store import (
    FederationProtocolDetectingStore,
)
from busmq_spark.options import BusOptions
from busmq_spark.outbox.target_bus import (
    TARGET_PATIENCE_S,
    BaseOutboxTarget,
    EventKeys,
    SubscriptionTable,
)
from busmq_spark.routing.event_patterns import destinations


def federation_address(options: BusOptions) -> FederationAddress:
    """The address of the one server. Raises ConfigError."""
    url = options.federate or ""
    named = options.federate_secret_in_url
    found = FederationAddress(
        url,
        secret_for_url(options.federate_secret, url) or "",
        options.federate_tls_ca,
        patience_s=TARGET_PATIENCE_S,
        secret_in_url=named if isinstance(named, bool) else url in named,
    )
    found.check_offline()
    return found


class FederationOutboxTarget(BaseOutboxTarget):
    """The first call finds out which kind of server it is."""

    def __init__(self, where: FederationAddress) -> None:
        super().__init__(FederationProtocolDetectingStore(where))

    def failure_domain(self, queue: str) -> str:  # noqa: ARG002  # as the protocol has it
        """See Target."""
        return ""

    def route(
        self, events: Sequence[EventKeys], made_here: SubscriptionTable
    ) -> tuple[list[list[str]], SubscriptionTable]:
        """See Target. The table is that of the keys that were asked about."""
        found = self._store.event_queues([list(keys) for keys in events])
        if found is None:
            return [destinations(made_here, keys) for keys in events], made_here
        seen = {
            (key, queue)
            for keys, queues in zip(events, found, strict=True)
            if len(keys) == 1
            for key in keys
            for queue in queues
        }
        return [list(queues) for queues in found], sorted(seen)

    def stop(self) -> None:
        """A call under way ends with its reply, or with the link."""
