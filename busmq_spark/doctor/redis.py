"""Checks of Redis servers. Pure: facts in, findings out. ``busmq info`` shares the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

from busmq_spark.doctor.findings import Finding, Level, unknown

OLDEST_REDIS_VERSION = (6, 2)
NEARLY_FULL = 0.95
"""The part of ``maxmemory`` from which on a server counts as full: a push of some size is refused
then.
"""
FILLING, FILLS_WITHIN_S = 0.8, 24 * 3600
MIN_GROWTH_BYTES = 64 * 1024
"""Growth between two looks that counts: Redis allocates some memory for its own work."""
MAX_REPLICA_LAG_S = 10
SLOW_COMMAND_US, SLOW_WITHIN_S = 20_000, 3600
MAX_CLOCK_DIFFERENCE_S = 2.0
MIN_SUBSCRIBER_BUFFER, MIN_REPLICA_BUFFER = 8 * 1024**2, 64 * 1024**2
SUBSCRIBER_BUFFER_FIX = (
    "redis-cli CONFIG SET client-output-buffer-limit 'pubsub 33554432 8388608 60'"
)
REPLICA_BUFFER_FIX = (
    "redis-cli CONFIG SET client-output-buffer-limit 'replica 268435456 67108864 60'"
)
SLOTS = 16384
MIN_SENTINELS = 3
CONFIG_NAMES = (
    "client-output-buffer-limit",
    "min-replicas-to-write",
    "stop-writes-on-bgsave-error",
    "slowlog-log-slower-than",
)
INFO_CODES = (
    "redis-role",
    "redis-version",
    "redis-eviction",
    "redis-evicted",
    "redis-memory",
    "redis-persistence",
    "redis-replicas",
    "redis-min-replicas",
)

Info = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SlowCommand:
    """A command of SLOWLOG, without its arguments. ``name``: of a script, where it is one of
    ours.
    """

    name: str
    age_s: float
    took_us: int


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """The facts of one server. A fact is None where Redis refuses the command; ``refused`` has the
    reason, by the first word of the command.
    """

    where: str
    layout: str = "direct"
    error: str = ""
    """Why the server could not be asked; the other facts are empty then."""
    info: Info | None = None
    config: Mapping[str, str] | None = None
    slow: Sequence[SlowCommand] | None = None
    clock_ahead_s: float | None = None
    """Seconds that the clock of Redis is ahead of the clock here; the round trip is taken off."""
    growth: tuple[int, float] | None = None
    """Bytes by which the data has grown, and the seconds between the two looks."""
    user: str = ""
    missing: Mapping[str, Sequence[str]] | None = None
    """Feature → rights of docs/layouts.md that the user lacks."""
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts of a cluster. ``unresolved``: host → reason."""

    where: str
    slots: int
    hosts: int
    unresolved: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SentinelFacts:
    """The answer of one sentinel about the master. ``quorum``: its reply to CKQUORUM."""

    where: str
    error: str = ""
    others: int = 0
    usable: bool = True
    quorum: str = ""


# -- the rules that busmq info shares ----------------------------------------------------------


def number(info: Info, name: str) -> int:
    """Return a number of INFO, 0 where it is missing or none."""
    text = info.get(name, "0")
    return int(text) if text.lstrip("-").isdigit() else 0


def is_full(info: Info) -> bool:
    """Whether so much of ``maxmemory`` is used that pushes are refused, or soon will be."""
    used = number(info, "used_memory") - number(info, "mem_not_counted_for_evict")
    most = number(info, "maxmemory")
    return most > 0 and used >= NEARLY_FULL * most


def used_text(info: Info) -> str:
    """Return the part of ``maxmemory`` that is used."""
    return f"{number(info, 'used_memory') / max(1, number(info, 'maxmemory')):.0%} of maxmemory"


def eviction_policy(info: Info) -> str:
    """Return ``maxmemory-policy``."""
    return info.get("maxmemory_policy", "noeviction")


