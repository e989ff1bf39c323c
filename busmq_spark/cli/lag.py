"""``busmq lag``: the readers of queues, with their lag and state; the worst first."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text

from busmq_spark.cli.options import JsonOption, check_exclusive, parse_seconds
from busmq_spark.cli.output import (
    CliOutput,
    escape_control_characters,
    format_count,
    format_duration,
    format_number,
    one_line,
    table,
)
from busmq_spark.cli.queue_lookup import keys_of, locate_existing, open_links
from busmq_spark.cli.queue_overviews import ask_undamaged
from busmq_spark.errors import BusError, ConfigError
from busmq_spark.options import RedisOptions
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_record import describe_reader
from busmq_spark.reading.readers import ReaderState, ReaderStatus, StoredRecord, read_readers
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.lease_token import describe_holder, is_dead
from busmq_spark.redis_io.queue_location import discover_queues

WATCH_S = 2.0
MAX_CELL = 40
"""Most characters of a name in the table; ``--json`` has all of it."""
MAX_ROWS = 200
"""Most rows of the table: rich takes about a millisecond for each."""
MAX_HOLDERS = 3
"""Most holders of a shared group that the table names."""
CLOCK_OFF_MS = 30_000
"""A reader whose clock differs from that of Redis by more is remarked on."""
NEARLY = 0.8
"""The part of a limit from which on ``--check`` warns."""
CHECK_WORDS = ("OK", "WARNING", "CRITICAL")
"""By exit code."""
STYLES: dict[ReaderState, str] = {
    "ok": "green",
    "behind": "yellow",
    "stuck": "bold red",
    "replaying": "cyan",
    "gone": "yellow",
    "paused": "yellow",
}


@dataclass(frozen=True, slots=True)
class _Limits:
    messages: int | None
    seconds: int | None

    @property
    def given(self) -> bool:
        """Whether there is a limit."""
        return self.messages is not None or self.seconds is not None

    def part_of(self, each: ReaderStatus) -> float:
        """The lag of a reader as a part of the nearer limit; above 1 it is beyond."""
        parts = [
            lag / limit if limit else float(bool(lag)) * 2
            for lag, limit in ((each.behind, self.messages), (each.behind_s, self.seconds))
            if limit is not None and lag is not None
        ]
        return max(parts, default=0.0)


def lag(  # noqa: PLR0913  # the options of a command
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE|PATTERN",
            help="Only these queues, or those that match: 'orders-*'.",
            show_default=False,
        ),
    ] = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="List again every 2 s.")] = False,
    stuck_after: Annotated[
        str,
        typer.Option(
            "--stuck-after",
            metavar="60s",
            help="A reader is stuck if messages wait and its position has not moved for so long.",
        ),
    ] = "60s",
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="One line, and exit code 0 (ok), 1 (warning) or 2 (critical), as for Nagios.",
        ),
    ] = False,
    max_lag: Annotated[
        int | None,
        typer.Option(
            "--max-lag",
            min=0,
            metavar="N",
            help="With --check: more waiting messages of a reader are critical.",
            show_default=False,
        ),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            metavar="5m",
            help="With --check: an older waiting message is critical.",
            show_default=False,
        ),
    ] = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """List the readers of every queue with their lag in messages and in time; the worst first.

    States of a reader: `ok`, `behind` (it moves, and its lag grew in three looks), `stuck`,
    `replaying` (it reads acknowledged messages again), `paused`, `gone` (no process holds it).

    ```
    busmq lag
    busmq lag orders 'audit-*' --watch
    busmq lag --json | jq 'select(.state == "stuck")'
    busmq lag --check --max-lag 10000 --max-age 5m
    ```
    """
    out = CliOutput(as_json)
    check_exclusive(watch=watch, check=check)
    limits = _Limits(max_lag, None if max_age is None else parse_seconds(max_age, "--max-age"))
    stuck_after_s = parse_seconds(stuck_after, "--stuck-after")
    if limits.given and not check:
        raise ConfigError(reason="--max-lag and --max-age are limits of --check; add --check")
    if check:
        _check(out, queues, redis, stuck_after_s, limits)
    while True:
        _show(out, queues, redis, stuck_after_s, clear=watch and out.on_terminal)
        if not watch:
            return
        out.flush()
        time.sleep(WATCH_S)


def _check(
    out: CliOutput,
    queues: list[str] | None,
    redis: RedisOptions,
    stuck_after_s: float,
    limits: _Limits,
) -> NoReturn:
    """Print the line of ``--check`` and exit; an unreachable server is critical, too."""
    try:
        found, damaged, _ = _read(queues, redis, stuck_after_s)
        code, line = _verdict(found, damaged, limits)
    except ConfigError:
        raise
    except BusError as error:
        code, line = 2, str(error)
    if out.as_json:
        out.print_json(code=code, status=CHECK_WORDS[code], text=line)
    else:
        out.print_lines(f"{CHECK_WORDS[code]}: {one_line(line)}")
    raise typer.Exit(code)


def _show(
    out: CliOutput,
    queues: list[str] | None,
    redis: RedisOptions,
    stuck_after_s: float,
    *,
    clear: bool,
) -> None:
    """Print all readers once."""
    found, damaged, servers = _read(queues, redis, stuck_after_s)
    if clear and not out.as_json:
        out.screen.clear()
    for reason in damaged:
        out.warn(reason)
    if out.as_json:
        for each in found:
            out.print_json(**_to_json(each))
    elif found:
        heads = [(name, "left") for name in ("queue", "reader", "kind", "state")]
        heads += [(name, "right") for name in ("position", "newest", "behind", "waits for")]
        heads += [("rate", "right"), ("read by", "left")]
        shown = found[:MAX_ROWS]
        out.print_table(table(heads, [_lag_row(each) for each in shown]))
        if len(found) > len(shown):
            out.note(
                f"{format_number(len(found) - len(shown))} more readers have less lag; --json lists"
                " all, and arguments name queues"
            )
        _remark(out, shown)
    else:
        out.note(
            f"There is no reader{f' of {chr(32).join(queues)}' if queues else ''} on {servers},"
            " and no message that waits for one."
        )


def _read(
    queues: list[str] | None, redis: RedisOptions, stuck_after_s: float
) -> tuple[list[ReaderStatus], list[str], str]:
    """Return the readers, the worst first, the findings about damaged queues, and the servers."""
    found: list[ReaderStatus] = []
    reasons: list[str] = []
    with open_links(redis) as links:
        for link, keys in zip(links, _queues_of(queues or ["*"], links), strict=True):

            def ask(part: Sequence[QueueKeys], link: Link = link) -> list[ReaderStatus]:
                return link.run(read_readers(part, is_dead, stuck_after_s))

            some, damaged = ask_undamaged(ask, keys)
            found += some
            reasons += [
                reason if name in reason else f"queue {name!r}: {reason}"
                for name, reason in damaged.items()
            ]
        servers = ", ".join(link.endpoint.masked_url for link in links)
    found.sort(key=lambda each: (-(each.behind_s or 0), -each.behind, each.queue, each.reader))
    return found, reasons, servers


def _verdict(
    found: Sequence[ReaderStatus], damaged: Sequence[str], limits: _Limits
) -> tuple[int, str]:
    """Return the exit code and the line of ``--check``: the worst finding first."""
    findings = [(1, reason) for reason in damaged]
    for each in found:
        part, left = limits.part_of(each), each.state == "gone" and each.behind > 0
        if part > 1 or each.state == "stuck":
            findings.append((2, _finding(each)))
        elif limits.seconds is not None and each.behind and each.behind_s is None:
            findings.append((1, f"{_finding(each)}, the oldest of unknown age"))
        # npm's consumers hold no lease: a queue without names says nothing of its readers
        elif part >= NEARLY or each.state == "behind" or (left and (each.reader or each.records)):
            findings.append((1, _finding(each)))
    if findings:
        findings.sort(key=lambda each: -each[0])
        more = f"; {len(findings) - 1} more" if len(findings) > 1 else ""
        return findings[0][0], findings[0][1] + more
    worst = max((each.behind for each in found), default=0)
    oldest = max((each.behind_s or 0 for each in found), default=0)
    return 0, (
        f"{format_count(len(found), 'reader')}, at most {format_count(worst, 'message')} and"
        f" {format_duration(oldest)} behind"
    )


def _finding(each: ReaderStatus) -> str:
    who = f"reader {each.reader!r}" if each.reader else "the reader without a name"
    waits = "" if each.behind_s is None else f", the oldest for {format_duration(each.behind_s)}"
    by = f" ({_read_by(each)})" if each.held else ""
    return (
        f"queue {each.queue!r}: {who} is {each.state}{by}; {format_count(each.behind, 'message')}"
        f" wait{'s' if each.behind == 1 else ''}{waits}"
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


def _lag_row(each: ReaderStatus) -> list[str | Text]:
    waits = "" if each.behind_s is None else format_duration(each.behind_s)
    return [
        Text(_cell(each.queue), "cyan"),
        _cell(each.reader) or "-",
        each.kind,
        Text(each.state, STYLES[each.state]),
        str(each.position),
        str(each.newest),
        format_number(each.behind),
        waits,
        "" if each.rate is None else f"{format_number(each.rate)}/s",
        escape_control_characters(_read_by(each)),
    ]


def _cell(text: str) -> str:
    shown = escape_control_characters(text)
    return shown if len(shown) <= MAX_CELL else f"{shown[: MAX_CELL - 1]}…"


def _read_by(each: ReaderStatus) -> str:
    """Return a description of the holder, or of the last one."""
    if not each.records and not each.holder:
        return ""
    if each.holder:
        text = describe_reader(each.holder, each.record, describe_holder)
    else:
        shown = [
            describe_reader("", stored.record, describe_holder)
            for stored in each.records[:MAX_HOLDERS]
        ]
        more = len(each.records) - len(shown)
        text = "; ".join([*shown, *([f"{more} more"] if more else [])])
    return text if each.held else f"was {text}"


def _remark(out: CliOutput, found: Sequence[ReaderStatus]) -> None:
    """Say what a row has no place for: the last error, a wrong clock, a damaged record."""
    for each in found:
        who = f"queue {each.queue!r}, reader {each.reader or '-'!s}"
        if each.damaged:
            out.warn(f"{who}: its record is damaged; the next renewal of its lease replaces it")
        if each.record and each.record.error:
            out.warn(f"{who}: its last error is {each.record.error}")
        off_ms = each.records[0].clock_off_ms if each.records else 0
        if abs(off_ms) > CLOCK_OFF_MS:
            ahead = "ahead of" if off_ms > 0 else "slower than"
            out.warn(
                f"{who}: its clock is {format_duration(abs(off_ms) / 1000)} {ahead} that of Redis"
            )


def _to_json(each: ReaderStatus) -> dict[str, Any]:
    return {
        "queue": each.queue,
        "reader": each.reader or None,
        "kind": each.kind,
        "state": each.state,
        "position": each.position,
        "newest_id": each.newest,
        "behind": each.behind,
        "behind_s": each.behind_s,
        "rate": None if each.rate is None else round(each.rate, 1),
        "unmoved_s": each.unmoved_s,
        "read": each.held,
        "name": each.name or None,
        "read_by": _read_by(each) or None,
        "damaged": each.damaged,
        "records": [_record_json(stored) for stored in each.records],
    }


def _record_json(stored: StoredRecord) -> dict[str, Any]:
    """The record with its times by the clock of Redis, in ms since 1970."""
    assert stored.record is not None
    found: dict[str, Any] = {"seen": stored.seen_ms, "clock_off_ms": stored.clock_off_ms}
    for name, value in stored.record.to_json().items():
        if name == "started":
            found[name] = value - stored.clock_off_ms
        elif name in ("planned", "committed"):
            found[name] = {**value, "ms": value["ms"] - stored.clock_off_ms}
        elif name not in ("id", "at"):
            found[name] = value
    return found
