"""``busmq checkpoint``: the position of a query, read from its checkpoint; the options with which
another query goes on there; a copy of the checkpoint that goes back.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from busmq_spark.cli.options import JsonOption
from busmq_spark.cli.output import CliOutput, format_count, format_duration, format_number, table
from busmq_spark.cli.queue_lookup import LocatedQueue, MessageMissing, keys_of, open_links
from busmq_spark.cli.queue_overviews import describe_lease_holder
from busmq_spark.errors import ConfigError, QueueBusy
from busmq_spark.option_parsing import one_name
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import display_name, server_index, sink_record, split_name
from busmq_spark.queue.message import Position
from busmq_spark.reading.loss import count_messages_to_delete, loss_between
from busmq_spark.reading.reader_operations import QueueState, marks, states, subscriptions
from busmq_spark.reading.times_of_ids import ages, id_at, note_times_if_allowed
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.lease_token import is_dead
from busmq_spark.redis_io.queue_location import locate
from busmq_spark.starting_offsets import parse_moment
from busmq_spark.store.loss_errors import loss_error
from busmq_spark.store.protocol import LossCauseEvidence
from busmq_spark.store.spark_checkpoint import (
    CheckpointFolder,
    SparkCheckpoint,
    batch_numbers,
    read_batch,
    read_checkpoint,
    write_rewound,
)
from busmq_spark.writing.sink import decode_manifest, targets

FolderArgument = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help=(
            "The folder of option checkpointLocation: a path, or a URL with file, s3, s3a, gs, hdfs"
            " or abfss."
        ),
        show_default=False,
    ),
]
ReaderOption = Annotated[
    str,
    typer.Option(
        "--reader",
        metavar="NAME",
        help="The option 'subscription' of the query, if it has one.",
        show_default=False,
    ),
]
SinkOption = Annotated[
    str,
    typer.Option(
        "--sink",
        metavar="ID",
        help="The option 'sinkId' of the query; by default its id.",
        show_default=False,
    ),
]


def show(folder: FolderArgument, *, as_json: JsonOption = False) -> None:
    """Show how far a query is: its id, its last batches, its position in each queue.

    It needs neither Redis nor Spark, and the query may run.

    ```
    busmq checkpoint show /data/checkpoints/orders
    busmq checkpoint show s3a://lake/checkpoints/orders --json | jq .queues
    ```
    """
    out = CliOutput(as_json)
    found = read_checkpoint(CheckpointFolder(folder))
    done = found.done.positions if found.done else {}
    ranges = {} if found.is_committed else found.planned_ranges()
    queues = [
        _queue_json(queue, done.get(queue), ranges.get(queue)) for queue in found.planned.positions
    ]
    if as_json:
        out.print_json(
            checkpoint=found.folder.shown,
            query=found.query,
            sink=found.query,
            planned=found.planned.number,
            committed=found.committed,
            queues=queues,
        )
        return
    out.print_lines(
        Text.assemble(
            "Query ", (found.query, "bold"), ". Its sink has this id, too, unless option"
        ),
        "sinkId names another.",
        _describe_batches(found, ranges),
    )
    heads = [
        *(("queue", "left"), ("link", "left"), ("done up to", "right"), ("in work", "left")),
        *(("life", "left"), ("mark", "left"), ("skipped", "right")),
    ]
    rows = []
    for each in queues:
        working = f"{each['first']}..{each['last']}" if each["first"] else ""
        cells = (each["queue"], each["link"], each["done"], working, each["born"], each["mark"])
        rows.append([*(str(cell or "") for cell in cells), format_number(int(str(each["lost"])))])
    out.print_table(table(heads, rows))


def _describe_batches(found: SparkCheckpoint, ranges: Mapping[str, object]) -> str:
    number = found.planned.number
    if found.is_committed:
        return f"Batch {number} is the last one planned, and is committed."
    committed = "none" if found.committed is None else f"batch {found.committed}"
    reads = "reads no message" if not ranges else "reads the ids in column 'in work'"
    return f"Batch {number} is planned and not committed: it {reads}. Committed: {committed}."


def _queue_json(
    name: str, done: Position | None, working: tuple[int, int] | None
) -> dict[str, object]:
    link, queue = split_name(name)
    first, last = working or (None, None)
    return {
        "queue": queue,
        "link": link,
        "done": done.last if done else first - 1 if first else None,
        "born": done.born if done else "",
        "mark": done.mark if done else "",
        "lost": done.lost if done else 0,
        "first": first,
        "last": last,
    }


@dataclass(frozen=True, slots=True)
class _QueueNow:
    """A queue of the checkpoint, as Redis has it."""

    place: LocatedQueue
    at: Position
    state: QueueState
    problem: Exception | None
    """The loss that the query would report."""


def _ask_queues(positions: Mapping[str, Position], links: Sequence[Link]) -> dict[str, _QueueNow]:
    """Return the queues of Redis itself; those of federation links are left out."""
    own = [name for name in positions if not split_name(name)[0]]
    keys = [keys_of(name, [*links]) for name in own]
    homes = locate(keys, links) if keys else []
    found = {}
    for index, link in enumerate(links):
        here = [each for each, home in zip(keys, homes, strict=True) if home == index]
        known = link.run(states([(each, positions[each.name].last) for each in here]))
        for each, state in zip(here, known, strict=True):
            at = positions[each.name]
            loss = loss_between(at, state)
            evidence = LossCauseEvidence(None, 0, empty=False)
            problem = loss_error(each.name, loss, evidence) if loss else None
            found[each.name] = _QueueNow(LocatedQueue(each, link), at, state, problem)
    return {name: found[name] for name in own}


def lag(folder: FolderArgument, *, redis: RedisOptions, as_json: JsonOption = False) -> None:
    """Compare a checkpoint with Redis: the messages of each queue that the query has not done.

    A queue whose messages are gone has the code of the error that the query would end with.

    ```
    busmq checkpoint lag /data/checkpoints/orders
    ```
    """
    out = CliOutput(as_json)
    checkpoint = read_checkpoint(CheckpointFolder(folder))
    positions = _done_positions(checkpoint)
    with open_links(redis) as links:
        now = _ask_queues(positions, links)
        rows = [
            {"queue": queue, "link": link, "done": position.last, **_lag_of(now.get(name))}
            for name, position in positions.items()
            for link, queue in (split_name(name),)
        ]
    if as_json:
        for row in rows:
            out.print_json(**row)
        return
    heads = [
        *(("queue", "left"), ("link", "left"), ("done up to", "right"), ("newest", "right")),
        *(("behind", "right"), ("waits for", "right"), ("read", "left"), ("problem", "left")),
    ]
    out.print_table(table(heads, [_lag_row(row) for row in rows]))


def _lag_of(now: _QueueNow | None) -> dict[str, object]:
    if now is None:
        problem = "its link is not asked: use busmq checkpoint lag beside that Redis"
        return {"newest": None, "behind": None, "behind_s": None, "read": None, "problem": problem}
    link, keys, state = now.place.link, now.place.keys, now.state
    behind = max(0, state.last_id - now.at.last) if state.born == now.at.born else None
    age = None
    if behind:
        link.run(note_times_if_allowed([keys]))
        [ms] = link.run(ages([(keys, max(now.at.last, state.floor) + 1)]))
        age = None if ms < 0 else ms // 1000
    names = ["", *link.run(subscriptions([keys]))[0]]
    holders = link.execute([command("GET", keys.lease(name)) for name in names])
    return {
        "newest": state.last_id if state.exists else None,
        "behind": behind,
        "behind_s": 0 if behind == 0 else age,
        "read": any(each and not is_dead(each.decode("utf-8", "replace")) for each in holders),
        "problem": getattr(now.problem, "code", None),
    }


def _lag_row(row: Mapping[str, object]) -> list[str | Text]:
    def number(name: str) -> str:
        found = row[name]
        return format_number(found) if isinstance(found, int) else ""

    waits = row["behind_s"]
    return [
        Text(str(row["queue"]), "cyan"),
        str(row["link"]),
        *(number(name) for name in ("done", "newest", "behind")),
        format_duration(waits) if isinstance(waits, int) and row["behind"] else "",
        "by a query or program" if row["read"] else "",
        Text(str(row["problem"] or ""), "red"),
    ]


def _done_positions(checkpoint: SparkCheckpoint) -> dict[str, Position]:
    """Return the positions after the last committed batch. Before the first commit these are the
    starts of the planned batch.
    """
    done = dict(checkpoint.done.positions) if checkpoint.done else {}
    first = checkpoint.planned_ranges()
    for queue, end in checkpoint.planned.positions.items():
        if queue not in done:
            last = first[queue][0] - 1 if queue in first else end.last
            done[queue] = Position(end.born, last, end.mark if last == end.last else "")
    return done


def export(
    folder: FolderArgument,
    *,
    reader: ReaderOption = "",
    sink: SinkOption = "",
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Print the options with which a query with a new checkpoint goes on where this one is.

    A batch that the sink has appended counts as done, even if Spark has not committed it. So a
    busmq sink on this Redis has each row once, if the old query stays stopped and the new one uses
    the printed sinkId.

    ```
    busmq checkpoint export /data/checkpoints/orders
    busmq checkpoint export /data/checkpoints/orders --json | jq -r .sinkId
    ```
    """
    out = CliOutput(as_json)
    checkpoint = read_checkpoint(CheckpointFolder(folder))
    own_sink = _parse_name("--sink", sink) if sink else checkpoint.query
    _check_sources(checkpoint)
    _check_one_redis(checkpoint)
    with open_links(redis) as links:
        appended = _appended_batch(checkpoint, own_sink, links)
        batch = checkpoint.planned.number if appended else checkpoint.committed
        if batch is None:
            raise checkpoint.folder.unusable(
                "no committed batch", "a batch that is done", "Start the new query as the old one"
            )
        positions = checkpoint.planned.positions if appended else _done_positions(checkpoint)
        now = _ask_queues(positions, links)
        if problem := next((each.problem for each in now.values() if each.problem), None):
            raise problem
        deletes = any(_deletes_messages(each, reader) for each in now.values())
        unnamed = _subscriptions_beside(reader, [each.place for each in now.values()])
        holds = any(_holder(each.place, reader) for each in now.values())
    running = holds or (None if unnamed else False)
    source = _source_options(positions, reader, deletes)
    new_sink = f"{own_sink}-after-{batch}"
    if as_json:
        known = appended is not None
        out.print_json(
            source=source, sinkId=new_sink, batch=batch, running=running, sinkKnown=known
        )
    else:
        out.print_lines(*_snippet(source, new_sink))
    if deletes:
        out.note(
            "discardBacklog=true deletes only messages that the old query has read and not"
            " acknowledged yet."
        )
    if running:
        out.warn(
            "the query still runs: its later batches are not in these options. Stop it, then export"
            " again"
        )
    elif unnamed:
        out.warn(_unknown_reader(unnamed))
    if appended is None and checkpoint.committed is not None:
        out.warn(_unknown_sink(own_sink))


