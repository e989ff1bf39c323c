"""``busmq exporter``: the queues, readers and servers of a bus as metrics for Prometheus.

Each scrape asks Redis; nothing is kept between two scrapes but the findings of the doctor. A thread
of its own makes them, at most once a minute: no scrape waits for its walk over all keys. Labels are
bounded: ``most`` queues and ``most`` readers have series of their own, and the others are summed as
``other``.
"""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from busmq_spark.cli.mirror import MirrorRow, read_mirror_rows
from busmq_spark.cli.options import JsonOption, parse_listen_address
from busmq_spark.cli.output import CliOutput, escape_control_characters
from busmq_spark.cli.queue_lookup import COMMAND_PATIENCE_S, need_redis
from busmq_spark.cli.queue_overviews import ask_undamaged
from busmq_spark.doctor.findings import Level, codes_of, count_by_code, unknown
from busmq_spark.doctor.gather import MemoryLooks, examine
from busmq_spark.errors import BusError, LinkLost, Unauthorized
from busmq_spark.errors.foreign import error_text, exc_info
from busmq_spark.metrics import OTHER_LABEL, Metrics, series_text, serve_pages
from busmq_spark.mirror.settings import matches
from busmq_spark.options import RedisOptions
from busmq_spark.queue.command_generators import command, slices
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.reading.reader_operations import QueueState, states
from busmq_spark.reading.readers import STUCK_AFTER_S, ReaderStatus, read_readers
from busmq_spark.redis_io.layout import Link, redis_layout, sync_links
from busmq_spark.redis_io.lease_token import is_dead
from busmq_spark.redis_io.optional_commands import (
    ask_if_allowed,
    is_refused_command,
    parse_info,
    tell_once,
)
from busmq_spark.redis_io.queue_location import discover_queues

QUEUES_PER_STEP = 500
DEFAULT_EXPORTER_PORT = 9464
MAX_SERIES = 100_000
DOCTOR_INTERVAL_S = 60.0
REPLY_S = 2.0
"""Longest wait for a reply, and for another scrape: Prometheus gives up after 10 s."""
log = logging.getLogger("busmq_spark")
KINDS = frozenset(
    ("query", "ordered", "shared", "topic", "consumer", "tail", "mirror", "federation")
)
"""Kinds of readers. Others are ``other``: a record is text that any program may write."""
QUEUE, READER = ("queue",), ("queue", "reader", "kind")
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "busmq_queue_waiting_messages": (QUEUE, "Messages that some reader has still to acknowledge"),
    "busmq_queue_kept_messages": (QUEUE, "Acknowledged messages that the queue keeps"),
    "busmq_queue_newest_id": (QUEUE, "The id given last"),
    "busmq_queue_bytes": (QUEUE, "Memory that the messages take in Redis, an estimate"),
    "busmq_queue_ttl_seconds": (QUEUE, "Life of the queue after its last use"),
    "busmq_queue_expires_seconds": (QUEUE, "Seconds until the queue expires, unless it is used"),
    "busmq_queue_maxsize_messages": (QUEUE, "The most messages that may wait, if there is a limit"),
    "busmq_queue_dead_letters": (QUEUE, "Stored dead letters that groups wrote, if there are any"),
    "busmq_reader_lag_messages": (READER, "Messages that the reader has not acknowledged"),
    "busmq_reader_lag_seconds": (READER, "Age of the oldest of them, where it is known"),
    "busmq_reader_state": ((*READER, "state"), "Readers with these labels in this state"),
    "busmq_reader_last_commit_timestamp_seconds": (
        READER,
        "Time of the last commit of the reader, by the clock of Redis",
    ),
    "busmq_redis_up": (("server",), "Whether the server answered this scrape"),
    "busmq_redis_memory_bytes": (("server",), "Memory in use"),
    "busmq_redis_maxmemory_bytes": (("server",), "Limit of memory; 0 without a limit"),
    "busmq_redis_evicted_keys": (("server",), "Keys evicted since the server started"),
    "busmq_redis_aof_enabled": (("server",), "Whether the append-only file is on"),
    "busmq_redis_aof_ok": (("server",), "Whether its last write and last rewrite succeeded"),
    "busmq_redis_aof_bytes": (("server",), "Size of the append-only file"),
    "busmq_redis_replicas": (("server",), "Connected replicas"),
    "busmq_redis_replica_lag_seconds": (("server",), "Lag of the slowest replica"),
    "busmq_redis_clients": (("server",), "Connected clients"),
    "busmq_redis_uptime_seconds": (("server",), "Seconds since the server started"),
    "busmq_mirrored_lag_messages": (("queue", "origin"), "Ids of the origin that are not copied"),
    "busmq_mirrored_lag_seconds": (("queue", "origin"), "For how long the copy has lagged"),
    "busmq_mirrored_running": (("queue", "origin"), "Whether a process mirrors the queue"),
    "busmq_doctor_findings": (("code", "level"), "Findings of busmq doctor"),
    "busmq_exporter_queues": ((), "Queues that match, those summed as other included"),
    "busmq_exporter_damaged_queues": ((), "Queues that cannot be read"),
    "busmq_exporter_scrape_seconds": ((), "Time that this scrape took"),
}
_REDIS_FIELDS = {
    "busmq_redis_memory_bytes": "used_memory",
    "busmq_redis_maxmemory_bytes": "maxmemory",
    "busmq_redis_evicted_keys": "evicted_keys",
    "busmq_redis_aof_enabled": "aof_enabled",
    "busmq_redis_replicas": "connected_slaves",
    "busmq_redis_clients": "connected_clients",
    "busmq_redis_uptime_seconds": "uptime_in_seconds",
}


