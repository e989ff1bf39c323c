"""The column ``fields`` of the source: fields of the jobs that messages name, as they are stored
when the task reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.groups import job as flows
from busmq_spark.queue.keys import JobKeys
from busmq_spark.store.protocol import ConsecutiveMessages, ReadStore
from busmq_spark.store.redis_store import RedisStore

MESSAGES_PER_CALL = 500


class StoredJobFieldsReader:
    """Asked for in one round trip for each 500 messages."""

    def __init__(self, store: ReadStore, names: Sequence[str]) -> None:
        assert isinstance(store, RedisStore), "links are refused"
        self._store, self._names = store, check_job_field_names(names)

    def column(self, rows: ConsecutiveMessages, kind: Any) -> Any:
        """For each message a map: field → its bytes, or its JSON as text; without those that are
        missing. NULL for a message that names no job.
        """
        found: list[list[tuple[str, bytes]] | None] = []
        for at in range(0, len(rows.values), MESSAGES_PER_CALL):
            jobs = [
                _job_id(value) for value in rows.values.slice(at, MESSAGES_PER_CALL).to_pylist()
            ]
            stored = iter(self._read_fields(rows.queue, [job for job in jobs if job is not None]))
            found += [None if job is None else self._present_fields(next(stored)) for job in jobs]
        return pa.array(found, kind)

    def _read_fields(self, queue: str, jobs: Sequence[str]) -> list[list[bytes | None]]:
        cluster = self._store.keys(queue).cluster
        return self._store.run(
            queue, flows.read_fields_of([JobKeys(job, cluster) for job in jobs], self._names)
        )

    def _present_fields(self, stored: Sequence[bytes | None]) -> list[tuple[str, bytes]]:
        return [
            (name, flows.field_bytes(name, value))
            for name, value in zip(self._names, stored, strict=True)
            if value is not None
        ]


def _job_id(value: bytes) -> str | None:
    try:
        return flows.decode_reference(value, "")[0]
    except MessageRefused:
        return None


def check_job_field_names(names: Sequence[str]) -> Sequence[str]:
    """Raises ConfigError for what can be no field."""
    try:
        return [flows.check_field(name) for name in names]
    except ConfigError as error:
        raise ConfigError(reason=f"option 'jobFields': {error.details['reason']}") from None
