"""While a task stages, the lists of its run live on: its own, however long its rows take to come,
and those of tasks that have ended.
"""

from __future__ import annotations

import logging
from threading import Event, Thread

from busmq_spark.errors import BusError
from busmq_spark.options import WriteOptions
from busmq_spark.spark.stores import new_sink_store
from busmq_spark.writing.sink import STAGE_TTL_S
from busmq_spark.writing.sink_runs import SinkRun

RENEWAL_INTERVAL_S = STAGE_TTL_S / 4
"""Seconds between two renewals of a task. Most tasks end before that, and have opened no connection
for it.
"""
RENEWAL_RETRY_S = 60.0
"""Seconds until the next try after an error."""
log = logging.getLogger("busmq_spark")


class StagingRenewal:
    """A daemon thread with a store of its own, since the one of the task has chunks under way. Use
    it as a context manager.
    """

    def __init__(self, options: WriteOptions) -> None:
        self.run: SinkRun | None = None
        """The run to renew; it is None until the task stages."""
        self._options = options
        self._ended = Event()

    def __enter__(self) -> StagingRenewal:
        Thread(target=self._renew_regularly, name="busmq-staged", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _renew_regularly(self) -> None:
        pause_s = RENEWAL_INTERVAL_S
        while not self._ended.wait(pause_s):
            if self.run is not None:
                pause_s = (
                    RENEWAL_INTERVAL_S
                    if self._renew(self.run)
                    else min(RENEWAL_RETRY_S, RENEWAL_INTERVAL_S)
                )

    def _renew(self, run: SinkRun) -> bool:
        store = new_sink_store(self._options)
        try:
            store.renew(run)
            return True
        except BusError as error:
            log.warning(
                "what sink %s has staged could not be renewed, and is tried again: %s",
                run.sink,
                error,
            )
            return False
        finally:
            store.close()
