"""``busmq outbox``: the messages that an outbox still has to forward, read while another process
may have it open; and ``drain``, which forwards them when no process has it open.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from busmq_spark.cli.options import DryRunOption, JsonOption, YesOption, parse_seconds
from busmq_spark.cli.output import (
    SHOWN_CHARS,
    CliOutput,
    audit,
    confirm,
    escape_control_characters,
    format_count,
    format_duration,
    format_number,
    format_size,
    table,
    value_json,
    value_text,
)
from busmq_spark.errors import ConfigError
from busmq_spark.options import RedisOptions
from busmq_spark.outbox import editing, lock, report
from busmq_spark.outbox.files import real_path
from busmq_spark.outbox.outbox import SyncOutbox

StoreArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The file of the outbox.", show_default=False)
]


def status(path: StoreArgument, *, as_json: JsonOption = False) -> None:
    """Show what waits in an outbox, for how long, and why; and which process has it open.

    ```
    busmq outbox status outbox.db
    ```
    """
    out = CliOutput(as_json)
    found = report.read_status(path)
    if as_json:
        out.print_json(path=str(path), **asdict(found))
        return
    out.print_lines(
        "open in   "
        f" {f'process {found.owner.pid} on {found.owner.host}' if found.owner else 'no process'}",
        f"incoming   {format_number(found.incoming)}  events and subscriptions of which it is not"
        " known yet where they go",
        f"outgoing   {format_number(found.outgoing)}  messages that wait for a queue",
        "oldest    "
        f" {format_duration(found.oldest_s) if found.oldest_s is not None else 'nothing waits'}",
        f"on disk    {format_size(found.bytes)}",
    )
    if found.error:
        out.print_lines(Text(f"failing    {found.error}", "yellow"))


def unlock(path: StoreArgument, *, as_json: JsonOption = False) -> None:
    """Remove what a dead process has left of its lock. An outbox that is open in a live one stays
    locked: exit code 1, with its pid and host.

    It is seldom needed: the lock of a process that died is gone with it.

    ```
    busmq outbox unlock outbox.db
    ```
    """
    out = CliOutput(as_json)
    path = real_path(path)
    report.read_status(path)  # raises OutboxUnusable for a file that is no outbox
    before = lock.read_owner(path)
    removed = lock.clear_dead_owner(path)
    if as_json:
        out.print_json(
            path=str(path),
            unlocked=removed,
            pid=before.pid if before else None,
            host=before.host if before else None,
        )
    elif removed and before:
        out.print_lines(f"unlocked: process {before.pid} on {before.host} is gone")
    else:
        out.note("it was not locked")


def keys(path: StoreArgument, *, as_json: JsonOption = False) -> None:
    """List the patterns that queues are subscribed to events with, as the outbox saw them last.

    ```
    busmq outbox keys outbox.db
    ```
    """
    _subscriptions(path, None, CliOutput(as_json), queues=False)


def subscribers(
    path: StoreArgument,
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]", help="Those that an event with this key goes to.", show_default=False
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """List the queues that are subscribed to events, as the outbox saw them last.

    ```
    busmq outbox subscribers outbox.db user.signup
    ```
    """
    _subscriptions(path, key, CliOutput(as_json), queues=True)


def incoming(
    path: StoreArgument,
    *,
    first: Annotated[
        int, typer.Option("--first", "-n", min=1, metavar="N", help="The N oldest.")
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the events and subscriptions of which it is not known yet where they go, oldest first.

    ```
    busmq outbox incoming outbox.db
    ```
    """
    out = CliOutput(as_json)
    found = report.read_incoming(path, first)
    if as_json:
        for each in found:
            fields = asdict(each)
            value = value_json(fields.pop("value"))
            out.print_json(**fields, **value)
    elif found:
        out.print_table(_incoming_table(found))
    else:
        out.note("nothing waits to be routed")


