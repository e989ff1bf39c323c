"""The settings that a Redis server reports, and the dangers among them for messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from busmq_spark.redis_io.optional_commands import ask_if_allowed
from busmq_spark.redis_io.queue_location import queues_of
from busmq_spark.redis_io.sync_link import SyncLink

OLDEST_REDIS_VERSION = (6, 2)
NEARLY_FULL = 0.95
"""The part of ``maxmemory`` from which on a server counts as full: a push of some size is refused
then.
"""
FULL_REMEDY = (
    "Redis refuses pushes, or evicts. Raise maxmemory, let readers acknowledge, or shorten what"
    " queues keep (busmq queues, busmq retain)"
)
NO_INFO = "this server refuses the command INFO, so its memory, policy and role are not known"


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The report of a server. ``warnings`` are sentences, the most dangerous first."""

    url: str
    product: str
    version: str
    mode: str
    role: str
    uptime_s: int
    queues: int
    used_memory: int
    maxmemory: int
    policy: str
    aof: bool
    clients: int
    commands_per_s: int
    full: bool
    warnings: tuple[str, ...]

    @property
    def loses_messages(self) -> bool:
        """Whether it refuses pushes now, or may remove messages by itself."""
        return self.full or self.policy not in ("noeviction", "?")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        fields = asdict(self)
        fields["server"] = fields.pop("url")
        fields["maxmemory_policy"] = fields.pop("policy")
        return fields


def read_server_report(link: SyncLink, *, cluster: bool = False) -> ServerReport:
    """Ask one server; two round trips, and one for every thousand keys to count the queues.
    ``cluster``: it was found as a node of one.
    """
    reply = link.run(ask_if_allowed("INFO"))
    found = parse_info(reply) if isinstance(reply, bytes) else {}
    valkey = found.get("valkey_version")
    return ServerReport(
        url=link.endpoint.masked_url,
        product="Valkey" if valkey else "Redis",
        version=valkey or found.get("redis_version", "?"),
        mode=found.get("redis_mode", "?"),
        role=found.get("role", "?"),
        uptime_s=int(found.get("uptime_in_seconds", 0)),
        queues=len(queues_of(link, cluster=cluster)),
        used_memory=int(found.get("used_memory", 0)),
        maxmemory=int(found.get("maxmemory", 0)),
        policy=found.get("maxmemory_policy", "?"),
        aof=found.get("aof_enabled") == "1",
        clients=int(found.get("connected_clients", 0)),
        commands_per_s=int(found.get("instantaneous_ops_per_sec", 0)),
        full=is_full(found),
        warnings=tuple(find_dangers(found, cluster=cluster)) if found else (NO_INFO,),
    )


def is_full(found: dict[str, str]) -> bool:
    """Whether so much of ``maxmemory`` is used that pushes are refused, or soon will be."""
    used = int(found.get("used_memory", 0)) - int(found.get("mem_not_counted_for_evict", 0))
    most = int(found.get("maxmemory", 0))
    return most > 0 and used >= NEARLY_FULL * most


def parse_info(reply: bytes) -> dict[str, str]:
    """The lines ``name:value`` of INFO."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def find_dangers(found: dict[str, str], *, cluster: bool = False) -> list[str]:
    """Return the settings that can lose messages or break the bus."""
    policy = found.get("maxmemory_policy", "noeviction")
    return [
        text
        for danger, text in (
            (
                is_full(found),
                f"memory is full ({used_text(found)}): {FULL_REMEDY}",
            ),
            (
                policy != "noeviction",
                (
                    f"maxmemory-policy is {policy}: when memory runs short Redis removes queues"
                    " without an error. Set maxmemory-policy noeviction"
                ),
            ),
            (
                found.get("role") != "master",
                "this is a replica: pushes and acks are refused here. Name its master",
            ),
            (
                found.get("cluster_enabled") == "1" and not cluster,
                "this server is part of a Redis cluster: name its nodes with --layout cluster",
            ),
            (
                found.get("aof_enabled") != "1",
                (
                    "the append-only file is off: a restart of Redis loses messages. Set appendonly"
                    " yes for a bus that must not"
                ),
            ),
            (
                _version_numbers(found) < OLDEST_REDIS_VERSION,
                "this server is older than Redis 6.2, the oldest that is supported",
            ),
        )
        if danger
    ]


def used_text(found: dict[str, str]) -> str:
    """The part of ``maxmemory`` that is used."""
    return (
        f"{int(found.get('used_memory', 0)) / max(1, int(found.get('maxmemory', 0))):.0%} of"
        " maxmemory"
    )


def _version_numbers(found: dict[str, str]) -> tuple[int, ...]:
    parts = found.get("redis_version", "99").split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())
