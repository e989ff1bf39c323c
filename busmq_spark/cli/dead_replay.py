"""``busmq dead replay``: originals go back into their queues.

Rule 1. A letter says itself which queue it is from, and any program with the right to
        push to the dead-letter queue can write one. It goes there only where the bus has recorded
        that a group wrote the letter; else the user names the queue.
Rule 2. Nothing is put back before the user has seen which letters go where, and has agreed.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, NamedTuple

import typer

from busmq_spark.cli.dead import SHOWN_CHARS, decode_dead_letter, stored_messages
from busmq_spark.cli.options import JsonOption, QueueArgument
from busmq_spark.cli.output import CliOutput
from busmq_spark.cli.progress_bar import TerminalProgressBar
from busmq_spark.cli.queue_lookup import LocatedQueue, locate_existing, locate_queue, open_links
from busmq_spark.cli.terminal_text import format_count, one_line
from busmq_spark.errors import ConfigError, QueueFull
from busmq_spark.groups.dead_letter import DeadLetter, put_back, recorded_runs
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Message, chunks
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach, trim
from busmq_spark.redis_io.link_factory import Link
from busmq_spark.redis_io.queue_location import new_token

MESSAGES_PER_STEP = 1000
"""Messages put back before the next are read."""
SHOWN_LINES = 20
"""Most lines of the plan: a peer chooses how many origins its letters name."""

ToOption = Annotated[
    list[str] | None,
    typer.Option(
        "--to",
        metavar="QUEUE",
        show_default=False,
        help=(
            "Put all letters into this queue, whatever they say. Given several times: each into the"
            " one of them that it names."
        ),
    ),
]


class _Route(NamedTuple):
    """From where letters say that they are, and where they go. No ``target``: nowhere."""

    group: str
    origin: str
    link: str
    recorded: bool
    target: str | None

    def __str__(self) -> str:
        link = f" of link {_short(self.link)}" if self.link else ""
        record = "" if self.recorded else ", not of record"
        way = f"to queue {_short(self.target)}" if self.target is not None else "refused"
        return f"of group {_short(self.group)} of queue {_short(self.origin)}{link}{record}: {way}"


def _short(name: str) -> str:
    return repr(name if len(name) <= SHOWN_CHARS else f"{name[:SHOWN_CHARS]}…")


@dataclass(frozen=True, slots=True)
class _Replay:
    """The letters of one dead-letter queue, and the queues that the user has named for them."""

    queue: str
    place: LocatedQueue
    born: str
    to: tuple[str, ...]

    def routed(self, messages: Sequence[Message]) -> list[tuple[int, DeadLetter, _Route]]:
        """Each letter with its way. Raises MessageRefused for a message that is no letter."""
        runs = (
            self.place.link.run(recorded_runs(self.place.keys, self.born, messages[0].id))
            if messages
            else []
        )
        found = []
        for message in messages:
            letter = decode_dead_letter(self.queue, message)
            recorded = any(message.id in run for run in runs)
            route = _Route(
                letter.group,
                letter.queue,
                letter.link,
                recorded,
                self._target(letter, recorded=recorded),
            )
            found.append((message.id, letter, route))
        return found

    def _target(self, letter: DeadLetter, *, recorded: bool) -> str | None:
        if len(self.to) == 1:
            return self.to[0]
        if self.to:
            return letter.queue if letter.queue in self.to else None
        return letter.queue if recorded and not letter.link else None


def replay(
    queue: QueueArgument,
    *,
    most: Annotated[
        int | None,
        typer.Option(
            "--most",
            min=1,
            metavar="N",
            help="The N oldest; all of them when not given.",
            show_default=False,
        ),
    ] = None,
    to: ToOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Put originals back at the end of their queues, each once, oldest first, and remove their dead
    letters.

    The command shows from where the letters are and where they go, and asks. A letter names its
    queue itself. It goes there when a group of this bus wrote it. A letter that is not of record,
    as of a query or of a federation peer, needs --to. A command that was killed or cut off can be
    given again: a letter that was put back is not put back twice.

    ```
    busmq dead replay mail.dead
    busmq dead replay orders.dead --to orders --yes
    ```
    """
    out = CliOutput(as_json)
    put: dict[str, int] = {}
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        if queue in (to or ()):
            raise ConfigError(
                reason=f"--to is {queue!r}, the dead-letter queue itself; expected another queue"
            )
        job, wanted = (
            _Replay(queue, place, state.born, tuple(dict.fromkeys(to or ()))),
            min(state.count, most or state.count),
        )
        _agree(out, job, state.oldest, state.newest, wanted, yes=yes)
        with TerminalProgressBar(out, f"putting back from {queue}", wanted, "messages") as meter:
            # Read anew each time, since what was put back has left the queue.
            while messages := list(
                stored_messages(
                    place, state.oldest, state.newest, min(MESSAGES_PER_STEP, wanted - meter.items)
                )
            ):
                for target, some in groupby(job.routed(messages), key=lambda each: each[2].target):
                    part = [(id, letter) for id, letter, _ in some]
                    if target is None:
                        raise _refusal(queue, part[0][0], [])
                    _put_back(links, place, state.born, target, part)
                    put[target] = put.get(target, 0) + len(part)
                    meter.add(len(part))
    if as_json:
        out.print_json(queue=queue, replayed=put)
    else:
        out.print_lines(
            *[
                f"{format_count(number, 'message')} put back into queue {target}."
                for target, number in put.items()
            ]
            or [f"Queue {queue} holds no dead letters."]
        )


