"""Options: tables of them, and the parsers of their texts.

Parsers of options: texts to values. A parser raises ValueError whose text says what was
expected.

jvm-shim/src/main/java/busmq/spark/options/Parsers.java does the same.

Tables of options: each is a frozen dataclass, parsed once at the border. Look-up is case-blind,
as everywhere in Spark.
"""

from __future__ import annotations

import ipaddress
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, field, fields
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from busmq_spark.arguments import is_utf8, show
from busmq_spark.errors import ConfigError
from busmq_spark.starting_offsets import OffsetBound, iso, parse_relative

LOCAL_SOURCE, UNNAMED_LINK = "local", "federation"
"""The names of Redis itself, and of a link without a name, beside links with names."""
_STRAY_NAMES = {"\n": "line break", "\r": "line break", "\ufeff": "byte-order mark"}
_QUOTES = "\"'`"
_SECONDS_OF_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES_OF_UNIT = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_BLANKS = " \t"
"""Around numbers and words of a fixed list they mean nothing; all else keeps them, or is
refused.
"""
COMMA = re.compile(r"[ \t]*,[ \t]*")
"""The separator of a comma list: a comma, with the blanks beside it. All else belongs to the
items.
"""

_URL = re.compile(r"([A-Za-z]+)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?")
_ADDRESS = re.compile(r"(?:\[([^]]*)\]|([^]:[]*))(?::([^]:[]*))?")
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")

_PYTHON_COLLECTION = re.compile(r"""[(\[{]\s*b?['"].*['"],?\s*[)\]}]|b'.*'|b".*\"""")


class UrlParts(NamedTuple):
    """The parts of a URL as they are written; an absent one is empty."""

    scheme: str
    place: str
    path: str
    query: str
    fragment: str


def split_url(text: str) -> UrlParts | None:
    """Return the parts of a URL with ``//``, its scheme in small letters; return None for any other
    text.
    """
    found = _URL.fullmatch(text)
    return UrlParts(found[1].lower(), *found.groups(default="")[1:]) if found else None


def host_and_port(address: str) -> tuple[str, int | None]:
    """Parser of ``host`` or ``host:port``; an IPv6 address is in brackets, which the result
    lacks.
    """
    found = _ADDRESS.fullmatch(address)
    if not found:
        many = address.count(":") > 1 and not set("[]") & set(address)
        raise ValueError("it is not a URL" + (": an IPv6 address is written [::1]" if many else ""))
    six, host, port = found.groups()
    if port is not None and not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise ValueError("its port is not a number from 1 to 65535")
    if six is not None:
        try:
            ipaddress.IPv6Address(six if _IPV6.fullmatch(six) else "")
        except ValueError:
            raise ValueError("it has no IPv6 address between [ and ]") from None
    elif not host:
        raise ValueError("it has no host")
    elif not _HOST.fullmatch(host):
        raise ValueError(
            "its host is none: it has letters, digits, - and _, with single dots between"
        )
    return (six or host).lower(), int(port) if port else None


def check_web_socket_url(text: str, schemes: Collection[str] = ("ws", "wss")) -> None:
    """Raise ValueError, which repeats no secret, for a text that is no address of a web-socket
    server.
    """
    if stray := describe_stray_character(text, inside=True):
        raise ValueError(f"it {stray}")
    parts = split_url(text)
    if parts is None or parts.scheme not in schemes:
        scheme = f"it begins with {parts.scheme[:10]!r}" if parts else "it has no scheme"
        raise ValueError(
            f"{scheme}; expected {', '.join(f'{each}://' for each in schemes)} and a host"
        )
    if "@" in parts.place or parts.query or parts.fragment:
        raise ValueError(
            "it has more than a path; expected an address without user, query or fragment: secrets"
            " in an address get printed; give them as federation.secret (Spark) or federate_secret"
            " (Python)"
        )
    host_and_port(parts.place)


def describe_stray_character(text: str, *, inside: bool = False) -> str | None:
    """Say which blank or control character a text has that no name or address has; return None
    where the text has none.

    ``inside``: blanks in the middle count, too.
    """
    if text.endswith(("\n", "\r")):
        return "ends with a line break, as text that was read from a file does; take it off"
    if text[:1] in (" ", "\t") or text[-1:] in (" ", "\t"):
        return "begins or ends with a blank; take it off"
    if re.search(r"[\x00-\x1f\x7f]", text):
        return "has a line break or another control character in it"
    if not is_utf8(text):
        return "has half of a surrogate pair in it, which UTF-8 cannot hold"
    if _PYTHON_COLLECTION.fullmatch(text):
        return (
            "looks like a list, tuple or bytes of Python that became text; join its items with"
            " commas"
        )
    return "has a blank in it" if inside and " " in text else None


def secret_text(text: str) -> str:
    """Parser of a password or secret, which is taken as it is or refused: files and shells leave
    characters at its ends.
    """
    if text and (stray := _stray_end(text)):
        raise ValueError(
            f"no {stray}: nothing is taken away in silence. A Redis password that has it goes"
            " percent-encoded into redis.url"
        )
    return text


