"""Errors that travel: what a server answers instead of a result, and what a client makes of it.

compat: npm servers answer with text, or with an object of an error's own fields, which may be empty; whatever is not null is an error.
"""

from __future__ import annotations

from typing import Any

from busmq_spark import errors
from busmq_spark.errors import BusError, RemoteError

# Errors about what the peer asked for. The others tell of our Redis, whose address and state are no business of a peer.
OPEN: dict[str, type[BusError]] = {
    kind.code: kind
    for kind in (
        errors.ConfigError,
        errors.FederationRefused,
        errors.MessageRefused,
        errors.MessagesMissed,
        errors.QueueBusy,
        errors.QueueFull,
        errors.QueueMissing,
        errors.RequestFailed,
        errors.RequestTimeout,
        errors.StateError,
        errors.WireError,
    )
}
CLOSED = "the bus behind this federation server cannot do it now. Try again; its operator finds the reason in its log"


def to_wire(error: BusError) -> dict[str, Any]:
    """The value in the place of the error of a callback."""
    if error.code not in OPEN:
        return {"code": error.code, "message": CLOSED}
    plain = {name: value for name, value in error.details.items() if isinstance(value, str | int | float | bool | dict | None)}
    return {"code": error.code, "message": str(error), "details": plain}


def text(error: BusError) -> str:
    """The text of an ``error`` event."""
    return str(error) if error.code in OPEN else f"[{error.code}] {CLOSED}"


def from_wire(value: Any) -> BusError:
    """The error behind a value that is not null. One of a class that this version does not know becomes a RemoteError."""
    if not isinstance(value, dict):
        return RemoteError(remote="an error", reason=str(value)[:1000])
    code, message = str(value.get("code", "an error"))[:100], str(value.get("message", "without words"))[:1000]
    kind, details = OPEN.get(code), value.get("details")
    if kind is not None and isinstance(details, dict):
        try:
            return kind(**{str(name): detail for name, detail in details.items()})
        except (KeyError, TypeError, IndexError, ValueError):
            pass  # of another version, whose template has other words
    return RemoteError(remote=code, reason=message)