def outgoing(
    path: StoreArgument,
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="List its messages.", show_default=False)
    ] = None,
    *,
    messages: Annotated[
        bool, typer.Option("--messages", help="List the messages of all queues.")
    ] = False,
    first: Annotated[
        int, typer.Option("--first", "-n", min=1, metavar="N", help="The N oldest messages.")
    ] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the queues that messages wait for: how many, for how long, and why they do not go out.
    With a queue, or `--messages`, list the messages: number, id, contents.

    ```
    busmq outbox outgoing outbox.db
    busmq outbox outgoing outbox.db orders
    ```
    """
    out = CliOutput(as_json)
    if messages or queue is not None:
        _print_messages(out, editing.read_messages(path, queue, first))
        return
    found = report.read_outgoing(path)
    if as_json:
        for each in found:
            out.print_json(**asdict(each))
    elif found:
        heads = [
            ("queue", "left"),
            ("messages", "right"),
            ("oldest", "right"),
            ("failing for", "right"),
            ("error", "left"),
        ]
        out.print_table(table(heads, [_outgoing_row(each) for each in found]))
    else:
        out.note("nothing waits for a queue")


def purge(
    path: StoreArgument,
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", help="Only what waits for it.", show_default=False),
    ] = None,
    *,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete everything that waits in an outbox which no process has open, or all that waits for a
    queue.

    ```
    busmq outbox purge outbox.db --dry-run
    busmq outbox purge outbox.db orders --yes
    ```
    """
    out = CliOutput(as_json)
    found = report.read_status(path)
    waiting = found.incoming + found.outgoing
    if queue is not None:
        waiting = sum(each.messages for each in report.read_outgoing(path) if each.queue == queue)
    consequence = f"delete {format_count(waiting, 'message')} of {path}, which cannot be had back"
    if not confirm(out, consequence, yes=yes or not waiting, dry_run=dry_run):
        return
    with editing.open_to_edit(path) as run:
        purged = run(lambda c: editing.purge(c, queue))
    audit(f"purged outbox {path}: {format_count(purged, 'message')} deleted")
    if as_json:
        out.print_json(path=str(path), queue=queue, purged=purged)
    else:
        out.print_lines(f"{format_count(purged, 'message')} deleted")


