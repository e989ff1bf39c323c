"""The usual first step after ``load()``: JSON messages into columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from busmq_spark.errors import ConfigError
from busmq_spark.spark.functions.dead_letters import dead_letters
from busmq_spark.spark.functions.json_text_expressions import all_of
from busmq_spark.spark.schema import refuse_equal_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


_UNPARSED_COLUMN = "busmq_unread"
"""The column for a text that Spark cannot parse."""


class DeadLetterKeywords(TypedDict, total=False):
    """The options of ``dead_letters``."""

    group: str
    into: str | None


@overload
def json_columns(
    messages: DataFrame, schema: StructType | str, *, on_error: Literal["null"] = ...
) -> DataFrame: ...
@overload
def json_columns(
    messages: DataFrame,
    schema: StructType | str,
    *,
    on_error: Literal["dead-letter"],
    **dead: Unpack[DeadLetterKeywords],
) -> tuple[DataFrame, DataFrame]: ...
def json_columns(
    messages: DataFrame,
    schema: StructType | str,
    *,
    on_error: str = "null",
    **dead: Unpack[DeadLetterKeywords],
) -> DataFrame | tuple[DataFrame, DataFrame]:
    """The fields of JSON messages as columns, after ``queue`` and ``id``.

    ``schema`` is Spark's, as a StructType or in DDL: ``"carrier string, delay double"``. A message
    that is not such JSON gives NULL fields, as Spark's ``from_json`` does. Raises ConfigError for
    two columns of one name: a field named ``queue`` or ``id`` needs the long way.

        json_columns(spark.readStream.format("busmq").options(...).load(), "carrier string, delay
        double")

    With ``on_error="dead-letter"`` the result is two: the rows of messages that are one JSON object
    of ``schema`` and nothing else, in UTF-8, and dead letters of the others, for one sink.
    ``group`` and ``into`` are those of ``dead_letters``.

        flights, dead = json_columns(messages, "carrier string, delay double",
        on_error="dead-letter") late = flights.where("delay > 60").selectExpr("'late' AS queue",
        "id", "to_json(struct(carrier)) AS value")
        late.unionByName(dead).writeStream.format("busmq")...
    """
    from pyspark.sql.functions import col, concat, from_json, is_valid_utf8, json_array_length, lit
    from pyspark.sql.types import StructType

    case_sensitive = messages.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    refuse_equal_names(messages.columns, case_sensitive=case_sensitive)
    text = col("value").cast("string")
    if on_error == "null" and not dead:
        found = messages.select("queue", "id", from_json(text, schema).alias("fields"))
        names = getattr(found.schema["fields"].dataType, "names", [])
        refuse_equal_names(["queue", "id", *names], case_sensitive=case_sensitive)
        return found.select("queue", "id", "fields.*")
    if on_error != "dead-letter":
        given = (
            f"{next(iter(dead))} is given" if on_error == "null" else f"on_error is {on_error!r}"
        )
        raise ConfigError(
            reason=f'{given}; expected on_error="null", or "dead-letter", which has group and into'
        )
    # DDL of columns
    wanted: StructType = StructType.fromDDL(schema) if isinstance(schema, str) else schema  # type: ignore[assignment]
    refuse_equal_names(["queue", "id", *wanted.names], case_sensitive=case_sensitive)
    # Spark's parsers take the first object of a list and ignore what follows a value; between both
    # kinds of brackets nothing can.
    named = from_json(
        concat(lit('{"d":'), text, lit("}")),
        StructType().add("d", wanted).add(_UNPARSED_COLUMN, "string"),
        {"columnNameOfCorruptRecord": _UNPARSED_COLUMN},
    )
    alone = (json_array_length(concat(lit("["), text, lit("]"))) == 1) & is_valid_utf8(text)
    parsed = messages.select(
        "queue",
        "id",
        "value",
        *({"source"} & {*messages.columns}),
        named.alias("named"),
        alone.alias("alone"),
    )
    read = all_of(
        [col("alone"), col("named")["d"].isNotNull(), col("named")[_UNPARSED_COLUMN].isNull()]
    )
    good = parsed.where(read).select(
        "queue", "id", *(col("named")["d"][name].alias(name) for name in wanted.names)
    )
    return good, dead_letters(parsed, ~read, f"it is no JSON of {wanted.simpleString()}", **dead)
