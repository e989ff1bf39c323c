"""Progress on stderr, only when a person is there to see it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from busmq_spark.cli.output import CliOutput
from busmq_spark.cli.terminal_text import escape_control_characters, format_number, format_rate

SHOW_BAR_AFTER_S = 0.3
"""Short work shows no bar: a flash is only noise."""


class TerminalProgressBar:
    """Counts items and shows bar, count and rate. ``total`` is in items, or in bytes when
    ``weighed``; the total is None when unknown.

    ``waiting``: show the bar at once, with this text until the first item is done.
    """

    def __init__(
        self,
        out: CliOutput,
        title: str,
        total: int | None,
        noun: str,
        *,
        weighed: bool = False,
        waiting: str | None = None,
    ) -> None:
        self._visible = out.is_watched
        self._noun, self._waiting = noun, waiting
        self._started = time.monotonic()
        self.items = 0
        size = [DownloadColumn(binary_units=True)] if weighed and total else []
        bar = (
            [BarColumn(bar_width=30), TaskProgressColumn(), *size, TimeRemainingColumn()]
            if total
            else []
        )
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            *bar,
            TextColumn("{task.fields[text]}", markup=False),
        )
        self._bar = Progress(*columns, console=out.errors, transient=True)
        self._task = self._bar.add_task(escape_control_characters(title), total=total, text=Text())

    @property
    def seconds(self) -> float:
        """Since the meter was entered."""
        return time.monotonic() - self._started

    def add(self, items: int, weight: int | None = None) -> None:
        """Some more are done; ``weight`` is what counts towards the total when weighed."""
        self.items += items
        if not self._visible:
            return
        if not self._bar.live.is_started and (
            self._waiting is not None or self.seconds > SHOW_BAR_AFTER_S
        ):
            self._bar.start()
        text = (
            f"{format_number(self.items)} {self._noun}  {format_rate(self.items, self.seconds)}"
            if self.items or not self._waiting
            else self._waiting
        )
        self._bar.update(self._task, advance=items if weight is None else weight, text=text)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._waiting is not None:
            self.add(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar.live.is_started:
            self._bar.stop()
