"""Jobs: a message names a job, whose payload lives in fields beside it, and whose outcome per group anyone can wait for.

Rule 1. A group writes one outcome for each message, also when a worker dies before its ack, or comes late (job_outcome.lua).
Rule 2. What a job has in Redis has a ttl, and in a cluster one slot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from busmq_spark.core.flow import Call, Flow, command, script
from busmq_spark.core.group import Delivery
from busmq_spark.core.keys import JobKeys, QueueKeys, client_channel, jobs_channel
from busmq_spark.core.message import MAX_VALUE_BYTES, encode
from busmq_spark.errors import ConfigError, MessageRefused

OUTCOME_TTL_S = 3600
"""How long an outcome can be asked for, by default."""
ERROR_CHARACTERS = 2000
SPARE_S = 60
"""How long a repeated call can still read a field that it deleted."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_FIELD = re.compile(r"(?!done\Z)[^:\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,199}")
_BYTES, _JSON = b"b", b"j"
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
Answer: TypeAlias = Literal["ok", "done", "late"]
Fields: TypeAlias = Mapping[str, tuple[bytes, int]]
"""Name → what :func:`to_stored` made, and its ttl in milliseconds."""


class Outcome(NamedTuple):
    """What became of a job in a group."""

    job: str
    queue: str
    group: str
    ok: bool
    error: str
    """Why it was given up; empty when it was not."""
    tries: int
    """How often it was begun."""
    message: int
    """Id of the message, in the queue, that named the job."""
    life: str
    """Of the queue, to which that id belongs."""
    ms: int
    """When, in milliseconds since 1970 by the server's clock; 0 where its user may not ask."""


class Work(NamedTuple):
    """A delivery that names a job, and whose group that is."""

    delivery: Delivery
    keys: JobKeys
    client: str
    """Who sent it, in the name of the channel that it listens on; empty when unknown."""
    group: str
    life: str
    done: str
    """The queue that its outcome is pushed to as well; empty for none."""


# -- names and values ------------------------------------------------------------------------------------------------------------------------


def check_job(id: object) -> str:
    """The id of a job. Raises ConfigError."""
    if not (isinstance(id, str) and _ID.fullmatch(id)):
        raise ConfigError(reason=f"the id of the job is {id!r}; expected up to 100 letters, digits, '-' and '_'")
    return id


def check_field(name: object) -> str:
    """The name of a field. Raises ConfigError."""
    if not (isinstance(name, str) and _FIELD.fullmatch(name)):
        raise ConfigError(reason=f"the name of the field is {name!r}; expected up to 200 characters, no colon first, no control ones, not 'done'")
    return name


def to_stored(name: str, value: object) -> bytes:
    """A field as it is stored: bytes as they are, everything else as JSON. Raises MessageRefused, naming the field, for what cannot be stored."""
    if isinstance(value, bytes | bytearray | memoryview):
        size = memoryview(value).nbytes
        if size >= MAX_VALUE_BYTES:
            raise _too_large(name, size)
        return _BYTES + bytes(value)
    try:
        found = encode([value])[1:-1]  # so that text is JSON, too
    except MessageRefused as error:
        raise MessageRefused(reason=f"field {name!r} of a job cannot be stored: {error.details['reason']}") from None
    if len(found) >= MAX_VALUE_BYTES:
        raise _too_large(name, len(found))
    return _JSON + found


def from_stored(name: str, stored: bytes | None) -> Any:
    """The value of a field, None when there is none. Raises MessageRefused for what we do not write."""
    if stored is None:
        return None
    found = content(name, stored)
    try:
        return found if stored[:1] == _BYTES else json.loads(found)
    except ValueError:
        raise _strange(name, stored) from None


def content(name: str, stored: bytes) -> bytes:
    """The bytes of a field, or its JSON as text. Raises MessageRefused for what we do not write."""
    if stored[:1] not in (_BYTES, _JSON):
        raise _strange(name, stored)
    return stored[1:]


def _strange(name: str, stored: bytes) -> MessageRefused:
    return MessageRefused(reason=f"field {name!r} of a job begins with {stored[:20]!r}; expected 'b' and bytes, or 'j' and JSON")


def _too_large(name: str, size: int) -> MessageRefused:
    return MessageRefused(
        reason=f"field {name!r} of a job has {size} bytes; Redis takes less than {MAX_VALUE_BYTES} (512 MB). Store it elsewhere, and its address here"
    )


def reference(id: str, client: str, done: str = "") -> bytes:
    """The message that names a job; ``done``: the queue that its outcomes are pushed to as well."""
    return _json.encode({"job": id, "from": client, "done": done} if done else {"job": id, "from": client}).encode()


