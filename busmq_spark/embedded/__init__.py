"""Real Redis servers on this machine: one, several, a sentinel group, or a cluster. For tests,
notebooks and first steps.

    with EmbeddedRedis() as redis:               # 127.0.0.1, a free port, a temporary folder
        print(redis.url)

The rules every file here keeps:

1. A server that we did not start is never touched. Before our own process has logged that it
   listens, no client connects to its port, so another program on that port gets no connection.
   Signals are sent only by the direct parent of the server, to its own child.
2. No file and no process stays. The parent of each server is a small program (``watchdog.py``) that
   ends with its owner, however the owner ends (``kill -9`` included): it kills the server and
   removes the temporary folder.
3. Constructors do nothing. Objects start in ``start()`` or ``with`` and end in ``stop()``. After a
   fork only the process that started a server may end it: in a forked child ``stop()`` does
   nothing.

Linux and macOS.
"""

from busmq_spark.embedded.layouts import (
    EmbeddedCluster,
    EmbeddedSentinel,
    EmbeddedStandaloneServers,
)
from busmq_spark.embedded.server import EmbeddedRedis

__all__ = ["EmbeddedCluster", "EmbeddedRedis", "EmbeddedSentinel", "EmbeddedStandaloneServers"]
