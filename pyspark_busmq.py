"""What lets Spark find ``format("busmq")`` without registration: it looks for top-level modules
named ``pyspark_*`` with a ``DefaultSource``.

Keep this to the re-export. If importing *any* ``pyspark_*`` module of an environment fails, Spark
drops *every* Python data source there and says only DATA_SOURCE_NOT_FOUND. Hence nothing optional
may be imported from here, directly or further down, and where a dependency is missing a stand-in
says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from busmq_spark.errors import BusError
from busmq_spark.spark.error_display import check_packages, make_failing_source

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


def _source() -> type[DataSource]:
    try:
        check_packages()
        from busmq_spark.spark.data_source import BusmqDataSource
    except (ImportError, BusError) as error:
        return make_failing_source(error)
    return BusmqDataSource


DefaultSource = _source()
__all__ = ["DefaultSource"]
