"""``busmq push``: messages from arguments, a file or stdin to the end of a queue.

Cutting a stream of bytes into messages. Bytes in, bytes out; only the separator means
something.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from busmq_spark.cli.options import JsonOption, NullOption, QueueArgument, parse_seconds
from busmq_spark.cli.output import (
    CliOutput,
    TerminalProgressBar,
    format_count,
    format_duration,
    format_number,
)
from busmq_spark.cli.queue_lookup import (
    CliQueueFull,
    LocatedQueue,
    find_topic,
    locate_partitions,
    locate_queue,
    open_links,
)
from busmq_spark.errors import ConfigError, LinkLost, NotReplicated, QueueMissing
from busmq_spark.groups.topic import partition_of
from busmq_spark.options import Durability, RedisOptions, check_durability
from busmq_spark.queue.command_generators import slices
from busmq_spark.queue.message import chunks
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, AttachResult, append, attach, push_many
from busmq_spark.redis_io.durability import DurableSyncLink
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.queue_location import new_token

READ_BYTES = 1024 * 1024


def split_messages(
    read: Callable[[int], bytes], separator: bytes
) -> Iterator[tuple[list[bytes], int]]:
    """Messages as they arrive, in runs, each run with the number of bytes read for it.

    ``read`` returns what is there (``read1`` of a pipe), so a line is handed on as soon as it is
    complete. A separator at the very end ends the last message and starts no empty one.
    """
    rest: list[bytes] = []
    while block := read(READ_BYTES):
        first, *others = block.split(separator)
        rest.append(
            first
        )  # joined only when complete: a message of many blocks is not copied once a block
        if others:
            yield [b"".join(rest), *others[:-1]], len(block)
            rest = [others[-1]]
        else:
            yield [], len(block)
    if last := b"".join(rest):
        yield [last], 0


def push(  # noqa: PLR0913  # the options of a command
    queue: QueueArgument,
    *,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MESSAGE",
            help="The messages. Without any, or with -, they come from stdin.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="Read messages from this file, one a line.",
            exists=True,
            dir_okay=False,
            allow_dash=True,
        ),
    ] = None,
    null: NullOption = False,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="The file or stdin is one single message, line breaks and all."
        ),
    ] = False,
    ttl: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=(
                "How long a new queue lives after the last push or touch: 90s, 15m, 12h, 7d. An"
                " existing queue keeps its own.  [default: 7d]"
            ),
        ),
    ] = None,
    maxsize: Annotated[
        int,
        typer.Option(
            min=0,
            help=(
                "How many messages a new queue holds at most; 0 is no limit. An existing queue"
                " keeps its own."
            ),
        ),
    ] = 0,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="QUEUE is a topic: push to the partition of this key.",
            show_default=False,
        ),
    ] = None,
    durability: Annotated[
        str,
        typer.Option(
            metavar="LEVEL",
            help="Which servers must have a message: memory, disk, replicated or replicated-disk.",
        ),
    ] = "memory",
    replicas: Annotated[
        str,
        typer.Option(metavar="N", help="How many replicas, or all that can be elected."),
    ] = "all",
    durability_timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Longest wait for their confirmations.")
    ] = "5s",
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Append messages to a queue, creating it if there is none.

    Every line of a file or of stdin is one message; nothing of it is changed, so any bytes may be
    pushed.

    ```
    busmq push orders '{"id": 1}'
    busmq push orders --file orders.jsonl
    tail -F app.log | busmq push log
    busmq push metrics --key host-1 '{"cpu": 0.5}'
    ```
    """
    out = CliOutput(as_json)
    values = None if values == ["-"] else values
    ttl_s = MIN_RECORD_TTL_S if ttl is None else parse_seconds(ttl, "--ttl")
    durable = check_durability(
        durability,
        int(replicas) if replicas.isdecimal() else replicas,
        parse_seconds(durability_timeout, "--durability-timeout"),
    )
    _check_arguments(values, file, null, whole)
    with nullcontext() if values else _open_source(out, file) as source, open_links(redis) as links:
        place = locate_queue(queue, links) if key is None else _location_of_key(queue, key, links)
        attached = place.link.run(attach(place.keys, new_token(), ttl_s=ttl_s, maxsize=maxsize))
        _note_ignored_options(out, attached, ttl_s if ttl else 0, maxsize)
        sender = CliPusher(out, place, attached, durable)
        if source is None:
            sender.push([os.fsencode(value) for value in values or ()])
        else:
            sender.push_source(source, None if whole else (b"\0" if null else b"\n"))
        _show_result(out, sender)


