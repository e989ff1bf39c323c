"""The usual first step after ``load()``: JSON messages into columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def json_columns(messages: DataFrame, schema: StructType | str) -> DataFrame:
    """The fields of JSON messages as columns, behind ``queue`` and ``id``.

    ``schema`` is Spark's, as a StructType or in DDL: ``"carrier string, delay double"``. A message that is not such JSON gives NULL fields, as
    Spark's ``from_json`` does; a field named ``queue`` or ``id`` needs the long way.

        json_columns(spark.readStream.format("busmq").options(...).load(), "carrier string, delay double")
    """
    from pyspark.sql.functions import col, from_json

    found = messages.select("queue", "id", from_json(col("value").cast("string"), schema).alias("fields"))
    return found.select("queue", "id", "fields.*")
