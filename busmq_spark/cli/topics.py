"""``busmq topics``: topics, their partitions and how far their groups are; and the making and
growing of one.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated

import typer
from rich.text import Text

from busmq_spark.bus.bus import Bus
from busmq_spark.cli.options import JsonOption
from busmq_spark.cli.output import (
    CliOutput,
    escape_control_characters,
    format_count,
    format_duration,
    format_number,
    table,
)
from busmq_spark.cli.queue_lookup import LocatedQueue, find_topic, locate_partitions, open_links
from busmq_spark.errors import QueueDamaged, TopicMissing
from busmq_spark.groups.topic import GroupLag, lags_by_group, member_counts
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import group_by
from busmq_spark.queue.keys import server_index
from busmq_spark.reading.reader_operations import QueueState, states
from busmq_spark.reading.readers import read_readers
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.queue_location import discover_topics as found_topics


def topics(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="Show the partitions and groups of this one.", show_default=False
        ),
    ] = None,
    *,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Make TOPIC with so many partitions, or let it grow to so many.",
            show_default=False,
        ),
    ] = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """List topics, or the partitions and groups of one; make one, or let it grow.

    ```
    busmq topics
    busmq topics metrics
    busmq topics metrics --partitions 20
    ```
    """
    out = CliOutput(as_json)
    if partitions is not None:
        if topic is None:
            raise typer.BadParameter(
                "name the topic that is to have so many partitions", param_hint="--partitions"
            )
        _grow(topic, partitions, redis)
    with open_links(redis) as links:
        if topic is None:
            _list(out, links)
        else:
            _show(out, topic, links)


def _grow(topic: str, partitions: int, redis: RedisOptions) -> None:
    with Bus.sync(**{row.name: getattr(redis, row.name) for row in fields(redis)}) as bus:
        bus.topic(topic, partitions).grow(partitions)


def _list(out: CliOutput, links: list[Link]) -> None:
    rows: list[list[str | Text]] = []
    names = found_topics(links)
    for name in names:
        try:
            _, found = find_topic(name, links)
        except TopicMissing:  # it has gone meanwhile
            continue
        except QueueDamaged as error:
            out.warn(str(error))
            continue
        places = locate_partitions(name, range(found.partitions), links)
        stored, groups = sum(state.count for state in _states(places)), _groups(places)
        if out.as_json:
            out.print_json(
                topic=name,
                partitions=found.partitions,
                messages=stored,
                groups={group.name: group.behind for group in groups},
            )
        behind = ", ".join(
            f"{escape_control_characters(group.name)} {format_number(group.behind)} behind"
            for group in groups
        )
        rows.append(
            [
                Text(escape_control_characters(name), "cyan"),
                format_number(found.partitions),
                format_number(stored),
                behind,
            ]
        )
    if rows and not out.as_json:
        out.print_table(
            table(
                [
                    ("topic", "left"),
                    ("partitions", "right"),
                    ("messages", "right"),
                    ("groups", "left"),
                ],
                rows,
            )
        )
    elif not rows:
        out.note("There is no topic. Make one with: busmq topics metrics --partitions 10")


def _show(out: CliOutput, topic: str, links: list[Link]) -> None:
    keys, found = find_topic(topic, links)
    places = locate_partitions(topic, range(found.partitions), links)
    stored, groups = _states(places), _groups(places)
    names = [group.name for group in groups]
    members = dict(
        zip(
            names,
            links[server_index(keys.base, len(links))].run(member_counts(keys, names)),
            strict=True,
        )
    )
    if out.as_json:
        for i, (place, state) in enumerate(zip(places, stored, strict=True)):
            out.print_json(
                topic=topic,
                partition=i,
                queue=place.keys.name,
                messages=state.count,
                last_id=state.last_id,
                server=place.server,
            )
        for group in groups:
            read = {
                "partitions": group.partitions,
                "read": group.read,
                "members": members[group.name],
            }
            out.print_json(
                topic=topic, group=group.name, behind=group.behind, behind_s=group.behind_s, **read
            )
        return
    many = [("server", "left")] if len(links) > 1 else []
    rows: list[list[str | Text]] = [
        [
            Text(escape_control_characters(place.keys.name), "cyan"),
            format_number(state.count),
            format_number(state.last_id),
            *([place.server] if many else []),
        ]
        for place, state in zip(places, stored, strict=True)
    ]
    out.print_table(
        table([("partition", "left"), ("messages", "right"), ("last id", "right"), *many], rows)
    )
    if groups:
        heads = [
            ("group", "left"),
            ("behind", "right"),
            ("waits for", "right"),
            ("read", "left"),
            ("members", "right"),
        ]
        out.print_table(table(heads, [_group_row(group, members[group.name]) for group in groups]))
    else:
        out.note(f"topic {topic} has no groups")


def _group_row(group: GroupLag, members: int) -> list[str | Text]:
    waits = "" if group.behind_s is None else format_duration(group.behind_s)
    read = f"{group.read} of {format_count(group.partitions, 'partition')}"
    return [
        Text(escape_control_characters(group.name), "cyan"),
        format_number(group.behind),
        waits,
        read,
        format_number(members),
    ]


def _group_by_link(places: Sequence[LocatedQueue]) -> dict[Link, list[LocatedQueue]]:
    return group_by(places, lambda place: place.link)


def _states(places: Sequence[LocatedQueue]) -> list[QueueState]:
    known: dict[str, QueueState] = {}
    for link, its in _group_by_link(places).items():
        found = link.run(states([(place.keys, -1) for place in its]))
        known.update((place.keys.name, state) for place, state in zip(its, found, strict=True))
    return [known[place.keys.name] for place in places]


def _groups(places: Sequence[LocatedQueue]) -> list[GroupLag]:
    return lags_by_group(
        [
            each
            for link, its in _group_by_link(places).items()
            for each in link.run(read_readers([place.keys for place in its]))
        ]
    )
