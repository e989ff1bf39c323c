"""When what failed is tried again: a table that the Java module reads, too (LinkRetryTest.java),
and what only Python has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from busmq_spark import errors
from busmq_spark.errors import BusError, LinkLost
from busmq_spark.redis_io.retry import LinkRetry, Pauses

CASES = json.loads((Path(__file__).parents[1] / "golden" / "retries-v1.json").read_text("utf-8"))[
    "cases"
]
LOST = LinkLost(url="redis://host", reason="down")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def error(code: str) -> BusError:
    found = next(
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, BusError) and each.code == code
    )
    made = found.__new__(found)
    assert isinstance(made, BusError)
    return made


@pytest.mark.parametrize("case", CASES, ids=[case["says"] for case in CASES])
def test_it_is_tried_again_when_the_table_says(case: dict[str, Any]) -> None:
    clock = Clock()
    retry = LinkRetry(clock)
    for each in case["tries"]:
        clock.now = 100 + each["elapsed_ms"] / 1000
        problem = error(each["error"])
        for _ in range(each.get("times", 1)):
            if "raises" in each:
                with pytest.raises(BusError) as caught:
                    retry.pause_s(problem, case["given_ms"] / 1000)
                assert caught.value is problem
            else:
                least, most = each["pause_ms"]
                with retry.pausing(problem, case["given_ms"] / 1000) as pause_s:
                    assert least <= 1000 * pause_s <= most
                    if "overslept_ms" in each:
                        clock.now += pause_s + each["overslept_ms"] / 1000


def test_only_the_first_wait_for_a_reply_does_not_count() -> None:
    clock = Clock()
    retry = LinkRetry(clock)
    clock.now += 10
    retry.on_no_reply()
    assert retry.pause_s(LOST, 8.0) <= 0.02
    clock.now += 10
    retry.on_no_reply()
    with pytest.raises(LinkLost):
        retry.pause_s(LOST, 8.0)


def test_pauses_differ_from_those_of_others_and_never_exceed_the_longest() -> None:
    found = [Pauses(0.05, 5.0) for _ in range(5)]
    assert len({each.next_s() for each in found}) > 1
    assert all(2.5 <= [each.next_s() for _ in range(1200)][-1] <= 5.0 for each in found)
