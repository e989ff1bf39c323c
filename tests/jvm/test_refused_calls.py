"""What Redis refuses the Java module: the error that Python raises, and what may pass is waited
for.
"""

from __future__ import annotations

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import LinkLost
from busmq_spark.queue.keys import QueueKeys
from tests.jvm.probe import Probe, Refused
from tests.jvm.test_links import ONCE, push, url
from tests.redis_io.fakes import FakeRedis
from tests.redis_io.replies import REPLIES
from tests.support_writes import CAUSES, writes_paused

pytestmark = [pytest.mark.jvm, pytest.mark.redis]


@pytest.mark.parametrize("text", REPLIES)
def test_a_reply_of_redis_has_the_error_of_python_and_what_may_pass_is_waited_for(
    probe: Probe, text: str
) -> None:
    said = [f"-{text}\r\n".encode(), b":5\r\n"]
    with FakeRedis(lambda _, words: b"+PONG\r\n" if words == [b"PING"] else said.pop(0)) as fake:
        links = probe.open(url(fake.server))
        if issubclass(REPLIES[text], LinkLost):
            assert links.run_all([ONCE]) == [5]
            return
        with pytest.raises(Refused) as refused:
            links.run_all([ONCE])
        assert refused.value.code == REPLIES[text].code


@pytest.mark.parametrize("cause", CAUSES)
def test_a_master_that_pauses_writes_is_waited_for(probe: Probe, cause: str) -> None:
    with EmbeddedRedis() as server:
        links, keys = probe.open(server.url), QueueKeys("q")
        server.command("HSET", keys.metadata, "ttl", "600", "born", "b")
        with writes_paused(server, cause):
            assert links.run_all([push(keys, "one")]) == [[1, 1]]
        with writes_paused(server, cause):
            assert links.run_all([push(keys, "two", "three")]) == [[2, 2]]