def _check_one_redis(checkpoint: SparkCheckpoint) -> None:
    """Raises CheckpointUnusable for a query that reads over federation links."""
    if linked := [name for name in checkpoint.planned.positions if split_name(name)[0]]:
        raise checkpoint.folder.unusable(
            f"positions in {display_name(linked[0])}, a queue of a federation link",
            "queues of one Redis",
            "Copy the folder instead: a checkpoint goes on at another place",
        )


def _source_options(positions: dict[str, Position], reader: str, deletes: bool) -> dict[str, str]:
    """Return the options of a source that begins after these positions."""
    return {
        "subscribe": ",".join(sorted(positions)),
        **({"subscription": reader} if reader else {}),
        "startingOffsets": json.dumps(
            {queue: positions[queue].last for queue in sorted(positions)}, ensure_ascii=False
        ),
        **({"discardBacklog": "true"} if deletes else {}),
    }


def _check_sources(checkpoint: SparkCheckpoint) -> None:
    """Raises CheckpointUnusable for a query that reads from anything else than queues."""
    if others := checkpoint.planned.other_sources:
        raise checkpoint.folder.unusable(
            f"offsets of other sources beside queues, {others[0][:60]!r}",
            "a query that reads only busmq queues",
            "Start the query with a new checkpoint, and the start of each source as an option",
        )


