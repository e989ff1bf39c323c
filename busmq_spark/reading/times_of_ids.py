"""The clock of a queue: which ids existed at a time, and when a message came.

Our pushes note the time of the newest id, once a second at most (lua/include/clock.lua);
:func:`note_times` does so for messages of peers, which note nothing. Times are those of the queue's
Redis server, in whole milliseconds since 1970, and right to the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from busmq_spark.errors import (
    ConfigError,
    ServerRefused,
    TimeUnknown,
    Unauthorized,
    WritesPaused,
)
from busmq_spark.queue.command_generators import Flow, script
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import MAX_MESSAGES_PER_ACK
from busmq_spark.reading.reader_operations import split_into_calls

PAIRS_PER_CALL, MIN_PAIRS_PER_QUEUE, MAX_PAIRS_PER_QUESTION = 2000, 16, 20_000
"""Known times of one queue in one call, and of all queues of one question."""
AGES_PER_CALL = 40
"""Looking for one among a day of seconds takes Redis up to 0.1 ms."""
NOTE_TIME_INTERVAL_S = 1.0
"""Seconds between two notes of a reader, at least."""


@dataclass(frozen=True, slots=True)
class NewestIdAtTime:
    """At the time ``ms`` the newest id was ``id``."""

    ms: int
    id: int


@dataclass(frozen=True, slots=True)
class TimeLookupResult:
    """The answer of a queue's clock to a time, ``asked``. Times are milliseconds since 1970; 0
    where they are not known.
    """

    id: int
    """The last id that existed before the second of that time; -1 where that is not known."""
    first: int
    """The first time that is known."""
    last: int
    """The last one."""
    now: int
    asked: int

    def last_id(self, queue: str) -> int:
        """``id``, where it is known. Raises as :func:`id_at` does."""
        if self.now and self.asked > self.now:
            what = f"the time {format_time(self.asked)} is still to come"
            raise ConfigError(
                reason=(
                    f"{what}: the clock of the server of queue {queue!r} says"
                    f" {format_time(self.now)}"
                )
            )
        if self.id < 0:
            known = (
                f"are known {format_time(self.first)} to {format_time(self.last)}"
                if self.first
                else "none is known"
            )
            raise TimeUnknown(queue=queue, asked=format_time(self.asked), known=known)
        return self.id


class TimesOfIds(NamedTuple):
    """The times of messages around some ids, from the clock of their queue."""

    born: str
    """The incarnation whose times these are."""
    pairs: tuple[tuple[int, int], ...]
    """Milliseconds since 1970 and the id that was the newest then; both rise. Times before the
    first pair are not known.
    """


def note_times(queues: Sequence[QueueKeys]) -> Flow[list[int]]:
    """Note the time of the newest id of each queue.

    For each: 1 noted, 0 noted before or writes pause, -1 no such queue.
    """
    calls = [
        script(
            "note_time",
            [key for keys in part for key in keys.retention_keys],
            (MAX_MESSAGES_PER_ACK,),
            optional=True,
        )
        for part in split_into_calls(queues, queues)
    ]
    try:
        replies = yield calls
    except WritesPaused:
        return [0] * len(queues)
    return [value for reply in replies for value in reply]


def note_times_if_allowed(queues: Sequence[QueueKeys]) -> Flow[None]:
    """Note times, like :func:`note_times`, but without the right to write, or on a full Redis,
    nothing is noted: times that others noted are used.
    """
    with suppress(Unauthorized, ServerRefused):
        yield from note_times(queues)


def find_times(wanted: Sequence[tuple[QueueKeys, int]]) -> Flow[list[TimeLookupResult]]:
    """Look up a time in the clock of each queue, in milliseconds since 1970; a negative one counts
    back from now.
    """
    yield from note_times_if_allowed([keys for keys, _ in wanted])
    replies = yield [
        script("id_at", (keys.metadata, keys.messages, keys.clock), (ms,)) for keys, ms in wanted
    ]
    return [TimeLookupResult(*map(int, reply)) for reply in replies]


def id_at(keys: QueueKeys, ms: int) -> Flow[int]:
    """Return the last id that existed before the second of a time: messages of that second or later
    are after it.

    ``ms`` as for :func:`find_times`. Raises TimeUnknown where no time so early is known and
    messages of before may be stored, ConfigError for a time that is still to come.
    """
    [found] = yield from find_times([(keys, ms)])
    return found.last_id(keys.name)


def ask_times_of_ids(wanted: Sequence[tuple[QueueKeys, tuple[int, int]]]) -> Flow[list[TimesOfIds]]:
    """The known times around some ids of each queue (first..last), MAX_PAIRS_PER_QUESTION at most:
    TimesOfIdsCollector asks for the rest.
    """
    most = max(
        MIN_PAIRS_PER_QUEUE, min(PAIRS_PER_CALL, MAX_PAIRS_PER_QUESTION // max(1, len(wanted)))
    )
    replies = yield [
        script("times", (keys.metadata, keys.clock), (first, last, most))
        for keys, (first, last) in wanted
    ]
    return [
        TimesOfIds(
            born.decode("utf-8", "replace"),
            tuple((int(ms), int(id)) for ms, id in zip(pairs[0::2], pairs[1::2], strict=True)),
        )
        for born, *pairs in replies
    ]


class TimesOfIdsCollector:
    """All known times around ids of queues: from the last one before the first id, where there is
    one, to the first that has the last id.

    Ask for what is ``wanted``, as :func:`ask_times_of_ids` does, and ``add`` the answer, until
    nothing is wanted any more.
    """

    def __init__(self, wanted: Mapping[str, tuple[int, int]]) -> None:
        self.wanted = dict(wanted)
        """By queue the first and the last id whose times are still to be asked for."""
        self.found: dict[str, TimesOfIds] = {}

    def add(self, answers: Mapping[str, TimesOfIds]) -> None:
        """An answer about everything that is wanted; queues left out in it have no times."""
        for queue, (_, last) in tuple(self.wanted.items()):
            some, before = answers.get(queue, TimesOfIds("", ())), self.found.get(queue)
            known = before.pairs if before else ()
            more = tuple(pair for pair in some.pairs if not known or pair[1] > known[-1][1])
            if before and before.born != some.born:
                known, more = (), ()  # another life began meanwhile, whose ids are others
            self.found[queue] = TimesOfIds(some.born, known + more)
            if more and more[-1][1] < last:
                self.wanted[queue] = (more[-1][1] + 1, last)
            else:
                del self.wanted[queue]


def all_known_times(keys: QueueKeys, first: int, last: int) -> Flow[list[NewestIdAtTime]]:
    """The known times around the ids ``first..last`` (inclusive): from the last before ``first``,
    where there is one, to the first that has ``last``.

    A message was pushed after the time of the last pair before its id, and no later than that of
    the first pair that has it.
    """
    gathering = TimesOfIdsCollector({keys.name: (first, last)})
    while gathering.wanted:
        [some] = yield from ask_times_of_ids([(keys, gathering.wanted[keys.name])])
        gathering.add({keys.name: some})
    return [NewestIdAtTime(ms, id) for ms, id in gathering.found[keys.name].pairs]


def ms_of(keys: QueueKeys, id: int) -> Flow[int | None]:
    """Return the time at which the message with this id was certainly stored; return None where it
    is not known.
    """
    found = yield from all_known_times(keys, id, id)
    return arrival_time_ms(found, id)


def ages(messages: Sequence[tuple[QueueKeys, int]]) -> Flow[list[int]]:
    """For how many milliseconds a message of each queue, by id, has been there, or a little less;
    -1 where that is not known.
    """
    if not messages:
        return []
    replies = yield [
        script(
            "ages",
            [key for keys, _ in part for key in (keys.metadata, keys.clock)],
            [id for _, id in part],
        )
        for part in split_into_calls(messages, [keys for keys, _ in messages[:1]], AGES_PER_CALL)
    ]
    return [age for reply in replies for age in reply]


def arrival_time_ms(known: Sequence[NewestIdAtTime], id: int) -> int | None:
    """Return the time at which the message was certainly stored, from the answer of
    :func:`times`.
    """
    later = next((i for i, pair in enumerate(known) if pair.id >= id), 0)
    return (
        known[later].ms if later > 0 else None
    )  # index 0: the first pair (when it began is unknown), or no pair reaches the id


def format_time(ms: int) -> str:
    """A time for people, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
