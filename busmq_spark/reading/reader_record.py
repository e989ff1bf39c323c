"""The record that a reader leaves beside its lease, so that others can name it: its JSON in Redis,
at most RECORD_BYTES long and without secrets.

The record is a field of the hash ``readers`` of a queue (queue/keys.py). Programs before it, and
peers of npm, write none. A program of a later version may add keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from busmq_spark.errors.foreign import plain_text

RECORD_BYTES = 800
"""Most bytes of the JSON; the looks before it (lua/include/announce.lua) have the rest of 1 KB."""
MAX_TEXT = 300
"""Most characters of one text of a record."""
_QUERY_OF_URL = re.compile(r"(\w://[^\s?]*)\?[^\s'\"]*")


@dataclass(frozen=True, slots=True)
class BatchMark:
    """A batch of a reader: of Spark, or a list of messages."""

    ms: int
    """The time of planning or commit, in ms since 1970 by the clock of the reader."""
    rows: int
    batch: int | None = None
    """Spark's number of it, where the reader knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderRecord:
    """A reader, as it describes itself. Empty texts and None stand for unknown."""

    kind: str
    """query, ordered, shared, topic, consumer, tail, mirror or federation."""
    name: str = ""
    id: str = ""
    """The first part of the token of the lease (:func:`id_of`): a later holder may leave none."""
    query: str = ""
    """Spark's id of the query."""
    run: str = ""
    app: str = ""
    """Spark's id of the application."""
    ui: str = ""
    checkpoint: str = ""
    host: str = ""
    pid: int | None = None
    engine: str = ""
    """python or java."""
    version: str = ""
    started: int | None = None
    """In ms since 1970 by the clock of the reader, as all its times."""
    at: int | None = None
    """The time of the record."""
    planned: BatchMark | None = None
    committed: BatchMark | None = None
    error: str = ""
    """The last error."""

    def encode(self) -> str:
        """Return the JSON. Credentials in URLs are replaced by ``***``; while the JSON is too long,
        the longest text loses its second half.
        """
        said: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                value = without_secrets(value)
            elif isinstance(value, BatchMark):
                value = [value.ms, value.rows, *([] if value.batch is None else [value.batch])]
            if value not in ("", None):
                said[each.name] = value
        while len(text := json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()) > (
            RECORD_BYTES
        ):
            longest = max(
                (key for key, value in said.items() if isinstance(value, str)),
                key=lambda key: len(said[key]),
            )
            said[longest] = f"{said[longest][: len(said[longest]) // 2]}…"
        return text.decode()

    @classmethod
    def decode(cls, text: str) -> ReaderRecord | None:
        """Return None for text that no reader has written. A value of another type than
        expected is left out.
        """
        try:
            said = json.loads(text)
            assert isinstance(said["kind"], str)
        except (ValueError, TypeError, KeyError, AssertionError, RecursionError):
            return None
        known: dict[str, Any] = {}
        for each in fields(cls):
            value = said.get(each.name)
            if each.name in ("planned", "committed"):
                known[each.name] = _batch_mark(value)
            elif each.name in ("pid", "started", "at"):
                known[each.name] = value if _is_number(value) else None
            elif type(value) is str:
                known[each.name] = value[:MAX_TEXT]
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        """Return the known facts as JSON, with batches as objects."""
        return {
            each.name: (
                {mark.name: getattr(value, mark.name) for mark in fields(value)}
                if isinstance(value, BatchMark)
                else value
            )
            for each in fields(self)
            if (value := getattr(self, each.name)) not in ("", None)
        }


def _is_number(value: object) -> bool:
    """Whether it is a whole number that a float can hold exactly: arithmetic with it never
    fails.
    """
    return type(value) is int and abs(value) < 2**53


def _batch_mark(value: object) -> BatchMark | None:
    whole = isinstance(value, list) and all(map(_is_number, value))
    return BatchMark(*value) if whole and len(value) in (2, 3) else None  # type: ignore[misc, arg-type]


def without_secrets(text: str) -> str:
    """Return a text on one line, of at most MAX_TEXT characters, without credentials and without
    the queries of URLs, which may be signatures.
    """
    return _QUERY_OF_URL.sub(r"\1?***", plain_text(text, 4 * MAX_TEXT))[:MAX_TEXT]


class Announcement(NamedTuple):
    """The record that a reader sends with the renewal of its leases (lua/include/announce.lua)."""

    field: str
    """The field of the hash ``readers``: :func:`lease_field`, :func:`shared_field` or
    :func:`mirror_field`.
    """
    record: str
    own: Mapping[str, int] = MappingProxyType({})
    """Queue → the last id that the reader has finished, where it may be lower than the acked one;
    of a mirror the newest id of its origin.
    """
    hold_ms: int = 0
    """For how long the reader counts as present; 0: for the time of the lease."""

    def own_of(self, queue: str) -> int | str:
        """The id of a queue in ``own``; empty where there is none."""
        return self.own.get(queue, "")


def id_of(token: str) -> str:
    """The part of a lease's token that no other token has."""
    return token.partition("|")[0]


def lease_field(subscription: str) -> str:
    """The field of the holder of a lease; the lease without a name has an empty subscription."""
    return f"l:{subscription}"


def shared_field(group: str, holder: str) -> str:
    """The field of one of the holders of a shared group; ``holder`` is unique and has no colon."""
    return f"g:{holder}:{group}"


def mirror_field(origin: str) -> str:
    """The field of a mirror of an origin, beside its copy of a queue."""
    return f"m:{origin}"


def describe_reader(
    token: str, record: ReaderRecord | None, describe_holder: Callable[[str], str]
) -> str:
    """Return a description of a lease holder for people, on one line; without a record that of its
    token.
    """
    if record is None:
        return describe_holder(token)
    where = describe_holder(token) if token else f"process {record.pid or 'unknown'}"
    if record.host and (not token or "this machine" not in where):
        where = f"process {record.pid or 'unknown'} on {record.host}"
    parts = [f"{record.kind} {record.name!r}" if record.name else record.kind, where]
    parts += [f"application {record.app}"] if record.app else []
    return ", ".join([*parts, *([record.ui] if record.ui else [])])
