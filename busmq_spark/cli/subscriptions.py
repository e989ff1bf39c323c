"""``busmq subscribe``, ``unsubscribe``, ``subscriptions`` and ``groups``: the readers of a queue.

``busmq subscribe``, ``unsubscribe``, ``subscriptions``: the subscriptions of a queue and their
unread messages.

``busmq groups``: the named readers of a queue, and their remaining messages.
"""

from typing import Annotated

import typer
from rich.text import Text

from busmq_spark.cli.options import DryRunOption, JsonOption, QueueArgument, YesOption
from busmq_spark.cli.output import (
    CliOutput,
    audit,
    confirm,
    escape_control_characters,
    format_count,
    format_duration,
    format_number,
    table,
)
from busmq_spark.cli.queue_lookup import locate_existing, locate_queue, open_links
from busmq_spark.errors import ConfigError
from busmq_spark.groups.shared_group import GroupState
from busmq_spark.groups.shared_group import list_groups as found_groups
from busmq_spark.options import RedisOptions
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach
from busmq_spark.reading.reader_subscriptions import (
    QueueSubscriptionStatus,
    check_name,
    list_subscriptions,
    register,
)
from busmq_spark.reading.reader_subscriptions import unsubscribe as forget
from busmq_spark.redis_io.lease_token import is_dead
from busmq_spark.redis_io.queue_location import new_token

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the subscription.", show_default=False)
]


def subscribe(
    queue: QueueArgument,
    name: NameArgument,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            metavar="WHERE",
            help=(
                'earliest, latest, the last id that counts as read, -10m, "-1000 messages", a time.'
            ),
            show_default=True,
        ),
    ] = "earliest",
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Register a subscription before its query runs: from now on messages stay until it has acked
    them.

    A queue that does not exist is created. A subscription that exists keeps its position.

    ```
    busmq subscribe orders audit
    busmq subscribe orders audit --start latest
    busmq subscribe orders audit --start=-10m
    ```
    """
    out = CliOutput(as_json)
    check_name(name)
    where = _parse_start(start)
    with open_links(redis) as links:
        place = locate_queue(queue, links)
        place.link.run(attach(place.keys, new_token(), ttl_s=MIN_RECORD_TTL_S))
        known = {each.name for each in place.link.run(list_subscriptions(place.keys))}
        last = place.link.run(register(place.keys, name, where, is_dead))
        state = place.read_state()
    if as_json:
        out.print_json(
            queue=queue,
            subscription=name,
            created=name not in known,
            acked=last,
            behind=max(0, state.last_id - last),
        )
        return
    begins = "keeps its place" if name in known else "begins"
    out.print_lines(
        f"Subscription {name} of queue {queue} {begins} after id {last}:"
        f" {format_count(max(0, state.last_id - last), 'message')} to read."
    )
    if name not in known and start == "earliest" and state.floor > 0:
        out.warn(
            f"{format_count(state.floor, 'message')} (ids 1..{state.floor}) had left the queue"
            " before"
        )


def unsubscribe(
    queue: QueueArgument,
    name: NameArgument,
    *,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Forget a subscription. Messages that were kept for it only leave the queue.

    If messages go, it prints their number and asks.

    ```
    busmq unsubscribe orders audit
    busmq unsubscribe orders audit --yes
    ```
    """
    out = CliOutput(as_json)
    with open_links(redis) as links:
        place, before = locate_existing(queue, links)
        known = {each.name: each for each in place.link.run(list_subscriptions(place.keys))}
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigError(reason=f"queue {queue!r} has no subscription {name!r}; {has}")
        others = [each.last for each in known.values() if each.name != name]
        # messages that no other one needs go, also those before the start of this one; the
        # retention keeps messages that all have acknowledged
        start = max(before.floor, before.done)
        going = max(0, min(before.count, min(others) - start)) if others else 0
        consequence = f"forget subscription {name!r} of queue {queue!r}"
        if going:  # of the last subscription nothing is deleted
            consequence = (
                f"delete {format_count(going, 'message')} of queue {queue!r} that no other"
                " subscription has still to read, and those that the others read until then"
            )
        if not confirm(out, consequence, yes=yes or not going, dry_run=dry_run):
            return
        place.link.run(forget(place.keys, name, is_dead))
        after = place.read_state()
    dropped = max(0, after.floor - before.floor)
    audit(f"unsubscribed {name!r} of queue {queue!r}: {format_count(dropped, 'message')} deleted")
    if as_json:
        out.print_json(queue=queue, subscription=name, dropped=dropped)
    else:
        out.print_lines(
            f"Subscription {name} of queue {queue} is forgotten; {format_count(dropped, 'message')}"
            " kept for it left the queue."
        )


def subscriptions(
    queue: QueueArgument, *, redis: RedisOptions, as_json: JsonOption = False
) -> None:
    """List the subscriptions of a queue: how far each is, and what is kept for it.

    ```
    busmq subscriptions orders
    ```
    """
    out = CliOutput(as_json)
    with open_links(redis) as links:
        place, _ = locate_existing(queue, links)
        found = place.link.run(list_subscriptions(place.keys))
    if as_json:
        for each in found:
            out.print_json(**subscription_json(queue, each))
    elif found:
        columns = [
            ("subscription", "left"),
            ("acked", "right"),
            ("behind", "right"),
            ("waits for", "right"),
            ("kept for it", "right"),
            ("last here", "left"),
            ("read", "left"),
        ]
        out.print_table(table(columns, [_subscription_row(each) for each in found]))
    else:
        out.note(
            f"queue {queue} has no subscriptions. Register one with: busmq subscribe {queue} NAME"
        )
    for each in found:
        warn_if_abandoned(out, queue, each)


def warn_if_abandoned(out: CliOutput, queue: str, found: QueueSubscriptionStatus) -> None:
    """Warn of a subscription that no query seems to read any more, while messages stay stored for
    it.
    """
    if found.is_abandoned:
        kept = (
            f"{format_count(found.holds_back, 'message')} of queue {queue} stay stored for"
            f" subscription {found.name}"
        )
        out.warn(
            f"{kept}, which was last here {format_duration(found.idle_s or 0)} ago. If it is not"
            f" needed: busmq unsubscribe {queue} {found.name}"
        )


def subscription_json(queue: str, found: QueueSubscriptionStatus) -> dict[str, object]:
    """Return it as JSON."""
    return {
        "queue": queue,
        "subscription": found.name,
        "acked": found.last,
        "behind": found.behind,
        "behind_s": found.behind_s,
        "holds_back": found.holds_back,
        "idle_s": found.idle_s,
        "read": bool(found.reader) and not is_dead(found.reader),
        "abandoned": found.is_abandoned,
    }


def _subscription_row(found: QueueSubscriptionStatus) -> list[str | Text]:
    read = "by a query" if found.reader and not is_dead(found.reader) else ""
    idle = "" if found.idle_s is None else f"{format_duration(found.idle_s)} ago"
    waits = "" if found.behind_s is None else format_duration(found.behind_s)
    back = (
        Text(format_number(found.holds_back), "yellow")
        if found.is_abandoned
        else format_number(found.holds_back)
    )
    return [
        Text(escape_control_characters(found.name), "cyan"),
        str(found.last),
        format_number(found.behind),
        waits,
        back,
        idle,
        read,
    ]


def _parse_start(text: str) -> str | int:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    return int(word) if word.isdecimal() else text


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