def is_replica(info: Info) -> bool:
    """Whether the server is no master."""
    return info.get("role") != "master"


def is_stray_node(info: Info, *, cluster: bool) -> bool:
    """Whether the server is part of a cluster that the layout does not name."""
    return info.get("cluster_enabled") == "1" and not cluster


def has_no_aof(info: Info) -> bool:
    """Whether a restart loses messages."""
    return info.get("aof_enabled") != "1"


def is_too_old(info: Info) -> bool:
    """Whether the server is older than the oldest one that is supported."""
    parts = info.get("redis_version", "99").split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit()) < OLDEST_REDIS_VERSION


# -- servers ---------------------------------------------------------------------------------------


def check_server(facts: RedisFacts) -> list[Finding]:
    """Return the findings of one server: one or more of each code."""
    where = facts.where
    if facts.error:
        codes = (*INFO_CODES, *(code for code, *_ in _OTHER_CHECKS))
        return [
            Finding("redis-reach", "failure", where, facts.error, "busmq info"),
            *unknown(codes, where, "the server does not answer"),
        ]
    loading = (facts.info or {}).get("loading") == "1"
    found = [
        Finding(
            "redis-reach",
            "failure" if loading else "ok",
            where,
            "Redis loads its data and refuses calls until then" if loading else "answers",
            "redis-cli INFO persistence" if loading else "",
        )
    ]
    if facts.info is None:
        found += unknown(INFO_CODES, where, facts.refused.get("INFO", ""), _grant(facts, "info"))
    else:
        for check in _INFO_CHECKS:
            found += check(facts, facts.info)
    for code, command, right, check_fact in _OTHER_CHECKS:
        if command in facts.refused:
            found += unknown([code], where, facts.refused[command], _grant(facts, right))
        else:
            found += check_fact(facts)
    return found


def _grant(facts: RedisFacts, right: str) -> str:
    return f"redis-cli ACL SETUSER {quote(facts.user or 'USER')} +{right}" if right else ""


def _role(facts: RedisFacts, info: Info) -> Iterator[Finding]:
    if is_replica(info):
        master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        yield Finding(
            "redis-role",
            "failure",
            facts.where,
            f"this is a replica of {master}",
            f"export BUSMQ_REDIS_URL=redis://{master}",
        )
    elif is_stray_node(info, cluster=facts.layout == "cluster"):
        yield Finding(
            "redis-role",
            "failure",
            facts.where,
            "this server is part of a Redis cluster, and the layout is not cluster",
            "export BUSMQ_REDIS_LAYOUT=cluster",
        )
    else:
        yield Finding("redis-role", "ok", facts.where, "this is a master")


def _version(facts: RedisFacts, info: Info) -> Iterator[Finding]:
    version = info.get("redis_version", "?")
    level: Level = "failure" if is_too_old(info) else "ok"
    yield Finding(
        "redis-version",
        level,
        facts.where,
        f"Redis is {version}",
        "apt-get install redis-server" if level != "ok" else "",
    )


def _eviction(facts: RedisFacts, info: Info) -> Iterator[Finding]:
    policy = eviction_policy(info)
    evicts = policy != "noeviction"
    yield Finding(
        "redis-eviction",
        "failure" if evicts else "ok",
        facts.where,
        f"maxmemory-policy is {policy}",
        "redis-cli CONFIG SET maxmemory-policy noeviction" if evicts else "",
    )


def _evicted(facts: RedisFacts, info: Info) -> Iterator[Finding]:
    count = number(info, "evicted_keys")
    yield Finding(
        "redis-evicted",
        "warning" if count else "ok",
        facts.where,
        f"{count:,} keys were evicted since the statistics began",
        "redis-cli CONFIG RESETSTAT" if count else "",
    )


