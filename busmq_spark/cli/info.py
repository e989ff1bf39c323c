"""``busmq info``: one queue in full, or the servers and whether they are fit for a bus."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

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
from busmq_spark.cli.subscriptions import warn_if_abandoned
from busmq_spark.doctor.redis import (
    eviction_policy,
    has_no_aof,
    is_full,
    is_replica,
    is_stray_node,
    is_too_old,
    number,
    used_text,
)
from busmq_spark.options import RedisOptions
from busmq_spark.reading.reader_subscriptions import list_subscriptions
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.optional_commands import ask_if_allowed, parse_info
from busmq_spark.redis_io.queue_location import queues_of
from busmq_spark.redis_io.sync_link import SyncLink

UNFIT = 3
"""Exit code: a server is full, or evicts."""
FULL_REMEDY = (
    "Redis refuses pushes, or evicts. Raise maxmemory, let readers acknowledge, or shorten what"
    " queues keep (busmq queues, busmq retain)"
)
NO_INFO = "this server refuses the command INFO, so its memory, policy and role are not known"


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The report of a server. ``warnings`` are sentences, the most dangerous first."""

    url: str
    product: str
    version: str
    mode: str
    role: str
    uptime_s: int
    queues: int
    used_memory: int
    maxmemory: int
    policy: str
    aof: bool
    clients: int
    commands_per_s: int
    full: bool
    warnings: tuple[str, ...]

    @property
    def loses_messages(self) -> bool:
        """Whether it refuses pushes now, or may remove messages by itself."""
        return self.full or self.policy not in ("noeviction", "?")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        fields = asdict(self)
        fields["server"] = fields.pop("url")
        fields["maxmemory_policy"] = fields.pop("policy")
        return fields


def read_server_report(link: SyncLink, *, cluster: bool = False) -> ServerReport:
    """Ask one server; two round trips, and one for every thousand keys to count the queues.
    ``cluster``: it was found as a node of one.
    """
    reply = link.run(ask_if_allowed("INFO"))
    found = parse_info(reply) if isinstance(reply, bytes) else {}
    valkey = found.get("valkey_version")
    return ServerReport(
        url=link.endpoint.masked_url,
        product="Valkey" if valkey else "Redis",
        version=valkey or found.get("redis_version", "?"),
        mode=found.get("redis_mode", "?"),
        role=found.get("role", "?"),
        uptime_s=number(found, "uptime_in_seconds"),
        queues=len(queues_of(link, cluster=cluster)),
        used_memory=number(found, "used_memory"),
        maxmemory=number(found, "maxmemory"),
        policy=found.get("maxmemory_policy", "?"),
        aof=found.get("aof_enabled") == "1",
        clients=number(found, "connected_clients"),
        commands_per_s=number(found, "instantaneous_ops_per_sec"),
        full=is_full(found),
        warnings=tuple(find_dangers(found, cluster=cluster)) if found else (NO_INFO,),
    )


def find_dangers(found: dict[str, str], *, cluster: bool = False) -> list[str]:
    """Return the settings that can lose messages or break the bus."""
    policy = eviction_policy(found)
    return [
        text
        for danger, text in (
            (
                is_full(found),
                f"memory is full ({used_text(found)}): {FULL_REMEDY}",
            ),
            (
                policy != "noeviction",
                (
                    f"maxmemory-policy is {policy}: when memory runs short Redis removes queues"
                    " without an error. Set maxmemory-policy noeviction"
                ),
            ),
            (
                is_replica(found),
                "this is a replica: pushes and acks are refused here. Name its master",
            ),
            (
                is_stray_node(found, cluster=cluster),
                "this server is part of a Redis cluster: name its nodes with --layout cluster",
            ),
            (
                has_no_aof(found),
                (
                    "the append-only file is off: a restart of Redis loses messages. Set appendonly"
                    " yes for a bus that must not"
                ),
            ),
            (
                is_too_old(found),
                "this server is older than Redis 6.2, the oldest that is supported",
            ),
        )
        if danger
    ]


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
