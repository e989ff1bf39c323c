"""Errors on the wire: the server encodes them instead of a result, and the client decodes them.
Both protocols have it from here.

An error about the peer's own request crosses the wire whole; of every other only the code does,
since its details are about our Redis, its users and keys.

compat: npm servers answer with text, or with an object of an error's own fields, which may be
empty; whatever is not null is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from busmq_spark import errors
from busmq_spark.errors import BusError, RemoteError
from busmq_spark.errors.foreign import plain_text
from busmq_spark.queue.message import encode_value

ERRORS_SHOWN_TO_PEERS: dict[str, type[BusError]] = {
    kind.code: kind
    for kind in (
        errors.BatchChanged,
        errors.ConfigError,
        errors.ConsumedElsewhere,
        errors.DataLoss,
        errors.FederationRefused,
        errors.MessageRefused,
        errors.IdsReissued,
        errors.MessagesMissed,
        errors.NotReplicated,
        errors.ProtocolError,
        errors.QueueBusy,
        errors.QueueDamaged,
        errors.QueueExpired,
        errors.QueueFlushed,
        errors.QueueFull,
        errors.QueueIsMirror,
        errors.QueueMissing,
        errors.QueueRecreated,
        errors.RedisRolledBack,
        errors.RequestFailed,
        errors.RequestTimeout,
        errors.SinkTargetsError,
        errors.StagingLost,
        errors.StaleBatch,
        errors.StaleRun,
        errors.StateError,
        errors.TopicMissing,
        errors.UnconfirmedLost,
        errors.UnreadBacklog,
        errors.WireError,
    )
}
"""Errors about what the peer asked for: their text is sent to it. Of others it learns only that the
server failed.
"""
HIDDEN_ERROR_REASON = (
    "the bus behind this federation server cannot do it now. Try again; its operator finds the"
    " reason in its log"
)
REDIS_UNREACHABLE_REASON = "the federation server cannot reach its Redis"
MAX_ERROR_TEXT = 2000
HIDDEN_ADDRESS = "behind the federation server"
"""In the place of an address."""
UNEXPECTED_ERROR = RemoteError(
    remote="BUSMQ_INTERNAL", reason="it failed in an unexpected way; the server's log says how"
)
"""The reply for a fault of the server."""


def error_to_wire(error: BusError) -> dict[str, Any]:
    """The value in the place of the error of a callback."""
    if not is_shown_to_peers(error):
        why = _hidden_error_reason(error)
        return {
            "code": error.code,
            "message": why,
            "details": {"url": HIDDEN_ADDRESS, "reason": why},
        }
    plain = {
        name: value
        for name, value in error.details.items()
        if isinstance(value, str | int | float | bool | dict | None) and _is_json(value)
    }
    return {"code": error.code, "message": plain_text(error), "details": plain}


def _is_json(value: Any) -> bool:
    try:
        encode_value([value])
    except BusError:
        return False
    return True


def error_event_text(error: BusError) -> str:
    """The text of an ``error`` event."""
    return (
        plain_text(error)
        if is_shown_to_peers(error)
        else f"[{error.code}] {_hidden_error_reason(error)}"
    )


def is_shown_to_peers(error: BusError) -> bool:
    """Whether a peer is shown all of it; else the server's log has it."""
    return error.code in ERRORS_SHOWN_TO_PEERS or error is UNEXPECTED_ERROR


def _hidden_error_reason(error: BusError) -> str:
    return REDIS_UNREACHABLE_REASON if isinstance(error, errors.LinkLost) else HIDDEN_ERROR_REASON


def error_from_wire(
    value: Any, kinds: Mapping[str, type[BusError]] = ERRORS_SHOWN_TO_PEERS
) -> BusError:
    """Decode an error from a value that is not null. An error of a class that is not among
    ``kinds`` becomes an RemoteError.
    """
    if not isinstance(value, dict):
        return RemoteError(remote="an error", reason=str(value)[:MAX_ERROR_TEXT])
    code, message = (
        str(value.get("code", "an error"))[:100],
        str(value.get("message", "without words"))[:MAX_ERROR_TEXT],
    )
    kind, details = kinds.get(code), value.get("details")
    if kind is not None and isinstance(details, dict):
        try:
            return kind(**{str(name): detail for name, detail in details.items()})
        except (AttributeError, LookupError, TypeError, ValueError):
            pass  # of another version, whose template has other words
    return RemoteError(remote=code, reason=message)
