"""The columns of the source, and what schema a user may ask it for."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from busmq_spark.errors import ConfigError

FIELDS_COLUMN_NAME = "fields"
FIELDS_COLUMN_TYPES = ("map<string,binary>", "map<string,string>")
"""Types that the column can have, here and in the sink."""
TIMESTAMP_COLUMN_NAME = "timestamp"
SOURCE_SCHEMA = "queue string, id long, value binary"
LINKED_SCHEMA = f"{SOURCE_SCHEMA}, source string"
"""With federation.url. Redis itself is called ``local`` there."""
TIME_COLUMN = f"{TIMESTAMP_COLUMN_NAME} timestamp_ltz"
"""With includeTimestamp, or where a schema asks for it."""
FIELDS_COLUMN = f"{FIELDS_COLUMN_NAME} map<string,binary>"
"""With jobFields."""
TOPIC_COLUMNS = "topic string, partition int"
"""Columns after the others, of a query that reads topics."""
EQUAL_NAMES_REASON = (
    "have one name, whatever the case of its letters; expected one column of a name; drop one of"
    " them, or give it another name"
)
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "queue": (StringType,),
    "id": (LongType,),
    "value": (BinaryType, StringType),
    "source": (StringType,),
    TIMESTAMP_COLUMN_NAME: (TimestampType,),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "fields": (MapType,),
}


def refuse_equal_names(names: Iterable[str], *, case_sensitive: bool = False) -> None:
    """Raise ConfigError where two columns have one name.

    The case of letters does not count, as in Spark.
    """
    met: dict[str, str] = {}
    for name in names:
        key = name if case_sensitive else name.lower()
        if key in met:
            raise ConfigError(reason=f"columns {met[key]!r} and {name!r} {EQUAL_NAMES_REASON}")
        met[key] = name


def check_source_schema(schema: StructType, known: str = SOURCE_SCHEMA) -> None:
    """Raises ConfigError unless the schema a user asked for has only columns of ``known`` with
    types they can have, in any order.
    """
    refuse_equal_names(schema.names)
    for column in schema.fields:
        types = _TYPES.get(column.name)
        if types is None or (
            f"{column.name} " not in known and column.name != TIMESTAMP_COLUMN_NAME
        ):
            has = f"{known}, {TIMESTAMP_COLUMN_NAME} timestamp"
            raise ConfigError(
                reason=(
                    f"column {column.name!r} does not exist; the source has: {has} (value may be"
                    " string)"
                )
            )
        kind = column.dataType.simpleString()
        if not isinstance(column.dataType, types) or (
            types == (MapType,) and kind not in FIELDS_COLUMN_TYPES
        ):
            wanted = (
                FIELDS_COLUMN_TYPES[0]
                if types == (MapType,)
                else " or ".join(t().simpleString() for t in types)
            )
            raise ConfigError(reason=f"column {column.name!r} is {kind}; expected {wanted}")
