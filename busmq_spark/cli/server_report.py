"""What a Redis server says about itself, and what of it endangers messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from busmq_spark.core.command_generators import command
from busmq_spark.redis_io.queue_location import queues_of
from busmq_spark.redis_io.sync_link import SyncLink

OLDEST_REDIS_VERSION = (6, 2)


@dataclass(frozen=True, slots=True)
class ServerReport:
    """One server. ``warnings`` are sentences, the most dangerous first."""

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
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        fields = asdict(self)
        fields["server"] = fields.pop("url")
        fields["maxmemory_policy"] = fields.pop("policy")
        return fields


def read_server_report(link: SyncLink, *, cluster: bool = False) -> ServerReport:
    """Ask one server; two round trips, and one for every thousand keys to count the queues. ``cluster``: it was found as a node of one."""
    found = parse_info(link.execute(command("INFO")))
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
        warnings=tuple(find_dangers(found, cluster=cluster)),
    )


def parse_info(reply: bytes) -> dict[str, str]:
    """The lines ``name:value`` of INFO."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def find_dangers(found: dict[str, str], *, cluster: bool = False) -> list[str]:
    """What in these settings can lose messages or break the bus."""
    policy = found.get("maxmemory_policy", "noeviction")
    return [
        text
        for danger, text in (
            (
                policy != "noeviction",
                f"maxmemory-policy is {policy}: when memory runs short Redis removes queues without an error. Set maxmemory-policy noeviction",
            ),
            (found.get("role") != "master", "this is a replica: pushes and acks are refused here. Name its master"),
            (found.get("cluster_enabled") == "1" and not cluster, "this server is part of a Redis cluster: name its nodes with --layout cluster"),
            (
                found.get("aof_enabled") != "1",
                "the append-only file is off: a restart of Redis loses messages. Set appendonly yes for a bus that must not",
            ),
            (_version_numbers(found) < OLDEST_REDIS_VERSION, "this server is older than Redis 6.2, the oldest that is supported"),
        )
        if danger
    ]


def _version_numbers(found: dict[str, str]) -> tuple[int, ...]:
    parts = found.get("redis_version", "99").split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())
