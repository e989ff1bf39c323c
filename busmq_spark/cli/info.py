"""``busmq info``: one queue in full, or the servers and whether they are fit for a bus."""

from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from busmq_spark.cli.faults import CliQueueMissing
from busmq_spark.cli.options import JsonOption
from busmq_spark.cli.output import Output, table
from busmq_spark.cli.overview import QueueOverview, overviews
from busmq_spark.cli.queues import reader_names
from busmq_spark.cli.servers import ServerReport, report_on
from busmq_spark.cli.subscriptions import warn_if_abandoned
from busmq_spark.cli.target import open_links, place_of
from busmq_spark.cli.terminal_text import count, duration, number, size
from busmq_spark.core.subscription import list_subscriptions
from busmq_spark.options import RedisOptions
from busmq_spark.redis_io.links import Link


def info(
    queue: Annotated[
        str | None, typer.Argument(metavar="QUEUE", help="Name of a queue; without one, the servers are shown.", show_default=False)
    ] = None,
    *,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one queue, or about the servers.

    Of a server: version, memory, durability, and settings that would lose messages.

    ```
    busmq info
    busmq info orders --json
    ```
    """
    out = Output(as_json)
    with open_links(redis) as links:
        if queue is not None:
            _show_queue(out, _overview(queue, links))
            place = place_of(queue, links)
            for each in place.link.run(list_subscriptions(place.keys)):
                warn_if_abandoned(out, queue, each)
            return
        for link in links:
            for server in link.ask_each_master(partial(report_on, cluster=link.cluster)):
                _show_server(out, server)


def _overview(name: str, links: list[Link]) -> QueueOverview:
    place = place_of(name, links)
    found = place.link.run(overviews([place.keys], place.server))
    if not found:
        raise CliQueueMissing(queue=name, servers=", ".join(link.endpoint.masked_url for link in links))
    return found[0]


def _show_queue(out: Output, queue: QueueOverview) -> None:
    if out.as_json:
        out.record(**queue.record())
        return
    state = queue.state
    ids = f"{state.oldest}..{state.newest}" if state.count else "none stored"
    expires = f"expires in {duration(queue.expires_ms / 1000)} unless a client pushes or reads" if queue.expires_ms >= 0 else "never expires"
    rows: list[tuple[str, str]] = [
        ("messages", f"{number(state.waiting)}{f' of at most {number(state.maxsize)}' if state.maxsize else ''}"),
        *([("kept", f"{count(state.kept_count, 'acknowledged message')}, as busmq retain says")] if state.kept_count else []),
        ("ids", f"{ids}; the last id given is {state.last_id}"),
        ("unacked", f"{count(queue.unacked, 'message')} taken by a reliable consumer, not acknowledged" if queue.unacked else "none"),
        ("ttl", f"{duration(state.ttl_s)}; {expires}"),
        ("read by", reader_names(queue) or "no query with a lease"),
        *((f"subscription {name}", _lag(last, state.last_id)) for name, last in sorted(queue.subscriptions.items())),
        ("incarnation", state.born or "not named yet (only npm peers have used it)"),
        ("server", queue.server),
    ]
    _print(out, f"queue {queue.name}", rows)


def _lag(last: int, last_id: int) -> str:
    return f"acknowledged up to {last}, {count(last_id - last, 'message')} behind"


def _show_server(out: Output, server: ServerReport) -> None:
    if out.as_json:
        out.record(**server.record())
        return
    limit = f"of {size(server.maxmemory)}" if server.maxmemory else "without a limit (maxmemory 0)"
    _print(
        out,
        server.url,
        [
            ("version", f"{server.product} {server.version}, {server.mode}, {server.role}, up for {duration(server.uptime_s)}"),
            ("queues", number(server.queues)),
            ("memory", f"{size(server.used_memory)} {limit}, maxmemory-policy {server.policy}"),
            ("append-only file", "on" if server.aof else "off"),
            ("clients", number(server.clients)),
            ("commands", f"{number(server.commands_per_s)}/s now"),
        ],
    )
    for warning in server.warnings:
        out.warn(warning)


def _print(out: Output, title: str, rows: list[tuple[str, str]]) -> None:
    grid = table([("", "left"), ("", "left")], ((Text(name, "dim"), value) for name, value in rows))
    grid.show_header = False
    out.say(Text(title, "bold cyan"))
    out.show(grid)