def _unknown_sink(sink: str) -> str:
    return (
        f"this Redis knows no busmq sink {sink}. If it appended a batch that Spark has not"
        " committed, the rows of that batch come twice. Name it with --sink; for a sink of another"
        " kind this changes nothing"
    )


def _subscriptions_beside(reader: str, places: Sequence[LocatedQueue]) -> list[str]:
    """Return the subscriptions of queues that have some, but not the one of the reader."""
    found = [place.link.run(subscriptions([place.keys]))[0] for place in places]
    return sorted({name for names in found if reader not in names for name in names})


def _unknown_reader(names: Sequence[str]) -> str:
    return (
        f"the queues have the subscriptions {', '.join(map(repr, names))}. If the query reads as"
        " one of them, name it with --reader: else it is not seen whether it runs"
    )


def _parse_name(option: str, text: str) -> str:
    try:
        return one_name(text)
    except ValueError as error:
        raise ConfigError(reason=f"{option} is {text!r}; expected {error}") from None


def _appended_batch(checkpoint: SparkCheckpoint, sink: str, links: Sequence[Link]) -> bool | None:
    """Whether the sink has appended the newest planned batch, which Spark has not committed; None
    where Redis knows no such sink. Raises CheckpointUnusable where the sink has a later batch, or
    half of this one.
    """
    home = links[server_index(sink_record(sink), len(links))]
    number, manifest, query = home.execute(
        command("HMGET", sink_record(sink), "batch", "manifest", "query")
    )
    planned = checkpoint.planned.number
    if number is None:
        return None
    if int(number) < planned or (int(number) == planned == checkpoint.committed):
        return False
    if int(number) > planned or (query and query.decode() != checkpoint.query):
        raise checkpoint.folder.unusable(
            f"batch {planned} as the last one, where sink {sink} has recorded batch {int(number)}"
            f"{f' of query {query.decode()}' if query else ''}",
            "a checkpoint that is not older than its sink",
            "Take the checkpoint that the query used last, or name its sink with --sink",
        )
    lists = decode_manifest(manifest)
    queues = {part.queue: part.server for part in lists}
    unfinished = [
        queue
        for queue in targets(lists)
        for progress in (
            links[queues[queue]].execute(command("HGET", keys_of(queue, [*links]).sinks, sink)),
        )
        if not re.match(rb"%d:done(;|$)" % planned, progress or b"")
    ]
    if unfinished:
        raise checkpoint.folder.unusable(
            f"batch {planned}, of which sink {sink} has appended only a part to {unfinished[0]!r}",
            "a batch that is appended or not begun",
            "Start the query once more with this checkpoint, let it commit the batch, and stop it",
        )
    return True