def _stray_end(text: str) -> str:
    for char, where in ((text[0], "beginning"), (text[-1], "end")):
        kind = unicodedata.category(char)
        if name := _STRAY_NAMES.get(char) or {"Z": "blank", "Cc": "control character"}.get(
            kind if kind == "Cc" else kind[0]
        ):
            return f"{name} at its {where}"
    return (
        "quotes around it" if len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES else ""
    )


def can_be_in_header(text: str) -> bool:
    """Return whether a secret is visible ASCII: no HTTP header carries another one."""
    return text.isascii() and text.isprintable() and " " not in text


def integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """Parser of a whole number of at least ``least``, and of at most ``most`` where that is
    given.
    """

    def parse_whole(text: str) -> int:
        if (
            not re.fullmatch(r"[ \t]*[0-9]{1,18}[ \t]*", text)
            or int(text) < least
            or (most is not None and int(text) > most)
        ):
            raise ValueError(
                "a whole number"
                f" {f'of at least {least}' if most is None else f'from {least} to {most}'}"
            )
        return int(text)

    return parse_whole


def replica_count(text: str) -> int | None:
    """Parser of ``all``, which is None, or a whole number of at least 1."""
    if text.strip(_BLANKS).lower() == "all":
        return None
    try:
        return integer(1)(text)
    except ValueError:
        raise ValueError("all, or a whole number of at least 1") from None


def flag_or_names(text: str) -> bool | tuple[str, ...]:
    """Parser of true, false, or a comma list of names."""
    if text.strip(_BLANKS).lower() in ("true", "false"):
        return flag(text)
    found = tuple(COMMA.split(text))
    if problem := next((each for each in map(_describe_bad_item, found) if each), None):
        raise ValueError(f"true, false, or names, comma separated; {problem}")
    return found


def flag(text: str) -> bool:
    """Parser of true or false."""
    if text.strip(_BLANKS).lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.strip(_BLANKS).lower() == "true"


def one_of(*words: str) -> Callable[[str], str]:
    """Parser of a word out of a few."""

    def parse_word(text: str) -> str:
        found = {word.lower(): word for word in words}.get(text.strip(_BLANKS).lower())
        if found is None:
            raise ValueError(f"one of {', '.join(words)}")
        return found

    return parse_word


def duration_s(text: str) -> int:
    """Parser of a time: seconds, or a number with s, m, h or d, from 1 s up."""
    found = re.fullmatch(r"[ \t]*([0-9]{1,12})[ \t]*([smhd]?)[ \t]*", text.lower())
    if not found or int(found[1]) < 1:
        raise ValueError("seconds, or a number with s, m, h or d: 30s, 12h, 7d")
    return int(found[1]) * _SECONDS_OF_UNIT[found[2]]


def size(text: str) -> int:
    """Parser of a number of bytes, from 1 up: plain, or with k, m or g, which are powers of
    1024.
    """
    found = re.fullmatch(r"[ \t]*([0-9]{1,15})[ \t]*([kmg]?)b?[ \t]*", text.lower())
    if not found or int(found[1]) < 1:
        raise ValueError("bytes, or a number with k, m or g: 64k, 10m, 1g")
    return int(found[1]) * _BYTES_OF_UNIT[found[2]]


PYTHON_VALUE = re.compile(
    r"""b['"].*['"]|[(\[{](?:\s*b?['"].*|.*,.*|)[)\]}]|(?:frozen)?set\(.*\)|<.* at 0x[0-9a-f]+>""",
    re.DOTALL,
)
"""The text that PySpark makes of bytes, a collection or an object where an option takes a text."""
PYTHON_TUPLE = re.compile(r"""\(b?['"].*,.*\)""", re.DOTALL)
"""The text of a tuple of texts: no regular expression that a user would write."""
PYTHON_VALUE_PROBLEM = (
    "this is what Python makes of a list, a tuple, bytes or an object: give one text"
)


def names(text: str) -> tuple[str, ...]:
    """Parser of queue names: a comma list, or a JSON list, where a name may hold commas and
    spaces.
    """
    wanted = (
        "queue names with commas between them, such as orders,audit, or a JSON list, such as"
        ' ["orders", "a,b"]'
    )
    if text.lstrip(_BLANKS).startswith("["):
        if not (found := _json_names(text)):
            raise ValueError(wanted)
    elif _PYTHON_COLLECTION.fullmatch(text):
        raise ValueError(f"{wanted}; this {describe_stray_character(text)}")
    else:
        found = COMMA.split(text)
        if PYTHON_VALUE.fullmatch(text):
            raise ValueError(f"{wanted}; {PYTHON_VALUE_PROBLEM}")
        if problem := next((each for each in map(_describe_bad_item, found) if each), None):
            raise ValueError(f"{wanted}; {problem}")
    return tuple(dict.fromkeys(found))


def _describe_bad_item(name: str) -> str | None:
    if not name:
        return "one of the names is empty"
    stray = describe_stray_character(name)
    return f"one of the names {stray}" if stray else None