def opened(value: bytes) -> tuple[str, str, str]:
    """Job, client and queue of outcomes that a message names. Raises MessageRefused for one that names no job."""
    try:
        found = json.loads(value.decode())
        return check_job(found["job"]), str(found.get("from", "")), str(found.get("done", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError):
        raise MessageRefused(reason=f"a message that begins with {value[:40]!r} names no job; expected JSON with the id of one as 'job'") from None


# -- fields ----------------------------------------------------------------------------------------------------------------------------------


def save(keys: JobKeys, fields: Fields) -> Flow[None]:
    """Store fields. Safe to repeat."""
    calls = [command("SET", keys.field(name), value, "PX", ttl_ms) for name, (value, ttl_ms) in fields.items()]
    if calls:
        yield calls


def fields_of(jobs: Sequence[JobKeys], names: Sequence[str]) -> Flow[list[list[bytes | None]]]:
    """The same fields of several jobs, in one round trip."""
    if not jobs:
        return []
    return (yield [command("MGET", *map(keys.field, names)) for keys in jobs])  # type: ignore[no-any-return]


def load(keys: JobKeys, names: Sequence[str], forget: Collection[str], token: str, *, again: bool = False) -> Flow[list[bytes | None]]:
    """Read fields, and then delete those to be forgotten, in one step, under a token that was never used before.

    After a lost reply repeat the call with ``again`` and its token, within a minute. Else :func:`forgotten` comes next.
    """
    every = list(dict.fromkeys((*names, *forget)))
    if not every:
        return []
    if not forget:
        return (yield command("MGET", *map(keys.field, names)))  # type: ignore[no-any-return]
    how = ["get" if name not in forget else "both" if name in names else "forget" for name in every]
    words = [key for name in every for key in (keys.field(name), keys.spare(name, token))]
    found = yield script("job_load", words, (SPARE_S, int(again), *how), idempotent=again)
    return [found[every.index(name)] for name in names]


def forgotten(keys: JobKeys, forget: Iterable[str], token: str) -> Call:
    """Drops what :func:`load` has put by."""
    return command("UNLINK", *(keys.spare(name, token) for name in forget))


# -- outcomes --------------------------------------------------------------------------------------------------------------------------------


def begin(works: Sequence[Work], ttl_s: int) -> Flow[list[tuple[Answer, bytes]]]:
    """Say that work on these begins. For each: ``ok``; ``done``, with the outcome there is; ``late``, when a later lease of its message has begun."""
    return (yield from _outcomes([(work, "", {}, ()) for work in works], ttl_s))


def finish(
    works: Sequence[tuple[Work, str | None]], queue: str, ttl_s: int, fields: Sequence[Fields] | None = None
) -> Flow[list[tuple[Answer, bytes]]]:
    """Write outcomes, each with its error or None, and publish them. Answers as of :func:`begin`; a repeated call gets ``done``, too.

    ``fields``, for each work, are stored in the same step as its outcome, and only where the answer is ``ok``.
    """
    channel = jobs_channel(queue)
    parts = [
        (work, _rest(work, queue, error), own, (client_channel(work.client), channel) if work.client else (channel,))
        for (work, error), own in zip(works, fields or [{}] * len(works), strict=True)
    ]
    return (yield from _outcomes(parts, ttl_s))


def _outcomes(parts: Sequence[tuple[Work, str, Fields, Sequence[str]]], ttl_s: int) -> Flow[list[tuple[Answer, bytes]]]:
    replies = yield [
        script(
            "job_outcome",
            (work.keys.done, *map(work.keys.field, fields)),
            (work.group, work.life, each.id, each.tries, each.leased_ms, each.token, ttl_s, text, *_flat(fields), *channels),
        )
        for work, text, fields, channels in parts
        for each in (work.delivery,)
    ]
    return [(answer.decode(), outcome) for answer, outcome in replies]


def _flat(fields: Fields) -> Iterator[bytes | int]:
    for value, ttl_ms in fields.values():
        yield value
        yield ttl_ms


def _rest(work: Work, queue: str, error: str | None) -> str:
    """An outcome as the script takes it, which puts the time before it."""
    said: dict[str, object] = {"job": work.keys.id, "queue": queue, "group": work.group, "ok": error is None}
    if error is not None:
        said["error"] = error[:ERROR_CHARACTERS].encode("utf-8", "replace").decode()
    said |= {"tries": work.delivery.tries, "message": work.delivery.id, "life": work.life}
    return _json.encode(said)[1:]


def outcome(stored: bytes) -> Outcome:
    """What a stored or published outcome says. Raises MessageRefused for what is none."""
    try:
        said = json.loads(stored.decode())
        job, queue, group, life = (str(said[name]) for name in ("job", "queue", "group", "life"))
        tries, message, ms = (int(said[name]) for name in ("tries", "message", "ms"))
        error = str(said.get("error", ""))
        return Outcome(job=job, queue=queue, group=group, ok=said["ok"] is True, error=error, tries=tries, message=message, life=life, ms=ms)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise MessageRefused(reason=f"what begins with {stored[:40]!r} is no outcome of a job") from None


def outcomes(jobs: Sequence[JobKeys]) -> Flow[list[list[Outcome]]]:
    """The outcomes that each of these jobs has."""
    if not jobs:
        return []
    replies = yield [command("HGETALL", keys.done) for keys in jobs]
    return [
        [outcome(text) for name, text in zip(reply[0::2], reply[1::2], strict=True) if not name.startswith(b":")]  # fields of ours begin so
        for reply in replies
    ]


def readers(keys: QueueKeys, names: Sequence[str]) -> Flow[list[bool]]:
    """Whether the queue has a group, or a subscription, of each name."""
    found = yield command("HMGET", keys.acks, *names)
    return [each is not None for each in found]
