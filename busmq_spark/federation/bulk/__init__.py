"""``busmq.bulk.v1``, for Spark. Frames and calls are values; ``socket``, ``client`` and ``store``
are the client's end, the others the server's.
"""
