"""``busmq retain``: set or show the retention of a queue."""

from typing import Annotated

import typer

from busmq_spark.cli.options import DryRunOption, JsonOption, QueueArgument, YesOption
from busmq_spark.cli.output import (
    CliOutput,
    audit,
    confirm,
    format_count,
    format_duration,
    format_size,
)
from busmq_spark.cli.queue_lookup import LocatedQueue, locate_existing, locate_queue, open_links
from busmq_spark.errors import ConfigError
from busmq_spark.options import RedisOptions
from busmq_spark.queue.queue import MIN_RECORD_TTL_S, attach
from busmq_spark.queue.retention import Retention, parse_limits, read_retention, set_retention
from busmq_spark.reading.reader_operations import QueueState, subscriptions
from busmq_spark.redis_io.queue_location import new_token


def retain(  # noqa: PLR0913  # the options of a command
    queue: QueueArgument,
    *,
    age: Annotated[
        str | None,
        typer.Option("--age", metavar="7d", help="What is older goes.", show_default=False),
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option(
            "--messages", metavar="N", help="Keep the newest N messages.", show_default=False
        ),
    ] = None,
    value_bytes: Annotated[
        str | None,
        typer.Option(
            "--bytes", metavar="10g", help="Keep so many bytes of values.", show_default=False
        ),
    ] = None,
    off: Annotated[
        bool,
        typer.Option(
            "--off", help="Keep nothing any more: what all readers have acknowledged is deleted."
        ),
    ] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Keep what is acknowledged, so that readers can go back. Without options: show what is kept.

    Messages beyond any of the given limits are deleted, once every reader has acknowledged them. A
    queue that does not exist is created.

    ```
    busmq retain orders --age 7d --bytes 10g
    busmq retain orders
    busmq retain orders --off --yes
    ```
    """
    out = CliOutput(as_json)
    limits = parse_limits(age, messages, value_bytes)
    asked = limits != parse_limits(None, None, None)
    if asked and off:
        raise ConfigError(
            reason=(
                "--off keeps nothing, and the other options say what to keep; give one of the two"
            )
        )
    with open_links(redis) as links:
        if asked and not dry_run:
            place = locate_queue(queue, links)
            place.link.run(attach(place.keys, new_token(), ttl_s=MIN_RECORD_TTL_S))
        else:
            place, _ = locate_existing(queue, links)
        before = place.read_state().count
        if (asked or off) and not _confirm_less(
            out, place, limits if asked else None, yes=yes, dry_run=dry_run
        ):
            return
        found = place.link.run(
            set_retention(place.keys, limits) if asked or off else read_retention(place.keys)
        )
        state = place.read_state()
    if state.count < before:
        deleted = format_count(before - state.count, "message")
        audit(f"changed what queue {queue!r} keeps: {deleted} deleted so far")
    _show(out, queue, found, state)


def _confirm_less(
    out: CliOutput, place: LocatedQueue, limits: str | None, *, yes: bool, dry_run: bool
) -> bool:
    """Ask before messages are deleted that the present rule keeps. ``limits``: the new rule;
    ``limits`` is None when the rule stays.
    """
    now = place.link.run(read_retention(place.keys))
    kept_now = now.kept if now else 0
    if now is None and limits:
        kept_now = _count_acknowledged(place)
    if not kept_now:
        return confirm(out, "delete nothing", yes=True, dry_run=dry_run)
    new = [int(limit) for limit in limits.split(":")] if limits else []
    pairs = zip((now.age_s, now.messages, now.bytes) if now else (), new, strict=False)
    if (
        not new
        or now is None
        or any(after and (not before or after < before) for before, after in pairs)
    ):
        kept = f"{'up to ' if new else ''}{format_count(kept_now, 'acknowledged message')}"
        consequence = f"delete {kept} that queue {place.keys.name!r} keeps"
        return confirm(out, consequence, yes=yes, dry_run=dry_run)
    return confirm(out, "delete nothing", yes=True, dry_run=dry_run)


def _count_acknowledged(place: LocatedQueue) -> int:
    """Return the number of stored messages of a queue without a rule that all subscriptions count
    as read: a subscription may begin after them, and a mirror copies them.
    """
    [acked] = place.link.run(subscriptions([place.keys]))
    state = place.read_state()
    return max(0, min(state.count, min(acked.values()) - state.floor)) if acked else 0


def _show(out: CliOutput, queue: str, found: Retention | None, state: QueueState) -> None:
    if out.as_json:
        limits = {name: getattr(found, name, None) for name in ("age_s", "messages", "bytes")}
        numbers = {
            "kept": state.kept_count,
            "waiting": state.waiting,
            "oldest_id": state.oldest or None,
        }
        out.print_json(queue=queue, retained=found is not None, **limits, **numbers)
        return
    if found is None:
        out.print_lines(f"Queue {queue} keeps nothing of what is acknowledged.")
        return
    holds = f" from id {state.oldest} on" if state.count else ""
    out.print_lines(
        f"Queue {queue} keeps {limits_text(found)}:"
        f" {format_count(state.kept_count, 'acknowledged message')}{holds};"
        f" {format_count(state.waiting, 'message')} to read."
    )
    if found.age_s and found.age_s > state.ttl_s:
        out.warn(
            f"without readers and producers the queue lives for {format_duration(state.ttl_s)}"
            " only, its ttl, and what it keeps goes with it"
        )


def limits_text(found: Retention) -> str:
    """Return the retention as text, for people."""
    age = f"what is younger than {format_duration(found.age_s)}" if found.age_s else ""
    newest = f"the newest {format_count(found.messages, 'message')}" if found.messages else ""
    return (
        " and ".join(
            filter(
                None, (age, newest, f"the newest {format_size(found.bytes)}" if found.bytes else "")
            )
        )
        or "what a reader has gone back to"
    )
