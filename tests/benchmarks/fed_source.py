"""What Spark's source does at a server of npm, without Spark: python -m tests.benchmarks.fed_source
URL SECRET consume QUEUE COUNT.
"""

from __future__ import annotations

import json
import sys
import time

from busmq_spark.federation.address import FederationAddress
from busmq_spark.federation.npm_servers.store import FederationNpmStore
from busmq_spark.queue.message import Position, Range
from busmq_spark.store.protocol import QueueCreateOptions


def main(url: str, secret: str, name: str, count: int) -> None:
    """Messages a second, read and then removed."""
    store = FederationNpmStore(FederationAddress(url, secret, secret_in_url=True))
    born = store.attach([name], QueueCreateOptions(allowed=False, ttl_s=600))[name].born
    began = time.perf_counter()
    assert sum(len(rows.values) for rows in store.read(Range(name, born, 1, count), True)) == count
    assert store.ack({name: Position(born, count)}, "")[name].status == "ok"
    print(json.dumps(count / (time.perf_counter() - began)))
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[4], int(sys.argv[5]))
