"""The start of reading in a queue that is not in the checkpoint: ``earliest``, ``latest``, after an
id, at a time, or with the newest messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from busmq_spark.errors import ConfigError

_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T"
    r" ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?)(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LATEST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """Everything that came in the second of a time or later."""

    ms: int
    """Milliseconds since 1970; below 0: so long before now."""
    text: str
    """The text of the user."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class NewestMessages:
    """The newest messages, so many."""

    count: int

    def __str__(self) -> str:
        return f"-{self.count} messages"


OffsetBound: TypeAlias = str | int | AtTime | NewestMessages
"""``earliest``, ``latest``, the last id that counts as read, or one of the above."""


def parse_relative(text: str) -> AtTime | NewestMessages | None:
    """``-10m`` or ``-1000 messages``; return Return None for any other text."""
    found = re.fullmatch(r"\s*-\s*([0-9]{1,12})\s*(ms|s|m|h|d|messages?)\s*", text.lower())
    if not found or int(found[1]) < 1:
        return None
    if found[2].startswith("message"):
        return NewestMessages(int(found[1]))
    unit = _UNITS_MS[found[2]]
    return AtTime(-min(int(found[1]), LATEST_MS // unit) * unit, text.strip())


def iso(text: str) -> AtTime | None:
    """A time in ISO 8601 with its offset from UTC; None for any other text."""
    found = _ISO.fullmatch(text.strip())
    try:
        return timestamp(text) if found and found[2] else None
    except ValueError:
        return None


def parse_moment(time: int | str | datetime) -> AtTime:
    """A time in any form: milliseconds since 1970 (below 0: so long before now), a datetime with
    its time zone, or the text of one, or ``-10m``.

    Raises ConfigError.
    """
    if isinstance(time, datetime):
        time = time.isoformat() if time.tzinfo else str(time)
    if type(time) is int and abs(time) <= LATEST_MS:
        return AtTime(time, str(time))
    try:
        found = parse_relative(str(time))
        return found if isinstance(found, AtTime) else timestamp(str(time))
    except ValueError as error:
        raise ConfigError(reason=f"the time is {time!r}; expected -10m, or {error}") from None


def timestamp(text: str) -> AtTime:
    """Parser of a time: ISO 8601 with its offset from UTC, or milliseconds since 1970. Raises
    ValueError, which says what was expected.
    """
    wanted = (
        "a time such as 2026-05-01T12:00:00Z or 2026-05-01T12:00:00+02:00, or milliseconds since"
        " 1970"
    )
    if re.fullmatch(r"\s*[0-9]{1,15}\s*", text):
        ms = int(text)
    else:
        found = _ISO.fullmatch(text.strip())
        if not found:
            raise ValueError(wanted)
        if not found[2]:
            raise ValueError(f"{wanted}; without Z or an offset from UTC a time is none")
        try:
            ms = (datetime.fromisoformat(text.strip()) - _EPOCH) // timedelta(milliseconds=1)
        except ValueError:
            raise ValueError(wanted) from None
    if not 0 <= ms <= LATEST_MS:
        raise ValueError(wanted)
    return AtTime(ms, text.strip())
