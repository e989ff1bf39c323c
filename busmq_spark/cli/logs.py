"""The log of commands that run for long: ``--log-format`` and ``--log-level``."""

import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import wraps
from typing import Annotated, Any

import typer

from busmq_spark.cli.output import CliOutput, CliWarningHandler
from busmq_spark.errors import BusError, ConfigError
from busmq_spark.errors.foreign import error_text

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
FIELDS = ("queue", "group", "query", "sink", "peer", "connection", "address", "reason")
"""Fields of a record: of ``extra``, of an error, or of the words before a value."""
_NAMED_VALUE = re.compile(rf"(?:\b({'|'.join(FIELDS)}) )?%[-+ #0]*[\d.]*[a-z]")
_OPTIONS: dict[str, Any] = {
    "log_format": Annotated[
        str, typer.Option("--log-format", metavar="|".join(FORMATS), help="Form of the log.")
    ],
    "log_level": Annotated[
        str,
        typer.Option("--log-level", metavar="|".join(LEVELS), help="The lowest level of the log."),
    ],
}


class JsonLogHandler(logging.Handler):
    """Writes a record of this package as one line of JSON to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        if record.name.partition(".")[0] != "busmq_spark":
            return
        try:
            self._write(record)
        except Exception:  # noqa: BLE001  # as logging's own handlers do: the caller only logs
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        text = f"{record.getMessage()}{f': {error_text(cause)}' if cause else ''}"
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {"time": at, "level": record.levelname.lower(), **fields_of(record), "message": text}
        sys.stderr.write(json.dumps(told, default=str) + "\n")
        sys.stderr.flush()


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record: the code of its error, and those of ``FIELDS``."""
    found: dict[str, Any] = {}
    values = record.args if isinstance(record.args, tuple) else ()
    errors = [each for each in values if isinstance(each, BusError)]
    if record.exc_info and isinstance(record.exc_info[1], BusError):
        errors.append(record.exc_info[1])
    for error in errors:
        found["code"] = error.code
        found |= {name: error.details[name] for name in FIELDS[:4] if name in error.details}
    found |= dict(_named_values(str(record.msg), values))
    return found | {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}


def _named_values(text: str, values: tuple[object, ...]) -> Iterator[tuple[str, object]]:
    places = _NAMED_VALUE.finditer(text.replace("%%", ""))
    for place, value in zip(places, values, strict=False):
        if place[1]:
            yield place[1], value


def with_log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with ``--log-format`` and ``--log-level``, which it does not see."""

    @wraps(command)
    def run(*arguments: Any, log_format: str, log_level: str, **options: Any) -> None:
        set_up_log(log_format, log_level, as_json=bool(options.get("as_json")))
        command(*arguments, **options)

    signature = inspect.signature(command)
    defaults = {"log_format": "text", "log_level": "warning"}
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=option
        )
        for name, option in _OPTIONS.items()
    ]
    shown = signature.replace(parameters=[*signature.parameters.values(), *added])
    run.__signature__ = shown  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, **_OPTIONS}
    return run


def set_up_log(form: str, level: str, *, as_json: bool) -> None:
    """Log from ``level`` on in this form. Raises ConfigError."""
    for flag, given, known in (("--log-format", form, FORMATS), ("--log-level", level, LEVELS)):
        if given not in known:
            raise ConfigError(reason=f"{flag} is {given!r}; expected one of {', '.join(known)}")
    handler = JsonLogHandler() if form == "json" else CliWarningHandler(CliOutput(as_json))
    handler.setLevel(level.upper())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.getLogger("busmq_spark").setLevel(level.upper())
