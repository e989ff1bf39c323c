"""A persisted object: which of its fields are stored, which have changed, and the commands for them
(protocol 4.2).

Rule 1. A field is written only when it was assigned, or when its value is another than the one last
        seen in Redis, which also finds a list that was appended to. A value from Redis never
        replaces such a change.
Rule 2. A save notes its changes when it sends them, so a change made meanwhile is still a change
        afterwards (protocol Q32).
Rule 3. A field that is no JSON, or not of the field's type, is left as it is in Redis and listed
        apart; it is replaced only by an assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from busmq_spark.errors import MessageRefused
from busmq_spark.objects.persisted_types import PersistedTypeMismatch, from_text, to_text
from busmq_spark.queue.command_generators import Flow, command, script

MOST_FIELDS = 20_000
"""Most fields of an object that is loaded for a peer: Redis asks each for its length, which takes
it 5 ms.
"""


@dataclass(frozen=True, slots=True)
class PersistedFieldChanges:
    """The changes of one save: ``fields`` replace stored values, ``missing`` are stored only where
    no value is.
    """

    fields: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.fields or self.missing)


class TrackedFields:
    """The values of one object, and what is known of their stored form. ``hints`` are the names it
    has, with types; None allows any name.
    """

    def __init__(
        self,
        values: MutableMapping[str, Any],
        hints: Mapping[str, Any] | None = None,
        *,
        unsaved: bool = False,
    ) -> None:
        """``unsaved``: the values given are to be stored by the next save, yet give way to what a
        load finds first.
        """
        self.values, self.hints = values, hints
        self.misfits: dict[str, str] = {}
        """Stored fields that could not be taken over, as text."""
        self._seen = {name: self._encode(name) for name in values}
        self._start = dict(self._seen)
        self._assigned: set[str] = set()
        self._unsaved = set(values) if unsaved else set()
        self._stored: set[str] = set()
        self._lost: set[str] = set()

    def assign(self, name: str, value: Any) -> None:
        """Set a field. Raises MessageRefused for a value that JSON cannot express."""
        self._encode_checked(name, value)
        self.values[name] = value
        self._assigned.add(name)

    @property
    def dirty(self) -> set[str]:
        """Names that a save would write over what is stored."""
        return {name for name in self.values if name in self._unsaved or self._is_changed(name)}

    def send(self) -> PersistedFieldChanges:
        """Begin a save. Raises MessageRefused, naming the field, when a value has become one that
        cannot be stored.
        """
        dirty = self.dirty
        sending = PersistedFieldChanges(
            {n: self._encode(n) for n in sorted(dirty)},
            {n: self._encode(n) for n in sorted(self._lost - dirty)},
        )
        self._assigned -= sending.fields.keys()
        return sending

    def on_save_failed(self, sending: PersistedFieldChanges) -> None:
        """Mark the changes of a save that failed, or whose result is unknown, as unsaved."""
        self._assigned |= sending.fields.keys()

    def on_saved(self, sending: PersistedFieldChanges, created: int) -> None:
        """The save came through and ``created`` of its fields were not there before."""
        if created > len(sending.fields.keys() - self._stored):
            self.on_gone()  # a field known to be stored was not: Redis has lost the object
        self._seen |= sending.fields | sending.missing
        self._stored |= sending.fields.keys() | sending.missing.keys()
        self._lost -= self._stored
        self._unsaved -= self._stored
        for name in sending.fields:
            self.misfits.pop(name, None)

    def on_gone(self) -> bool:
        """The object has vanished from Redis: the next save restores each of its fields that no
        other client has. Result: whether it had any.
        """
        had = bool(self._stored)
        self._lost |= self._stored
        self._stored.clear()
        return had

    @property
    def incomplete(self) -> bool:
        """Whether fields that once were stored are known to be missing in Redis."""
        return bool(self._lost)

    def load(self, stored: Mapping[str, bytes]) -> dict[str, str]:
        """Take over what Redis has; changes not saved yet stay. The result are new misfits: field →
        what was expected.
        """
        expected: dict[str, str] = {}
        misfits: dict[str, str] = {}
        for name, text in stored.items():
            if self.hints is not None and name not in self.hints:
                continue  # a field of another client: neither read nor written
            try:
                value = from_text(text, self._field_type(name))
            except PersistedTypeMismatch as misfit:
                misfits[name] = text.decode("utf-8", "replace")
                if self.misfits.get(name) != misfits[name]:
                    expected[name] = str(misfit)
            else:
                self._take_over_field(name, value)
        self.misfits = misfits
        for name in set(self._seen) - stored.keys():
            self._on_field_gone(name)
        self._stored = {name for name in stored if name in self._seen and name not in misfits}
        self._lost.clear()
        return expected

    def _take_over_field(self, name: str, value: Any) -> None:
        changed = name in self.values and self._is_changed(name)
        self._seen[name] = to_text(value, self._field_type(name))
        if not changed:
            self.values[name] = value
            self._unsaved.discard(name)

    def _on_field_gone(self, name: str) -> None:
        """The field is not stored any more: it has the value it began with, or none."""
        if self._is_changed(name) or name in self._unsaved:
            self._assigned |= {name} - self._unsaved
        elif name in self._start:
            self._seen[name] = self._start[name]
            self.values[name] = from_text(self._start[name], self._field_type(name))
        else:
            del self._seen[name], self.values[name]

    def _is_changed(self, name: str) -> bool:
        try:
            return name in self._assigned or self._seen.get(name) != self._encode(name)
        except MessageRefused:
            return True  # in place it has become something that the next save will refuse

    def _field_type(self, name: str) -> Any:
        return Any if self.hints is None else self.hints[name]

    def _encode(self, name: str) -> bytes:
        return self._encode_checked(name, self.values[name])

    def _encode_checked(self, name: str, value: Any) -> bytes:
        try:
            return to_text(value, self._field_type(name))
        except MessageRefused as refused:
            raise MessageRefused(reason=f"field {name!r}: {refused.details['reason']}") from None


def save(key: str, sending: PersistedFieldChanges, ttl_s: int) -> Flow[int]:
    """Write the fields and let the object live for ``ttl_s``. Return the number of ``fields`` that
    were not stored before.
    """
    first = [command("HSET", key, *_flatten(sending.fields.items()))] if sending.fields else []
    more = [command("HSETNX", key, name, text) for name, text in sending.missing.items()]
    replies = yield [*first, *more, command("EXPIRE", key, ttl_s)]
    return int(replies[0]) if first else 0


def load(key: str) -> Flow[dict[str, bytes]]:
    """Every field of the object; empty when it does not exist."""
    return _fields((yield command("HGETALL", key)))


def load_within(key: str, most: int) -> Flow[dict[str, bytes] | None]:
    """Load a hash of at most ``most`` bytes; return None when it has more, or more than MOST_FIELDS
    fields; then they are not loaded.
    """
    _, reply = yield script("load_within", (key,), (most, MOST_FIELDS))
    return None if reply is None else _fields(reply)


def _fields(reply: list[bytes]) -> dict[str, bytes]:
    return {
        name.decode("utf-8", "replace"): text
        for name, text in zip(reply[0::2], reply[1::2], strict=True)
    }


def touch(keys: Iterable[tuple[str, int]]) -> Flow[list[bool]]:
    """Let each object live for so many seconds from now on; whether it exists."""
    replies = yield [command("EXPIRE", key, ttl_s) for key, ttl_s in keys]
    return [bool(reply) for reply in replies]


def _flatten(pairs: Iterable[tuple[str, bytes]]) -> Iterable[str | bytes]:
    return (word for pair in pairs for word in pair)
