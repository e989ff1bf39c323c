"""The store of a federation server of either kind: over bulk where the server speaks it, else over
busmq's own protocol.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import Any, Protocol, cast

from busmq_spark.errors import FederationRefused
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.push_listener import FederationPushListenerThread
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.federation.npm_servers.store import FederationNpmStore
from busmq_spark.store.protocol import PushListeners, ReadStore, WriteStore

STATUSES_WITHOUT_BULK = (401, 101)
"""The answers of npm's server to a bulk handshake: it reads the secret from the URL only, and has
no subprotocols. But 401 may come from anything on the way: the secret goes into the URL only where
that was asked for.
"""
log = logging.getLogger("busmq_spark")


class FederationStore(ReadStore, WriteStore, Protocol):
    """The store of a link."""

    def push_listeners(self, notified: threading.Event) -> list[PushListeners]:
        """Return the threads that wake an idle reader, not started."""
        ...


class FederationProtocolDetectingStore:
    """The first call finds out which kind the server is, once. Satisfies FederationStore through
    the store found, hence the cast.
    """

    def __init__(self, address: FederationAddress) -> None:
        self.address = address
        self._bulk = FederationBulkStore(address)
        self._found: FederationBulkStore | FederationNpmStore | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._detect(), name)

    def push_listeners(self, notified: threading.Event) -> list[FederationPushListenerThread]:
        """Return the push listeners of the store; nothing is connected yet."""
        return self._bulk.push_listeners(notified)

    def close(self) -> None:
        """Close the open store."""
        (self._found or self._bulk).close()

    def _detect(self) -> FederationBulkStore | FederationNpmStore:
        if self._found is None:
            try:
                self._bulk.connect()
                self._found = self._bulk
            except FederationRefused as refused:
                status = refused.details.get("status")
                if status not in STATUSES_WITHOUT_BULK or (
                    status == 401 and not self.address.secret_in_url
                ):
                    raise
                self._found = self._make_npm_store(refused)
        return self._found

    def _make_npm_store(self, refused: FederationRefused) -> FederationNpmStore:
        """Raises ``refused`` when the server does not know the secret in this protocol either, or
        is one of ours.
        """
        plain = FederationNpmStore(self.address)
        with ExitStack() as undo:
            undo.callback(plain.close)
            try:
                ours = plain.connect()
            except FederationRefused:
                raise refused from None
            if ours:
                raise refused
            undo.pop_all()
        log.info(
            "the federation server at %s has no bulk protocol (npm busmq): it is read over busmq's"
            " own, which is slower",
            self.address.url,
        )
        return plain


def open_detected(address: FederationAddress) -> FederationStore:
    """A new store; nothing is connected yet. Raises ConfigError for a bad address."""
    return cast(FederationStore, FederationProtocolDetectingStore(address))
