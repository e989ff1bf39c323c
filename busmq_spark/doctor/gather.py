"""Facts for the checks: from Redis, from files, from a federation server, and from Spark.

Rule 1. Nothing raises BusError: a refused or lost call is part of the facts.
Rule 2. Calls go in batches. A single walk over the keys of each server finds queues, staged lists,
        dead-letter queues and reports of mirrors; a script reads 50 queues at once.
Rule 3. The bytes of abandoned subscriptions and of staged lists are measured for the largest 20.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busmq_spark.doctor.bus import (
    MAX_MEASURED,
    UNRENEWED_TTL_S,
    AbandonedSubscription,
    BusFacts,
    DeadLetters,
    OutboxFacts,
    StagedRows,
    check_bus,
)
from busmq_spark.doctor.federation import FederationFacts
from busmq_spark.doctor.findings import Finding
from busmq_spark.doctor.redis import (
    CONFIG_NAMES,
    ClusterFacts,
    RedisFacts,
    SentinelFacts,
    SlowCommand,
    check_cluster,
    check_sentinels,
    check_server,
    number,
)
from busmq_spark.errors import (
    BusError,
    FederationRefused,
    LinkLost,
    QueueDamaged,
    QueueMissing,
    ServerRefused,
)
from busmq_spark.mirror.settings import MirrorReport
from busmq_spark.queue.command_generators import RedisCall, command
from busmq_spark.queue.keys import (
    BUS_KEYS_PATTERNS,
    LETTERS_SUFFIX,
    MIRROR_REPORTS_PATTERN,
    STAGE_INFIX,
    QueueKeys,
    queue_name,
    queue_of_key,
)
from busmq_spark.queue.scripts import load, script_names
from busmq_spark.reading.queue_health import DamagedQueue, QueueHealth, read_health
from busmq_spark.reading.reader_operations import bytes_until
from busmq_spark.reading.reader_subscriptions import ABANDONED_AFTER_S, held_back
from busmq_spark.reading.times_of_ids import ages
from busmq_spark.redis_io.layout import Link
from busmq_spark.redis_io.moving_endpoints import ClusterSeeds, SentinelMaster
from busmq_spark.redis_io.optional_commands import parse_info
from busmq_spark.redis_io.queue_location import KEYS_PER_SCAN
from busmq_spark.redis_io.slots import SlotMap
from busmq_spark.redis_io.sync_link import SyncClusterLink, SyncLink
from busmq_spark.writing.mirror import MirrorOf
from busmq_spark.writing.sink import STAGED_KEY_SUFFIX

if TYPE_CHECKING:
    from busmq_spark.federation.address import FederationAddress
    from busmq_spark.federation.bulk.client import FederationBulkClient

GAP_S = 0.5
"""Seconds between the two looks at memory."""
MAX_SLOW_COMMANDS = 128
MAX_PROBED_QUEUES = 100
"""Queues for which the grants of a secret are probed."""
_STAGED_KEY = re.compile(f"{STAGE_INFIX}(?:{STAGED_KEY_SUFFIX.pattern})$", re.ASCII)
_NO_LIMIT = 1 << 62
_KEY, _CHANNEL = "KEY", "CHANNEL"
RIGHTS: Mapping[str, tuple[str, ...]] = {
    "queries": (
        "ROLE",
        "CLUSTER SLOTS",
        "ASKING",
        "EVAL return 1 KEY",
        "EVALSHA 0 1 KEY",
        "SUBSCRIBE CHANNEL",
        "PUBLISH CHANNEL x",
        "SCAN 0",
        "DEL KEY",
        "UNLINK KEY",
        "EXISTS KEY",
        "EXPIRE KEY 1",
        "TTL KEY",
        "TIME",
        "RENAME KEY KEY",
        "GET KEY",
        "SET KEY x",
        "MGET KEY",
        "INCRBY KEY 1",
        "HGET KEY f",
        "HSET KEY f v",
        "HSETNX KEY f v",
        "HMGET KEY f",
        "HGETALL KEY",
        "HDEL KEY f",
        "HLEN KEY",
        "LINDEX KEY 0",
        "LLEN KEY",
        "LRANGE KEY 0 1",
        "LTRIM KEY 0 1",
        "LPOP KEY",
        "LPUSH KEY v",
        "RPOP KEY",
        "RPUSH KEY v",
        "RPUSHX KEY v",
    ),
    "names, checks and speed": (
        "CLIENT SETNAME x",
        "PING",
        "INFO",
        "PUBSUB NUMSUB",
        "DBSIZE",
        "MEMORY USAGE KEY",
    ),
    "buses": ("UNSUBSCRIBE CHANNEL", "HEXISTS KEY f"),
    "federation servers": ("HKEYS KEY",),
    "readings of lag": ("ZCOUNT KEY 0 1", "HSCAN KEY 0"),
    "shared groups": (
        "ZADD KEY 1 m",
        "ZCARD KEY",
        "ZCOUNT KEY 0 1",
        "ZRANGEBYSCORE KEY 0 1",
        "ZREVRANGE KEY 0 1",
        "ZREVRANGEBYSCORE KEY 1 0",
        "ZREM KEY m",
        "ZREMRANGEBYSCORE KEY 0 1",
        "ZSCORE KEY m",
    ),
    "groups of topics": ("ZADD KEY 1 m", "ZRANGE KEY 0 1", "ZREM KEY m"),
    "outboxes": ("HRANDFIELD KEY",),
    "patterns of jobs": ("PSUBSCRIBE bus:jobs:*", "PUNSUBSCRIBE bus:jobs:*"),
}
"""Feature → one call of each command that docs/layouts.md asks for; KEY and CHANNEL stand for a
key and a channel of a queue.
"""


def right_of(call: str) -> str:
    """Return a call of RIGHTS as an ACL rule names its command."""
    words = call.lower().split()
    joined = {"client", "cluster", "pubsub", "memory"}
    return "|".join(words[:2]) if words[0] in joined else words[0]


@dataclass(slots=True)
class MemoryLooks:
    """The memory of each server at the last look, kept by the caller from one call to the next."""

    _seen: dict[str, tuple[float, int]] = field(default_factory=dict)

    def growth(self, where: str, used: int) -> tuple[int, float] | None:
        """Note a look. Return the bytes that were added since the last one, and the seconds."""
        now = time.monotonic()
        before = self._seen.get(where)
        self._seen[where] = (now, used)
        return None if before is None or now <= before[0] else (used - before[1], now - before[0])

    def wait(self, gap_s: float) -> None:
        """Wait until so many seconds have passed since the first of the looks."""
        first = min((at for at, _ in self._seen.values()), default=0.0)
        time.sleep(max(0.0, first + gap_s - time.monotonic()))


def examine(
    links: Sequence[Link],
    looks: MemoryLooks | None = None,
    *,
    user: str = "",
    gap_s: float = GAP_S,
    clock: Callable[[], float] = time.time,
) -> list[Finding]:
    """Return the findings of all checks of Redis and the bus. Blocking; raises no BusError.

    ``looks`` give the growth of memory since the caller's last call; without them the function
    waits until ``gap_s`` have passed since its first look; 0: one look, no growth. ``user``: whose
    rights are checked, if not those of the link.
    """
    found: list[Finding] = []
    servers: list[tuple[SyncLink, RedisFacts]] = []
    own = looks if looks is not None else MemoryLooks()
    for link in links:
        found += _check_layout(link)
        servers += [
            (server, _read_server(server, link, user, clock, own)) for server in _servers_of(link)
        ]
    bus = read_bus(links, clock)
    if looks is None and gap_s > 0 and any(facts.info for _, facts in servers):
        own.wait(gap_s)
        servers = [(server, _look_again(server, facts, own)) for server, facts in servers]
    for _, facts in servers:
        found += check_server(facts)
    for each in bus:
        found += check_bus(each)
    return found


# -- Redis -----------------------------------------------------------------------------------------


def _servers_of(link: Link) -> list[SyncLink]:
    if isinstance(link, SyncLink):
        return [link]
    try:
        return link.master_links
    except BusError:  # no node answers: the row of a node says why
        return [SyncLink(link.endpoint.seeds[0], 0.0)]


def _read_server(
    server: SyncLink, link: Link, user: str, clock: Callable[[], float], looks: MemoryLooks
) -> RedisFacts:
    where, cluster = server.endpoint.masked_url, isinstance(link, SyncClusterLink)
    layout = (
        "cluster"
        if cluster
        else "sentinel"
        if isinstance(link.endpoint, SentinelMaster)
        else "direct"
    )
    calls = [
        command("INFO"),
        command("SLOWLOG", "GET", MAX_SLOW_COMMANDS),
        command("ACL", "WHOAMI"),
        *(command("CONFIG", "GET", name) for name in CONFIG_NAMES),
    ]
    try:
        info, slow, whoami, *config = ask_each(server, calls)
        before = clock()
        [now] = ask_each(server, [command("TIME")])
        after = clock()
        refused = {
            name: _refusal(name, reply)
            for name, reply in (
                ("INFO", info),
                ("SLOWLOG", slow),
                ("CONFIG", config[0]),
                ("TIME", now),
                ("ACL", whoami),
            )
            if isinstance(reply, BusError)
        }
        name = user or (whoami.decode("utf-8", "replace") if isinstance(whoami, bytes) else "")
        missing = None
        if name:
            missing = _missing_rights(server, name, refused, cluster=cluster)
    except BusError as error:
        return RedisFacts(where, layout, error=short_reason(error))
    known = parse_info(info) if isinstance(info, bytes) else None
    return RedisFacts(
        where,
        layout,
        info=known,
        config=None if "CONFIG" in refused else _parse_config(config),
        slow=None if "SLOWLOG" in refused else _parse_slow(slow, _redis_time_s(now, after)),
        clock_ahead_s=None
        if "TIME" in refused
        else clock_difference_s(_redis_time_s(now, after), before, after),
        growth=None if known is None else looks.growth(where, number(known, "used_memory_dataset")),
        user=name,
        missing=missing,
        refused=refused,
    )


def _look_again(server: SyncLink, facts: RedisFacts, looks: MemoryLooks) -> RedisFacts:
    if facts.info is None:
        return facts
    try:
        [reply] = ask_each(server, [command("INFO", "memory")])
    except BusError:
        return facts
    if not isinstance(reply, bytes):
        return facts
    memory = parse_info(reply)
    growth = looks.growth(facts.where, number(memory, "used_memory_dataset"))
    return replace(facts, info={**facts.info, **memory}, growth=growth)


def ask_each(link: SyncLink, calls: Sequence[RedisCall]) -> list[Any]:
    """Send calls in one round trip and return their replies; the error of a refused call is its
    reply. Raises LinkLost, and what a login raises.
    """
    replies: list[Any] = []
    try:
        link.ensure_connected()
        for call in calls:
            link.post(call)
        for _ in calls:
            try:
                replies.append(link.fetch())
            except LinkLost:
                raise
            except BusError as error:
                replies.append(error)
    finally:
        link.abandon()
    return replies


def short_reason(error: BusError) -> str:
    """Return the code of an error and its reason, without the remedy."""
    return f"{error.code}: {error.details.get('reason', error)}"


def _refusal(name: str, error: BusError) -> str:
    return f"Redis refuses {name} ({short_reason(error)})"


def _redis_time_s(reply: Any, otherwise: float) -> float:
    return int(reply[0]) + int(reply[1]) / 1e6 if isinstance(reply, list) else otherwise


def clock_difference_s(there: float, before: float, after: float) -> float:
    """Return the seconds that another clock is ahead of the clock here, read between two times
    here; 0 within the round trip.
    """
    return there - before if there < before else max(0.0, there - after)


def _parse_config(replies: Iterable[Any]) -> dict[str, str]:
    words = [
        word.decode("utf-8", "replace")
        for reply in replies
        if isinstance(reply, list)
        for word in reply
    ]
    return dict(zip(words[0::2], words[1::2], strict=True))


def _parse_slow(entries: Any, now_s: float) -> list[SlowCommand]:
    """Each entry: id, time, microseconds, the command with its arguments, and more."""
    names: dict[str, str] = {}
    found = []
    for _, at_s, took_us, words, *_ in entries:
        texts = [word.decode("utf-8", "replace") for word in words[:2]]
        name = texts[0].upper() if texts else "?"
        if name == "EVALSHA" and len(texts) > 1:
            names = names or {load(each).digest: each for each in script_names()}
            script = names.get(texts[1])
            name = f"{script}.lua" if script else "a script of another program"
        found.append(SlowCommand(name, max(0.0, now_s - at_s), took_us))
    return found


def _missing_rights(
    server: SyncLink, user: str, refused: dict[str, str], *, cluster: bool
) -> dict[str, list[str]] | None:
    keys = QueueKeys("busmq-doctor", cluster)
    stands_for = {_KEY: keys.metadata, _CHANNEL: keys.available}
    asked = [(feature, call) for feature, calls in RIGHTS.items() for call in calls]
    replies = ask_each(
        server,
        [
            command("ACL", "DRYRUN", user, *(stands_for.get(word, word) for word in call.split()))
            for _, call in asked
        ],
    )
    if isinstance(replies[0], BusError):
        [rules] = ask_each(server, [command("ACL", "GETUSER", user)])
        if not isinstance(rules, list) or b"+@all" not in rules:
            refused["ACL"] = _refusal("ACL DRYRUN, which came with Redis 7.0", replies[0])
            return None
        refused.pop("ACL", None)  # the user may run every command
        return {}
    refused.pop("ACL", None)
    missing: dict[str, list[str]] = {feature: [] for feature in RIGHTS}
    for (feature, call), reply in zip(asked, replies, strict=True):
        if reply != b"OK" and not isinstance(reply, BusError):
            missing[feature].append(right_of(call))
    return missing


def _check_layout(link: Link) -> list[Finding]:
    endpoint = link.endpoint
    if isinstance(endpoint, ClusterSeeds):
        facts = read_cluster(endpoint)
        return [] if facts is None else check_cluster(facts)
    if isinstance(endpoint, SentinelMaster):
        return check_sentinels(
            endpoint.name, [_ask_sentinel(endpoint, i) for i in range(len(endpoint.sentinels))]
        )
    return []


def read_cluster(
    seeds: ClusterSeeds, resolve: Callable[[str], object] | None = None
) -> ClusterFacts | None:
    """Return the facts of a cluster, or None where no seed answers (the row of a server says so).
    ``resolve`` raises OSError for a host that it does not know.
    """
    resolve = resolve or (lambda host: socket.getaddrinfo(host, None))
    for seed in seeds.seeds:
        try:
            with closing(SyncLink(seed, 0.0)) as link:
                [reply] = ask_each(link, [command("CLUSTER", "SLOTS")])
        except BusError:
            continue
        if not isinstance(reply, list):
            continue
        hosts = sorted(
            {(node[0] or b"").decode("utf-8", "replace") for row in reply for node in row[2:]}
            - {""}
        )
        unresolved = {}
        for host in hosts:
            try:
                resolve(host)
            except (OSError, UnicodeError) as error:
                unresolved[host] = str(error)
        slots = SlotMap.parse(reply, seed.host)
        served = sum(end - start + 1 for start, end in zip(slots.starts, slots.ends, strict=True))
        return ClusterFacts(seeds.masked_url, served, len(hosts), unresolved)
    return None


def _ask_sentinel(of: SentinelMaster, at: int) -> SentinelFacts:
    sentinel = of.sentinels[at]
    try:
        with closing(SyncLink(sentinel, 0.0)) as link:
            quorum, master = ask_each(
                link,
                [
                    command("SENTINEL", "CKQUORUM", of.name),
                    command("SENTINEL", "MASTER", of.name),
                ],
            )
    except BusError as error:
        return SentinelFacts(sentinel.masked_url, short_reason(error))
    if isinstance(master, BusError):
        return SentinelFacts(sentinel.masked_url, short_reason(master))
    words = [word.decode("utf-8", "replace") for word in master]
    fields = dict(zip(words[0::2], words[1::2], strict=True))
    refused = isinstance(quorum, BusError)
    return SentinelFacts(
        sentinel.masked_url,
        others=int(fields.get("num-other-sentinels", 0)),
        usable=not refused,
        quorum=short_reason(quorum) if refused else quorum.decode("utf-8", "replace"),
    )


# -- the bus ---------------------------------------------------------------------------------------


def read_bus(links: Sequence[Link], clock: Callable[[], float] = time.time) -> list[BusFacts]:
    """Return the facts of the queues of each link; each knows the reports of all mirrors."""
    found = []
    for link in links:
        try:
            found.append(_read_queues(link, clock))
        except BusError as error:
            where = link.endpoint.masked_url
            found.append(BusFacts(where, error=f"queues cannot be read ({short_reason(error)})"))
    reports = [report for each in found for report in each.reports]
    return [replace(each, reports=reports) for each in found]


@dataclass(slots=True)
class _BusKeys:
    """The keys of a walk over a server. ``staged``: queue and key."""

    queues: list[str] = field(default_factory=list)
    letters: set[str] = field(default_factory=set)
    staged: list[tuple[str, str]] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)


def _read_queues(link: Link, clock: Callable[[], float]) -> BusFacts:
    walked = _BusKeys()
    for server in link.master_links:
        _walk(server, walked, cluster=link.cluster)
    names = dict.fromkeys(walked.queues)  # SCAN may return a key twice
    health = link.run(read_health([QueueKeys(each, link.cluster) for each in names]))
    sound = [each for each in health if isinstance(each, QueueHealth)]
    return BusFacts(
        link.endpoint.masked_url,
        queues=sound,
        damaged=[each for each in health if isinstance(each, DamagedQueue)],
        abandoned=_read_abandoned(link, sound, clock),
        staged=_read_staged(link, [*dict.fromkeys(walked.staged)]),
        letters=_read_letters(link, [each for each in sound if each.name in walked.letters]),
        mirrors={each.name: MirrorOf.parse(each.origin).origin for each in sound if each.origin},
        reports=_read_reports(link, [*dict.fromkeys(walked.reports)]),
    )


def _walk(server: SyncLink, found: _BusKeys, *, cluster: bool) -> None:
    cursor: bytes | int = 0
    report_head = MIRROR_REPORTS_PATTERN.removesuffix("*")
    while True:
        cursor, keys = server.execute(
            command("SCAN", cursor, "MATCH", BUS_KEYS_PATTERNS[cluster], "COUNT", KEYS_PER_SCAN)
        )
        for raw in keys:
            try:
                key = raw.decode()
            except UnicodeDecodeError:  # no name that we or npm clients could spell
                continue
            if (name := queue_name(key, cluster=cluster)) is not None:
                found.queues.append(name)
            elif (name := queue_of_key(key, LETTERS_SUFFIX, cluster=cluster)) is not None:
                found.letters.add(name)
            elif STAGE_INFIX in key and (staged := _STAGED_KEY.search(key)):
                if (name := queue_of_key(key, staged[0], cluster=cluster)) is not None:
                    found.staged.append((name, key))
            elif key.startswith(report_head):
                found.reports.append(key)
        if int(cursor) == 0:
            return


def _read_abandoned(
    link: Link, queues: Sequence[QueueHealth], clock: Callable[[], float]
) -> list[AbandonedSubscription]:
    if not any(each.acked for each in queues):
        return []
    now_s = int(_redis_time_s(link.execute(command("TIME")), clock()))
    idle = [
        (each, name, back, now_s - each.used_s[name])
        for each in queues
        for name in each.acked
        if (back := held_back(each.state, each.acked, name))
        and now_s - each.used_s.get(name, now_s) >= ABANDONED_AFTER_S
    ]
    if not idle:
        return []
    leases = link.execute(
        [command("GET", QueueKeys(each.name, link.cluster).lease(name)) for each, name, *_ in idle]
    )
    abandoned = sorted(
        (
            (back, each, name, idle_s)
            for (each, name, back, idle_s), lease in zip(idle, leases, strict=True)
            if lease is None
        ),
        key=lambda row: -row[0],
    )
    found = []
    for at, (back, each, name, idle_s) in enumerate(abandoned):
        size = None
        if at < MAX_MEASURED:
            first = max(each.acked[name], each.state.floor) + 1
            keys = QueueKeys(each.name, link.cluster)
            _, size = link.run(bytes_until(keys, first, first + back - 1, _NO_LIMIT))
        found.append(AbandonedSubscription(each.name, name, back, idle_s, size))
    return found


def _read_staged(link: Link, staged: Sequence[tuple[str, str]]) -> list[StagedRows]:
    if not staged:
        return []
    ttls = link.execute([command("TTL", key) for _, key in staged])
    old = [each for each, ttl_s in zip(staged, ttls, strict=True) if 0 <= ttl_s < UNRENEWED_TTL_S]
    sizes: list[Any] = []
    if old:
        calls = [command("MEMORY", "USAGE", key) for _, key in old[:MAX_MEASURED]]
        try:
            sizes = link.execute(calls)
        except LinkLost:
            raise
        except BusError:  # no right to it: the number of lists remains
            sizes = [0] * len(calls)
    found: dict[str, StagedRows] = {}
    for at, (queue, _) in enumerate(old):
        before = found.get(queue, StagedRows(queue, 0, 0))
        size = (sizes[at] or 0) if at < len(sizes) else 0
        found[queue] = StagedRows(queue, before.lists + 1, before.bytes + size)
    return list(found.values())


def _read_letters(link: Link, queues: Sequence[QueueHealth]) -> list[DeadLetters]:
    full = [each for each in queues if each.state.count]
    asked = [(QueueKeys(each.name, link.cluster), each.state.oldest) for each in full]
    return [
        DeadLetters(each.name, each.state.count, None if age_ms < 0 else age_ms / 1000)
        for each, age_ms in zip(full, _read_ages(link, asked), strict=True)
    ]


def _read_ages(link: Link, asked: Sequence[tuple[QueueKeys, int]]) -> Sequence[int]:
    """Return the age of each message; -1 where it is not known, or where the clock of its queue
    is damaged.
    """
    try:
        return link.run(ages(asked))
    except LinkLost:
        raise
    except BusError:
        if len(asked) == 1:
            return [-1]
        return [age_ms for each in asked for age_ms in _read_ages(link, [each])]


def _read_reports(link: Link, names: Sequence[str]) -> list[MirrorReport]:
    replies = link.execute([command("GET", name) for name in names]) if names else ()
    return [report for text in replies if (report := MirrorReport.parse(text or b""))]


def read_outbox(path: Path) -> OutboxFacts:
    """Return the facts of an outbox file; a file that is none is a fact, too."""
    from busmq_spark.outbox import report

    try:
        found = report.read_status(path)
    except BusError as error:
        return OutboxFacts(str(path), unusable=short_reason(error))
    return OutboxFacts(
        str(path),
        waiting=found.incoming + found.outgoing,
        oldest_s=found.oldest_s,
        open=found.owner is not None,
        error=found.error,
    )


# -- federation ------------------------------------------------------------------------------------


def read_federation(
    address: FederationAddress, clock: Callable[[], float] = time.time
) -> FederationFacts:
    """Return the facts of a federation server. The grants are found by calls that change nothing,
    for up to MAX_PROBED_QUEUES queues.
    """
    from busmq_spark.federation.bulk.client import BulkWebSocket, FederationBulkClient

    url = address.url
    try:
        before = clock()
        socket_ = BulkWebSocket(address)
        after = clock()
        with closing(socket_):
            ends, date = socket_.certificate_ends, socket_.date
        client = FederationBulkClient(replace(address, patience_s=0.0))
    except BusError as error:
        return FederationFacts(url, error=short_reason(error))
    grants, unprobed = dict[str, int](), ""
    try:
        with closing_client(client):
            grants = _probe_grants(client)
    except BusError as error:  # the server answers: the other facts stand
        unprobed = short_reason(error)
    left_s = ssl.cert_time_to_seconds(ends) - after if ends else None
    ahead_s = None
    with suppress(ValueError, OverflowError):  # no date, or text that is none: the fact is missing
        sent = parsedate_to_datetime(date).timestamp()
        # whole seconds: the time is anywhere in that second
        ahead_s = clock_difference_s(sent, before - 1, after)
    return FederationFacts(
        url, left_s=left_s, clock_ahead_s=ahead_s, grants=grants, unprobed=unprobed
    )


@contextmanager
def closing_client(client: FederationBulkClient) -> Iterator[None]:
    """Drop the connection of a client at the end."""
    try:
        yield
    finally:
        client.drop_connection()


_ANSWERS_OF_A_PROBE = (FederationRefused, ServerRefused, QueueDamaged, QueueMissing)
"""Only the first says that a grant is missing; a damaged queue says nothing of grants."""


def _probe_grants(client: FederationBulkClient) -> dict[str, int]:
    """Return for each verb the number of queues that it is granted on; for push 1 or 0."""
    try:
        queues = client.call("discover")
    except FederationRefused:
        queues = ()
    probed = [[name] for name in queues[:MAX_PROBED_QUEUES]]
    grants = {"browse": len(queues)}
    for verb, operation in (("consume", "subscriptions"), ("admin", "ends")):
        replies = client.call_many(
            operation, [(queue,) for queue in probed], returned_errors=_ANSWERS_OF_A_PROBE
        )
        grants[verb] = sum(not isinstance(reply, FederationRefused) for reply in replies)
    try:
        client.call("event_queues", [])
        grants["push"] = 1
    except FederationRefused:
        grants["push"] = 0
    return grants
