"""The usual first step after ``load()``: JSON messages into columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from busmq_spark.errors import ConfigError
from busmq_spark.spark.dead_letters import dead_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_UNREAD = "busmq_unread"
"""Where Spark puts a text that it cannot read."""


class DeadKeywords(TypedDict, total=False):
    """Of dead letters; see dead_letters."""

    group: str
    into: str | None


@overload
def json_columns(messages: DataFrame, schema: StructType | str, *, on_error: Literal["null"] = ...) -> DataFrame: ...
@overload
def json_columns(
    messages: DataFrame, schema: StructType | str, *, on_error: Literal["dead-letter"], **dead: Unpack[DeadKeywords]
) -> tuple[DataFrame, DataFrame]: ...
def json_columns(
    messages: DataFrame, schema: StructType | str, *, on_error: str = "null", **dead: Unpack[DeadKeywords]
) -> DataFrame | tuple[DataFrame, DataFrame]:
    """The fields of JSON messages as columns, behind ``queue`` and ``id``.

    ``schema`` is Spark's, as a StructType or in DDL: ``"carrier string, delay double"``. A message that is not such JSON gives NULL fields, as
    Spark's ``from_json`` does; a field named ``queue`` or ``id`` needs the long way.

        json_columns(spark.readStream.format("busmq").options(...).load(), "carrier string, delay double")

    With ``on_error="dead-letter"`` the result is two: the rows of the other messages, and dead letters of those that are not such JSON, for one sink.
    ``group`` and ``into`` are those of ``dead_letters``.

        flights, dead = json_columns(messages, "carrier string, delay double", on_error="dead-letter")
        late = flights.where("delay > 60").selectExpr("'late' AS queue", "id", "to_json(struct(carrier)) AS value")
        late.unionByName(dead).writeStream.format("busmq")...
    """
    from pyspark.sql.functions import col, from_json

    text = col("value").cast("string")
    if on_error == "null" and not dead:
        return messages.select("queue", "id", from_json(text, schema).alias("fields")).select("queue", "id", "fields.*")
    if on_error != "dead-letter":
        given = f"{next(iter(dead))} is given" if on_error == "null" else f"on_error is {on_error!r}"
        raise ConfigError(reason=f'{given}; expected on_error="null", or "dead-letter", which has group and into')
    wanted = _struct(schema)
    whole = from_json(text, _struct(schema).add(_UNREAD, "string"), {"columnNameOfCorruptRecord": _UNREAD})
    parsed = messages.select("queue", "id", "value", whole.alias("fields"))
    unread = col("fields").isNull() | col("fields")[_UNREAD].isNotNull()
    good = parsed.where(~unread).select("queue", "id", *(col("fields")[name].alias(name) for name in wanted.names))
    return good, dead_letters(parsed, unread, f"it is no JSON of {wanted.simpleString()}", **dead)


def _struct(schema: StructType | str) -> StructType:
    """One of its own: ``add`` changes it."""
    from pyspark.sql.types import StructType

    return StructType.fromDDL(schema) if isinstance(schema, str) else StructType([*schema.fields])  # type: ignore[return-value]  # DDL of columns
