"""``busmq groups``: the named readers of a queue, and their remaining messages."""

from rich.text import Text

from busmq_spark.cli.options import JsonOption, QueueArgument
from busmq_spark.cli.output import CliOutput, table
from busmq_spark.cli.queue_lookup import locate_existing, open_links
from busmq_spark.cli.subscriptions import subscription_json, warn_if_abandoned
from busmq_spark.cli.terminal_text import escape_control_characters, format_duration, format_number
from busmq_spark.groups.shared_group import GroupState
from busmq_spark.groups.shared_group import list_groups as found_groups
from busmq_spark.options import RedisOptions
from busmq_spark.redis_io.lease_token import is_dead


def groups(queue: QueueArgument, *, redis: RedisOptions, as_json: JsonOption = False) -> None:
    """List the groups of a queue: how far each is, in messages and in time, and what it has in
    flight.

    ```
    busmq groups orders
    busmq groups orders --json | jq .behind_s
    ```
    """
    out = CliOutput(as_json)
    with open_links(redis) as links:
        place, _ = locate_existing(queue, links)
        found = place.link.run(found_groups(place.keys))
    if as_json:
        for each in found:
            of_shared = (
                {"in_flight": each.in_flight, "waiting": each.waiting, "paused": each.paused}
                if each.shared
                else {}
            )
            out.print_json(
                **subscription_json(queue, each.subscription),
                kind=_kind(each),
                unread=each.unread,
                **of_shared,
            )
    elif found:
        heads = [
            ("group", "left"),
            ("kind", "left"),
            ("acked", "right"),
            ("unread", "right"),
            ("in flight", "right"),
            ("to retry", "right"),
        ]
        out.print_table(
            table(
                [*heads, ("waits for", "right"), ("state", "left")],
                [_group_row(each) for each in found],
            )
        )
    else:
        out.note(f"queue {queue} has no groups. Register one with: busmq subscribe {queue} NAME")
    for each in found:
        warn_if_abandoned(out, queue, each.subscription)


def _kind(group: GroupState) -> str:
    return "shared" if group.shared else "ordered"


def _group_row(group: GroupState) -> list[str | Text]:
    of = group.subscription
    shared = (
        [format_number(group.in_flight), format_number(group.waiting)] if group.shared else ["", ""]
    )
    waits = "" if of.behind_s is None else format_duration(of.behind_s)
    read = "read" if of.reader and not is_dead(of.reader) else "idle" if group.idle else ""
    return [
        Text(escape_control_characters(of.name), "cyan"),
        _kind(group),
        str(of.last),
        format_number(group.unread),
        *shared,
        waits,
        "paused" if group.paused else read,
    ]
