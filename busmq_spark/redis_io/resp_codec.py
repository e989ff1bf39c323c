"""Calls to bytes, and replies sorted into values, errors and scripts that must be sent whole.
Shared by the two links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis.exceptions as rx
from redis.utils import HIREDIS_AVAILABLE

from busmq_spark.errors import ToolMissing
from busmq_spark.queue.command_generators import Arg, RedisCall, Step

if not HIREDIS_AVAILABLE:  # pragma: no cover  # a broken installation
    raise ToolMissing(
        tool="hiredis",
        reason="redis-py parses eight times slower without it",
        remedy="pip install 'redis[hiredis]'",
    )

import hiredis

_MIN_PART_BYTES = 8 * 1024
"""Each part is a system call here and one of Redis, 10 µs in all."""


def calls_of(step: Step) -> Sequence[RedisCall]:
    """A step as a list of calls."""
    return (step,) if isinstance(step, RedisCall) else step


def pack(calls: Sequence[RedisCall], *, whole: bool = False) -> bytes:
    """The bytes of some calls. Scripts go by digest, or with their text when ``whole``."""
    return (
        _pack(calls[0], whole)
        if len(calls) == 1
        else b"".join([_pack(call, whole) for call in calls])
    )


def pack_in_parts(calls: Sequence[RedisCall]) -> Iterator[bytes]:
    """The bytes of some calls, scripts by digest, in parts that each hold whole calls: Redis
    executes the first ones while the others are packed.
    """
    packed: list[bytes] = []
    size = 0
    for call in calls:
        packed.append(_pack(call, whole=False))
        size += len(packed[-1])
        if size >= _MIN_PART_BYTES:
            yield b"".join(packed)
            packed, size = [], 0
    if packed:
        yield b"".join(packed)


def _pack(call: RedisCall, whole: bool) -> bytes:
    words = _command_words(call, whole)
    packed = pack_words(words)
    if call.wired is None:
        return packed
    more, wired = call.wired
    return b"".join((b"*%d" % (len(words) + more), packed[packed.index(b"\r") :], wired))


def pack_words(words: tuple[Arg, ...]) -> bytes:
    """The bytes of one command.

    hiredis 3.5 does not expect that it cannot print a number, and Python does not print one when a
    signal raises meanwhile: Ctrl-C ended the process with a segmentation fault. So numbers are
    printed here.
    """
    if int in map(type, words):
        words = tuple([str(word) if type(word) is int else word for word in words])
    # Its stub requires a tuple of one
    return hiredis.pack_command(words)  # type: ignore[arg-type,no-any-return]


def _command_words(call: RedisCall, whole: bool) -> tuple[Arg, ...]:
    if call.script is None:
        return call.words
    if whole:
        return ("EVAL", call.script.text, call.key_count, *call.words)
    return ("EVALSHA", call.script.digest, str(call.key_count), *call.words)


def script_as_eval(call: RedisCall) -> RedisCall:
    """The call as a plain command that needs no script to be known."""
    return (
        call
        if call.script is None
        else RedisCall(_command_words(call, True), idempotent=call.idempotent, wired=call.wired)
    )


def unknown_scripts(replies: Sequence[Any]) -> list[int]:
    """Places of the replies that say NOSCRIPT: nothing was executed there."""
    return [i for i, reply in enumerate(replies) if isinstance(reply, rx.NoScriptError)]


def first_error(replies: Sequence[Any]) -> Exception | None:
    """The first error reply, if any."""
    for reply in replies:  # a generator takes three times as long for the one reply there mostly is
        if isinstance(reply, Exception):
            return reply
    return None