class _QueueRow(NamedTuple):
    keys: QueueKeys
    state: QueueState
    expires_ms: int
    size: int | None
    letters: int


class _Samples:
    """The values of one scrape, each series once."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in GAUGES}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add to a series."""
        series = self._values[name]
        series[labels] = series.get(labels, 0.0) + value

    def keep(
        self, choose: Callable[[float, float], float], name: str, value: float, *labels: str
    ) -> None:
        """Keep the lowest or highest value of a series."""
        series = self._values[name]
        series[labels] = float(choose(series.get(labels, value), value))

    def text(self) -> str:
        """Return the text of all series."""
        return "".join(
            series_text("gauge", name, doc, labels, self._values[name])
            for name, (labels, doc) in GAUGES.items()
        )


class _DoctorRounds:
    """The findings of the doctor. Each round is a thread with links of its own; the findings of the
    last round that ended stand meanwhile.
    """

    def __init__(self, redis: RedisOptions) -> None:
        self._redis, self._looks = redis, MemoryLooks()
        self._round: threading.Thread | None = None
        self._began_at = -math.inf
        self.counts: dict[tuple[str, Level], int] = {}

    def begin_if_due(self) -> None:
        """Begin a round, unless one runs or the last one began less than DOCTOR_INTERVAL_S ago."""
        now = time.monotonic()
        runs = self._round is not None and self._round.is_alive()
        if runs or now - self._began_at < DOCTOR_INTERVAL_S:
            return
        self._began_at = now
        self._round = threading.Thread(target=self._examine, name="busmq-doctor", daemon=True)
        self._round.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the round that runs, if one does."""
        if self._round is not None:
            self._round.join(timeout_s)

    def _examine(self) -> None:
        try:
            links = sync_links(redis_layout(self._redis), COMMAND_PATIENCE_S)
            try:
                found = examine(links, self._looks)
            finally:
                for link in links:
                    link.close()
        except Exception as error:  # no check was made, and that is a finding
            log.error("the doctor failed: %s", error_text(error), exc_info=exc_info(error))
            codes = [code for code in codes_of("redis", "bus") if code != "outbox"]
            found = unknown(codes, "", error_text(error))
        self.counts = count_by_code(found)


class BusExporter:
    """The metrics of all queues that match. :meth:`text` makes them for one caller at a time."""

    def __init__(
        self,
        redis: RedisOptions,
        patterns: Sequence[str] = ("*",),
        most: int = 1000,
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        need_redis(redis)
        layout = redis_layout(redis)
        # A second try at a single server that hangs would only wait again.
        patience_s = COMMAND_PATIENCE_S if layout.cluster else 0.0
        self._links = sync_links(layout, patience_s, REPLY_S)
        self._last, self._told = "", set[str]()
        self._patterns, self._most, self._stuck_after_s = tuple(patterns), most, stuck_after_s
        self._lock = threading.Lock()
        self._doctor = _DoctorRounds(redis)

    def close(self) -> None:
        """Close the connections."""
        self._doctor.wait(COMMAND_PATIENCE_S)
        with self._lock:
            for link in self._links:
                link.close()

    def not_ready(self) -> str | None:
        """Return why the exporter cannot read the bus now, or None."""
        if not self._lock.acquire(timeout=REPLY_S):
            return "busy"
        try:
            for link in self._links:
                _ask_for_life(link)
        except BusError as error:
            return f"no Redis: {error.code}"
        finally:
            self._lock.release()
        return None

    def text(self) -> str:
        """Ask Redis, and return the metrics. A server that does not answer is ``up`` 0. While
        another caller asks for longer than REPLY_S, return the metrics made last.
        """
        samples, began = _Samples(), time.monotonic()
        if not self._lock.acquire(timeout=REPLY_S):
            return self._last
        try:
            self._collect(samples)
            self._doctor.begin_if_due()
            samples.add("busmq_exporter_scrape_seconds", time.monotonic() - began)
            self._last = samples.text()
            return self._last
        finally:
            self._lock.release()

    def _collect(self, samples: _Samples) -> None:
        answered = [_read_server(link, samples) for link in self._links]
        if all(answered):
            try:
                self._read_queues(samples)
            except LinkLost as error:
                samples.keep(min, "busmq_redis_up", 0, str(error.details.get("url", "?")))
            except BusError as error:
                if error.code not in self._told:
                    self._told.add(error.code)
                    log.warning("exporter: metrics of queues are left out: %s", error)
        self._read_findings(samples)

    def _read_queues(self, samples: _Samples) -> None:
        found = [
            (name, server)
            for name, server in discover_queues(self._links)
            if matches(name, self._patterns)
        ]
        labels = _bounded_labels([name for name, _ in found], self._most)
        samples.add("busmq_exporter_queues", len(found))
        samples.add("busmq_exporter_damaged_queues", 0)
        readers: list[ReaderStatus] = []
        mirrors: list[MirrorRow] = []
        for server, link in enumerate(self._links):
            keys = [QueueKeys(name, link.cluster) for name, where in found if where == server]
            damaged: dict[str, str] = {}
            for part in slices(keys, QUEUES_PER_STEP):
                rows, bad = ask_undamaged(partial(_read_rows, link), part)
                sound = [own for own in part if own.name not in bad]
                more, worse = ask_undamaged(
                    partial(_read_readers, link, self._stuck_after_s), sound
                )
                for row in rows:
                    _add_queue(samples, labels.get(row.keys.name, OTHER_LABEL), row)
                readers += more
                damaged |= bad | worse
            sound = [own for own in keys if own.name not in damaged]
            rows_of_mirrors, bad = ask_undamaged(partial(self._read_mirrors, server), sound)
            mirrors += rows_of_mirrors
            damaged |= bad
            samples.add("busmq_exporter_damaged_queues", len(damaged))
        self._add_readers(samples, labels, readers)
        for mirror in mirrors:
            at = labels.get(mirror.queue, OTHER_LABEL), mirror.origin
            samples.add("busmq_mirrored_lag_messages", mirror.behind, *at)
            if mirror.behind_s is not None:
                samples.keep(max, "busmq_mirrored_lag_seconds", mirror.behind_s, *at)
            samples.keep(min, "busmq_mirrored_running", mirror.mirrored, *at)

    def _read_mirrors(self, server: int, queues: Sequence[QueueKeys]) -> list[MirrorRow]:
        return read_mirror_rows(self._links, [(own.name, server) for own in queues])

    def _add_readers(
        self, samples: _Samples, labels: dict[str, str], readers: Sequence[ReaderStatus]
    ) -> None:
        names: dict[tuple[str, str], str] = {}
        for each in readers:
            queue = labels.get(each.queue, OTHER_LABEL)
            if queue == OTHER_LABEL or len(names) >= self._most:
                reader = OTHER_LABEL
            else:
                reader = escape_control_characters(each.reader)
                names[each.queue, each.reader] = reader
            at = (queue, reader, each.kind if each.kind in KINDS else OTHER_LABEL)
            samples.add("busmq_reader_lag_messages", each.behind, *at)
            if each.behind_s is not None:
                samples.keep(max, "busmq_reader_lag_seconds", each.behind_s, *at)
            samples.add("busmq_reader_state", 1, *at, each.state)
            if (committed_s := _committed_s(each)) is not None:
                name = "busmq_reader_last_commit_timestamp_seconds"
                samples.keep(max, name, committed_s, *at)

    def _read_findings(self, samples: _Samples) -> None:
        for (code, level), number in self._doctor.counts.items():
            samples.add("busmq_doctor_findings", number, code, level)


def _ask_for_life(link: Link) -> None:
    """Raise what keeps Redis from answering. A user without the right to this key gets an
    answer.
    """
    try:
        link.execute(command("EXISTS", QueueKeys("ready", link.cluster).metadata))
    except Unauthorized as error:
        if "permissions" not in str(error.details.get("reason")).lower():
            raise


def _bounded_labels(names: Sequence[str], most: int) -> dict[str, str]:
    """Return the label of each of the first ``most`` queues. A queue that is named like the sum of
    the others belongs to them.
    """
    return {name: escape_control_characters(name) for name in names[:most] if name != OTHER_LABEL}


def _read_readers(
    link: Link, stuck_after_s: float, queues: Sequence[QueueKeys]
) -> list[ReaderStatus]:
    return link.run(read_readers(queues, is_dead, stuck_after_s))


def _committed_s(each: ReaderStatus) -> float | None:
    """Return the time of the last commit by the clock of Redis, if it is known."""
    committed = each.record.committed if each.record else None
    return (committed.ms - each.records[0].clock_off_ms) / 1000 if committed else None


def _read_rows(link: Link, queues: Sequence[QueueKeys]) -> list[_QueueRow]:
    """Return the queues that exist."""
    known = link.run(states([(keys, -1) for keys in queues]))
    replies = link.execute(
        [
            call
            for keys, state in zip(queues, known, strict=True)
            for call in (
                command("PTTL", keys.metadata),
                command("ZCOUNT", keys.letters, state.oldest, "+inf"),
            )
        ]
    )
    sizes = _read_sizes(link, queues)
    rows = map(_QueueRow, queues, known, replies[0::2], sizes, replies[1::2])
    return [row for row in rows if row.state.exists]


def _read_sizes(link: Link, queues: Sequence[QueueKeys]) -> Sequence[int | None]:
    """Return the memory of the messages of each queue, or Nones if Redis refuses the question."""
    try:
        sizes: list[int | None] = link.execute(
            [command("MEMORY", "USAGE", own.messages) for own in queues]
        )
    except BusError as error:
        if not is_refused_command(error):
            raise
        tell_once(link.endpoint.masked_url, "MEMORY", "the bytes of queues are left out")
        return [None] * len(queues)
    return [size or 0 for size in sizes]


def _add_queue(samples: _Samples, label: str, row: _QueueRow) -> None:
    state = row.state
    samples.add("busmq_queue_waiting_messages", state.waiting, label)
    samples.add("busmq_queue_kept_messages", state.kept_count, label)
    if row.letters:
        samples.add("busmq_queue_dead_letters", row.letters, label)
    if row.size is not None:
        samples.add("busmq_queue_bytes", row.size, label)
    if row.expires_ms >= 0:
        samples.keep(min, "busmq_queue_expires_seconds", row.expires_ms / 1000, label)
    samples.keep(min, "busmq_queue_ttl_seconds", state.ttl_s, label)
    if label != OTHER_LABEL:
        samples.add("busmq_queue_newest_id", state.last_id, label)
        if state.maxsize:
            samples.add("busmq_queue_maxsize_messages", state.maxsize, label)


def _read_server(link: Link, samples: _Samples) -> bool:
    """Add the metrics of the masters of a link, and return whether all answered."""

    def ask(node: Any) -> tuple[str, dict[str, str]]:
        reply = node.run(ask_if_allowed("INFO"))
        return node.endpoint.masked_url, parse_info(reply) if isinstance(reply, bytes) else {}

    try:
        found = link.ask_each_master(ask)
    except BusError:
        samples.add("busmq_redis_up", 0, link.endpoint.masked_url)
        return False
    for server, info in found:
        samples.add("busmq_redis_up", 1, server)
        for name, field in _REDIS_FIELDS.items():
            if field in info:
                samples.add(name, int(info[field]), server)
        if info.get("aof_enabled") == "1":
            ok = {info.get("aof_last_write_status"), info.get("aof_last_bgrewrite_status")}
            samples.add("busmq_redis_aof_ok", ok == {"ok"}, server)
            samples.add("busmq_redis_aof_bytes", int(info.get("aof_current_size", 0)), server)
        for name, text in info.items():
            if name.startswith("slave") and name[5:].isdigit():
                lag = dict(pair.partition("=")[::2] for pair in text.split(",")).get("lag", "")
                if lag.isdigit():
                    samples.keep(max, "busmq_redis_replica_lag_seconds", int(lag), server)
    return True


QueuesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queues",
        metavar="PATTERN",
        help="Only queues that match: 'orders-*'; may be repeated.",
        show_default=False,
    ),
]
MostOption = Annotated[
    int,
    typer.Option(
        "--most",
        metavar="N",
        min=1,
        max=MAX_SERIES,
        help="Queues, and readers, with series of their own; the others are summed as 'other'.",
    ),
]


def exporter(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 picks a free one.")
    ] = f"127.0.0.1:{DEFAULT_EXPORTER_PORT}",
    *,
    queues: QueuesOption = None,
    most: MostOption = 1000,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Serve the state of queues, readers, mirrors and Redis to Prometheus, until Ctrl-C.

    /metrics asks Redis at each scrape. /livez and /readyz answer on the same port. The names of
    queues and readers are in the text, so listen where only Prometheus can reach it.

    ```
    busmq exporter
    busmq exporter --listen 0.0.0.0:9464 --queues 'orders-*' --most 200
    ```
    """
    out = CliOutput(as_json)
    host, port = parse_listen_address(listen, port=DEFAULT_EXPORTER_PORT)
    source, metrics = BusExporter(redis, tuple(queues or ["*"]), most), Metrics()
    metrics.add_source(source)
    ended = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        with serve_pages(host, port, metrics, source.not_ready) as url:
            if as_json:
                out.print_json(url=url)
            else:
                out.print_lines(Text.assemble("Metrics: ", (url, "bold cyan")), "Ctrl-C ends it.")
            out.flush()
            while not ended.wait(1.0):
                pass
    finally:
        signal.signal(signal.SIGTERM, before)
        source.close()
