"""``busmq push``: messages from arguments, a file or stdin to the end of a queue."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from busmq_spark.cli.faults import CliQueueFull
from busmq_spark.cli.options import JsonOption, NullOption, QueueArgument, seconds
from busmq_spark.cli.output import Output
from busmq_spark.cli.progress import TerminalProgressBar
from busmq_spark.cli.splitting import batches
from busmq_spark.cli.target import QueueLocation, open_links, partition_places, place_of, topic_of
from busmq_spark.cli.terminal_text import count, duration, number
from busmq_spark.core.grouping import slices
from busmq_spark.core.queue import MIN_RECORD_TTL_S, AttachResult, attach, push_many
from busmq_spark.core.topic import partition_of
from busmq_spark.errors import ConfigError, LinkLost
from busmq_spark.options import RedisOptions
from busmq_spark.redis_io.links import Link
from busmq_spark.redis_io.place import new_token


def push(  # noqa: PLR0913  the options of a command
    queue: QueueArgument,
    *,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="MESSAGE", help="The messages. Without any, or with -, they come from stdin.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read messages from this file, one a line.", exists=True, dir_okay=False, allow_dash=True)
    ] = None,
    null: NullOption = False,
    whole: Annotated[bool, typer.Option("--whole", help="The file or stdin is one single message, line breaks and all.")] = False,
    ttl: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long a new queue lives after the last push or touch: 90s, 15m, 12h, 7d. An existing queue keeps its own.  [default: 7d]",
        ),
    ] = None,
    maxsize: Annotated[
        int, typer.Option(min=0, help="How many messages a new queue holds at most; 0 is no limit. An existing queue keeps its own.")
    ] = 0,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="QUEUE is a topic: push to the partition of this key.", show_default=False)] = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Append messages to a queue, creating it if there is none.

    Every line of a file or of stdin is one message; nothing of it is changed, so any bytes may be pushed.

    ```
    busmq push orders '{"id": 1}'
    busmq push orders --file orders.jsonl
    tail -F app.log | busmq push log
    busmq push metrics --key host-1 '{"cpu": 0.5}'
    ```
    """
    out = Output(as_json)
    values = None if values == ["-"] else values
    ttl_s = MIN_RECORD_TTL_S if ttl is None else seconds(ttl, "--ttl")
    _check(values, file, null, whole)
    with nullcontext() if values else _source(out, file) as source, open_links(redis) as links:
        place = place_of(queue, links) if key is None else _location_of_key(queue, key, links)
        attached = place.link.run(attach(place.keys, new_token(), ttl_s=ttl_s, maxsize=maxsize))
        _explain(out, attached, ttl_s if ttl else 0, maxsize)
        sender = MessagePusher(out, place, attached)
        if source is None:
            sender.send([os.fsencode(value) for value in values or ()])
        else:
            sender.drain(source, None if whole else (b"\0" if null else b"\n"))
        _answer(out, sender)


def _location_of_key(topic: str, key: str, links: list[Link]) -> QueueLocation:
    """Where the partition of a key is. Raises TopicMissing."""
    _, found = topic_of(topic, links)
    partition = partition_of(os.fsencode(key), found.partitions)
    [place] = partition_places(topic, range(partition, partition + 1), links)
    return place


class MessagePusher:
    """Pushes and counts."""

    def __init__(self, out: Output, place: QueueLocation, attached: AttachResult) -> None:
        self.out, self.place, self.attached = out, place, attached
        self.stored = 0

    def send(self, values: list[bytes]) -> None:
        """All of them, or CliQueueFull. After a LinkLost ``stored`` is what is known to be stored."""
        if not values:
            return
        stored = self.place.link.run(push_many(self.place.keys, values))
        self.stored += stored
        if stored < len(values):
            raise CliQueueFull(queue=self.place.keys.name, maxsize=self.attached.maxsize, stored=self.stored, left=len(values) - stored)

    def drain(self, source: BinaryIO, separator: bytes | None) -> None:
        """Everything a file or pipe holds; ``separator`` None makes one message of it."""
        if separator is None:
            self.send([source.read()])
            return
        total = _size(source)
        with TerminalProgressBar(self.out, f"pushing to {self.place.keys.name}", total, "messages", weighed=True) as meter:
            try:
                for values, read_bytes in batches(source.read1, separator):  # type: ignore[attr-defined]  # both are buffered readers
                    for part in slices(values, 20_000):
                        self.send(part)
                    meter.add(len(values), read_bytes)
            except (LinkLost, KeyboardInterrupt):
                self.out.note(f"{count(self.stored, 'message')} had been stored; of those sent last it is not known")
                raise


def _check(values: list[str] | None, file: Path | None, null: bool, whole: bool) -> None:
    if values and (file or null or whole):
        raise ConfigError(reason="messages were given as arguments, so --file, --null and --whole do not apply. Leave out the one or the other")
    if null and whole:
        raise ConfigError(reason="--null and --whole exclude each other. Give one of them")


def _explain(out: Output, attached: AttachResult, ttl_s: int, maxsize: int) -> None:
    """Options that an existing queue overrules should not be thought to hold."""
    if attached.existed and maxsize and attached.maxsize != maxsize:
        out.note(f"the queue exists with maxsize {attached.maxsize}; --maxsize is for new queues")
    if attached.existed and ttl_s and attached.ttl_s != ttl_s:
        out.note(f"the queue exists with a ttl of {duration(attached.ttl_s)}; --ttl is for new queues")


def _source(out: Output, file: Path | None) -> BinaryIO:
    if file is not None and str(file) != "-":
        return file.open("rb")
    if sys.stdin is None:
        raise ConfigError(reason="no messages were given, and stdin is closed. Give them as arguments or with --file")
    if sys.stdin.isatty():
        out.note("Type one message a line; end with Ctrl-D.")
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def _size(source: BinaryIO) -> int | None:
    size = os.fstat(source.fileno()).st_size
    return size or None


def _answer(out: Output, sender: MessagePusher) -> None:
    state, queue = sender.place.state(), sender.place.keys.name
    if out.as_json:
        out.record(
            queue=queue,
            pushed=sender.stored,
            newest_id=state.newest or None,
            messages=state.waiting,
            created=not sender.attached.existed,
            server=sender.place.server,
        )
        return
    new = "" if sender.attached.existed else "new "
    out.say(f"Pushed {count(sender.stored, 'message')} to {new}queue {queue}: {number(state.count)} stored, newest id {state.last_id}.")
