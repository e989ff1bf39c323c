"""The output of a command: its answer, notes and errors. See the rules in ``__init__.py``."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from busmq_spark.cli.terminal_text import escape_control_characters, json_default, one_line
from busmq_spark.errors import BusError
from busmq_spark.errors.foreign import error_text

WIDTH_IN_PIPE = 10_000
MAX_TABLE_WIDTH = (
    1_000_000_000  # a table written to a pipe is not folded, whatever its longest cell
)


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        """rich would leave with status 1; a reader that has seen enough is no error here."""
        raise BrokenPipeError


class CliOutput:
    """Stdout and stderr of one command. ``as_json``: stdout is for a program."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.screen = _console(stderr=False)
        self.errors = _console(stderr=True)

    @property
    def on_terminal(self) -> bool:
        """Whether a person looks at stdout directly."""
        return (
            sys.stdout.isatty()
        )  # not rich's word: FORCE_COLOR asks for colours, which is another thing

    @property
    def is_watched(self) -> bool:
        """Whether a person looks at stderr while the command runs."""
        return sys.stderr.isatty() and not self.as_json

    def print_json(self, **fields: Any) -> None:
        """Print one JSON line."""
        sys.stdout.write(json.dumps(fields, default=json_default) + "\n")

    def print_lines(self, *lines: str | Text) -> None:
        """Lines for people, escaped and never read as markup."""
        for line in lines:
            self.screen.print(_escaped_for_terminal(line), soft_wrap=True)

    def print_table(self, table: Table) -> None:
        """A table for people."""
        if not self.on_terminal:
            self.screen.width = max(
                WIDTH_IN_PIPE,
                self.screen.measure(
                    table, options=self.screen.options.update(max_width=MAX_TABLE_WIDTH)
                ).maximum,
            )
        self.screen.print(table)

    def flush(self) -> None:
        """Let the reader of a pipe have what was written."""
        sys.stdout.flush()

    @contextmanager
    def spinner(self, text: str) -> Iterator[None]:
        """A spinner on stderr while something takes its time, when a person is there to see it."""
        if not self.is_watched:
            yield
            return
        with self.errors.status(Text(text)):
            yield

    def note(self, text: str, style: str = "dim") -> None:
        """A remark on stderr; with ``--json`` as an object, so that both streams can be read by a
        program.
        """
        if self.as_json:
            sys.stderr.write(json.dumps({"note": text}) + "\n")
        else:
            self.errors.print(Text(one_line(text), style), soft_wrap=True)

    def warn(self, text: str) -> None:
        """A remark that should be acted on."""
        self.note(text if self.as_json else f"warning: {text}", "yellow")

    def show_error(self, code: str, message: str, **more: Any) -> None:
        """An error, as one line or one object on stderr."""
        if self.as_json:
            sys.stderr.write(
                json.dumps(
                    {"error": {"code": code, "message": message, **more}}, default=json_default
                )
                + "\n"
            )
        else:
            self.errors.print(
                Text.assemble(("error: ", "bold red"), f"[{code}] {one_line(message)}"),
                soft_wrap=True,
            )

    def show_bus_error(self, error: BusError) -> None:
        """Print a BusError, whose text begins with its code."""
        message = str(error).removeprefix(f"[{error.code}] ")
        self.show_error(error.code, message, retriable=error.retriable, details=error.details)


class CliWarningHandler(logging.Handler):
    """Warnings of this package as notes. Records of other packages are dropped (py4j logs a stack
    trace at every Ctrl-C).
    """

    def __init__(self, out: CliOutput) -> None:
        super().__init__(logging.WARNING)
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        if record.name.partition(".")[0] == "busmq_spark":
            cause = record.exc_info[1] if record.exc_info else None
            self._out.warn(f"{record.getMessage()}{f': {error_text(cause)}' if cause else ''}")


def table(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str | Text]], title: str = ""
) -> Table:
    """A table of safe cells: (heading, ``left``/``right``) and texts that are never read as
    markup.
    """
    made = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        pad_edge=False,
        box=SIMPLE_HEAD,
    )
    for heading, side in columns:
        made.add_column(heading, justify="right" if side == "right" else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_escaped_for_terminal(cell) for cell in row))
    return made


def _escaped_for_terminal(text: str | Text) -> Text:
    """Foreign text may be in any part of a line; one that needs escaping loses the styles of its
    parts, not of the whole.
    """
    if isinstance(text, str):
        return Text(escape_control_characters(text))
    escaped = escape_control_characters(text.plain)
    return text if escaped == text.plain else Text(escaped, text.style)


def _console(*, stderr: bool) -> Console:
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not (sys.stderr if stderr else sys.stdout).isatty():
        console.width = WIDTH_IN_PIPE
    return console