def _agree(
    out: CliOutput, job: _Replay, oldest: int, newest: int, wanted: int, *, yes: bool
) -> None:
    """Show the plan, and return once the user has agreed. Raises ConfigError."""
    routes: Counter[_Route] = Counter()
    refused, at, left = 0, oldest, wanted
    while messages := list(stored_messages(job.place, at, newest, min(MESSAGES_PER_STEP, left))):
        for id, _, route in job.routed(messages):
            routes[route] += 1
            refused = refused or (id if route.target is None else 0)
        at, left = messages[-1].id + 1, left - len(messages)
    plan = [
        f"{format_count(number, 'letter')} {route}"
        for route, number in routes.most_common(SHOWN_LINES)
    ]
    if len(routes) > SHOWN_LINES:
        plan.append(f"and letters of {len(routes) - SHOWN_LINES} more origins")
    if refused:
        raise _refusal(job.queue, refused, plan)
    if not routes or yes:
        return
    if out.as_json or not sys.stdin.isatty():
        raise ConfigError(
            reason=(
                f"this would put back from queue {job.queue!r}: {'; '.join(plan)}. Add --yes to"
                " do so"
            )
        )
    out.print_lines(
        f"This would put back from queue {job.queue}:", *(f"  {one_line(line)}" for line in plan)
    )
    if not typer.confirm("Do it?"):
        raise ConfigError(reason="nothing was put back")


def _refusal(queue: str, id: int, plan: Sequence[str]) -> ConfigError:
    found = f" ({'; '.join(plan)})" if plan else ""
    return ConfigError(
        reason=(
            f"no record shows that a group of this bus wrote message {id} of queue"
            f" {queue!r}{found}. It may be a query's, or forged. Look at it with 'busmq dead list"
            f" {queue}', then name the queue for the letters with --to QUEUE, or 'busmq dead purge'"
            " them"
        )
    )


def _put_back(
    links: list[Link],
    dead: LocatedQueue,
    born: str,
    target: str,
    letters: list[tuple[int, DeadLetter]],
) -> None:
    place = locate_queue(target, links)
    found = place.link.run(attach(place.keys, new_token(), ttl_s=MIN_RECORD_TTL_S))
    rows = [(id, letter.value) for id, letter in letters]
    at = 0
    for chunk in chunks([value for _, value in rows]):
        part = rows[at : at + len(chunk)]
        done = place.link.run(put_back(place.keys, born, part))
        if done:
            dead.link.run(trim(dead.keys, part[done - 1][0]))
        if done < len(part):
            raise QueueFull(
                queue=target, maxsize=found.maxsize, waited="", left=len(rows) - at - done
            )
        at += len(chunk)