def _memory(facts: RedisFacts, info: Info) -> Iterator[Finding]:
    used, most = number(info, "used_memory"), number(info, "maxmemory")
    limit, of = (most, "maxmemory") if most else (number(info, "total_system_memory"), "memory")
    left_s = _seconds_left(facts, used, limit)
    text = f"{used / 1024**2:,.1f} MB of {limit / 1024**2:,.1f} MB of {of} are used"
    if left_s is not None and facts.growth is not None:
        grown, seconds = facts.growth
        text += (
            f"; at the rate of the last {seconds:.1f} s ({grown / seconds / 1024**2:,.2f} MB/s) the"
            f" rest lasts {_duration(left_s)}"
        )
    part = used / limit if limit else 0.0
    soon = left_s is not None and left_s < FILLS_WITHIN_S
    full = is_full(info) or (not most and part >= NEARLY_FULL)
    level: Level = "failure" if full else "warning" if part >= FILLING or soon else "ok"
    fix = f"redis-cli CONFIG SET maxmemory {2 * most}" if most else "redis-cli INFO memory"
    yield Finding("redis-memory", level, facts.where, text, fix if level != "ok" else "")


def _seconds_left(facts: RedisFacts, used: int, limit: int) -> float | None:
    if facts.growth is None or facts.growth[0] < MIN_GROWTH_BYTES or not limit:
        return None
    grown, seconds = facts.growth
    return max(0.0, NEARLY_FULL * limit - used) * seconds / grown


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _persistence(facts: RedisFacts, info: Info) -> Iterator[Finding]:
    bad = [
        f"the last {what} failed"
        for name, what in (
            ("aof_last_write_status", "write to the append-only file"),
            ("aof_last_bgrewrite_status", "rewrite of the append-only file"),
            ("rdb_last_bgsave_status", "snapshot"),
        )
        if info.get(name, "ok") != "ok" and (name.startswith("rdb") or not has_no_aof(info))
    ]
    if bad:
        fix = "redis-cli BGSAVE" if "snapshot" in bad[-1] else "redis-cli BGREWRITEAOF"
        yield Finding("redis-persistence", "failure", facts.where, "; ".join(bad), fix)
    elif has_no_aof(info):
        yield Finding(
            "redis-persistence",
            "warning",
            facts.where,
            "the append-only file is off",
            "redis-cli CONFIG SET appendonly yes",
        )
    else:
        size = number(info, "aof_current_size")
        yield Finding(
            "redis-persistence",
            "ok",
            facts.where,
            f"the append-only file is on ({size / 1024**2:,.1f} MB)",
        )


def _replicas(facts: RedisFacts, info: Info) -> Iterator[Finding]:
    replicas = replicas_of(info)
    bad = [
        f"replica {each['ip']}:{each['port']} is {each['state']}"
        if each["state"] != "online"
        else f"replica {each['ip']}:{each['port']} was last heard {each['lag']} s ago and lacks"
        f" {number(info, 'master_repl_offset') - int(each['offset']):,} bytes"
        for each in replicas
        if each["state"] != "online" or int(each["lag"]) >= MAX_REPLICA_LAG_S
    ]
    none = not replicas and facts.layout != "direct" and not is_replica(info)
    text = "; ".join(bad) or f"{len(replicas)} replicas are connected"
    if none:
        text = f"no replica is connected, so layout {facts.layout} cannot fail over"
    yield Finding(
        "redis-replicas",
        "warning" if bad or none else "ok",
        facts.where,
        text,
        "redis-cli INFO replication" if bad or none else "",
    )


def replicas_of(info: Info) -> list[dict[str, str]]:
    """Return the fields of each ``slaveN`` of INFO."""
    empty = {"ip": "?", "port": "?", "state": "?", "offset": "0", "lag": "0"}
    return [
        {**empty, **dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)}
        for name, text in info.items()
        if name.startswith("slave") and name[5:].isdigit()
    ]


