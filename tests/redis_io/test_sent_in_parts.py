"""Many calls of one step are sent in parts, while Redis executes the first ones: what cannot be
sent behind those leaves no reply behind.
"""

from __future__ import annotations

import pytest

from busmq_spark.queue.command_generators import command
from busmq_spark.redis_io.sync_link import SyncLink
from busmq_spark.redis_io.urls import parse
from tests.conftest import Fresh


def test_replies_stay_in_step_after_a_call_that_cannot_be_packed(
    redis_url: str, fresh: Fresh
) -> None:
    link = SyncLink(parse(redis_url)[0])
    key = fresh()
    calls = [command("SET", key, b"x" * 10_000) for _ in range(3)]
    with pytest.raises(UnicodeEncodeError):
        link.execute([*calls, command("SET", key, "\ud800")])
    assert link.execute([command("ECHO", str(number)) for number in range(3)]) == [b"0", b"1", b"2"]
    assert link.execute([*calls, command("GET", key)])[-1] == b"x" * 10_000
    link.close()
