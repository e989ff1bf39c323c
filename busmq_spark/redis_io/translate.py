"""redis-py's errors to ours, in one table."""

from __future__ import annotations

import re

import redis.exceptions as rx

from busmq_spark.errors import (
    BusError,
    LinkLost,
    MessageRefused,
    QueueIsMirror,
    ReadOnly,
    ServerFull,
    ServerRefused,
    TlsError,
    Unauthorized,
    WritesPaused,
)
from busmq_spark.queue.keys import METADATA_SUFFIX, announced_name
from busmq_spark.redis_io.endpoint import RedisEndpoint

CONNECTION_ERRORS = (rx.RedisError, OSError, LinkLost)
"""The errors of opening a connection, sending and receiving on it."""
ERROR_OF_REPLY_CODE: dict[str, type[BusError]] = {
    # Refused before anything was executed, and worth waiting for: any such call may be sent again.
    # A script is refused at its first write: the state that refuses does not change while it runs
    # (Redis 6.2), and no write is refused that follows another (Redis 7).
    **dict.fromkeys(("LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN"), LinkLost),
    **dict.fromkeys(("NOREPLICAS", "MISCONF"), WritesPaused),
    # Waiting does not mend these.
    **dict.fromkeys(("NOAUTH", "WRONGPASS", "NOPERM"), Unauthorized),
    "READONLY": ReadOnly,
    "OOM": ServerFull,
}
"""Our error for the code that begins an error reply. contract.json has the table for Java.

Any other code is a ServerRefused.
"""
ERROR_OF_SENTENCE: dict[str, type[BusError]] = {
    "max number of clients": LinkLost,
    "Not enough good replicas": WritesPaused,
    "Errors writing to the AOF file": WritesPaused,
    "Redis is configured to save RDB snapshots": WritesPaused,
    "OOM command": ServerFull,
    "can't write against a read only": ReadOnly,
    "The user executing the script can't": Unauthorized,
    "ACL failure in script": Unauthorized,  # Valkey 9
    "invalid password": Unauthorized,
    "AUTH <password> called without any password configured": Unauthorized,
    "wrong number of arguments for 'auth'": Unauthorized,
}
"""Our error for words of a reply without a code, in this order.

Redis before 7 and Valkey 9 drop some codes inside scripts.
"""
# redis-py takes the code off the errors it knows by class.
_ERROR_OF_REDIS_PY_ERROR: tuple[tuple[type[Exception], type[BusError]], ...] = (
    (rx.AuthenticationError, Unauthorized),
    (rx.NoPermissionError, Unauthorized),
    (rx.OutOfMemoryError, ServerFull),
    (rx.ReadOnlyError, ReadOnly),
    (rx.TryAgainError, LinkLost),
    (rx.ClusterDownError, LinkLost),  # and MASTERDOWN, its subclass
    (rx.ConnectionError, LinkLost),
    (rx.TimeoutError, LinkLost),
    (OSError, LinkLost),
)
# At the start, or where Redis before 7 quotes what a command inside a script said: "Error running
# script ...: @user_script:5: -MISCONF ...".
_REPLY_CODE = re.compile(r"(?:^|-)(" + "|".join(ERROR_OF_REPLY_CODE) + r")\b")

_WRONG_LOGIN_TEXT = "invalid username-password pair or user is disabled"

# The texts of ssl for its findings; a peer that just went away is not among them.
_TLS_ERROR_TEXT = re.compile(
    r"\[SSL: (?!UNEXPECTED_EOF|APPLICATION_DATA_AFTER)|certificate verify failed"
)


def translate_redis_error(error: Exception, endpoint: RedisEndpoint) -> BusError:
    """Our error for what redis-py raised or what Redis replied. The address is masked, and no
    argument of a command is repeated.

    A BusError is returned unchanged.
    """
    if isinstance(error, BusError):
        return error
    text = _plain_text(error, endpoint)
    if "BUSMQ_MAX_ID" in text:
        return MessageRefused(
            reason=(
                "the queue has used up its ids (2^53-1, the last that JavaScript can count). Drain"
                " it and create it anew"
            )
        )
    if "BUSMQ_QUEUE_IS_MIRROR" in text:
        return QueueIsMirror(queue=_mirror_name(str(error)))
    if _TLS_ERROR_TEXT.search(text):
        return TlsError(url=endpoint.masked_url, reason=text)
    kind = next(
        (ours for theirs, ours in _ERROR_OF_REDIS_PY_ERROR if isinstance(error, theirs)), None
    )
    if kind is None:
        found = _REPLY_CODE.search(text)
        kind = ERROR_OF_REPLY_CODE[found[1]] if found else _class_by_sentence(text)
    if endpoint.may_move and (kind is ReadOnly or text.startswith("UNBLOCKED")):
        kind = LinkLost  # it was demoted: nothing was written, and its successor will take it
    if (
        kind is LinkLost
        and text.startswith("Timeout connecting")
        and "rediss://" in endpoint.masked_url
    ):
        text += " (so does a port that speaks no TLS)"
    return kind(url=endpoint.masked_url, reason=text)


def _mirror_name(text: str) -> str:
    """The queue whose metadata key is the last word of an error of push.lua."""
    key = text.partition("BUSMQ_QUEUE_IS_MIRROR ")[2]
    return announced_name(key.rpartition(METADATA_SUFFIX)[0] + METADATA_SUFFIX) or key


def _class_by_sentence(text: str) -> type[BusError]:
    return next((kind for words, kind in ERROR_OF_SENTENCE.items() if words in text), ServerRefused)


def _plain_text(error: Exception, endpoint: RedisEndpoint) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.partition(", with args beginning with")[0]
    parts = text.split(
        _WRONG_LOGIN_TEXT
    )  # words of Redis' own, which may look like a user or a password
    for secret in endpoint.secrets:
        if len(secret) > 3:
            parts = [part.replace(secret, "***") for part in parts]
    return _WRONG_LOGIN_TEXT.join(parts).rstrip(".")  # our sentence goes on
