"""``busmq publish``, ``send`` and ``events``: events to every subscribed queue, commands to one,
and the subscriptions.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Annotated, Any

import typer
from rich.text import Text

from busmq_spark.bus.bus import Bus
from busmq_spark.cli.options import JsonOption, QueueArgument
from busmq_spark.cli.output import CliOutput, escape_control_characters, format_count, table
from busmq_spark.cli.queue_lookup import need_redis
from busmq_spark.options import RedisOptions
from busmq_spark.queue.message import refuse_constant
from busmq_spark.routing.event_patterns import check_key, matches

DataArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="JSON, or else text. Without it the event has no data.",
        show_default=False,
    ),
]
TypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help="Type of the event.", show_default=False),
]
IdOption = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="Id of an event that is sent again; else a new one.",
        show_default=False,
    ),
]
SubjectOption = Annotated[
    str | None,
    typer.Option("--subject", metavar="TEXT", help="What the event is about.", show_default=False),
]
PatternsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="PATTERN",
        help="Words with dots between them; * is any one word, # at the end the rest.",
        show_default=False,
    ),
]
IntoOption = Annotated[
    str,
    typer.Option(
        "--into", metavar="QUEUE", help="The queue that the events go to.", show_default=False
    ),
]


def publish(  # noqa: PLR0913  # the options of a command
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="Words with dots between them, such as user.signup.",
            show_default=False,
        ),
    ],
    data: DataArgument = None,
    *,
    require: Annotated[
        int,
        typer.Option(
            "--require",
            min=0,
            metavar="N",
            help="Fail, and push nothing, when fewer queues are subscribed.",
        ),
    ] = 0,
    kind: TypeOption = None,
    id: IdOption = None,
    subject: SubjectOption = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Push an event to every queue that is subscribed to its key; its type is the key where --type
    says no other.

    ```
    busmq publish user.signup '{"user": 7}'
    busmq publish user.signup '{"user": 7}' --require 1
    ```
    """
    out = CliOutput(as_json)
    with _open_bus(redis) as bus:
        receipt = bus.publish(
            [key], _parse_data(data), require=require, **_given_event_attributes(kind, id, subject)
        )
    if as_json:
        out.print_json(
            id=receipt.id,
            destinations=list(receipt.destinations),
            **({"missed": dict(receipt.missed)} if receipt.missed else {}),
        )
    elif receipt.destinations:
        out.print_lines(
            f"Event {receipt.id} is in"
            f" {', '.join(map(escape_control_characters, receipt.destinations))}."
        )
    elif not receipt.missed:
        out.note(
            f"no queue is subscribed to {key}, so nothing was pushed. Subscribe one with: busmq"
            f" events subscribe {key} --into QUEUE"
        )
    for queue, why in receipt.missed.items() if not as_json else ():
        out.note(
            f"queue {escape_control_characters(queue)}, which federation peers have subscribed, has"
            f" it not: {why}"
        )


def send(
    queue: QueueArgument,
    data: DataArgument = None,
    *,
    kind: TypeOption = None,
    id: IdOption = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Push a command to a queue, which takes one group only from then on.

    ```
    busmq send invoices '{"order": 8}'
    ```
    """
    out = CliOutput(as_json)
    with _open_bus(redis) as bus:
        receipt = bus.send(queue, _parse_data(data), **_given_event_attributes(kind, id))
    if as_json:
        out.print_json(id=receipt.id, queue=queue)
    else:
        out.print_lines(f"Command {receipt.id} is in queue {queue}.")


def list_(
    *,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Only what takes the events of this key: where they go.",
            show_default=False,
        ),
    ] = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """List which queue is subscribed with which patterns.

    ```
    busmq events list
    busmq events list --key user.signup
    ```
    """
    out = CliOutput(as_json)
    wanted = None if key is None else check_key(key)
    with _open_bus(redis) as bus:
        found = [
            (pattern, queue)
            for pattern, queue in bus.subscriptions()
            if wanted is None or matches(pattern, wanted)
        ]
    if as_json:
        for pattern, queue in found:
            out.print_json(pattern=pattern, queue=queue)
    elif found:
        out.print_table(
            table(
                [("pattern", "left"), ("queue", "left")],
                [
                    [
                        Text(escape_control_characters(pattern)),
                        Text(escape_control_characters(queue), "cyan"),
                    ]
                    for pattern, queue in found
                ],
            )
        )
    else:
        out.note(
            "no queue is subscribed. Subscribe one with: busmq events subscribe PATTERN --into"
            " QUEUE"
        )


def subscribe(
    patterns: PatternsArgument,
    *,
    into: IntoOption,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Let events go to a queue, from now on, also without a reader.

    ```
    busmq events subscribe 'user.*' order.paid --into emails
    ```
    """
    out = CliOutput(as_json)
    with _open_bus(redis) as bus:
        new = bus.subscribe(patterns, into=into)
    if as_json:
        out.print_json(queue=into, patterns=patterns, new=new)
    else:
        out.print_lines(
            f"Queue {into} is subscribed with {', '.join(patterns)}; {format_count(new, 'pattern')}"
            " of them new."
        )


def unsubscribe(
    patterns: PatternsArgument,
    *,
    into: IntoOption,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Let events not go to a queue any more. Its messages stay.

    ```
    busmq events unsubscribe 'user.*' --into emails
    ```
    """
    out = CliOutput(as_json)
    with _open_bus(redis) as bus:
        ended = bus.unsubscribe(patterns, into=into)
    if as_json:
        out.print_json(queue=into, patterns=patterns, ended=ended)
    else:
        out.print_lines(f"{format_count(ended, 'subscription')} of queue {into} ended.")


def forget(queue: QueueArgument, *, redis: RedisOptions, as_json: JsonOption = False) -> None:
    """End every subscription of a queue. Its messages stay.

    ```
    busmq events forget emails
    ```
    """
    out = CliOutput(as_json)
    with _open_bus(redis) as bus:
        ended = bus.forget(queue)
    if as_json:
        out.print_json(queue=queue, ended=ended)
    else:
        out.print_lines(f"{format_count(ended, 'subscription')} of queue {queue} ended.")


@contextmanager
def _open_bus(redis: RedisOptions) -> Iterator[Any]:
    need_redis(redis)
    with Bus.sync(**{row.name: getattr(redis, row.name) for row in fields(RedisOptions)}) as bus:
        yield bus


def _parse_data(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return text


def _given_event_attributes(
    kind: str | None, id: str | None, subject: str | None = None
) -> dict[str, str]:
    given = {"type": kind, "id": id, "subject": subject}
    return {name: value for name, value in given.items() if value is not None}
