"""One behaviour, four layouts: a test that takes ``open_bus`` runs on one server, on three, behind sentinels and on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from busmq_spark.bus.bus import Bus

LAYOUTS = ["direct", "three", "sentinel", "cluster"]


class OpenBus(Protocol):
    """Makes a bus on the servers of the layout: ``async with open_bus() as bus``."""

    def __call__(self, **settings: Any) -> Bus: ...


def where(layout: str, fixture: Callable[[str], Any]) -> dict[str, Any]:
    """The arguments of Bus for a layout; starts its servers when they are first wanted."""
    if layout == "direct":
        return {"url": fixture("redis_url")}
    group = fixture({"three": "three_servers", "sentinel": "sentinel_group", "cluster": "cluster_group"}[layout])
    return {"url": ",".join(group.urls), "layout": "direct" if layout == "three" else layout}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_bus(layout: str, request: pytest.FixtureRequest) -> OpenBus:
    place = where(layout, request.getfixturevalue)
    return lambda **settings: Bus(**{**place, **settings})
