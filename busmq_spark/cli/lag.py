"""``busmq lag``: the lag of every reader, the worst first."""

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
from busmq_spark.cli.queue_lookup import keys_of, locate_existing, open_links
from busmq_spark.cli.queue_overviews import ask_undamaged
from busmq_spark.options import RedisOptions
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.lag import ReaderLag, read_lags
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.lease_token import is_dead
from busmq_spark.redis_io.queue_location import discover_queues


def lag(
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE|PATTERN",
            help="Only these queues, or those that match: 'orders-*'.",
            show_default=False,
        ),
    ] = None,
    *,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """List the lag of every reader of every queue, in messages and in time; the worst first.

    ```
    busmq lag
    busmq lag orders 'audit-*'
    busmq lag --json | jq 'select(.behind_s > 60)'
    ```
    """
    out = CliOutput(as_json)
    with open_links(redis) as links:
        found: list[ReaderLag] = []
        for link, keys in zip(links, _queues_of(queues or ["*"], links), strict=True):
            some, damaged = ask_undamaged(lambda part, link=link: link.run(read_lags(part)), keys)  # type: ignore[misc]
            found += some
            for name, reason in damaged.items():
                out.warn(reason if name in reason else f"queue {name!r}: {reason}")
        servers = ", ".join(link.endpoint.masked_url for link in links)
    found.sort(key=lambda each: (-(each.behind_s or 0), -each.behind, each.queue, each.reader))
    if as_json:
        for each in found:
            read = bool(each.holder) and not is_dead(each.holder)
            out.print_json(
                queue=each.queue,
                reader=each.reader or None,
                kind=each.kind,
                behind=each.behind,
                behind_s=each.behind_s,
                read=read,
            )
    elif found:
        heads = [
            ("queue", "left"),
            ("reader", "left"),
            ("kind", "left"),
            ("behind", "right"),
            ("waits for", "right"),
            ("read", "left"),
        ]
        out.print_table(table(heads, [_lag_row(each) for each in found]))
    else:
        out.note(
            f"There is no reader{f' of {chr(32).join(queues)}' if queues else ''} on {servers}, and"
            " no message that waits for one."
        )


def _queues_of(patterns: list[str], links: list[Link]) -> list[list[QueueKeys]]:
    """The queues of each server. Raises CliQueueMissing for a plain name that is none."""
    places: dict[str, int] = {}
    wild = [pattern for pattern in patterns if set("*?[") & set(pattern)]
    for name in patterns:
        if name not in wild:
            place, _ = locate_existing(name, links)
            places[name] = links.index(place.link)
    found = discover_queues(links) if wild else ()
    places.update(
        (name, index)
        for name, index in found
        if any(name == pattern or fnmatchcase(name, pattern) for pattern in wild)
    )
    return [
        [keys_of(name, links) for name, index in places.items() if index == at]
        for at in range(len(links))
    ]


def _lag_row(each: ReaderLag) -> list[str | Text]:
    waits = "" if each.behind_s is None else format_duration(each.behind_s)
    read = "by a query or program" if each.holder and not is_dead(each.holder) else ""
    return [
        Text(escape_control_characters(each.queue), "cyan"),
        each.reader or "-",
        each.kind,
        format_number(each.behind),
        waits,
        read,
    ]
