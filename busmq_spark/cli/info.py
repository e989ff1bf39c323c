"""``busmq info``: one queue in full, or the servers and whether they are fit for a bus."""

from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from busmq_spark.cli.options import JsonOption
from busmq_spark.cli.output import (
    CliOutput,
    format_count,
    format_duration,
    format_number,
    format_size,
    table,
)
from busmq_spark.cli.queue_lookup import CliQueueMissing, locate_queue, open_links
from busmq_spark.cli.queue_overviews import QueueOverview, read_overviews
from busmq_spark.cli.queues import reader_names
from busmq_spark.cli.server_report import ServerReport, read_server_report
from busmq_spark.cli.subscriptions import warn_if_abandoned
from busmq_spark.options import RedisOptions
from busmq_spark.reading.reader_subscriptions import list_subscriptions
from busmq_spark.redis_io.layout import Link

UNFIT = 3
"""Exit code: a server is full, or evicts."""


def info(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE",
            help="Name of a queue; without one, the servers are shown.",
            show_default=False,
        ),
    ] = None,
    *,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one queue, or about the servers.

    Of a server: version, memory, durability, and settings that would lose messages.
    The exit code is 3 where a server is full, or evicts.

    ```
    busmq info
    busmq info orders --json
    ```
    """
    out = CliOutput(as_json)
    with open_links(redis) as links:
        if queue is not None:
            _show_queue(out, _read_overview(queue, links))
            place = locate_queue(queue, links)
            for each in place.link.run(list_subscriptions(place.keys)):
                warn_if_abandoned(out, queue, each)
            return
        unfit = False
        for link in links:
            for server in link.ask_each_master(partial(read_server_report, cluster=link.cluster)):
                _show_server(out, server)
                unfit = unfit or server.loses_messages
    if unfit:
        raise typer.Exit(UNFIT)


def _read_overview(name: str, links: list[Link]) -> QueueOverview:
    place = locate_queue(name, links)
    found = place.link.run(read_overviews([place.keys], place.server))
    if not found:
        raise CliQueueMissing(
            queue=name, servers=", ".join(link.endpoint.masked_url for link in links)
        )
    return found[0]


def _show_queue(out: CliOutput, queue: QueueOverview) -> None:
    if out.as_json:
        out.print_json(**queue.to_json())
        return
    state = queue.state
    ids = f"{state.oldest}..{state.newest}" if state.count else "none stored"
    expires = (
        f"expires in {format_duration(queue.expires_ms / 1000)} unless a client pushes or reads"
        if queue.expires_ms >= 0
        else "never expires"
    )
    rows: list[tuple[str, str]] = [
        (
            "messages",
            (
                format_number(state.waiting)
                + (f" of at most {format_number(state.maxsize)}" if state.maxsize else "")
            ),
        ),
        *(
            [
                (
                    "kept",
                    (
                        f"{format_count(state.kept_count, 'acknowledged message')}, as busmq retain"
                        " says"
                    ),
                )
            ]
            if state.kept_count
            else []
        ),
        ("ids", f"{ids}; the last id given is {state.last_id}"),
        (
            "unacked",
            (
                f"{format_count(queue.unacked, 'message')} taken by a reliable consumer, not"
                " acknowledged"
                if queue.unacked
                else "none"
            ),
        ),
        ("ttl", f"{format_duration(state.ttl_s)}; {expires}"),
        ("read by", reader_names(queue) or "no query with a lease"),
        *(
            (f"subscription {name}", _lag_text(last, state.last_id))
            for name, last in sorted(queue.subscriptions.items())
        ),
        ("incarnation", state.born or "not named yet (only npm peers have used it)"),
        ("server", queue.server),
    ]
    _print_grid(out, f"queue {queue.name}", rows)


def _lag_text(last: int, last_id: int) -> str:
    return f"acknowledged up to {last}, {format_count(last_id - last, 'message')} behind"


def _show_server(out: CliOutput, server: ServerReport) -> None:
    if out.as_json:
        out.print_json(**server.to_json())
        return
    limit = (
        f"of {format_size(server.maxmemory)}"
        if server.maxmemory
        else "without a limit (maxmemory 0)"
    )
    _print_grid(
        out,
        server.url,
        [
            (
                "version",
                (
                    f"{server.product} {server.version}, {server.mode}, {server.role}, up for"
                    f" {format_duration(server.uptime_s)}"
                ),
            ),
            ("queues", format_number(server.queues)),
            (
                "memory",
                f"{format_size(server.used_memory)} {limit}, maxmemory-policy {server.policy}",
            ),
            ("append-only file", "on" if server.aof else "off"),
            ("clients", format_number(server.clients)),
            ("commands", f"{format_number(server.commands_per_s)}/s now"),
        ],
    )
    for warning in server.warnings:
        out.warn(warning)


def _print_grid(out: CliOutput, title: str, rows: list[tuple[str, str]]) -> None:
    grid = table([("", "left"), ("", "left")], ((Text(name, "dim"), value) for name, value in rows))
    grid.show_header = False
    out.print_lines(Text(title, "bold cyan"))
    out.print_table(grid)