def _deletes_messages(now: _QueueNow, reader: str) -> bool:
    """Whether the source would refuse the start: messages before it are stored."""
    [names] = now.place.link.run(subscriptions([now.place.keys]))
    others = [last for name, last in names.items() if name != reader]
    return count_messages_to_delete(now.state, now.at.last, names.get(reader), others) > 0


def _holder(place: LocatedQueue, reader: str) -> str:
    """Return the token of the live reader of a queue; empty where it has none."""
    token = (place.link.execute(command("GET", place.keys.lease(reader))) or b"").decode(
        "utf-8", "replace"
    )
    return "" if is_dead(token) else token


def _snippet(source: Mapping[str, str], sink: str) -> list[str | Text]:
    options = [f"    .option({_quoted(name)}, {_quoted(text)})" for name, text in source.items()]
    return [
        "# The source: all other options as before, without topic and subscribePattern, whose",
        "# place subscribe takes. With ack=none, leave discardBacklog out.",
        *("rows = (", '    spark.readStream.format("busmq")', *options, "    .load()", ")"),
        "# The sink: a new checkpoint, all other options as before.",
        *("query = (", '    rows.writeStream.format("busmq")'),
        f'    .option("sinkId", {_quoted(sink)})',
        *('    .option("checkpointLocation", new_checkpoint)', "    .start()", ")"),
    ]