def _min_replicas(facts: RedisFacts, info: Info) -> Iterator[Finding]:
    """Check ``min-replicas-to-write`` against the good replicas, which INFO counts."""
    code, where = "redis-min-replicas", facts.where
    has_rule, good = "min_slaves_good_slaves" in info, number(info, "min_slaves_good_slaves")
    if facts.config is None:
        wanted = 1 if has_rule else 0
    else:
        text = facts.config.get("min-replicas-to-write", "0")
        wanted = int(text) if text.isdigit() else 0
    if wanted and good < wanted:
        text = f"min-replicas-to-write needs {wanted}, and {good} are good: Redis refuses pushes"
        yield Finding(code, "failure", where, text, "redis-cli INFO replication")
    elif not wanted and replicas_of(info):
        text = "replicas are connected, and min-replicas-to-write is 0"
        yield Finding(code, "warning", where, text, "redis-cli CONFIG SET min-replicas-to-write 1")
    else:
        text = f"min-replicas-to-write is {wanted}; {len(replicas_of(info))} are connected"
        yield Finding(code, "ok", where, text)


_INFO_CHECKS: tuple[Callable[[RedisFacts, Info], Iterator[Finding]], ...] = (
    _role,
    _version,
    _eviction,
    _evicted,
    _memory,
    _persistence,
    _replicas,
    _min_replicas,
)


def _slow_commands(facts: RedisFacts) -> Iterator[Finding]:
    slow = [
        each
        for each in facts.slow or ()
        if each.took_us >= SLOW_COMMAND_US and each.age_s <= SLOW_WITHIN_S
    ]
    worst = max(slow, key=lambda each: each.took_us, default=None)
    if worst is None:
        yield Finding("redis-slow-commands", "ok", facts.where, "no slow command is logged")
        return
    names = sorted({each.name for each in slow})
    yield Finding(
        "redis-slow-commands",
        "warning",
        facts.where,
        f"{len(slow)} slow commands in the last hour ({', '.join(names[:5])}); the slowest,"
        f" {worst.name}, took {worst.took_us / 1000:,.0f} ms {_duration(worst.age_s)} ago",
        "redis-cli SLOWLOG GET 10",
    )


def _output_buffers(facts: RedisFacts) -> Iterator[Finding]:
    limits = parse_buffer_limits((facts.config or {}).get("client-output-buffer-limit", ""))
    subscriber, replica = limits.get("pubsub"), limits.get("replica")
    bad: list[tuple[str, str]] = []
    if subscriber is not None and not subscriber:
        bad.append(("subscribers have no limit", SUBSCRIBER_BUFFER_FIX))
    elif subscriber is not None and subscriber < MIN_SUBSCRIBER_BUFFER:
        text = f"subscribers are cut off at {subscriber / 1024**2:,.1f} MB"
        bad.append((text, SUBSCRIBER_BUFFER_FIX))
    if replica and replica < MIN_REPLICA_BUFFER:
        bad.append((f"replicas are cut off at {replica / 1024**2:,.1f} MB", REPLICA_BUFFER_FIX))
    cut = number(facts.info or {}, "client_output_buffer_limit_disconnections")
    if cut and not bad:
        bad.append((f"{cut:,} clients were cut off at their limit", "redis-cli CLIENT LIST"))
    for text, fix in bad:
        yield Finding("redis-output-buffers", "warning", facts.where, text, fix)
    if not bad:
        yield Finding("redis-output-buffers", "ok", facts.where, "limits are set")


def parse_buffer_limits(text: str) -> dict[str, int]:
    """Return the hard limit of each class, in bytes. Redis calls replicas ``slave``."""
    words = text.split()
    return {
        "replica" if words[at] == "slave" else words[at]: int(words[at + 1])
        for at in range(0, len(words) - 3, 4)
        if words[at + 1].isdigit()
    }


def _clock(facts: RedisFacts) -> Iterator[Finding]:
    yield clock_finding("redis-clock", facts.where, facts.clock_ahead_s or 0.0)


