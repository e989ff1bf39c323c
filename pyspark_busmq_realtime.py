"""What lets Spark find ``format("busmq-realtime")`` where its jar is not on the class path: only to
say so. See ``pyspark_busmq``.
"""

from __future__ import annotations

from busmq_spark.spark.error_display import MissingJarSource as DefaultSource

__all__ = ["DefaultSource"]
