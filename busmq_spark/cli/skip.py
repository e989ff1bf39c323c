"""``busmq skip``: takes one message out of the path of a stopped reader."""

from shlex import quote
from typing import Annotated

import typer

from busmq_spark.cli.checkpoint import ReaderOption
from busmq_spark.cli.options import JsonOption, QueueArgument
from busmq_spark.cli.output import CliOutput, audit, confirm
from busmq_spark.cli.queue_lookup import (
    CliQueueMissing,
    LocatedQueue,
    MessageMissing,
    locate_existing,
    locate_queue,
    open_links,
    read_messages,
)
from busmq_spark.cli.queue_overviews import describe_lease_holder
from busmq_spark.errors import ConfigError, QueueBusy, QueueFull
from busmq_spark.groups.dead_letter import make_dead_letter, push_letters
from busmq_spark.groups.shared_group import LeasedMessage
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach, check_id, clock_ms
from busmq_spark.reading.reader_operations import QueueState, subscriptions
from busmq_spark.reading.skipping import MAX_SKIPPED_IDS
from busmq_spark.reading.skipping import skip as mark_skipped
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.lease_token import is_dead
from busmq_spark.redis_io.queue_location import new_token

REASON = "skipped by an operator"


def skip(  # noqa: PLR0913  # the options of a command
    queue: QueueArgument,
    id: Annotated[int, typer.Argument(metavar="ID", help="Id of the message.", show_default=False)],
    *,
    reader: ReaderOption = "",
    to_dead: Annotated[
        bool,
        typer.Option("--to-dead", help="Keep the message as a dead letter in QUEUE.dead."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Let a stopped query or ordered group pass over one message that it cannot handle.

    The message stays in its queue until it is acknowledged, and no other id changes. Other readers
    read it. A shared group needs no such command: it gives a message up after its tries.

    ```
    busmq skip orders 541 --to-dead
    busmq skip orders 541 --reader billing --yes
    ```
    """
    out = CliOutput(as_json)
    check_id(id)
    with open_links(redis) as links:
        place, state = locate_existing(queue, links)
        _check_reader(place, reader)
        status = _mark(place, state, reader, id, mark=False)
        if status == "ok":
            who = f"reader {reader!r}" if reader else "its reader"
            if to_dead:
                _push_dead_letter(place, links, reader, id, state)
            else:
                confirm(out, f"let {who} pass over message {id} of queue {queue!r} unread", yes=yes)
            status = _mark(place, state, reader, id, mark=True)
            if not to_dead:
                audit(f"let {who} pass over message {id} of queue {queue!r}")
    dead = f"{queue}.dead" if to_dead and status == "ok" else None
    if as_json:
        out.print_json(queue=queue, id=id, reader=reader, skipped=True, dead=dead)
    elif status == "again":
        out.print_lines(f"Message {id} of queue {queue} was skipped before; nothing is changed.")
    else:
        kept = f" It is kept as a dead letter in {dead}." if dead else ""
        out.print_lines(f"Message {id} of queue {queue} is skipped.{kept} Start the reader again.")


def _check_reader(place: LocatedQueue, reader: str) -> None:
    """Raises ConfigError for a name that is no ordered reader of the queue."""
    [known] = place.link.run(subscriptions([place.keys]))
    name = place.keys.name
    if reader not in known and (reader or known):
        has = f"it has {', '.join(map(repr, known))}" if known else "it has none"
        raise ConfigError(
            reason=(
                f"--reader is {reader!r}; expected a subscription or group of queue {name!r}: {has}"
            )
        )
    if place.link.execute(command("HEXISTS", place.keys.acks, f":shared:{reader}")):
        raise ConfigError(
            reason=(
                f"--reader is {reader!r}, a shared group of queue {name!r}; expected a query or an"
                " ordered group. A shared group gives the message up after its tries, or a holder"
                " rejects it"
            )
        )


def _mark(place: LocatedQueue, state: QueueState, reader: str, id: int, *, mark: bool) -> str:
    """Mark the message, or look whether that is possible: ok, or again. Raises QueueBusy,
    CliQueueMissing, MessageMissing, ConfigError.
    """
    name, dead = place.keys.name, ""
    while True:
        status, detail = place.link.run(mark_skipped(place.keys, reader, id, dead, mark=mark))
        if status != "busy" or not is_dead(detail) or detail == dead:
            break
        dead = detail
    if status == "busy":
        who = describe_lease_holder(place, reader, detail)
        raise QueueBusy(
            queue=name,
            found=f"is read ({who})",
            remedy="Stop that query or program first; its lease ends within 15 s",
        )
    if status == "missing":
        raise CliQueueMissing(queue=name, servers=place.server)
    if status == "gone":
        raise _missing(place, state, id)
    if status == "full":
        raise ConfigError(
            reason=(
                f"{MAX_SKIPPED_IDS} messages of queue {name!r} are skipped for this reader;"
                f" expected fewer. See what is wrong with them: busmq peek {quote(name)}"
            )
        )
    return status


def _missing(place: LocatedQueue, state: QueueState, id: int) -> MessageMissing:
    holds = f"ids {state.oldest}..{state.newest}" if state.count else "no messages now"
    return MessageMissing(queue=place.keys.name, wanted=f"id {id}", found=holds)


def _push_dead_letter(
    place: LocatedQueue, links: list[Link], reader: str, id: int, state: QueueState
) -> None:
    """Append the dead letter, before the mark: a command that is repeated may write it twice, with
    one id.
    """
    found = [each for part in read_messages(place, id, id) for each in part]
    if not found:
        raise _missing(place, state, id)
    now = place.link.run(clock_ms(place.keys))
    of = LeasedMessage(id, found[0].value, 1, now, "")
    attempt = f"skipped-{state.born}"
    letter = make_dead_letter(place.keys.name, reader or "-", of, REASON, now, attempt)
    dead = locate_queue(f"{place.keys.name}.dead", links)
    dead.link.run(attach(dead.keys, new_token(), ttl_s=MIN_RECORD_TTL_S))
    _, stored = dead.link.run(push_letters(dead.keys, [letter]))
    if not stored:
        maxsize = dead.read_state().maxsize
        raise QueueFull(queue=dead.keys.name, maxsize=maxsize, left=1, waited="")
