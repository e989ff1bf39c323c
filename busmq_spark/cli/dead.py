"""``busmq dead``: what groups gave up, to look at, to put back and to delete."""

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Annotated

import typer
from rich.text import Text

from busmq_spark.cli.cli_errors import CliMessageMissing
from busmq_spark.cli.options import JsonOption, QueueArgument
from busmq_spark.cli.output import CliOutput, table
from busmq_spark.cli.progress_bar import TerminalProgressBar
from busmq_spark.cli.queue_lookup import LocatedQueue, locate_existing, locate_queue, open_links
from busmq_spark.cli.stored_messages import read_messages
from busmq_spark.cli.terminal_text import escape_control_characters, format_count, value_json, value_text
from busmq_spark.core.dead_letter import DeadLetter, decode_letter, put_back
from busmq_spark.core.message import Message, chunks
from busmq_spark.core.queue import MIN_RECORD_TTL_S, attach, trim
from busmq_spark.errors import ConfigError, MessageRefused, QueueFull
from busmq_spark.options import RedisOptions
from busmq_spark.redis_io.link_factory import Link
from busmq_spark.redis_io.queue_location import new_token

SHOWN_CHARS = 60
MESSAGES_PER_REPLAY_STEP = 1000
"""Messages put back before the next are read."""
IdArgument = Annotated[int, typer.Argument(metavar="ID", help="Id of the dead letter, as 'busmq dead list' shows it.", show_default=False)]


def list_(
    queue: QueueArgument,
    *,
    first: Annotated[int, typer.Option("--first", "-n", min=1, metavar="N", help="The N oldest.")] = 10,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters in a dead-letter queue, oldest first.

    ```
    busmq dead list mail.dead
    busmq dead list mail.dead --json | jq .error
    ```
    """
    out = CliOutput(as_json)
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        found = [(message.id, _decode_dead_letter(queue, message)) for message in _stored_messages(place, state.oldest, state.newest, first)]
    if as_json:
        for id, letter in found:
            out.print_json(**_dead_letter_json(queue, id, letter))
        return
    if not found:
        out.note(f"queue {queue} holds no dead letters")
        return
    columns = [
        ("id", "right"),
        ("of queue", "left"),
        ("its id", "right"),
        ("group", "left"),
        ("tries", "right"),
        ("given up", "left"),
        ("error", "left"),
        ("value", "left"),
    ]
    out.print_table(table(columns, [_dead_letter_row(id, letter) for id, letter in found]))
    if state.count > len(found):
        out.note(f"{format_count(state.count - len(found), 'more dead letter')}; --first N shows more")


def show(queue: QueueArgument, id: IdArgument, *, redis: RedisOptions) -> None:
    """Write the original value of a dead letter to stdout, byte by byte.

    ```
    busmq dead show mail.dead 7 > message.json
    ```
    """
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        found = list(_stored_messages(place, id, id, 1))
    if not found:
        holds = f"ids {state.oldest}..{state.newest}" if state.count else "no messages now"
        raise CliMessageMissing(queue=queue, wanted=f"id {id}", found=holds)
    letter = _decode_dead_letter(queue, found[0])
    sys.stdout.buffer.write(letter.value)
    sys.stdout.buffer.flush()


def replay(
    queue: QueueArgument,
    *,
    most: Annotated[
        int | None, typer.Option("--most", min=1, metavar="N", help="The N oldest; all of them when not given.", show_default=False)
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Also those that a query read over a federation link: into the queues of that name in this Redis.")
    ] = False,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Put originals back at the end of their queues, each once, oldest first, and remove their dead letters.

    A command that was killed or cut off can be given again: what was put back is not put back twice. What a query read over a federation link has its
    queue behind that link: it is refused, unless you say --here.

    ```
    busmq dead replay mail.dead
    ```
    """
    out = CliOutput(as_json)
    put: dict[str, int] = {}
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        wanted = min(state.count, most or state.count)
        with TerminalProgressBar(out, f"putting back from {queue}", wanted, "messages") as meter:
            # Read anew each time, since what was put back has left the queue.
            while messages := list(_stored_messages(place, state.oldest, state.newest, min(MESSAGES_PER_REPLAY_STEP, wanted - meter.items))):
                letters = [(message.id, _decode_dead_letter(queue, message)) for message in messages]
                if not here:
                    _refuse_linked(queue, letters)
                for target, some in groupby(letters, key=lambda each: each[1].queue):
                    part = list(some)
                    _put_back(links, place, state.born, target, part)
                    put[target] = put.get(target, 0) + len(part)
                    meter.add(len(part))
    if as_json:
        out.print_json(queue=queue, replayed=put)
    else:
        out.print_lines(
            *[f"{format_count(number, 'message')} put back into queue {target}." for target, number in put.items()]
            or [f"Queue {queue} holds no dead letters."]
        )


def purge(
    queue: QueueArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete them: they cannot be had back.")] = False,
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
        for message in _stored_messages(place, state.oldest, state.newest, 1):
            _decode_dead_letter(queue, message)  # a queue of other messages is not meant
        if state.count and not yes:
            raise ConfigError(
                reason=f"this would delete {format_count(state.count, 'dead letter')} of queue {queue!r}, "
                "which cannot be had back. Add --yes to do so"
            )
        place.link.run(trim(place.keys, state.last_id))
    if as_json:
        out.print_json(queue=queue, purged=state.count)
    else:
        out.print_lines(f"{format_count(state.count, 'dead letter')} deleted from queue {queue}.")


def _refuse_linked(queue: str, letters: list[tuple[int, DeadLetter]]) -> None:
    for id, letter in letters:
        if letter.link:
            where = f"was read over federation link {letter.link!r} from queue {letter.queue!r}, which is there"
            remedy = f"--here puts it into queue {letter.queue!r} of this Redis; 'busmq dead show {queue} {id}' writes its value, to push it there"
            raise ConfigError(reason=f"message {id} of queue {queue!r} {where}. {remedy}")


def _put_back(links: list[Link], dead: LocatedQueue, born: str, target: str, letters: list[tuple[int, DeadLetter]]) -> None:
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
            raise QueueFull(queue=target, maxsize=found.maxsize, waited="", left=len(rows) - at - done)
        at += len(chunk)


def _stored_messages(place: LocatedQueue, first: int, last: int, most: int) -> Iterator[Message]:
    if not first or not most:
        return
    for part in read_messages(place, first, last):
        yield from part[:most]
        most -= len(part)
        if most <= 0:
            return


def _decode_dead_letter(queue: str, message: Message) -> DeadLetter:
    try:
        return decode_letter(message.value)
    except MessageRefused as error:
        raise MessageRefused(reason=f"message {message.id} of queue {queue!r}: {error.details['reason']}") from None


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


def _dead_letter_row(id: int, letter: DeadLetter) -> list[str | Text]:
    value = value_text(letter.value, SHOWN_CHARS)
    return [
        str(id),
        Text(escape_control_characters(letter.queue), "cyan"),
        str(letter.id),
        letter.group,
        str(letter.tries),
        letter.last,
        letter.error,
        value,
    ]
