"""Options that commands share, each with one help text.

Options and arguments that several commands share, with one help text each.

Options that say how to reach Redis: declared once, added to every command that takes
``redis: RedisOptions``.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import duration_s, one_of
from busmq_spark.options import LAYOUTS, RedisOptions
from busmq_spark.redis_io.urls import PasswordInFile

DEFAULT_PORT = 7130
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Answer with JSON, one object a line, and nothing else on stdout."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
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


HELP_PANEL = "Redis"


def _option(flag: str, env: str, text: str, metavar: str) -> Any:
    return Annotated[
        str | None,
        typer.Option(
            flag,
            metavar=metavar,
            envvar=env,
            help=text,
            rich_help_panel=HELP_PANEL,
            show_default=False,
        ),
    ]


RedisOption = _option(
    "--redis",
    "BUSMQ_REDIS_URL",
    "Where Redis is: redis://[user:password@]host[:port], rediss:// for TLS, unix:///path; several"
    " separated by commas. A password is better kept in the environment variable: other users of"
    " this machine can see arguments.",
    "URL",
)


def _tls_options(prefix: str) -> dict[str, Any]:
    return {
        "tls_ca": _option(
            f"--{prefix}tls-ca",
            "BUSMQ_TLS_CA",
            "PEM file of the authority to trust with rediss://.",
            "FILE",
        ),
        "tls_certificate": _option(
            f"--{prefix}tls-cert",
            "BUSMQ_TLS_CERT",
            "PEM file of the client certificate to show.",
            "FILE",
        ),
        "tls_key": _option(
            f"--{prefix}tls-key", "BUSMQ_TLS_KEY", "PEM file of its private key.", "FILE"
        ),
    }


_OPTIONS: dict[str, Any] = {
    "url": RedisOption,
    "layout": _option(
        "--layout",
        "BUSMQ_REDIS_LAYOUT",
        "direct (default), sentinel or cluster: the URLs are sentinels, or nodes.",
        "LAYOUT",
    ),
    "master": _option(
        "--sentinel-master",
        "BUSMQ_SENTINEL_MASTER",
        "The name under which the sentinels watch the servers.",
        "NAME",
    ),
    "user": _option(
        "--user",
        "BUSMQ_REDIS_USER",
        "ACL user; its password is taken from BUSMQ_REDIS_PASSWORD, or from a file.",
        "NAME",
    ),
    "password_file": _option(
        "--password-file",
        "BUSMQ_REDIS_PASSWORD_FILE",
        "File with the password of Redis, as a mounted secret. Each connection reads it.",
        "FILE",
    ),
    **_tls_options(""),
    "password": Annotated[
        str | None, typer.Option("--password", envvar="BUSMQ_REDIS_PASSWORD", hidden=True)
    ],
}
_FLAGS = {
    "url": "--redis",
    "layout": "--layout",
    "master": "--sentinel-master",
    "user": "--user",
    "tls_ca": "--tls-ca",
    "tls_certificate": "--tls-cert",
    "tls_key": "--tls-key",
    "password": "--password",
    "password_file": "--password-file",
}
_PREFIXED_TLS_OPTIONS = _tls_options("redis-")


def with_redis_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options in the place of its parameter ``redis``; any other command as
    it is.

    A command that has a ``--tls-cert`` of its own gets those of Redis as ``--redis-tls-cert`` and
    so on.
    """
    signature = inspect.signature(command, eval_str=True)
    if (
        "redis" not in signature.parameters
        or signature.parameters["redis"].annotation is not RedisOptions
    ):
        return command

    @wraps(command)
    def run_command(*arguments: Any, **options: Any) -> None:
        command(
            *arguments,
            redis=_make_redis_options({name: options.pop(name) for name in _OPTIONS}),
            **options,
        )

    table = (
        _OPTIONS | _PREFIXED_TLS_OPTIONS if "certificate_file" in signature.parameters else _OPTIONS
    )
    ours = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in table.items()
    ]
    others = [each for name, each in signature.parameters.items() if name != "redis"]
    first = [
        each.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for each in others
        if each.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    last = [each for each in others if each.kind is inspect.Parameter.KEYWORD_ONLY]
    # What inspect looks for
    run_command.__signature__ = signature.replace(parameters=[*first, *ours, *last])  # type: ignore[attr-defined]
    run_command.__annotations__ = {each.name: each.annotation for each in (*first, *ours, *last)}
    return run_command


def _make_redis_options(given: Mapping[str, str | None]) -> RedisOptions:
    for name, text in given.items():
        if text == "":
            raise ConfigError(reason=f"{_FLAGS[name]} is empty; give a value, or leave it out")
    found = {name: text for name, text in given.items() if text is not None}
    if path := found.pop("password_file", None):
        if "password" in found:
            reason = "--password-file and BUSMQ_REDIS_PASSWORD both give a password; leave one out"
            raise ConfigError(reason=reason)
        found["password"] = PasswordInFile(path)
    if "layout" in found:
        try:
            found["layout"] = one_of(*LAYOUTS)(found["layout"])
        except ValueError as error:
            raise ConfigError(reason=f"--layout is {found['layout']!r}; expected {error}") from None
    return RedisOptions(**found)  # type: ignore[arg-type]  # its fields of text


def parse_listen_address(
    text: str, flag: str = "--listen", port: int = DEFAULT_PORT
) -> tuple[str, int]:
    """Return the address in ``text``, the value of ``flag``; brackets enclose an IPv6 address.
    Raises ConfigError.
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+))(?::(\d{1,5}))?", text)
    number = int(found[3] or port) if found else -1
    if not found or not 0 <= number <= 65535:
        raise ConfigError(
            reason=(
                f"{flag} is {text!r}; expected HOST:PORT such as 127.0.0.1:{port},"
                f" 0.0.0.0:{port} or [::]:{port}"
            )
        )
    return found[1] or found[2], number