def remove(
    path: StoreArgument,
    numbers: Annotated[
        list[int],
        typer.Argument(
            metavar="NUMBER...", help="As `incoming` and `outgoing` show them.", show_default=False
        ),
    ],
    *,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete waiting messages of an outbox which no process has open. An error when none of them
    waits.

    ```
    busmq outbox remove outbox.db 7 8 --yes
    ```
    """
    out = CliOutput(as_json)
    report.read_status(path)  # raises OutboxUnusable for a file that is no outbox
    consequence = f"delete up to {format_count(len(numbers), 'message')} of {path}"
    if not confirm(out, consequence, yes=yes, dry_run=dry_run):
        return
    with editing.open_to_edit(path) as run:
        removed = run(lambda c: editing.remove(c, numbers))
    if not removed:
        raise _not_waiting_error(path, numbers)
    audit(f"removed from outbox {path}: {format_count(removed, 'message')} deleted")
    if as_json:
        out.print_json(path=str(path), removed=removed)
    else:
        out.print_lines(f"{format_count(removed, 'message')} deleted")


def replace(
    path: StoreArgument,
    number: Annotated[
        int,
        typer.Argument(
            metavar="NUMBER", help="As `incoming` and `outgoing` show it.", show_default=False
        ),
    ],
    value: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="The message, or the data of an event or a command.",
            show_default=False,
        ),
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Give a waiting message of an outbox, which no process has open, other contents. An event or a
    command keeps its id and its keys.

    ```
    busmq outbox replace outbox.db 7 '{"user": 8}'
    ```
    """
    out = CliOutput(as_json)
    try:
        data = json.loads(value)
    except ValueError:
        data = value
    with editing.open_to_edit(path) as run:
        if not run(editing.replacement(number, value, data)):
            raise _not_waiting_error(path, [number])
    if as_json:
        out.print_json(path=str(path), replaced=number)
    else:
        out.print_lines(f"message {number} replaced")


def drain(
    path: StoreArgument,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="BUSMQ_OUTBOX_TO",
            help=(
                "A federation server instead of --redis; its secret is taken from"
                " BUSMQ_FEDERATION_SECRET."
            ),
        ),
    ] = None,
    secret_in_url: Annotated[
        bool,
        typer.Option(
            "--secret-in-url", help="For npm servers, which take the secret from the URL only."
        ),
    ] = False,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long at most: 30s, 10m, 2h.")
    ] = "1m",
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Forward everything that is in an outbox which no process has open. Exit code 1 when some of
    it still waits at the end.

    ```
    busmq outbox drain outbox.db --redis redis://bus.example.com --timeout 10m
    ```
    """
    out = CliOutput(as_json)
    before = report.read_status(path)
    waiting = before.incoming + before.outgoing
    settings = {
        name: value
        for name, value in asdict(redis).items()
        if name != "url" and value != getattr(RedisOptions(), name)
    }
    if secret_in_url:
        settings["federate_secret_in_url"] = True
    with (
        SyncOutbox(path, to or redis.address, **settings) as outbox,
        out.spinner(f"forwarding {format_count(waiting, 'message')}"),
    ):
        outbox.wait_drained(parse_seconds(timeout, "--timeout"))
    if as_json:
        out.print_json(path=str(path), forwarded=waiting)
    else:
        out.print_lines(f"forwarded {format_count(waiting, 'message')}")


def _subscriptions(path: Path, key: str | None, out: CliOutput, *, queues: bool) -> None:
    found, seen_s = report.read_subscriptions(path, key)
    grouped: dict[str, list[str]] = {}
    for pattern, queue in found:
        name, other = (queue, pattern) if queues else (pattern, queue)
        grouped.setdefault(name, []).append(other)
    name, others = ("queue", "keys") if queues else ("key", "queues")
    if out.as_json:
        for each in sorted(grouped):
            out.print_json(**{name: each, others: grouped[each], "seen_s": seen_s})
    elif grouped:
        out.print_table(
            table(
                [(name, "left"), (others, "left")],
                [
                    [escape_control_characters(each), _comma_list(grouped[each])]
                    for each in sorted(grouped)
                ],
            )
        )
    else:
        out.note("no queue is subscribed")
    if not out.as_json and seen_s is None:
        out.note("no event was routed yet, so only subscriptions made with this outbox are known")
    elif not out.as_json:
        out.note(f"as of {format_duration(seen_s or 0)} ago")


def _print_messages(out: CliOutput, found: list[editing.WaitingMessage]) -> None:
    if out.as_json:
        for each in found:
            fields = asdict(each)
            age_s = max(0.0, time.time() - fields.pop("at"))
            value = value_json(fields.pop("value"))
            out.print_json(**fields, age_s=age_s, **value)
    elif found:
        heads = [
            ("number", "right"),
            ("kind", "left"),
            ("id", "left"),
            ("queues", "left"),
            ("keys", "left"),
            ("contents", "left"),
        ]
        out.print_table(
            table(
                heads,
                [
                    [
                        str(each.number),
                        each.kind,
                        escape_control_characters(each.id),
                        _comma_list(each.queues),
                        _comma_list(each.keys),
                        value_text(each.value, SHOWN_CHARS),
                    ]
                    for each in found
                ],
            )
        )
    else:
        out.note("no message waits")


def _not_waiting_error(path: Path, numbers: list[int]) -> ConfigError:
    names = ", ".join(map(str, numbers))
    return ConfigError(
        reason=(
            f"nothing with the number {names} waits in {path}; expected one that busmq outbox"
            " incoming or outgoing shows"
        )
    )


def _incoming_table(found: list[report.EntryAwaitingRouting]) -> Table:
    names = ("number", "kind", "id", "keys", "queue", "waits for", "contents")
    right = ("number", "waits for")
    rows = [
        [
            str(each.number),
            each.kind,
            escape_control_characters(each.id),
            _comma_list(each.keys),
            escape_control_characters(each.queue),
            format_duration(each.age_s),
            value_text(each.value, SHOWN_CHARS),
        ]
        for each in found
    ]
    return table([(name, "right" if name in right else "left") for name in names], rows)


def _outgoing_row(each: report.OutboxQueueStatus) -> list[str | Text]:
    failing = "" if each.failing_s is None else format_duration(each.failing_s)
    return [
        Text(escape_control_characters(each.queue), "cyan"),
        format_number(each.messages),
        format_duration(each.oldest_s),
        failing,
        Text(each.error, "yellow"),
    ]


def _comma_list(names: Iterable[str]) -> str:
    return escape_control_characters(", ".join(names))
