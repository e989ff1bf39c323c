"""A federation server of npm busmq knows nothing of bulk: Spark is told so, at once, and the server lives on."""

from __future__ import annotations

import pytest

from busmq_spark.errors import FederationRefused
from busmq_spark.options import ReadOptions, parse
from busmq_spark.spark.batch_reader import BatchReader
from tests.conftest import Fresh
from tests.peers.node import Peer
from tests.spark.links import LINKED

SECRET = "s3cret-enough-for-a-test"


@pytest.mark.parametrize("secret", [SECRET, "another"])
def test_a_server_of_npm_refuses_bulk_and_lives_on(npm: None, redis_url: str, fresh: Fresh, secret: str) -> None:
    with Peer([redis_url]) as server:
        port = server.call("federateServe", urls=[redis_url], path="/bus", secret=SECRET, port=0)
        where = {"federation.url": f"dc=ws://127.0.0.1:{port}/bus", "federation.secret": secret, "subscribe": fresh()}
        for _ in range(3):
            with pytest.raises(FederationRefused, match=r"link 'dc': .*so says a server of npm busmq, too: it has no bulk protocol") as failed:
                BatchReader(parse(ReadOptions, where), LINKED).partitions()
            assert secret not in str(failed.value)
        assert server.call("federateSockets") is not None, "it lives"
        assert server.errors == []
