"""What lets Spark find ``format("busmq")`` without registration: it looks for top-level modules named ``pyspark_*`` with a ``DefaultSource``.

Keep this to the one re-export. If importing *any* ``pyspark_*`` module of an environment fails, Spark drops *every* Python data source there and
says only DATA_SOURCE_NOT_FOUND, so nothing optional may be imported from here, directly or further down.
"""

from busmq_spark.spark.source import BusmqDataSource as DefaultSource

__all__ = ["DefaultSource"]
