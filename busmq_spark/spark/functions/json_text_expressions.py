"""JSON as text, in Spark's own functions: they run in every engine and mode, and need no Python on
executors.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from busmq_spark.errors import BusError, MessageRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column


def is_json(text: Column) -> Column:
    """Whether a text is one JSON value and nothing else. Spark's parsers ignore what follows a
    value; between both kinds of brackets nothing can.
    """
    from pyspark.sql.functions import concat, lit, try_parse_json

    listed, named = concat(lit("["), text, lit("]")), concat(lit('{"d":'), text, lit("}"))
    return try_parse_json(listed).isNotNull() & try_parse_json(named).isNotNull()


def json_string(text: Column) -> Column:
    """A text as JSON."""
    from pyspark.sql.functions import length, lit, struct, to_json, when

    whole = to_json(struct(text.alias("d")))  # {"d":"…"}
    return when(text.isNotNull(), whole.substr(lit(6), length(whole) - 6))


def members(structure: Column) -> Column:
    """The members of a struct or a map as JSON, those left out that are NULL; without the
    braces.
    """
    from pyspark.sql.functions import length, lit, to_json

    whole = to_json(structure, {"ignoreNullFields": "true"})
    return whole.substr(lit(2), length(whole) - 2)


def json_object(parts: Iterable[Column]) -> Column:
    """A JSON object of such members; a part may be NULL or empty."""
    from pyspark.sql.functions import concat, concat_ws, lit, nullif

    return concat(lit("{"), concat_ws(",", *(nullif(part, lit("")) for part in parts)), lit("}"))


def all_of(conditions: Iterable[Column]) -> Column:
    """Whether all are true; one that is NULL is not."""
    from pyspark.sql.functions import coalesce, lit

    return coalesce(reduce(and_, conditions), lit(False))


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether one of them is true."""
    from pyspark.sql.functions import coalesce, lit

    return reduce(or_, (coalesce(condition, lit(False)) for condition in conditions))


def raise_bus_error(why: Column | str, error: type[BusError] = MessageRefused) -> Column:
    """Ends the query where it is evaluated, with the code of an error and these words."""
    from pyspark.sql.functions import concat, lit, raise_error

    return raise_error(concat(lit(f"[{error.code}] "), lit(why) if isinstance(why, str) else why))
