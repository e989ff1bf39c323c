"""The question before a command deletes data for good."""

import sys

import typer

from busmq_spark.cli.output import CliOutput
from busmq_spark.errors import ConfigError


def confirm(out: CliOutput, consequence: str, *, yes: bool) -> None:
    """Ask whether to go on, unless ``--yes`` was given. Raises ConfigError without a terminal."""
    if yes:
        return
    if out.as_json or not sys.stdin.isatty():
        raise ConfigError(reason=f"this would {consequence}. Add --yes to do so")
    out.note(f"This would {consequence}.", "yellow")
    typer.confirm("Do it?", abort=True, err=True)
