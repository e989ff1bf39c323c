"""Wakes a waiting thread at a push to any of some queues of another data centre, over
``busmq.bulk.v1``.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from busmq_spark.errors import BusError, FederationRefused, LinkLost
from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.bulk.client import FederationBulkClient
from busmq_spark.redis_io.push_listener import PushListenerThread

PUSH_WAIT_MS = 2_000
"""Milliseconds for which one ``wait`` of a push listener stays open; new queues are listened to
after as long at most.
"""
log = logging.getLogger("busmq_spark")


class FederationPushListenerThread(PushListenerThread):
    """Asks a federation server about pushes to queues, by their names."""

    def __init__(self, address: FederationAddress, notified: threading.Event) -> None:
        super().__init__(notified)
        self._link = FederationBulkClient(address)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._changed.clear()
                self._call_once("listen", self._names)
                self._notified.set()  # pushes before the subscription sent no notification
                while not (self._stopped.is_set() or self._changed.is_set()):
                    if self._call_once("wait", PUSH_WAIT_MS):
                        self._notified.set()
                        self._stopped.wait(
                            0.002
                        )  # wakes the reader a few hundred times a second at most
            except LinkLost as error:
                log.debug("push listener: %s", error)
                self._stopped.wait(1.0)
            except BusError as error:
                # A server without bulk notifies of no pushes either; one that refuses other calls
                # too raises its error in the store's next call.
                log.log(
                    logging.DEBUG if isinstance(error, FederationRefused) else logging.WARNING,
                    "pushes are not received, new messages are found by polling only: %s",
                    error,
                )
                return
        self._link.drop_connection()

    def _call_once(self, name: str, *arguments: Any) -> Any:
        """Not repeated by the link: on a new connection ``listen`` must be sent first."""
        try:
            return self._link.wait_for_result(self._link.send_call(name, *arguments), name)
        except BusError:
            self._link.drop_connection()
            raise
