"""Retention: acknowledged messages that a queue keeps, so that a reader can go back to them
(lua/include/let_go.lua).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from busmq_spark.errors import ConfigError, QueueBusy, QueueMissing
from busmq_spark.option_parsing import duration_s, size
from busmq_spark.queue.command_generators import Flow, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.message import MAX_ID
from busmq_spark.queue.queue import MAX_MESSAGES_PER_ACK

_END_RETENTION = "end"
MESSAGES_TAKEN_WARNING = (
    "queue %r keeps what is acknowledged, and messages were taken from it that it would have kept:"
    " by a consumer that is no group, as those in Node are, or by flush. Such a consumer gets"
    " acknowledged messages again, and takes them from the groups: read with a group instead"
)
"""Warned on attach."""
MAX_AGE_S = 100 * 366 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a queue: None for no limit of that kind. A message beyond one of the limits
    is deleted.
    """

    age_s: int | None
    messages: int | None
    """So many of the newest messages, whether they are acknowledged or not."""
    bytes: int | None
    """Bytes of newest values to keep; up to 0.1 %, or one push, more."""
    waiting: int
    """Messages that some reader has still to acknowledge."""
    kept: int
    """Messages that all have acknowledged, and that are stored."""
    ends: bool = False
    """Whether nothing is kept any more but what a reader that has gone back has still to read."""


def parse_limits(
    age: str | int | timedelta | None, messages: int | None, value_bytes: str | int | None
) -> str:
    """The limits as Redis has them, ``end`` for none. Raises ConfigError."""
    if age is None and messages is None and value_bytes is None:
        return _END_RETENTION
    if isinstance(age, timedelta):
        if age % timedelta(seconds=1):
            raise ConfigError(reason=f"age is {age}; expected whole seconds")
        age = int(age.total_seconds())
    seconds = 0 if age is None else _parse_limit("age", age, MAX_AGE_S)
    count = 0 if messages is None else _parse_limit("messages", messages, MAX_ID)
    size = 0 if value_bytes is None else _parse_limit("bytes", value_bytes, MAX_ID)
    return f"{seconds}:{count}:{size}"


def _parse_limit(name: str, given: str | int, most: int) -> int:
    found: object = given
    if isinstance(given, str) and name != "messages":
        try:
            found = duration_s(given) if name == "age" else size(given)
        except ValueError as error:
            raise ConfigError(reason=f"{name} is {given!r}; expected {error}") from None
    if type(found) is not int or not 1 <= found <= most:
        raise ConfigError(
            reason=f"{name} is {given!r}; expected a whole number of at least 1, at most {most}"
        )
    return found


def set_retention(keys: QueueKeys, limits: str) -> Flow[Retention | None]:
    """Let the queue keep what :func:`parse_limits` says, and drop the rest, in steps that never
    hold Redis long; return None where nothing is kept.

    Raises QueueMissing, and QueueBusy while a reliable consumer has messages that it has not
    acknowledged.
    """
    status, *found = yield from _run_retain_script(keys, limits)
    if status == b"missing":
        raise QueueMissing(queue=keys.name)
    if status == b"taken":
        remedy = (
            "It would hand out acknowledged messages again: stop it and read with a group"
            " (queue.group), or let it acknowledge all and stop it"
        )
        raise QueueBusy(
            queue=keys.name,
            found="has messages that a reliable consumer took and has not acknowledged",
            remedy=remedy,
        )
    while found[4]:
        _, *found = yield from _run_retain_script(keys, "")
    return _retention(found[0].decode(), found[1], found[2])


def read_retention(keys: QueueKeys) -> Flow[Retention | None]:
    """Return the retention of the queue; return None where the queue keeps nothing."""
    waiting, kept, limits = yield script("kept", (keys.metadata, keys.messages), ())
    return _retention(limits.decode(), waiting, kept)


def _run_retain_script(keys: QueueKeys, limits: str) -> Flow[list[Any]]:
    names = (
        keys.metadata,
        keys.messages,
        keys.msgid,
        keys.toack,
        keys.acks,
        keys.clock,
        keys.bytes,
    )
    found: list[Any] = yield script("retain", names, (limits, MAX_MESSAGES_PER_ACK))
    return found


def _retention(limits: str, waiting: int, kept: int) -> Retention | None:
    if not limits:
        return None
    age_s, messages, value_bytes = (
        (int(item) or None for item in limits.split(":"))
        if limits.count(":") == 2
        else (None, None, None)
    )
    return Retention(age_s, messages, value_bytes, waiting, kept, ends=limits == _END_RETENTION)