def _json_names(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return (
        found
        if isinstance(found, list)
        and all(isinstance(name, str) and name and is_utf8(name) for name in found)
        else []
    )


def one_name(text: str) -> str:
    """Parser of one name that is not empty, without blanks around it."""
    if not text.strip(_BLANKS):
        raise ValueError("a name")
    if stray := describe_stray_character(text):
        raise ValueError(f"a name, and this one {stray}")
    if PYTHON_VALUE.fullmatch(text):
        raise ValueError(f"a name; {PYTHON_VALUE_PROBLEM}")
    return text


def redis_url(text: str) -> str:
    """Parser of redis.url: any text but an empty one; redis_io/urls.py reads it."""
    if not text.strip(_BLANKS):
        raise ValueError(
            "redis://host:port, or several separated by commas; leave it out for BUSMQ_REDIS_URL"
        )
    return text


def subscription(text: str) -> str:
    """Parser of the name of a subscription; names that begin with a colon are fields of our own
    beside them.
    """
    if one_name(text).startswith(":"):
        raise ValueError("a name that does not begin with a colon")
    return text


def pattern(text: str) -> str:
    """Parser of a regular expression."""
    if not text:
        raise ValueError("a regular expression, and this one is empty")
    if PYTHON_TUPLE.fullmatch(text):
        raise ValueError(f"a regular expression; {PYTHON_VALUE_PROBLEM}")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a Python regular expression ({error})") from None
    return text


def starting(text: str) -> OffsetBound | dict[str, Any]:
    """Parser of startingOffsets: a word, or JSON from queue to a word or the last id that counts as
    done; one level deeper, per source.
    """
    if word := _start(text):
        return word
    wanted = (
        'earliest, latest, -10m, -2h, "-1000 messages", a time such as 2026-05-01T12:00:00Z, or'
        ' JSON such as {"orders": 41, "audit": "latest", "clicks": "-10m"} (an id is the last one'
        " that counts as read)"
    )
    try:
        found = json.loads(text, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError):
        raise ValueError(wanted) from None
    if not isinstance(found, dict):
        raise ValueError(wanted)
    starts = {
        name: (
            {each: _start(start) for each, start in v.items()} if isinstance(v, dict) else _start(v)
        )
        for name, v in found.items()
    }
    if any(
        start is None
        for v in starts.values()
        for start in (v.values() if isinstance(v, dict) else (v,))
    ):
        raise ValueError(wanted)
    return starts


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def ending(text: str) -> OffsetBound | dict[str, Any]:
    """Parser of endingOffsets, as that of startingOffsets; an id is the last one that is read."""
    try:
        found = starting(text)
    except ValueError:
        found = "earliest"
    starts = (
        [start for v in found.values() for start in (v.values() if isinstance(v, dict) else (v,))]
        if isinstance(found, dict)
        else [found]
    )
    if "earliest" in starts:
        raise ValueError(
            'latest, -10m, "-1000 messages", a time such as 2026-05-01T12:00:00Z, or JSON such as'
            ' {"orders": 41, "clicks": "-10m"} (an id is the last one that is read)'
        )
    return found


def _start(found: object) -> OffsetBound | None:
    """A start, None for what is none."""
    if isinstance(found, str):
        word = found.strip().lower()
        return word if word in ("earliest", "latest") else parse_relative(found) or iso(found)
    return found if type(found) is int and 0 <= found < 2**53 else None


WEB_SOCKET_SCHEMES = ("ws", "wss", "http", "https")


def federation_urls(text: str) -> str:
    """Parser of a comma list of federation servers without names, of which the result is the
    same.
    """
    found = COMMA.split(text)
    for url in found:
        if not url:
            raise ValueError("ws://host:port/path or wss://host/path; an item of the list is empty")
        check_web_socket_url(url, WEB_SOCKET_SCHEMES)
    if len(set(found)) < len(found):
        raise ValueError("each address once")
    return ",".join(found)


def links(text: str) -> tuple[tuple[str, str], ...]:
    """Parser of federation.url: one web-socket URL, or several with names. The result is name and
    URL of each.
    """
    found = []
    for part in COMMA.split(text):
        named = re.fullmatch(r"([^=:/?]*)=(.*)", part, re.DOTALL)
        found.append((named[1], named[2]) if named else (UNNAMED_LINK, part))
    several = "one address, or several with a name of its own each: eu=wss://…,us=wss://…"
    for link, url in found:
        if not url:
            raise ValueError(f"{several}, and an item of the list is empty")
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", link) or link == LOCAL_SOURCE:
            raise ValueError(
                f"names of small letters, digits, - and _ before each =, and not {LOCAL_SOURCE!r},"
                " which is Redis itself"
            )
        try:
            check_web_socket_url(url)
        except ValueError as error:
            which = "the address" if len(found) == 1 else f"the address of {link!r}"
            raise ValueError(
                "wss://host:port/path (or ws://), or several with names: eu=wss://…,us=wss://…; of"
                f" {which}: {error}"
            ) from None
    if len({link for link, _ in found}) < len(found) or (
        len(found) > 1 and UNNAMED_LINK in dict(found)
    ):
        raise ValueError(several)
    if len({url for _, url in found}) < len(found):
        raise ValueError(f"{several}, and each address once")
    return tuple(found)


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
