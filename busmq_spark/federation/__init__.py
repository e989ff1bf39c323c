"""Federation: objects of a bus for peers that cannot reach its Redis, over web sockets (protocol chapter 5).

Two protocols. That of npm busmq: codecs (``mux``, ``dnode``, ``creation``) are values without a socket; ``server``, ``exposed`` and ``client`` move
them. And ``busmq.bulk.v1``, for Spark: ``bulk``; where a server does not speak it, ``plain`` reads and writes by npm's.
"""
