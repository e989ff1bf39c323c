"""``busmq peek``: look at stored messages."""

import re
from typing import Annotated

import typer

from busmq_spark.cli.options import (
    JsonOption,
    NullOption,
    QueueArgument,
    RawOption,
    check_exclusive,
)
from busmq_spark.cli.output import CliOutput, MessagePrinter, format_count
from busmq_spark.cli.queue_lookup import MessageMissing, locate_existing, open_links, read_messages
from busmq_spark.errors import ConfigError
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import MAX_ID
from busmq_spark.reading.reader_operations import QueueState

DEFAULT_MESSAGE_COUNT = 10


def peek(  # noqa: PLR0913  # the options of a command
    queue: QueueArgument,
    *,
    first: Annotated[
        int | None,
        typer.Option(
            "--first",
            "-n",
            min=1,
            metavar="N",
            help=f"The N oldest messages.  [default: {DEFAULT_MESSAGE_COUNT}]",
        ),
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", min=1, metavar="N", help="The N newest messages.")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="RANGE",
            help=(
                "The message with this id, or those of a range: 7, 7..9, 7.., ..9 (both ends"
                " included)."
            ),
        ),
    ] = None,
    raw: RawOption = False,
    null: NullOption = False,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Show stored messages. Nothing is removed.

    ```
    busmq peek orders
    busmq peek orders --last 3
    busmq peek orders --id 41 --raw > order.json
    ```
    """
    out = CliOutput(as_json)
    check_exclusive(first=first is not None, last=last is not None, id=ids is not None)
    wanted = None if ids is None else parse_id_range(ids)
    writer = MessagePrinter(out, queue, raw, null)
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        low, high = wanted or _range_at_an_end(state, first, last)
        if wanted and not (state.count and low <= state.newest and high >= state.oldest):
            raise MessageMissing(
                queue=queue, wanted=_range_text(low, high), found=_stored_ids_text(state)
            )
        if not state.count:
            out.note(f"queue {queue} is empty; the last id given was {state.last_id}")
        shown = 0
        for messages in read_messages(place, max(low, state.oldest), min(high, state.newest)):
            writer.write(messages)
            shown += len(messages)
        _mention_the_rest(out, state, shown, asked=bool(first or last or wanted))


def parse_id_range(text: str) -> tuple[int, int]:
    """``7``, ``7..9``, ``7..`` or ``..9`` as first and last id, both inclusive."""
    match = re.fullmatch(r"(\d{1,16})?(\.\.)?(\d{1,16})?", text.strip())
    if not match or not (match[1] or match[3]) or (match[3] and not match[2]):
        raise ConfigError(
            reason=(
                f"--id is {text!r}; expected an id such as 7, or a range such as 7..9, 7.. or ..9"
            )
        )
    low = int(match[1] or 1)
    high = int(match[3] or MAX_ID) if match[2] else low
    if low > high:
        raise ConfigError(
            reason=f"--id is {text!r}: its first id is above its last. Turn them around"
        )
    return low, high


def _range_at_an_end(state: QueueState, first: int | None, last: int | None) -> tuple[int, int]:
    if last is not None:
        return max(state.oldest, state.newest - last + 1), state.newest
    return state.oldest, state.oldest + (first or DEFAULT_MESSAGE_COUNT) - 1


def _range_text(low: int, high: int) -> str:
    return f"id {low}" if low == high else f"any of the ids {low}..{'' if high == MAX_ID else high}"


def _stored_ids_text(state: QueueState) -> str:
    return (
        f"ids {state.oldest}..{state.newest}"
        if state.count
        else f"no messages now (the last id given was {state.last_id})"
    )


def _mention_the_rest(out: CliOutput, state: QueueState, shown: int, *, asked: bool) -> None:
    if not asked and not out.as_json and out.on_terminal and shown < state.count:
        out.note(
            f"{format_count(state.count - shown, 'more message')}; --first N, --last N and --id"
            " show others"
        )