def _location_of_key(topic: str, key: str, links: list[Link]) -> LocatedQueue:
    """Return the place of the partition of a key. Raises TopicMissing."""
    _, found = find_topic(topic, links)
    partition = partition_of(os.fsencode(key), found.partitions)
    [place] = locate_partitions(topic, range(partition, partition + 1), links)
    return place


class CliPusher:
    """Pushes and counts."""

    def __init__(
        self, out: CliOutput, place: LocatedQueue, attached: AttachResult, durability: Durability
    ) -> None:
        self.out, self.place, self.attached = out, place, attached
        self._durability, self._link = durability, DurableSyncLink(place.link, durability)
        self.stored = 0

    def push(self, values: list[bytes]) -> None:
        """All of them, or CliQueueFull. After a LinkLost ``stored`` is what is known to be
        stored.
        """
        if not values:
            return
        stored = self._push_durably(values) if self._durability.on else self._push_all(values)
        self.stored += stored
        if stored < len(values):
            raise CliQueueFull(
                queue=self.place.keys.name,
                maxsize=self.attached.maxsize,
                stored=self.stored,
                left=len(values) - stored,
            )

    def _push_all(self, values: list[bytes]) -> int:
        return self.place.link.run(push_many(self.place.keys, values))

    def _push_durably(self, values: list[bytes]) -> int:
        """Push chunk by chunk. Raises NotReplicated with the ids of the chunk."""
        keys, done = self.place.keys, 0
        for chunk in chunks(values):
            try:
                stored = self._link.run(append(keys, chunk), keys.name)[1]
            except NotReplicated as error:
                first, stored = error.replies[0]
                if stored < 0:
                    raise QueueMissing(queue=keys.name) from None
                if not stored:
                    break
                self.stored += done + stored
                left = len(values) - done - stored
                raise error.about(first=first, last=first + stored - 1, left=left) from None
            done += stored
            if stored < len(chunk):
                break
        return done

    def push_source(self, source: BinaryIO, separator: bytes | None) -> None:
        """Everything a file or pipe holds; ``separator`` None makes one message of it."""
        if separator is None:
            self.push([source.read()])
            return
        total = _source_size(source)
        with TerminalProgressBar(
            self.out, f"pushing to {self.place.keys.name}", total, "messages", weighed=True
        ) as meter:
            try:
                # Both are buffered readers
                for values, read_bytes in split_messages(source.read1, separator):  # type: ignore[attr-defined]
                    for part in slices(values, 20_000):
                        self.push(part)
                    meter.add(len(values), read_bytes)
            except (LinkLost, KeyboardInterrupt):
                self.out.note(
                    f"{format_count(self.stored, 'message')} had been stored; of those sent last it"
                    " is not known"
                )
                raise


def _check_arguments(values: list[str] | None, file: Path | None, null: bool, whole: bool) -> None:
    if values and (file or null or whole):
        raise ConfigError(
            reason=(
                "messages were given as arguments, so --file, --null and --whole do not apply."
                " Leave out the one or the other"
            )
        )
    if null and whole:
        raise ConfigError(reason="--null and --whole exclude each other. Give one of them")


def _note_ignored_options(out: CliOutput, attached: AttachResult, ttl_s: int, maxsize: int) -> None:
    """Options that an existing queue overrules should not be thought to hold."""
    if attached.existed and maxsize and attached.maxsize != maxsize:
        out.note(f"the queue exists with maxsize {attached.maxsize}; --maxsize is for new queues")
    if attached.existed and ttl_s and attached.ttl_s != ttl_s:
        out.note(
            f"the queue exists with a ttl of {format_duration(attached.ttl_s)}; --ttl is for new"
            " queues"
        )


def _open_source(out: CliOutput, file: Path | None) -> BinaryIO:
    if file is not None and str(file) != "-":
        return file.open("rb")
    if sys.stdin is None:
        raise ConfigError(
            reason=(
                "no messages were given, and stdin is closed. Give them as arguments or with --file"
            )
        )
    if sys.stdin.isatty():
        out.note("Type one message a line; end with Ctrl-D.")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def _source_size(source: BinaryIO) -> int | None:
    size = os.fstat(source.fileno()).st_size
    return size or None


def _show_result(out: CliOutput, sender: CliPusher) -> None:
    state, queue = sender.place.read_state(), sender.place.keys.name
    if out.as_json:
        out.print_json(
            queue=queue,
            pushed=sender.stored,
            newest_id=state.newest or None,
            messages=state.waiting,
            created=not sender.attached.existed,
            server=sender.place.server,
        )
        return
    new = "" if sender.attached.existed else "new "
    out.print_lines(
        f"Pushed {format_count(sender.stored, 'message')} to {new}queue {queue}:"
        f" {format_number(state.count)} stored, newest id {state.last_id}."
    )
