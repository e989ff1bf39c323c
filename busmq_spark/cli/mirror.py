"""``busmq mirror``: queues of another data centre here, and what to do when it is gone."""

import ctypes
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from busmq_spark.cli.options import JsonOption, parse_listen_address
from busmq_spark.cli.output import (
    CliOutput,
    escape_control_characters,
    format_duration,
    format_number,
    table,
)
from busmq_spark.cli.queue_lookup import LocatedQueue, need_redis, open_links
from busmq_spark.errors import ConfigError
from busmq_spark.metrics import Metrics, serve_pages
from busmq_spark.mirror.settings import MirrorReport, MirrorSettings, matches
from busmq_spark.option_parsing import one_of, size
from busmq_spark.options import LAYOUTS, RedisOptions
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import MIRROR_REPORTS_PATTERN, QueueKeys
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.queue_location import discover_queues
from busmq_spark.writing.mirror import MirrorQueueState, read_mirror_states
from busmq_spark.writing.mirror import promote as promoted

if TYPE_CHECKING:
    from busmq_spark.mirror.runner import MirrorRunner

MALLOPT_ARENA_MAX = -8
"""M_ARENA_MAX of mallopt."""
PatternsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="QUEUE...",
        help="Names of queues, or patterns: 'orders-*'. Quote them.",
        show_default=False,
    ),
]
EveryArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[QUEUE...]",
        help="Names or patterns; all that are mirrors when none is given.",
        show_default=False,
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="URL", help="The Redis here; as --redis.", show_default=False),
]


FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="URL",
        help="The other data centre: wss://host/bus of a federation server, or redis://host:port.",
        show_default=False,
    ),
]
GroupsOption = Annotated[
    bool, typer.Option("--groups", help="Mirror the positions of groups and subscriptions, too.")
]
RetentionOption = Annotated[
    str,
    typer.Option(
        metavar="origin|own",
        help="Drop what the origin drops, or keep what readers here have not acked.",
    ),
]
NewLifeOption = Annotated[
    str,
    typer.Option(
        "--new-life",
        metavar="stop|follow",
        help="Keep the copy of a queue made anew at its origin, or give it up.",
    ),
]
RateOption = Annotated[
    str,
    typer.Option(
        "--rate", metavar="BYTES", help="Most bytes of values a second: 64k, 10m; 0 for no limit."
    ),
]
ReplaceOption = Annotated[
    bool,
    typer.Option(
        "--replace",
        help="Give up queues of this bus' own that have these names. Nothing of them is kept.",
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve /metrics (Prometheus), /livez and /readyz there.",
        show_default=False,
    ),
]
LayoutOption = Annotated[
    str,
    typer.Option(
        "--from-layout", metavar="LAYOUT", help="direct, sentinel or cluster: of redis:// there."
    ),
]
MasterOption = Annotated[
    str,
    typer.Option(
        "--from-sentinel-master", metavar="NAME", help="The name that the sentinels there know."
    ),
]
NameOption = Annotated[
    str,
    typer.Option(
        "--name", help="This bus, for the loop guard; else its address.", show_default=False
    ),
]
FromNameOption = Annotated[
    str,
    typer.Option(
        "--from-name", metavar="NAME", help="The other one; else its address.", show_default=False
    ),
]
SecretOption = Annotated[
    str, typer.Option("--from-secret", envvar="BUSMQ_MIRROR_SECRET", hidden=True)
]
PasswordOption = Annotated[
    str | None, typer.Option("--from-password", envvar="BUSMQ_MIRROR_PASSWORD", hidden=True)
]


UserOption = Annotated[
    str | None,
    typer.Option("--from-user", metavar="NAME", help="ACL user there.", show_default=False),
]
CaOption = Annotated[
    str | None,
    typer.Option(
        "--from-tls-ca",
        metavar="FILE",
        help="PEM file of the authority to trust there.",
        show_default=False,
    ),
]
CertOption = Annotated[
    str | None,
    typer.Option(
        "--from-tls-cert",
        metavar="FILE",
        help="PEM file of the certificate to show there.",
        show_default=False,
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--from-tls-key", metavar="FILE", help="PEM file of its private key.", show_default=False
    ),
]