def _quoted(text: str) -> str:
    """Return a text as a Python literal, in double quotes where it has none."""
    return json.dumps(text) if '"' not in text and text.isprintable() else repr(text)


def rewind(  # noqa: PLR0913  # the options of a command
    folder: FolderArgument,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ID|TIME|BATCH",
            help=(
                "The last id that counts as read, a time (-10m, ISO 8601), or the end of a batch"
                " (batch:7)."
            ),
        ),
    ],
    queue: Annotated[
        str,
        typer.Option(
            "--queue", metavar="QUEUE", help="Only this queue goes back.", show_default=False
        ),
    ] = "",
    into: Annotated[
        str,
        typer.Option(
            "--into", metavar="DIR", help="The new folder; it must not exist.", show_default=False
        ),
    ] = "",
    reader: ReaderOption = "",
    sink: SinkOption = "",
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Write a copy of a checkpoint whose query reads some messages again; it prints the new folder.

    The old folder is not changed. Messages that have left their queue cannot be read again: it says
    how many. The sink takes the rows as new ones, each once. A batch that it has appended counts as
    read, even if Spark has not committed it.

    ```
    busmq checkpoint rewind /data/checkpoints/orders --to 540
    busmq checkpoint rewind /data/checkpoints/orders --to=-10m
    busmq checkpoint rewind /data/checkpoints/orders --to batch:7
    ```
    """
    out = CliOutput(as_json)
    old = read_checkpoint(CheckpointFolder(folder))
    _check_rewindable(old, queue)
    own_sink = _parse_name("--sink", sink) if sink else old.query
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    new = CheckpointFolder(into) if into else old.folder.sibling(f".rewound-{stamp}")
    new.check_new()
    with open_links(redis) as links:
        appended = _appended_batch(old, own_sink, links)
        done = old.planned.positions if appended else _done_positions(old)
        now = _ask_queues(done, links)
        for name, each in now.items():
            _check_unread(name, each.place, reader)
        unnamed = _subscriptions_beside(reader, [each.place for each in now.values()])
        wanted = _wanted_ids(to, old, {name: now[name] for name in ([queue] if queue else done)})
        positions, rows = _move_back(wanted, now)
        if not rows:
            raise ConfigError(
                reason=f"--to is {to!r}; no queue is behind that: nothing to read again"
            )
        write_rewound(old, new, {**done, **positions})
    if unnamed:
        out.warn(_unknown_reader(unnamed))
    if appended is None and not old.is_committed:
        out.warn(_unknown_sink(own_sink))
    if as_json:
        rewound = [
            {"queue": name, "from": at, "to": back, "removed": gone}
            for name, at, back, gone in rows
        ]
        out.print_json(checkpoint=new.shown, query=old.query, queues=rewound)
    else:
        _print_rewound(out, rows)
        out.print_lines(new.shown)


def _move_back(
    wanted: dict[str, int], now: dict[str, _QueueNow]
) -> tuple[dict[str, Position], list[tuple[str, int, int, int]]]:
    """Return the new positions of the queues that go back, and a row about each."""
    positions, rows = {}, []
    for name, last in wanted.items():
        each = now[name]
        if (back := _clamp(name, each, last)) == each.at.last:
            continue
        [mark] = each.place.link.run(marks([(each.place.keys, back)]))
        positions[name] = Position(each.state.born, back, mark, None, each.at.lost)
        rows.append((name, each.at.last, back, max(0, back - last)))
    return positions, rows


def _print_rewound(out: CliOutput, rows: Sequence[tuple[str, int, int, int]]) -> None:
    """Each row is a queue, its position in the old and the new checkpoint, and how many messages
    are gone.
    """
    for name, at, back, gone in rows:
        out.note(f"queue {name}: ids {back + 1}..{at} are read again")
        if gone:
            out.warn(
                f"queue {name}: {format_count(gone, 'message')} (ids {back - gone + 1}..{back})"
                " left the queue and cannot be read again"
            )


def _check_rewindable(old: SparkCheckpoint, queue: str) -> None:
    """Raises CheckpointUnusable for a query that keeps state or reads other sources, ConfigError
    for a queue that is not in the checkpoint.
    """
    _check_sources(old)
    if old.has_state:
        raise old.folder.unusable(
            "a query that keeps state (an aggregation, a join, a deduplication)",
            "a query without state",
            "Its state would count messages twice: start it with a new checkpoint",
        )
    names = old.planned.positions
    if linked := [name for name in names if split_name(name)[0]]:
        raise old.folder.unusable(
            f"a position in {display_name(linked[0])}, a queue of a federation link",
            "queues of one Redis",
            "Start the query with a new checkpoint and startingOffsets",
        )
    if queue and queue not in names:
        has = ", ".join(map(repr, names))
        raise ConfigError(reason=f"--queue is {queue!r}; expected a queue of the checkpoint: {has}")


def _check_unread(name: str, place: LocatedQueue, reader: str) -> None:
    """Raises QueueBusy while a reader holds the queue."""
    if holder := _holder(place, reader):
        who = describe_lease_holder(place, reader, holder)
        raise QueueBusy(
            queue=name,
            found=f"is read ({who})",
            remedy="Stop that query first",
        )


def _wanted_ids(to: str, old: SparkCheckpoint, queues: Mapping[str, _QueueNow]) -> dict[str, int]:
    """Return the last id that counts as read in each queue."""
    if found := re.fullmatch(r"batch:([0-9]{1,18})", to):
        number = int(found[1])
        batch = read_batch(old.folder, number)
        if batch is None:
            known = batch_numbers(old.folder, "offsets")
            raise old.folder.unusable(
                f"no batch {number} in its offset log", f"one of {known[0]}..{known[-1]}"
            )
        ends = batch.positions
        if reborn := [q for q, now in queues.items() if q in ends and ends[q].born != now.at.born]:
            raise old.folder.unusable(
                f"another life of queue {reborn[0]!r} at batch {number}", "the present life"
            )
        return {name: ends[name].last for name in queues if name in ends}
    if re.fullmatch(r"[0-9]{1,16}", to):
        if len(queues) > 1:
            raise ConfigError(
                reason=(
                    f"--to is {to!r}, an id, and the checkpoint has {len(queues)} queues; expected"
                    " --queue QUEUE with it, a time, or batch:NUMBER"
                )
            )
        return dict.fromkeys(queues, int(to))
    try:
        moment = parse_moment(to)
    except ConfigError as error:
        text = str(error.details["reason"]).removeprefix(f"the time is {to!r}; expected ")
        raise ConfigError(
            reason=f"--to is {to!r}; expected an id, batch:NUMBER, or {text}"
        ) from None
    return {
        name: min(now.at.last, now.place.link.run(id_at(now.place.keys, moment.ms)))
        for name, now in queues.items()
    }


def _clamp(name: str, now: _QueueNow, last: int) -> int:
    """Return the id that the new checkpoint begins after: ``last``, or the id before the oldest
    message. Raises ConfigError for an id after the position, MessageMissing where all are gone.
    """
    if now.problem is not None and (now.state.floor <= now.at.last or last >= now.at.last):
        # Another life, or other messages, or some are gone that the query has not read
        raise now.problem
    if last > now.at.last:
        raise ConfigError(
            reason=(
                f"id {last} of queue {name!r} is after the position of the query, {now.at.last}; a"
                " checkpoint only goes back"
            )
        )
    back = max(last, now.state.floor)
    if back >= now.at.last > last:
        holds = f"ids {now.state.oldest}..{now.state.newest}" if now.state.count else "no messages"
        raise MessageMissing(queue=name, wanted=f"ids {last + 1}..{now.at.last}", found=holds)
    return back


CHECKPOINT_COMMANDS: dict[str, Callable[..., None]] = {
    "show": show,
    "lag": lag,
    "export": export,
    "rewind": rewind,
}
