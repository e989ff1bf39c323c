"""Links, drivers and planners that come and go at any moment: what is delivered is everything,
once, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.conftest import Fresh
from tests.spark.conftest import PATIENCE_S, Bus
from tests.spark.engine import Engine
from tests.spark.links import SOURCES, Centre, ids
from tests.support import wait_until

pytestmark = pytest.mark.only(
    "python", reason="only the Python source reads over links of federation"
)
pushes = st.tuples(st.just("push"), st.sampled_from(SOURCES), st.integers(1, 20))
steps = st.tuples(st.just("step"), st.sampled_from(["", "", "", "planned", "read"]))
falls = st.tuples(st.sampled_from(["down", "up"]), st.sampled_from(["eu", "us"]))
restarts = st.tuples(st.just("restart"))


@examples(max_examples=60)
@given(
    events=st.lists(st.one_of(pushes, steps, steps, falls, restarts), max_size=25),
    ack=st.sampled_from(["commit", "none"]),
    before_42=st.booleans(),
)
def test_whatever_links_and_drivers_do_every_message_is_delivered_once_and_in_order(
    events: list[Any],
    ack: str,
    before_42: bool,
    *,
    linked: Callable[..., Engine],
    buses: dict[str, Bus],
    centres: dict[str, Centre],
    fresh: Fresh,
) -> None:
    queue = fresh("h")
    pushed = dict.fromkeys(SOURCES, 0)
    delivered: list[Any] = []
    query = linked(queue, ack=ack, maxMessagesPerTrigger="15")
    query.before_42 |= before_42

    def step(crash: Any = "") -> None:
        if (
            len(query.planned) > query.committed or query.is_blind
        ):  # its tasks, or its first planning, would wait for a link that no step restores
            up()
        before = query.committed
        rows = query.step(crash)
        if query.committed > before:
            delivered.extend(rows or [])
        if crash:
            query.restart()

    def up() -> None:
        for centre in centres.values():
            centre.down = False

    try:
        for kind, *details in events:
            if kind == "push":
                source, many = details
                buses[source].fill(queue, many, first=pushed[source] + 1)
                pushed[source] += many
            elif kind == "step":
                down = [link for link, centre in centres.items() if centre.down]
                step("" if down and details[0] == "read" else details[0])
            elif kind == "restart":
                query.restart()
            else:
                centres[details[0]].down = kind == "down"
        up()
        wait_until(
            lambda: step() or len(delivered) >= sum(pushed.values()), PATIENCE_S, f"{pushed}"
        )
        for _ in range(3):
            step()
        assert {source: ids(delivered, source) for source in SOURCES} == {
            s: list(range(1, many + 1)) for s, many in pushed.items()
        }
    finally:
        up()
        query.kill()
