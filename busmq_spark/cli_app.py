"""The list of commands, and the one place where an error becomes an exit code."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from busmq_spark import __version__
from busmq_spark.cli import (
    checkpoint,
    dead,
    doctor,
    embedded,
    events,
    exporter,
    info,
    jar,
    lag,
    mirror,
    outbox,
    peek,
    push,
    queues,
    retain,
    serve,
    skip,
    subscriptions,
    tail,
    token,
    topics,
)
from busmq_spark.cli.logs import with_log_options
from busmq_spark.cli.options import with_redis_options
from busmq_spark.cli.output import CliOutput, CliWarningHandler
from busmq_spark.demo.command import demo
from busmq_spark.environment import VARIABLES, misspelt_variables, read_variable
from busmq_spark.errors import BusError, ConfigError

OK, FAILED, USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


class _StdoutClosed(Exception):
    """The reader of stdout has closed it. Not an OSError: typer would turn that into a failure."""


def _catch_broken_pipe(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run_command(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except BrokenPipeError:
            raise _StdoutClosed from None

    return run_command


app = typer.Typer(
    name="busmq",
    no_args_is_help=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 done, 1 an error at run time, 2 a wrong option or argument, "
        "3 a server that info found full or evicting, 130 Ctrl-C, 143 SIGTERM."
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"busmq {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def busmq(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """An ordered message bus on Redis: look into queues, push and follow messages, see it feed
    Spark.

    New here?  'busmq demo' shows everything at work; 'busmq embedded' starts a Redis to try the
    other commands on.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


LONG_RUNNING = (serve.serve, exporter.exporter)

for title, commands in (
    ("Start here", (demo, embedded.embedded)),
    ("Messages", (push.push, tail.tail, peek.peek, events.publish, events.send)),
    ("State", (queues.queues, topics.topics, info.info, doctor.doctor)),
    (
        "Readers",
        (
            subscriptions.groups,
            lag.lag,
            subscriptions.subscribe,
            subscriptions.unsubscribe,
            subscriptions.subscriptions,
            retain.retain,
            skip.skip,
        ),
    ),
    ("Operation", (exporter.exporter,)),
    ("Other data centres", (serve.serve, token.token)),
    ("Spark", (jar.jar,)),
):
    for command in commands:
        made = with_redis_options(command)
        if command in LONG_RUNNING:
            made = with_log_options(made)
        app.command(rich_help_panel=title)(_catch_broken_pipe(made))
dead_letters = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at what shared groups gave up, put it back, delete it.",
)
DEAD_LETTER_COMMANDS: dict[str, Callable[..., None]] = {
    "list": dead.list_,
    "show": dead.show,
    "replay": dead.replay,
    "purge": dead.purge,
}
for name, its_command in DEAD_LETTER_COMMANDS.items():
    dead_letters.command(name)(_catch_broken_pipe(with_redis_options(its_command)))
app.add_typer(dead_letters, name="dead", rich_help_panel="Readers")
EVENT_APP = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Which queues the events of which keys go to.",
)
for event_command in (events.subscribe, events.unsubscribe, events.forget):
    EVENT_APP.command()(_catch_broken_pipe(with_redis_options(event_command)))
EVENT_APP.command("list")(_catch_broken_pipe(with_redis_options(events.list_)))
app.add_typer(EVENT_APP, name="events", rich_help_panel="Messages")
OUTBOX_APP = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look at what an outbox on this disk still has to forward, and forward it.",
)
for outbox_command in (
    outbox.status,
    outbox.unlock,
    outbox.keys,
    outbox.subscribers,
    outbox.incoming,
    outbox.outgoing,
    outbox.drain,
    outbox.remove,
    outbox.replace,
    outbox.purge,
):
    OUTBOX_APP.command()(_catch_broken_pipe(with_redis_options(outbox_command)))
app.add_typer(OUTBOX_APP, name="outbox", rich_help_panel="Messages")


class _MirrorCommandGroup(TyperGroup):
    """``busmq mirror --from URL QUEUE`` is ``busmq mirror run …``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx,
            (
                args
                if not args or args[0] in {*self.commands, *ctx.help_option_names}
                else ["run", *args]
            ),
        )


mirrors = typer.Typer(
    cls=_MirrorCommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Copy queues of another data centre here, same ids, same life.",
)
MIRROR_COMMANDS: dict[str, Callable[..., None]] = {
    "run": with_log_options(with_redis_options(mirror.run)),
    "promote": mirror.promote,
    "status": mirror.status,
}
for name, its_command in MIRROR_COMMANDS.items():
    mirrors.command(name)(_catch_broken_pipe(with_redis_options(its_command)))
app.add_typer(mirrors, name="mirror", rich_help_panel="Other data centres")

CHECKPOINT_APP = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Read the checkpoint of a query, move the query to another one, go back in it.",
)
for name, its_command in checkpoint.CHECKPOINT_COMMANDS.items():
    CHECKPOINT_APP.command(name)(_catch_broken_pipe(with_redis_options(its_command)))
app.add_typer(CHECKPOINT_APP, name="checkpoint", rich_help_panel="Spark")


def run(arguments: Sequence[str], *, interrupts: bool = True) -> int:
    """Run one command line; the result is its exit code. With ``interrupts``, Ctrl-C is an
    exception from here on.
    """
    signal.signal(signal.SIGTERM, _terminate)
    sys.stdout, sys.stderr = _open_tolerant_stream(sys.stdout), _open_tolerant_stream(sys.stderr)
    out = CliOutput(as_json="--json" in arguments)
    logging.basicConfig(handlers=[CliWarningHandler(out)])
    try:
        if interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _invoke(out, list(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BrokenPipeError, _StdoutClosed):
        _close_stdout()
        return OK
    return code


def _invoke(out: CliOutput, arguments: list[str]) -> int:
    try:
        if not {"-h", "--help", "--version"} & {*arguments}:
            _check_environment(out)
        result: Any = app(arguments, prog_name="busmq", standalone_mode=False)
    except _StdoutClosed:
        raise
    except SystemExit as leaving:
        # What rich and typer make of a reader that has gone, such as that of a help text
        if isinstance(leaving.__context__, BrokenPipeError):
            raise _StdoutClosed from None
        raise
    except ConfigError as error:
        out.show_bus_error(error)
        return USAGE
    except BusError as error:
        out.show_bus_error(error)
        return FAILED
    except typer.Abort:
        return INTERRUPTED
    except OSError as error:
        out.show_error(
            "BUSMQ_SYSTEM", f"{error.filename or 'the system'}: {error.strerror or error}"
        )
        return FAILED
    except Exception as error:
        # typer's own usage errors; their class moved between its versions, their shape did not.
        if not hasattr(error, "format_message"):
            raise
        out.show_error(
            "BUSMQ_USAGE", f"{error.format_message().strip()} See: {_command_path_of(error)} --help"
        )
        return USAGE
    return result if isinstance(result, int) else OK


def _check_environment(out: CliOutput) -> None:
    for name in VARIABLES:
        read_variable(name)
    for name, near in misspelt_variables():
        out.warn(f"the environment variable {name} is not one of busmq's; did you mean {near}?")


def _open_tolerant_stream(stream: TextIO | None) -> TextIO:
    """A stream that takes any text: a terminal may know only ASCII, and a script may have closed it
    (``>&-``).
    """
    if stream is None:
        return Path(os.devnull).open("w")
    # Of TextIOWrapper, which it is
    stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    return stream


def _command_path_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "busmq"


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(TERMINATED)


def _close_stdout() -> None:
    """The reader is gone: what Python flushes at its exit is discarded."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
