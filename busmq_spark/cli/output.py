"""The output of commands: answers, notes, errors, questions, progress and messages.

Foreign bytes and machine numbers as text that may go to a terminal. Pure.

The output of a command: its answer, notes and errors. See the rules in ``__init__.py``.

The question before a command deletes data for good.

Progress on stderr, only when a person is there to see it.

Messages to stdout, in the form asked for.
"""

from __future__ import annotations

import base64
import getpass
import json
import logging
import math
import os
import socket
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from busmq_spark.cli.options import check_exclusive
from busmq_spark.errors import BusError, ConfigError
from busmq_spark.errors.foreign import error_text
from busmq_spark.queue.message import Message

SHOWN_CHARS = 2000
"""Longest value written to a terminal; a pipe gets all of it."""
BINARY_BYTES = 32
"""Bytes of a binary value shown to people; ``--raw`` and ``--json`` give all of them."""
_NAMED_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}
# Control, surrogate, private use, unassigned, line and paragraph separators; format characters too
# (they turn text around), save the two joiners that emoji and several scripts need.
_UNSAFE_CATEGORIES = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp", "Cf"}
_JOINERS = "\u200c\u200d"


def escape_control_characters(text: str) -> str:
    """The text with every character escaped that could move the cursor, change colours or turn the
    line around.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_escape, text))


def _escape(char: str) -> str:
    if char in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[char]
    if char in _JOINERS or unicodedata.category(char) not in _UNSAFE_CATEGORIES:
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    )


def value_text(value: bytes, most: int | None = None) -> str:
    """A message for people: its text, or the first bytes of a binary one. At most ``most``
    characters.
    """
    text = utf8_text(value)
    if text is None:
        cut = " …" if len(value) > BINARY_BYTES else ""
        return f"<{format_count(len(value), 'byte')}: {value[:BINARY_BYTES].hex(' ')}{cut}>"
    if most is not None and len(text) > most:
        return f"{escape_control_characters(text[:most])} … <{format_size(len(value))} in all>"
    return escape_control_characters(text)


def value_json(value: bytes) -> dict[str, str]:
    """A message for programs: field ``value`` when it is UTF-8 text, else ``value_base64``."""
    text = utf8_text(value)
    return {"value_base64": base64.b64encode(value).decode()} if text is None else {"value": text}


def utf8_text(value: bytes) -> str | None:
    """The text of a value, None when it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def one_line(text: str) -> str:
    """Any text as one safe line."""
    return escape_control_characters(" ".join(text.split()))


def format_size(count_bytes: float) -> str:
    """``1.5 MB``; three digits at most, powers of 1024 as Redis counts."""
    units = ("B", "KB", "MB", "GB", "TB")
    power = min(len(units) - 1, int(math.log(count_bytes, 1024))) if count_bytes >= 1 else 0
    scaled = count_bytes / 1024**power
    return (
        f"{scaled:.0f} {units[power]}"
        if power == 0 or scaled >= 100
        else f"{scaled:.1f} {units[power]}"
    )


def format_number(value: float) -> str:
    """``336,776``: groups of three, for eyes."""
    return f"{value:,.0f}"


def format_count(value: int, noun: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{format_number(value)} {noun}{'' if value == 1 else 's'}"


def format_rate(items: float, seconds: float) -> str:
    """``12,345/s``."""
    return f"{format_number(items / max(seconds, 1e-9))}/s"


def format_duration(seconds: float) -> str:
    """The two largest units: ``6 d 23 h``, ``30 s``."""
    whole = max(0, int(seconds))
    parts = []
    for name, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        part, whole = divmod(whole, length)
        parts.append((part, name))
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return (
        " ".join(f"{part} {name}" for part, name in parts[:2] if part or len(parts) == 1) or "0 s"
    )


def json_default(value: Any) -> Any:
    """Return a JSON value for an object that ``json.dumps`` does not know."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


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
    """Warnings and audit records of this package as notes. Records of other packages are dropped
    (py4j logs a stack trace at every Ctrl-C).
    """

    def __init__(self, out: CliOutput) -> None:
        super().__init__(logging.INFO)
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        try:
            self._write(record)
        except Exception:  # noqa: BLE001  # as logging's own handlers do: the caller only logs
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        if record.name == AUDIT_LOG.name:
            self._out.note(f"audit: {record.getMessage()}")
        elif record.name.partition(".")[0] == "busmq_spark":
            cause = record.exc_info[1] if record.exc_info else None
            tell = self._out.warn if record.levelno >= logging.WARNING else self._out.note
            tell(f"{record.getMessage()}{f': {error_text(cause)}' if cause else ''}")


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


AUDIT_LOG = logging.getLogger("busmq_spark.audit")
"""The audit log: user, machine, object and number of each deletion of a command."""
AUDIT_LOG.setLevel(logging.INFO)


def confirm(out: CliOutput, consequence: str, *, yes: bool, dry_run: bool = False) -> bool:
    """Return whether to go on; ask for it, unless ``--yes`` was given. ``dry_run``: print the
    consequence and do not go on. Raises ConfigError without a terminal.
    """
    if dry_run:
        out.note(f"this would {consequence}")
        return False
    if yes:
        return True
    if out.as_json or not sys.stdin.isatty():
        raise ConfigError(reason=f"this would {consequence}. Add --yes to do so")
    out.note(f"This would {consequence}.", "yellow")
    return typer.confirm("Do it?", abort=True, err=True)


def audit(deed: str) -> None:
    """Log what a command has deleted, with the user and the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = str(os.getuid())
    AUDIT_LOG.info("%s on %s %s", user, socket.gethostname(), deed)


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


@dataclass(frozen=True, slots=True)
class MessagePrinter:
    """Writes messages of one queue; each call is flushed, so what it returned from has left this
    process.
    """

    out: CliOutput
    queue: str
    raw: bool
    null: bool

    def __post_init__(self) -> None:
        check_exclusive(json=self.out.as_json, raw=self.raw)
        if self.null and not self.raw:
            raise ConfigError(reason="--null separates the bytes that --raw writes. Give --raw too")

    def write(self, messages: Iterable[Message]) -> None:
        """All of them, in order."""
        if self.raw:
            end = b"\0" if self.null else b"\n"
            self.out.flush()
            sys.stdout.buffer.write(b"".join([message.value + end for message in messages]))
            sys.stdout.buffer.flush()
        elif self.out.as_json:
            sys.stdout.write("".join([self._json_line(message) for message in messages]))
        elif self.out.on_terminal:
            for message in messages:
                self.out.print_lines(
                    Text.assemble(
                        (f"{message.id:>6}", "cyan"), "  ", value_text(message.value, SHOWN_CHARS)
                    )
                )
        else:
            sys.stdout.write(
                "".join([f"{message.id:>6}  {value_text(message.value)}\n" for message in messages])
            )
        self.out.flush()

    def _json_line(self, message: Message) -> str:
        return (
            json.dumps({"queue": self.queue, "id": message.id, **value_json(message.value)}) + "\n"
        )
