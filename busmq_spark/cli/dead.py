"""``busmq dead``: messages that groups gave up; listed, shown, put back and deleted.

``busmq dead replay``: originals go back into their queues.

Rule 1. A letter says itself which queue it is from, and any program with the right to
        push to the dead-letter queue can write one. It goes there only where the bus has recorded
        that a group wrote the letter; else the user names the queue.
Rule 2. Nothing is put back before the user has seen which letters go where, and has agreed.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from busmq_spark.cli.options import DryRunOption, JsonOption, QueueArgument, YesOption
from busmq_spark.cli.output import (
    CliOutput,
    TerminalProgressBar,
    audit,
    confirm,
    escape_control_characters,
    format_count,
    one_line,
    table,
    value_json,
    value_text,
)
from busmq_spark.cli.queue_lookup import (
    LocatedQueue,
    MessageMissing,
    locate_existing,
    locate_queue,
    open_links,
    read_messages,
)
from busmq_spark.errors import ConfigError, MessageRefused, QueueFull
from busmq_spark.groups.dead_letter import DeadLetter, decode_letter, put_back, recorded_runs
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Message, chunks
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach, trim
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.queue_location import new_token

SHOWN_CHARS = 60
IdArgument = Annotated[
    int,
    typer.Argument(
        metavar="ID",
        help="Id of the dead letter, as 'busmq dead list' shows it.",
        show_default=False,
    ),
]


def list_(
    queue: QueueArgument,
    *,
    first: Annotated[
        int, typer.Option("--first", "-n", min=1, metavar="N", help="The N oldest.")
    ] = 10,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters in a dead-letter queue, oldest first.

    A letter is of record when a group of this bus wrote it. The origin of another one is only what
    the letter says.

    ```
    busmq dead list mail.dead
    busmq dead list mail.dead --json | jq .error
    ```
    """
    out = CliOutput(as_json)
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        found = [
            (message.id, decode_dead_letter(queue, message))
            for message in stored_messages(place, state.oldest, state.newest, first)
        ]
        runs = place.link.run(recorded_runs(place.keys, state.born, state.oldest))
    recorded = {id: any(id in run for run in runs) for id, _ in found}
    if as_json:
        for id, letter in found:
            out.print_json(**_dead_letter_json(queue, id, letter), recorded=recorded[id])
        return
    if not found:
        out.note(f"queue {queue} holds no dead letters")
        return
    columns = [
        ("id", "right"),
        ("of record", "left"),
        ("of queue", "left"),
        ("its id", "right"),
        ("group", "left"),
        ("tries", "right"),
        ("given up", "left"),
        ("error", "left"),
        ("value", "left"),
    ]
    out.print_table(
        table(
            columns, [_dead_letter_row(id, letter, recorded=recorded[id]) for id, letter in found]
        )
    )
    if state.count > len(found):
        out.note(
            f"{format_count(state.count - len(found), 'more dead letter')}; --first N shows more"
        )


def show(queue: QueueArgument, id: IdArgument, *, redis: RedisOptions) -> None:
    """Write the original value of a dead letter to stdout, byte by byte.

    ```
    busmq dead show mail.dead 7 > message.json
    ```
    """
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        found = list(stored_messages(place, id, id, 1))
    if not found:
        holds = f"ids {state.oldest}..{state.newest}" if state.count else "no messages now"
        raise MessageMissing(queue=queue, wanted=f"id {id}", found=holds)
    letter = decode_dead_letter(queue, found[0])
    sys.stdout.buffer.write(letter.value)
    sys.stdout.buffer.flush()


def purge(
    queue: QueueArgument,
    *,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Delete the dead letters that are in a dead-letter queue now.

    ```
    busmq dead purge mail.dead --yes
    ```
    """
    out = CliOutput(as_json)
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        for message in stored_messages(place, state.oldest, state.newest, 1):
            decode_dead_letter(queue, message)  # a queue of other messages is not meant
        if state.count:
            letters = format_count(state.count, "dead letter")
            consequence = f"delete {letters} of queue {queue!r}, which cannot be had back"
            if not confirm(out, consequence, yes=yes, dry_run=dry_run):
                return
        place.link.run(trim(place.keys, state.last_id))
    audit(f"purged queue {queue!r}: {format_count(state.count, 'dead letter')} deleted")
    if as_json:
        out.print_json(queue=queue, purged=state.count)
    else:
        out.print_lines(f"{format_count(state.count, 'dead letter')} deleted from queue {queue}.")


def stored_messages(place: LocatedQueue, first: int, last: int, most: int) -> Iterator[Message]:
    """Up to ``most`` of the messages ``first..last``."""
    if not first or not most:
        return
    for part in read_messages(place, first, last):
        yield from part[:most]
        most -= len(part)
        if most <= 0:
            return


def decode_dead_letter(queue: str, message: Message) -> DeadLetter:
    """Decode a message as a dead letter. Raises MessageRefused, which names queue and id."""
    try:
        return decode_letter(message.value)
    except MessageRefused as error:
        raise MessageRefused(
            reason=f"message {message.id} of queue {queue!r}: {error.details['reason']}"
        ) from None


def _dead_letter_json(queue: str, id: int, letter: DeadLetter) -> dict[str, object]:
    return {
        "dead": queue,
        "id": id,
        "queue": letter.queue,
        "originalid": letter.id,
        "group": letter.group,
        "tries": letter.tries,
        "error": letter.error,
        "first": letter.first,
        "last": letter.last,
        **({"link": letter.link} if letter.link else {}),
        **value_json(letter.value),
    }


def _dead_letter_row(id: int, letter: DeadLetter, *, recorded: bool) -> list[str | Text]:
    value = value_text(letter.value, SHOWN_CHARS)
    return [
        str(id),
        "yes" if recorded else "no",
        Text(escape_control_characters(letter.queue), "cyan"),
        str(letter.id),
        letter.group,
        str(letter.tries),
        letter.last,
        letter.error,
        value,
    ]


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
