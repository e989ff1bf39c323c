"""Tables of options: each is a frozen dataclass, parsed once at the border. Look-up is case-blind,
as everywhere in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, TypeVar

from busmq_spark.arguments import show
from busmq_spark.errors import ConfigError
from busmq_spark.parsers import secret_text

O = TypeVar("O")  # noqa: E741  # the options class; a one-letter type variable reads best here
LINK_SECRETS = "federation.<name>.secret"
_LINK_SECRET_OPTION = re.compile(r"federation\.([a-z][a-z0-9_-]*)\.secret")
SPARK_ENGINE_OPTIONS = frozenset(
    {
        "checkpointlocation",
        "queryname",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
        "_asyncprogresstrackingoverridesinksupportcheck",
    }
)
"""Options that Spark itself takes from the same map; they are no errors."""


_WORD_OF_KIND = {bool: "True or False", int: "a whole number", str: "text"}
KAFKA_OPTION_HINTS = {
    "kafka.bootstrap.servers": "the address of the bus is option 'redis.url'",
    "kafka.group.id": "the name of a group is option 'subscription'",
    "assign": "a partition of a topic is a queue here: name the queues in option 'subscribe'",
    "startingoffsetsbytimestamp": (
        "option 'startingOffsets' takes a time for each queue, such as {\"orders\":"
        ' "2026-05-01T12:00:00Z"}'
    ),
    "endingoffsetsbytimestamp": (
        "option 'endingOffsets' takes a time for each queue, such as {\"orders\":"
        ' "2026-05-01T12:00:00Z"}'
    ),
    "kafkaconsumer.polltimeoutms": (
        "it is not needed here: what fails is tried again for as long as is useful; leave it out"
    ),
    "fetchoffset.numretries": (
        "it is not needed here: what fails is tried again for as long as is useful; leave it out"
    ),
    "fetchoffset.retryintervalms": (
        "it is not needed here: what fails is tried again for as long as is useful; leave it out"
    ),
    "groupidprefix": (
        "it is not needed here: a query has no group of its own making; leave it out, or name one"
        " with option 'subscription'"
    ),
    "includeheaders": (
        "a message has no headers here; leave it out, and have in the value what they would say"
    ),
}
"""Options of Spark's Kafka source that have another name here, or are not needed, in small letters,
with the text of their error.
"""
KAFKA_CLIENT_HINT = (
    "options of Kafka's own clients, kafka.…, mean nothing here; docs/kafka.md says what is there"
    " instead"
)


def option(
    name: str,
    parse: Callable[[str], Any],
    default: Any = MISSING,
    *,
    doc: str,
    alias: str = "",
    unsaid: str = "",
) -> Any:
    """Declare a row of an option table. Without a default the option must be given. An option that
    may hold a secret is left out of the object's repr.

    ``unsaid`` is what a default of None stands for, where it matters whether a user has said it.
    """
    info = {"name": name, "parse": parse, "doc": doc, "alias": alias, "unsaid": unsaid}
    shown = not _secret(name)
    return (
        field(metadata=info, repr=shown)
        if default is MISSING
        else field(default=default, metadata=info, repr=shown)
    )


def _secret(name: str) -> bool:
    """Whether the value must not be printed; Spark redacts options with these names too."""
    return any(word in name.lower() for word in ("password", "url", "secret"))


def check_secret(what: str, text: str | None) -> None:
    """Raises ConfigError for a password or secret with a character that a file or a shell left at
    its ends.
    """
    try:
        secret_text(text or "")
    except ValueError as error:
        raise ConfigError(reason=f"{what} is ***; expected {error}") from None


def parse(cls: type[O], given: Mapping[str, str]) -> O:
    """The options object for what the user gave. Raises ConfigError for an unknown name, a bad or
    missing value, or a conflict.
    """
    table = {
        name.lower(): row
        for row in fields(cls)  # type: ignore[arg-type]  # a dataclass
        for name in (row.metadata["name"], row.metadata["alias"])
        if name
    }
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, text in given.items():
        if (of := _LINK_SECRET_OPTION.fullmatch(name.lower())) and (row := table.get(LINK_SECRETS)):
            check_secret(f"option {name!r}", text)
            _refuse_second(said, name.lower(), name)
            values[row.name] = (*values.get(row.name, ()), (of[1], text))
            continue
        row = table.get(name.lower())
        if row is None or row.metadata["name"] == LINK_SECRETS:
            if name.lower() in SPARK_ENGINE_OPTIONS:
                continue
            raise ConfigError(
                reason=_unknown_reason(name, [r.metadata["name"] for r in table.values()])
            )
        _refuse_second(said, row.metadata["name"], name)
        values[row.name] = _parse_value(row.metadata["name"], row.metadata["parse"], text)
    for row in table.values():
        if row.name not in values and row.default is MISSING:
            raise ConfigError(
                reason=f"option {row.metadata['name']!r} is missing: {row.metadata['doc']}"
            )
    return cls(**values)


def _refuse_second(said: dict[str, str], known: str, name: str) -> None:
    """Note under which name an option is given. Raises ConfigError where it was given before."""
    if known in said:
        once, again = sorted((said[known], name), key=lambda each: (each != known, each))
        raise ConfigError(reason=f"option {once!r} is given twice, also as {again!r}; give it once")
    said[known] = name


def _parse_value(
    name: str, parser: Callable[[str], Any], text: Any, *, secret: bool = False
) -> Any:
    try:
        return parser(str(text))
    except ValueError as error:
        shown = "***" if secret or _secret(name) else repr(text)
        raise ConfigError(reason=f"option {name!r} is {shown}; expected {error}") from None


def _unknown_reason(name: str, known: list[str]) -> str:
    near = get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    hint = (
        f"did you mean {next(k for k in known if k.lower() == near[0])!r}?"
        if near
        else f"known are: {', '.join(sorted(set(known)))}"
    )
    if (low := name.lower()) in KAFKA_OPTION_HINTS or low.startswith("kafka."):
        hint = KAFKA_OPTION_HINTS.get(low, KAFKA_CLIENT_HINT)
    if name.lower() == "path":
        hint = (
            "name queues with option 'subscribe' (source) or 'queue' (sink) and call load() or"
            " save() without a path"
        )
    return f"unknown option {name!r}; {hint}"


def from_keywords(
    cls: type[O],
    given: Mapping[str, Any],
    checks: Mapping[str, Callable[[str, object], object]] = MappingProxyType({}),
) -> O:
    """The options object for keyword arguments. Raises ConfigError for an unknown one, with the
    nearest known.

    ``checks`` take values that may be something else than text, a number or a bool.
    """
    _refuse_unknown(cls, given, "unknown setting {}")
    # A dataclass
    rows = [row for row in fields(cls) if row.name in given]  # type: ignore[arg-type]
    return cls(
        **{row.name: _check_keyword(row, given[row.name], checks.get(row.name)) for row in rows}
    )


def _check_keyword(
    row: Field[Any], value: Any, check: Callable[[str, object], object] | None
) -> Any:
    """The value of a keyword argument; a text is parsed as the option of Spark would be."""
    if value is None and row.default is None:
        return None
    if check and not isinstance(value := check(row.name, value), str):
        return value
    kind = type(row.default) if type(row.default) in (bool, int) else str
    if not isinstance(value, str) and type(value) is not kind:
        shown = f"a {type(value).__name__}" if _secret(row.metadata["name"]) else show(value)
        raise ConfigError(reason=f"{row.name} is {shown}; expected {_WORD_OF_KIND[kind]}")
    return _parse_value(
        row.name, row.metadata["parse"], value, secret=_secret(row.metadata["name"])
    )


def from_call(cls: type[O], call: str, given: Mapping[str, Any]) -> O:
    """The options object for the keyword arguments of ``call``. Raises ConfigError as above."""
    _refuse_unknown(cls, given, f"{call}() has no option {{}}")
    return cls(**given)


def _refuse_unknown(cls: type[Any], given: Mapping[str, Any], reason: str) -> None:
    known = [row.name for row in fields(cls)]
    for name in given.keys() - set(known):
        near = get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}"
        raise ConfigError(reason=f"{reason.format(repr(name))}; {hint}")


def rows(cls: type[Any]) -> list[tuple[str, str, str]]:
    """Name, default and sentence of each option, for the documentation and help texts."""
    out = []
    for row in fields(cls):
        default = str(row.default).lower() if isinstance(row.default, bool) else str(row.default)
        out.append(
            (
                row.metadata["name"],
                row.metadata["unsaid"] if row.default in (None, "", ()) else default,
                row.metadata["doc"],
            )
        )
    return out
