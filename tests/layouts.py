"""The layouts of Redis servers that a test may run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LAYOUTS = ("direct", "three", "sentinel", "cluster")
"""``three``: three independent servers, so redis.layout is direct, as with one."""


def servers_of(layout: str, fixture: Callable[[str], Any]) -> dict[str, Any]:
    """The arguments of Bus or RedisOptions for a layout, from ``request.getfixturevalue``; the
    servers start when they are first wanted.
    """
    if layout == "direct":
        return {"url": fixture("redis_url"), "layout": layout}
    group = fixture(
        {"three": "three_servers", "sentinel": "sentinel_servers", "cluster": "cluster_servers"}[
            layout
        ]
    )
    return {"url": ",".join(group.urls), "layout": "direct" if layout == "three" else layout}