def clock_finding(code: str, where: str, ahead_s: float) -> Finding:
    """Return the finding of a clock that is so many seconds ahead of the clock here."""
    if abs(ahead_s) < MAX_CLOCK_DIFFERENCE_S:
        return Finding(code, "ok", where, "both clocks agree")
    which = "fast" if ahead_s > 0 else "slow"
    text = f"its clock is {abs(ahead_s):,.0f} s {which}, by the clock here"
    return Finding(code, "warning", where, text, "timedatectl set-ntp true")


def _rights(facts: RedisFacts) -> Iterator[Finding]:
    missing = {name: rights for name, rights in (facts.missing or {}).items() if rights}
    base = missing.pop("queries", ())
    code, where, user = "redis-rights", facts.where, facts.user or "default"
    if base:
        text = f"user {user!r} may not run {', '.join(base)}, which queries need"
        fix = f"redis-cli ACL SETUSER {quote(user)} +{' +'.join(base)}"
        yield Finding(code, "failure", where, text, fix)
    elif missing:
        lacks = "; ".join(f"{name} need {', '.join(each)}" for name, each in missing.items())
        yield Finding(code, "ok", where, f"user {user!r} has the rights of queries; {lacks}")
    else:
        yield Finding(code, "ok", where, f"user {user!r} has all rights")


_OTHER_CHECKS: tuple[tuple[str, str, str, Callable[[RedisFacts], Iterator[Finding]]], ...] = (
    ("redis-slow-commands", "SLOWLOG", "slowlog|get", _slow_commands),
    ("redis-output-buffers", "CONFIG", "config|get", _output_buffers),
    ("redis-clock", "TIME", "time", _clock),
    ("redis-rights", "ACL", "acl|dryrun", _rights),
)
"""For each check: its code, the command that it needs, the ACL name of this command, and the
function.
"""


# -- groups of servers -----------------------------------------------------------------------------


def check_cluster(facts: ClusterFacts) -> list[Finding]:
    """Return the findings of a cluster."""
    code = "redis-cluster-names"
    names = [
        Finding(
            code,
            "failure",
            facts.where,
            f"host {host!r} of a node cannot be resolved: {reason}",
            "redis-cli CONFIG SET cluster-announce-hostname NAME",
        )
        for host, reason in facts.unresolved.items()
    ]
    if facts.slots == SLOTS:
        slots = Finding("redis-cluster-slots", "ok", facts.where, "all slots are served")
    else:
        slots = Finding(
            "redis-cluster-slots",
            "failure",
            facts.where,
            f"{facts.slots} of {SLOTS} slots are served",
            "redis-cli --cluster fix HOST:PORT",
        )
    fine = Finding(code, "ok", facts.where, f"all {facts.hosts} hosts are resolved")
    return [slots, *(names or [fine])]


def check_sentinels(name: str, facts: Sequence[SentinelFacts]) -> list[Finding]:
    """Return the findings of the sentinels that watch a master."""
    code = "redis-sentinels"
    found = [
        Finding(code, "warning", each.where, f"the sentinel does not answer: {each.error}")
        for each in facts
        if each.error
    ]
    for each in facts:
        if not each.error and not each.usable:
            text = f"no fail-over of {name!r} is possible: {each.quorum}"
            fix = f"redis-cli -p 26379 SENTINEL CKQUORUM {name}"
            found.append(Finding(code, "failure", each.where, text, fix))
        elif not each.error and each.others + 1 < MIN_SENTINELS:
            text = f"{each.others + 1} sentinels watch {name!r}; two of three must survive"
            fix = "redis-server sentinel.conf --sentinel"
            found.append(Finding(code, "warning", each.where, text, fix))
    where = ",".join(each.where for each in facts)
    return found or [Finding(code, "ok", where, f"{len(facts)} sentinels agree on {name!r}")]
