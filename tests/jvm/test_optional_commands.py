"""Links of the Java module to a Redis that refuses commands which are only a nicety."""

from __future__ import annotations

from typing import Any

import pytest

from busmq_spark.embedded import EmbeddedRedis
from tests.conftest import Fresh
from tests.jvm.probe import Probe
from tests.redis_io.test_optional_commands import renamed, weak  # noqa: F401  # fixtures

pytestmark = [pytest.mark.jvm, pytest.mark.redis]


def test_a_java_link_works_without_it(
    renamed: EmbeddedRedis,  # noqa: F811  # the fixture
    probe: Probe,
) -> None:
    assert probe.open(renamed.url).run("SET", "n", "7") == "OK"


def test_a_java_link_works_for_a_user_without_these_rights(
    weak: dict[str, Any],  # noqa: F811  # the fixture
    fresh: Fresh,
    probe: Probe,
) -> None:
    links = probe.open(
        weak["url"],
        redis_layout=weak["layout"],
        redis_username=weak["user"],
        redis_password="secret",
    )
    assert links.run("SET", fresh(), "7") == "OK"


def test_a_user_without_a_password_is_not_passed_over_in_java(
    redis_server: EmbeddedRedis, fresh: Fresh, probe: Probe
) -> None:
    user = fresh("user")
    redis_server.command("ACL", "SETUSER", user, "reset", "on", "nopass", "~*", "&*", "+@all")
    assert probe.open(redis_server.url, redis_username=user).run("ACL", "WHOAMI") == user
