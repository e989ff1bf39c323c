"""``busmq dead list``, ``show`` and ``purge``: messages that groups gave up. ``replay`` is in
dead_replay.py.
"""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from busmq_spark.cli.cli_errors import MessageMissing
from busmq_spark.cli.confirmation import confirm
from busmq_spark.cli.options import JsonOption, QueueArgument
from busmq_spark.cli.output import CliOutput, table
from busmq_spark.cli.queue_lookup import LocatedQueue, locate_existing, open_links
from busmq_spark.cli.stored_messages import read_messages
from busmq_spark.cli.terminal_text import (
    escape_control_characters,
    format_count,
    value_json,
    value_text,
)
from busmq_spark.errors import MessageRefused
from busmq_spark.groups.dead_letter import DeadLetter, decode_letter, recorded_runs
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import Message
from busmq_spark.queue.queue import trim

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
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete them: they cannot be had back.")
    ] = False,
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
            confirm(out, f"delete {letters} of queue {queue!r}, which cannot be had back", yes=yes)
        place.link.run(trim(place.keys, state.last_id))
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
