"""Jobs: a message names a job, whose payload lives in fields beside it, and whose outcome per group
anyone can wait for.

Rule 1. A group writes one outcome for each message, also when a worker dies before its ack, or
        comes late (job_outcome.lua).
Rule 2. Each key of a job has a ttl, and in a cluster all share one slot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias

from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.errors.foreign import plain_text
from busmq_spark.groups.shared_group import LeasedMessage
from busmq_spark.queue.command_generators import Arg, Flow, RedisCall, command, script
from busmq_spark.queue.keys import JobKeys, QueueKeys, client_channel, jobs_channel
from busmq_spark.queue.message import MAX_VALUE_BYTES, Message, encode_value
from busmq_spark.queue.queue import read_following
from busmq_spark.tracing import TRACEPARENT

OUTCOME_TTL_S = 3600
"""Seconds for which an outcome is stored, by default."""
DELETED_FIELD_READABLE_S = 60
"""Seconds for which a repeated call can still read a field that it deleted."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_FIELD = re.compile(r"(?!done\Z)[^:\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,199}")
_REFERENCE = re.compile(
    r'\{"job":"([A-Za-z0-9_-]{1,100})","from":"([^"\\\x00-\x1f]*)"(?:,"done":"([^"\\\x00-\x1f]*)")?\}'
)
"""The form in which :func:`reference` writes a text without escapes: it is read at a third of the
cost of JSON.
"""
_BYTES, _JSON = b"b", b"j"
_MAX_CALLS_PER_SAVE, _MAX_BYTES_PER_SAVE = 1000, 8 * 1024 * 1024
"""Most fields, and bytes of them, in one round trip."""
_JOBS_PER_OUTCOME_CALL = 100
"""Most jobs in one call of job_outcome.lua, which takes Redis some µs for each."""
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
Answer: TypeAlias = Literal["ok", "done", "late"]
_ANSWER_OF_BYTE: dict[int, Answer] = {ord("o"): "ok", ord("d"): "done", ord("l"): "late"}
Fields: TypeAlias = Mapping[str, tuple[bytes, int]]
"""Name → what :func:`encode_field` made, and its ttl in milliseconds."""


class JobOutcome(NamedTuple):
    """The outcome of a job in a group."""

    job: str
    queue: str
    group: str
    ok: bool
    error: str
    """Why it was given up; empty when it was not."""
    tries: int
    """The number of tries so far."""
    message: int
    """Id of the message, in the queue, that named the job."""
    life: str
    """The life of the queue to which that id belongs."""
    ms: int
    """The time in milliseconds since 1970 by the server's clock; 0 without the right to ask for
    it.
    """


_outcome_members = itemgetter(*JobOutcome._fields)
_OUTCOME_MEMBER_TYPES = (str, str, str, bool, str, int, int, str, int)
_DECODE_ERRORS = (ValueError, KeyError, TypeError, RecursionError)


class LeasedJob(NamedTuple):
    """A delivery that names a job, and whose group that is."""

    delivery: LeasedMessage
    keys: JobKeys
    client: str
    """The sender, as the name of the channel that it listens on; empty when unknown."""
    group: str
    life: str
    done: str
    """The queue that its outcome is pushed to as well; empty for none."""


# -- names and values ------------------------------------------------------------------------------


def check_job(id: object) -> str:
    """The id of a job. Raises ConfigError."""
    if not (isinstance(id, str) and _ID.fullmatch(id)):
        raise ConfigError(
            reason=f"the id of the job is {id!r}; expected up to 100 letters, digits, '-' and '_'"
        )
    return id


def check_field(name: object) -> str:
    """The name of a field. Raises ConfigError."""
    if not (isinstance(name, str) and _FIELD.fullmatch(name)):
        raise ConfigError(
            reason=(
                f"the name of the field is {name!r}; expected up to 200 characters, no colon first,"
                " no control ones, not 'done'"
            )
        )
    return name


