"""Without one of the rights of a query, or after they are taken away, the error names it. That they
are enough: tests/spark/test_servers.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from tests.faults.process import DriverProcess
from tests.faults.scene import Bus, Pipeline
from tests.support import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.spark, pytest.mark.redis, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text("utf-8")
RULES = re.search(r"ACL SETUSER spark on >secret (.*?)\n", PAGE)


def rights() -> list[str]:
    """As `docs/layouts.md` has them."""
    assert RULES
    return RULES[1].split()


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as made:
        yield made


def grant(server: EmbeddedRedis, *more: str) -> dict[str, str]:
    server.command("ACL", "SETUSER", "spark", "reset", "on", ">secret", *rights(), *more)
    return {"redis.url": server.url, "redis.username": "spark", "redis.password": "secret"}


@pytest.mark.parametrize("missing", ["-evalsha", "-lrange", "-subscribe", "resetkeys"])
def test_without_one_of_them_the_error_says_that_the_user_may_not(
    server: EmbeddedRedis, workshop: DriverProcess, tmp_path: Path, missing: str
) -> None:
    bus = Bus(server)
    run = Pipeline(bus, tmp_path)
    bus.where = grant(server, missing)
    run.feed(10)
    run.start(workshop)
    if missing == "-subscribe":  # notifications only make things faster
        run.check_whole(workshop)
        return
    wait_until(lambda: not workshop.active, what="the query has ended")
    assert "BUSMQ_UNAUTHORIZED" in workshop.error
    assert "the user's ACL" in workshop.error
    assert "secret" not in workshop.error.replace("[BUSMQ", "")


def test_a_user_who_is_switched_off_in_the_middle_of_a_query_ends_it_with_a_clear_error(
    server: EmbeddedRedis, workshop: DriverProcess, tmp_path: Path
) -> None:
    bus = Bus(server)
    run = Pipeline(bus, tmp_path)
    bus.where = grant(server)
    run.feed(100)
    run.start(workshop)
    run.check_whole(workshop)
    server.command("ACL", "SETUSER", "spark", "off")
    server.command("CLIENT", "KILL", "USER", "spark")
    run.feed(100)
    wait_until(lambda: not workshop.active, what="the query has ended")
    assert "BUSMQ_UNAUTHORIZED" in workshop.error
    assert "Check the user and password" in workshop.error
