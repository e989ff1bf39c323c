"""The sums of the demo's query, added up for its tables and its plot. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from busmq_spark.queue.grouping import group_by


@dataclass(frozen=True, slots=True)
class FlightDelayTotals:
    """Flights of a carrier ('' all) scheduled in an hour of the day (-1 all); minutes are sums,
    early ones count negative.
    """

    carrier: str
    hour: int
    flights: int
    departed: int
    dep_minutes: int | None
    arrived: int
    arr_minutes: int | None

    @property
    def mean_departure_delay(self) -> float | None:
        """Mean delay of departure in minutes; return None when all were cancelled."""
        return (self.dep_minutes or 0) / self.departed if self.departed else None

    @property
    def mean_arrival_delay(self) -> float | None:
        """Mean delay of arrival in minutes; return None when none arrived."""
        return (self.arr_minutes or 0) / self.arrived if self.arrived else None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "flights": self.flights,
            "departed": self.departed,
            "dep_delay": (
                None if self.mean_departure_delay is None else round(self.mean_departure_delay, 3)
            ),
            "arr_delay": (
                None if self.mean_arrival_delay is None else round(self.mean_arrival_delay, 3)
            ),
        }


def by_carrier(delays: Iterable[FlightDelayTotals]) -> list[FlightDelayTotals]:
    """All hours of a carrier together, the latest first."""
    return _worst_first(_sums_of(delays, lambda delay: (delay.carrier, -1)))


def worst_hours(delays: Iterable[FlightDelayTotals], most: int) -> list[FlightDelayTotals]:
    """All carriers of an hour together, the ``most`` latest first."""
    return _worst_first(_sums_of(delays, lambda delay: ("", delay.hour)))[:most]


def _sums_of(
    delays: Iterable[FlightDelayTotals], key: Callable[[FlightDelayTotals], tuple[str, int]]
) -> list[FlightDelayTotals]:
    return [
        FlightDelayTotals(
            carrier,
            hour,
            sum(each.flights for each in group),
            sum(each.departed for each in group),
            sum(each.dep_minutes or 0 for each in group),
            sum(each.arrived for each in group),
            sum(each.arr_minutes or 0 for each in group),
        )
        for (carrier, hour), group in group_by(delays, key).items()
    ]


def _worst_first(delays: Sequence[FlightDelayTotals]) -> list[FlightDelayTotals]:
    return sorted(
        delays,
        key=lambda delay: (
            -(
                delay.mean_departure_delay
                if delay.mean_departure_delay is not None
                else float("-inf")
            ),
            delay.carrier,
            delay.hour,
        ),
    )
