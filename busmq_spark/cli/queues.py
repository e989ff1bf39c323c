"""``busmq queues``: every queue at a glance."""

from fnmatch import fnmatchcase
from typing import Annotated

import typer
from rich.text import Text

from busmq_spark.cli.options import JsonOption
from busmq_spark.cli.output import (
    CliOutput,
    escape_control_characters,
    format_duration,
    format_number,
    table,
)
from busmq_spark.cli.queue_lookup import keys_of, open_links
from busmq_spark.cli.queue_overviews import DamagedQueueOverview, QueueOverview, read_all_overviews
from busmq_spark.options import RedisOptions
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.queue_location import discover_queues


def queues(
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="PATTERN",
            help="Only queues whose name matches, such as 'orders-*'.",
            show_default=False,
        ),
    ] = None,
    *,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """List every queue: messages, ids, readers, expiry.

    ```
    busmq queues
    busmq queues 'orders-*' --json | jq .messages
    ```
    """
    out = CliOutput(as_json)
    with open_links(redis) as links:
        found = _read_overviews(links, pattern)
        if as_json:
            for queue in found:
                out.print_json(**queue.to_json())
            return
        for queue in found:
            if isinstance(queue, DamagedQueueOverview):
                out.warn(
                    queue.reason
                    if queue.name in queue.reason
                    else f"queue {queue.name!r}: {queue.reason}"
                )
        if found:
            out.print_table(
                table(
                    _columns(many := len(links) > 1), [_queue_row(queue, many) for queue in found]
                )
            )
        else:
            which = f"no queue that matches {pattern}" if pattern else "no queue"
            out.note(
                f"There is {which} on {', '.join(link.endpoint.masked_url for link in links)}."
                " Create one with: busmq push hello 'first message'"
            )


def _read_overviews(
    links: list[Link], pattern: str | None
) -> list[QueueOverview | DamagedQueueOverview]:
    places: list[list[QueueKeys]] = [[] for _ in links]
    for name, index in discover_queues(links):
        if pattern is None or fnmatchcase(name, pattern):
            places[index].append(keys_of(name, links))
    found = [
        each
        for link, keys in zip(links, places, strict=True)
        for each in read_all_overviews(link, keys)
    ]
    return sorted(found, key=lambda queue: queue.name)


def _columns(many_servers: bool) -> list[tuple[str, str]]:
    sides = {
        "messages": "right",
        "ids": "right",
        "unacked": "right",
        "ttl": "right",
        "expires in": "right",
    }
    names = [
        "queue",
        "messages",
        "ids",
        "unacked",
        "ttl",
        "expires in",
        "subscriptions",
        "read by",
        *(["server"] if many_servers else []),
    ]
    return [(name, sides.get(name, "left")) for name in names]


def _queue_row(queue: QueueOverview | DamagedQueueOverview, many_servers: bool) -> list[str | Text]:
    if isinstance(queue, DamagedQueueOverview):
        return [
            Text(escape_control_characters(queue.name), "cyan"),
            Text("damaged", "red"),
            "",
            "",
            "",
            "",
            "",
            "",
            *([queue.server] if many_servers else []),
        ]
    state = queue.state
    ids = (
        f"{state.oldest}..{state.newest}"
        if state.count
        else (f"none since {state.last_id}" if state.last_id else "")
    )
    expires_s = queue.expires_ms / 1000
    soon = queue.expires_ms >= 0 and expires_s < min(60, state.ttl_s / 4)
    return [
        Text(escape_control_characters(queue.name), "cyan"),
        (
            f"{format_number(state.waiting)} (+{format_number(state.kept_count)} kept)"
            if state.kept_count
            else format_number(state.waiting)
        ),
        ids,
        Text(format_number(queue.unacked), "yellow") if queue.unacked else "",
        format_duration(state.ttl_s),
        (
            Text(format_duration(expires_s), "red" if soon else "")
            if queue.expires_ms >= 0
            else "never"
        ),
        ", ".join(f"{name} at {last}" for name, last in sorted(queue.subscriptions.items())),
        reader_names(queue),
        *([queue.server] if many_servers else []),
    ]


def reader_names(queue: QueueOverview) -> str:
    """Return the holders of leases on the queue."""
    return ", ".join(name or "a query" for name in sorted(queue.readers))
