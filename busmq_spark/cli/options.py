"""Options and arguments that several commands share, with one help text each."""

from typing import Annotated

import typer

from busmq_spark.errors import ConfigError
from busmq_spark.parsers import duration_s

JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Answer with JSON, one object a line, and nothing else on stdout."),
]
QueueArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)
]
RawOption = Annotated[
    bool,
    typer.Option(
        "--raw",
        help=(
            "Write the bytes of each value as they are, each followed by a line break, and no ids."
        ),
    ),
]
NullOption = Annotated[
    bool,
    typer.Option(
        "--null",
        "-0",
        help=(
            "Messages are separated by a NUL byte instead of a line break, so that they may contain"
            " line breaks."
        ),
    ),
]


def parse_seconds(text: str, option: str) -> int:
    """``90``, ``90s``, ``15m``, ``12h`` or ``7d`` as seconds."""
    try:
        return duration_s(text)
    except ValueError as error:
        raise ConfigError(reason=f"{option} is {text!r}; expected {error}") from None


def check_exclusive(**given: bool) -> None:
    """At most one of these options; raises ConfigError with those that were given together."""
    both = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if len(both) > 1:
        raise ConfigError(reason=f"{' and '.join(both)} exclude each other. Give one of them")