def encode_field(name: str, value: object) -> bytes:
    """A field as it is stored: bytes as they are, everything else as JSON. Raises MessageRefused,
    naming the field, for what cannot be stored.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        size = memoryview(value).nbytes
        if size >= MAX_VALUE_BYTES:
            raise _too_large_error(name, size)
        return _BYTES + bytes(value)
    try:
        found = encode_value([value])[1:-1]  # so that text is JSON, too
    except MessageRefused as error:
        raise MessageRefused(
            reason=f"field {name!r} of a job cannot be stored: {error.details['reason']}"
        ) from None
    if len(found) >= MAX_VALUE_BYTES:
        raise _too_large_error(name, len(found))
    return _JSON + found


def decode_field(name: str, stored: bytes | None) -> Any:
    """The value of a field, None when there is none. Raises MessageRefused for what we do not
    write.
    """
    if stored is None:
        return None
    found = field_bytes(name, stored)
    try:
        return found if stored[:1] == _BYTES else json.loads(found)
    except (ValueError, RecursionError):
        raise _unreadable_error(name, stored) from None


def field_bytes(name: str, stored: bytes) -> bytes:
    """The bytes of a field, or its JSON as text. Raises MessageRefused for what we do not write."""
    if stored[:1] not in (_BYTES, _JSON):
        raise _unreadable_error(name, stored)
    return stored[1:]


def _unreadable_error(name: str, stored: bytes) -> MessageRefused:
    return MessageRefused(
        reason=(
            f"field {name!r} of a job begins with {stored[:20]!r}; expected 'b' and bytes, or 'j'"
            " and JSON"
        )
    )


def _too_large_error(name: str, size: int) -> MessageRefused:
    return MessageRefused(
        reason=(
            f"field {name!r} of a job has {size} bytes; Redis takes less than {MAX_VALUE_BYTES}"
            " (512 MB). Store it elsewhere, and its address here"
        )
    )


def reference_encoder(client: str, done: str = "") -> Callable[[str], bytes]:
    """Return a function that makes of each job the message that names it; ``done``: the queue that
    its outcomes are pushed to as well.
    """
    rest = _json.encode({"from": client, "done": done} if done else {"from": client})[1:]
    return lambda id: f'{{"job":"{id}",{rest}'.encode()


def with_traceparent(reference: bytes, traceparent: str) -> bytes:
    """Return the message of :func:`reference_encoder` with the trace of its sender."""
    return reference[:-1] + f',"{TRACEPARENT}":{_json.encode(traceparent)}}}'.encode()


def traceparent_of(reference: bytes) -> object:
    """Return the trace of the sender of a message that names a job, or None; it may be of any
    program.
    """
    if TRACEPARENT.encode() not in reference:
        return None
    try:
        found = json.loads(reference)
    except (ValueError, RecursionError):
        return None
    return found.get(TRACEPARENT) if isinstance(found, dict) else None


def outcome_queue(queue: str) -> str:
    """Return the name of the only queue to which outcomes of the jobs of ``queue`` are pushed."""
    return f"{queue}.done"


def decode_reference(value: bytes, queue: str) -> tuple[str, str, str]:
    """Return job, client and outcome queue that a message of ``queue`` names. Raises MessageRefused
    for one that names no job.

    The message may be of any program with the right to push to ``queue``. A ``done`` that is not
    :func:`outcome_queue` counts as none, so that no program reaches another queue through the
    workers.
    """
    try:
        text = value.decode()
        if plain := _REFERENCE.fullmatch(text):
            id, client, done = plain.groups("")
        else:
            found = json.loads(text)
            id, client, done = (
                check_job(found["job"]),
                str(found.get("from", "")),
                found.get("done", ""),
            )
        return id, client, outcome_queue(queue) if done == outcome_queue(queue) else ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError):
        raise MessageRefused(
            reason=(
                f"a message that begins with {value[:40]!r} names no job; expected JSON with the id"
                " of one as 'job'"
            )
        ) from None


# -- fields ----------------------------------------------------------------------------------------


def save_fields(jobs: Iterable[tuple[JobKeys, Fields]]) -> Flow[None]:
    """Store fields of jobs, in few round trips. Safe to repeat."""
    calls: list[RedisCall] = []
    size = 0
    for keys, fields in jobs:
        for name, (value, ttl_ms) in fields.items():
            calls.append(command("SET", keys.field(name), value, "PX", ttl_ms))
            size += len(value)
            if len(calls) >= _MAX_CALLS_PER_SAVE or size >= _MAX_BYTES_PER_SAVE:
                yield calls
                calls, size = [], 0
    if calls:
        yield calls


def read_fields_of(jobs: Sequence[JobKeys], names: Sequence[str]) -> Flow[list[list[bytes | None]]]:
    """Read the same fields of several jobs, in one round trip."""
    if not jobs:
        return []
    return (yield [command("MGET", *map(keys.field, names)) for keys in jobs])  # type: ignore[no-any-return]


def load_fields(
    keys: JobKeys, names: Sequence[str], forget: Collection[str], token: str, *, again: bool = False
) -> Flow[list[bytes | None]]:
    """Read fields, and then delete those to be forgotten, in one step, under a token that was never
    used before.

    After a lost reply repeat the call with ``again`` and its token, within a minute. Else
    :func:`forget_call` comes next.
    """
    every = list(dict.fromkeys((*names, *forget)))
    if not every:
        return []
    if not forget:
        return (yield command("MGET", *map(keys.field, names)))  # type: ignore[no-any-return]
    how = ["get" if name not in forget else "both" if name in names else "forget" for name in every]
    words = [key for name in every for key in (keys.field(name), keys.spare_field(name, token))]
    found = yield script(
        "job_load", words, (DELETED_FIELD_READABLE_S, int(again), *how), idempotent=again
    )
    return [found[every.index(name)] for name in names]


def forget_call(keys: JobKeys, forget: Iterable[str], token: str) -> RedisCall:
    """Drops what :func:`load_fields` has put by."""
    return command("UNLINK", *(keys.spare_field(name, token) for name in forget))


# -- outcomes --------------------------------------------------------------------------------------


def begin_work(works: Sequence[LeasedJob], ttl_s: int) -> Flow[list[tuple[Answer, bytes]]]:
    """Say that work on these begins. For each: ``ok``; ``done``, with the outcome there is;
    ``late``, when a later lease of its message has begun.

    The outcome comes along where it is to be pushed to a queue as well. If all are first leases,
    and none of their jobs has a hash of outcomes, nothing is written: a later lease of one of them
    records its begin, and from then on the first lease is refused.
    """
    if all(work.delivery.is_first for work in works) and not (
        yield from _count_with_outcomes(works)
    ):
        return [("ok", b"")] * len(works)
    return (yield from _outcomes_call([(work, "") for work in works], None, "", ttl_s))


def _count_with_outcomes(works: Sequence[LeasedJob]) -> Flow[int]:
    """Return the number of jobs with a hash of outcomes."""
    names = [work.keys.outcomes for work in works]
    if works and works[0].keys.cluster:
        return sum((yield [command("EXISTS", name) for name in names]))
    return (yield command("EXISTS", *names))  # type: ignore[no-any-return]


def write_outcomes(
    works: Sequence[tuple[LeasedJob, str | None]],
    queue: str,
    ttl_s: int,
    fields: Sequence[Fields] | None = None,
) -> Flow[list[tuple[Answer, bytes]]]:
    """Write outcomes, each with its error or None, and publish them. Answers as of
    :func:`begin_work`; a repeated call gets ``done``, too.

    ``fields``, for each work, are stored in the same step as its outcome, and only where the answer
    is ``ok``.
    """
    return (
        yield from _outcomes_call(
            _with_outcome_json(works, queue), fields, jobs_channel(queue), ttl_s
        )
    )


def _outcomes_call(
    parts: Sequence[tuple[LeasedJob, str]],
    fields: Sequence[Fields] | None,
    channel: str,
    ttl_s: int,
) -> Flow[list[tuple[Answer, bytes]]]:
    texts = int(any(work.done for work, _ in parts))
    at_once = 1 if fields or (parts and parts[0][0].keys.cluster) else _JOBS_PER_OUTCOME_CALL
    calls = []
    for first in range(0, len(parts), at_once):
        keys: list[str] = []
        args: list[Arg] = [ttl_s, channel, texts]
        for number, (work, text) in enumerate(parts[first : first + at_once], first):
            (id, _, tries, _, token, leased_ms), own_keys, client, group, life, _ = work
            own = fields[number] if fields else ()
            keys.append(own_keys.outcomes)
            args += (
                group,
                f"{life}:{id}:{tries}:{leased_ms}:{token}:",
                client and client_channel(client),
                text,
                str(len(own)),
            )
            for name in own:
                # With a name it is no tuple
                value, ttl_ms = own[name]  # type: ignore[call-overload]
                keys.append(own_keys.field(name))
                args += (value, ttl_ms)
        calls.append(script("job_outcome", keys, args))
    answers: list[tuple[Answer, bytes]] = []
    for letters, *outcomes in (yield calls):
        answers += zip(
            map(_ANSWER_OF_BYTE.__getitem__, letters), outcomes or repeat(b""), strict=False
        )
    return answers


def _with_outcome_json(
    works: Sequence[tuple[LeasedJob, str | None]], queue: str
) -> list[tuple[LeasedJob, str]]:
    """Each with its outcome as the script takes it, which puts the time before it."""
    said, group, life, same = [], "", "", ""
    queue = _json.encode(queue)
    for work, error in works:
        delivery, keys, _, its_group, its_life, _ = work
        if not same or its_group != group or its_life != life:  # else as the one before
            group, life = its_group, its_life
            same = f'"queue":{queue},"group":{_json.encode(group)},"life":{_json.encode(life)}'
        how = (
            '"ok":true'
            if error is None
            else f'"ok":false,"error":{_json.encode(plain_text(error))}'
        )
        said.append(
            (
                work,
                f'"job":"{keys.id}",{same},{how},"tries":{delivery.tries},"message":{delivery.id}}}',
            )
        )
    return said


def decode_outcome(stored: bytes) -> JobOutcome:
    """Decode a stored or published outcome. Raises MessageRefused for what is none."""
    try:
        return _decode_members(json.loads(stored.decode()))
    except _DECODE_ERRORS:
        raise MessageRefused(
            reason=f"what begins with {stored[:40]!r} is no outcome of a job"
        ) from None


def _decode_members(said: Any) -> JobOutcome:
    if "error" not in said:
        said["error"] = ""
    found = _outcome_members(said)
    if tuple(map(type, found)) != _OUTCOME_MEMBER_TYPES:
        raise TypeError
    return JobOutcome._make(found)


def split_publication(payload: bytes) -> list[bytes]:
    """The outcomes of one publication, as they are stored."""
    return payload.split(b"\n")


def decode_publication(payload: bytes) -> list[JobOutcome | MessageRefused]:
    """Decode the outcomes of one publication, with the error in the place of an invalid one."""
    try:
        return [
            _decode_members(said) for said in json.loads(f"[{payload.decode()}]".replace("\n", ","))
        ]  # one call of the parser for all
    except _DECODE_ERRORS:
        pass
    found: list[JobOutcome | MessageRefused] = []
    for stored in split_publication(payload):
        try:
            found.append(decode_outcome(stored))
        except MessageRefused as error:
            found.append(error)
    return found


def read_outcomes(jobs: Sequence[JobKeys]) -> Flow[list[list[JobOutcome]]]:
    """The outcomes that each of these jobs has."""
    if not jobs:
        return []
    replies = yield [command("HGETALL", keys.outcomes) for keys in jobs]
    return [
        [
            decode_outcome(text)
            for name, text in zip(reply[0::2], reply[1::2], strict=True)
            if not name.startswith(b":")
        ]  # fields of ours begin so
        for reply in replies
    ]


def have_readers(keys: QueueKeys, names: Sequence[str]) -> Flow[list[bool]]:
    """Whether the queue has a group, or a subscription, of each name."""
    found = yield command("HMGET", keys.acks, *names)
    return [each is not None for each in found]


def forget_outcomes(keys: QueueKeys, group: str, born: str, last: int) -> Flow[int]:
    """Forget the outcomes that a group has of the messages after an id, in this life of the queue.

    Return how many it had. Safe to repeat.
    """
    forgotten = 0
    while batch := (yield from read_following(keys, last, _MAX_CALLS_PER_SAVE)).messages:
        last = batch[-1].id
        jobs = _jobs_of(batch, keys)
        owners = (
            (yield [command("HGET", job.outcomes, f":of:{group}") for job in jobs]) if jobs else []
        )
        ours = f"{born}:".encode()
        done = [
            job for job, owner in zip(jobs, owners, strict=True) if owner and owner.startswith(ours)
        ]
        if done:
            yield [command("HDEL", job.outcomes, f":of:{group}", group) for job in done]
        forgotten += len(done)
    return forgotten


def _jobs_of(messages: Sequence[Message], keys: QueueKeys) -> list[JobKeys]:
    found = []
    for each in messages:
        with suppress(MessageRefused):
            id, _, _ = decode_reference(each.value, keys.name)
            found.append(JobKeys(id, keys.cluster))
    return found