def run(  # noqa: PLR0913  # the options of a command
    queues: PatternsArgument,
    *,
    from_: FromOption,
    to: ToOption = None,
    secret: SecretOption = "",
    from_layout: LayoutOption = "direct",
    from_master: MasterOption = "mymaster",
    from_user: UserOption = None,
    from_password: PasswordOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
    groups: GroupsOption = False,
    retention: RetentionOption = "origin",
    new_life: NewLifeOption = "stop",
    rate: RateOption = "0",
    name: NameOption = "",
    origin_name: FromNameOption = "",
    over: ReplaceOption = False,
    metrics: MetricsOption = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Copy queues of another data centre here, with the same ids, until Ctrl-C.

    It goes on where the copies are, so it may be killed, started again, or run twice. The secret of
    a federation server is taken from BUSMQ_MIRROR_SECRET, a password of Redis there from
    BUSMQ_MIRROR_PASSWORD.

    ```
    busmq mirror --from wss://eu.example.com/bus --to redis://localhost 'orders-*'
    busmq mirror status
    busmq mirror promote 'orders-*'
    ```
    """
    here = replace(redis, url=to) if to else redis
    need_redis(here)
    there: dict[str, Any] = {
        "layout": _parse_flag("--from-layout", one_of(*LAYOUTS), from_layout),
        "master": from_master,
        "user": from_user,
        "password": from_password,
    }
    trust: dict[str, Any] = {
        "secret": secret,
        "tls_ca": ca,
        "tls_certificate": cert,
        "tls_key": key,
    }
    how: dict[str, Any] = {
        "groups": groups,
        "retention": retention,
        "new_life": new_life,
        "name": name,
        "origin_name": origin_name,
        "replace": over,
    }
    bytes_per_s = _parse_flag("--rate", lambda text: int(size(text)) if text != "0" else 0, rate)
    settings = MirrorSettings(
        origin=from_,
        patterns=tuple(dict.fromkeys(queues)),
        bytes_per_s=bytes_per_s,
        **there,
        **trust,
        **how,
    )
    _run_mirror(CliOutput(as_json), settings, here, metrics)


def _run_mirror(
    out: CliOutput, settings: MirrorSettings, here: RedisOptions, metrics: str | None
) -> None:
    """Until a signal comes."""
    from busmq_spark.mirror.runner import MirrorRunner  # no other command needs Arrow

    _share_memory()
    counts, ended = Metrics(), threading.Event()
    runner = MirrorRunner(settings, here, counts)

    def leave(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with _served_pages(metrics, counts, runner) as url:
            runner.start()
            out.note(
                f"Mirroring {', '.join(settings.patterns)} of {settings.masked_origin}. Ctrl-C"
                " ends it." + (f" Metrics: {url}" if url else "")
            )
            if out.as_json:
                out.print_json(
                    origin=settings.masked_origin, patterns=settings.patterns, metrics=url
                )
                out.flush()
            while not ended.wait(1.0):
                pass
    finally:
        signal.signal(signal.SIGTERM, before)
        runner.stop()


def _served_pages(
    listen: str | None, counts: Metrics, runner: "MirrorRunner"
) -> AbstractContextManager[str]:
    """Serve the pages at ``listen``; the block gets the URL of /metrics, or nothing."""
    if not listen:
        return nullcontext("")
    counts.require_client()

    def not_ready() -> str | None:
        if runner.error is not None:
            return f"not mirroring: {runner.error.code}"
        return None if runner.is_running else "starting"

    host, port = parse_listen_address(listen, "--metrics")
    return serve_pages(host, port, counts, not_ready)


def _share_memory() -> None:
    """Let the threads that read share the memory of rows: each would keep some of its own, 70 MB
    together.
    """
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(MALLOPT_ARENA_MAX, 2)


def promote(
    queues: PatternsArgument,
    *,
    to: ToOption = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Make mirrors queues of their own: they take pushes, and their ids go on. Do so when the
    origin is gone, or takes no pushes any more.

    Ids that had not been copied are printed, as far as they are known; a mirroring process that
    sees the old origin again prints the rest.

    ```
    busmq mirror promote 'orders-*'
    ```
    """
    out = CliOutput(as_json)
    with open_links(replace(redis, url=to) if to else redis) as links:
        found = list(_find_mirrors(links, discover_queues(links), queues))
        if not found:
            raise ConfigError(
                reason=(
                    f"no queue here that is a mirror is named {' or '.join(map(repr, queues))};"
                    " busmq mirror status lists them"
                )
            )
        for state, place in found:
            _, last, seen = place.link.run(promoted(place.keys))
            missing = max(0, seen - last)
            if as_json:
                out.print_json(
                    queue=state.queue,
                    promoted_behind=last,
                    origin_known_up_to=max(last, seen),
                    not_copied=missing,
                )
                continue
            out.print_lines(f"Queue {state.queue} is promoted: the next push gets id {last + 1}.")
            if missing:
                out.warn(
                    f"queue {state.queue}: ids {last + 1}..{seen} of its origin were not copied; at"
                    " the origin they are other messages"
                )


def status(
    queues: EveryArgument = None,
    *,
    to: ToOption = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Show the status of the mirrors here, and of the processes that mirror.

    ```
    busmq mirror status
    busmq mirror status --json 'orders-*' | jq .behind
    ```
    """
    out = CliOutput(as_json)
    with open_links(replace(redis, url=to) if to else redis) as links:
        found = read_mirror_rows(links, discover_queues(links), queues or ["*"])
    rows: list[list[str | Text]] = []
    for each in found:
        if as_json:
            out.print_json(
                queue=each.queue,
                origin=each.origin,
                path=each.path,
                copied_up_to=each.last,
                behind=each.behind,
                behind_s=each.behind_s,
                mirrored=each.mirrored,
                error=each.error,
            )
        since = "" if each.behind_s is None else format_duration(round(each.behind_s))
        process = each.error or ("" if each.mirrored else "no process mirrors it")
        rows.append(
            [
                Text(escape_control_characters(each.queue), "cyan"),
                each.origin,
                str(each.last),
                format_number(each.behind),
                since,
                Text(escape_control_characters(process), "yellow"),
            ]
        )
    if not as_json and rows:
        heads = [
            ("mirror", "left"),
            ("of", "left"),
            ("copied up to", "right"),
            ("behind", "right"),
            ("for", "right"),
            ("", "left"),
        ]
        out.print_table(table(heads, rows))
    elif not rows:
        out.note("there are no mirrors here. Begin with: busmq mirror --from URL QUEUE...")


@dataclass(frozen=True, slots=True)
class MirrorRow:
    """The status of a mirror, from its queue here and the report of its process."""

    queue: str
    origin: str
    path: tuple[str, ...]
    last: int
    """Copied up to this id."""
    behind: int
    behind_s: float | None
    """None where no process mirrors it."""
    mirrored: bool
    error: str | None


def read_mirror_rows(
    links: list[Link], places: Sequence[tuple[str, int]], wanted: Sequence[str] = ("*",)
) -> list[MirrorRow]:
    """Return the status of the queues of ``places`` (name, server) that are mirrors."""
    states = [state for state, _ in _find_mirrors(links, places, wanted)]
    reports = _read_reports(links) if states else []
    rows = []
    for state in states:
        report = next((each for each in reports if each.origin == state.of.origin), None)
        seen, behind_s, error = (
            report.odd.get(state.queue, (state.seen, 0.0, None))
            if report
            else (state.seen, None, None)
        )
        # A process reports every few seconds; more was copied meanwhile
        behind = max(0, max(seen, state.seen) - state.last)
        behind_s = behind_s if behind or behind_s is None else 0.0
        error = error or (report.error if report else None)
        rows.append(
            MirrorRow(
                state.queue,
                state.of.origin,
                state.of.path,
                state.last,
                behind,
                behind_s,
                report is not None,
                error,
            )
        )
    return rows


def _find_mirrors(
    links: list[Link], places: Sequence[tuple[str, int]], wanted: Sequence[str]
) -> Iterator[tuple[MirrorQueueState, LocatedQueue]]:
    """The queues of ``places`` that are mirrors and match one of the patterns, by name."""
    for server, link in enumerate(links):
        names = [name for name, where in places if where == server and matches(name, wanted)]
        keys = [QueueKeys(name, link.cluster) for name in names]
        for own, state in zip(
            keys, link.run(read_mirror_states(keys)) if keys else [], strict=True
        ):
            if state is not None:
                yield state, LocatedQueue(own, link)


def _read_reports(links: list[Link]) -> list[MirrorReport]:
    """Return the reports of mirroring processes within half a minute."""
    found: list[MirrorReport] = []
    for link in links:
        for names in link.ask_each_master(lambda node: _scan_names(node.execute)):
            for text in link.execute([command("GET", name) for name in names]) if names else ():
                report = MirrorReport.parse(text or b"")
                found += [report] if report else []
    return found


def _scan_names(execute: Any) -> list[str]:
    cursor, names = b"0", set[str]()
    while True:
        cursor, keys = execute(
            command("SCAN", cursor, "MATCH", MIRROR_REPORTS_PATTERN, "COUNT", 1000)
        )
        names.update(key.decode("utf-8", "replace") for key in keys)
        if int(cursor) == 0:
            return sorted(names)


def _parse_flag(flag: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(reason=f"{flag} is {text!r}; expected {error}") from None
