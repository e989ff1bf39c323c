"""Arguments of a program: each is taken as it is, or refused with ConfigError; none is converted in
silence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from os import PathLike, fspath
from typing import Any

from busmq_spark.errors import ConfigError

MAX_WHOLE = 2**53 - 1
"""The highest number that every peer can hold."""


def check_whole(name: str, value: object, least: int = 0, most: int = MAX_WHOLE) -> int:
    """Return a whole number of this range; True and False are none."""
    if type(value) is not int or not least <= value <= most:
        upto = f"from {least} to {most}" if most < MAX_WHOLE else f"of at least {least}"
        raise ConfigError(reason=f"{name} is {show(value)}; expected a whole number {upto}")
    return value


def check_number(name: str, value: object, least: float, most: float, unit: str) -> float:
    """Return a number of this range; True, False and NaN are none."""
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        not isinstance(value, int | float)
        or not whole
        or math.isnan(value)
        or not least <= value <= most
    ):
        raise ConfigError(
            reason=f"{name} is {show(value)}; expected {least:g} to {most:.0f} {unit}"
        )
    return value


def check_flag(name: str, value: object) -> bool:
    """Return True or False; 1, 0, "false" and None are neither."""
    if not isinstance(value, bool):
        raise ConfigError(reason=f"{name} is {show(value)}; expected True or False")
    return value


def check_text(name: str, value: object, *, secret: bool = False) -> str:
    """Return a text that is not empty and that UTF-8 can hold."""
    if not isinstance(value, str) or not value or not is_utf8(value):
        shown = (
            f"a {type(value).__name__} that must not be shown" if secret and value else show(value)
        )
        raise ConfigError(
            reason=f"{name} is {shown}; expected text, not empty, that UTF-8 can hold"
        )
    return value


def check_texts(name: str, value: object) -> tuple[str, ...]:
    """Return the texts of a list or tuple; one text alone is a list of one."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list | tuple):
        raise ConfigError(reason=f"{name} is {show(value)}; expected a list of texts")
    return tuple(check_text(f"one of {name}", each) for each in several)


def check_items(name: str, value: object, kind: type | None = None) -> list[Any]:
    """Return the items of an iterable, each of a kind; bytes and mappings are no iterables here,
    since their items are not what a caller means.
    """
    if isinstance(value, bytes | bytearray | memoryview | Mapping) or not isinstance(
        value, Iterable
    ):
        raise ConfigError(reason=f"{name} is {show(value)}; expected a list")
    items = list(value)
    if kind is not None:
        for each in items:
            check_instance(f"one of {name}", each, kind)
    return items


def check_instance(name: str, value: object, kind: type) -> None:
    """Raise ConfigError for what is no object of a class."""
    if not isinstance(value, kind):
        raise ConfigError(reason=f"{name} is {show(value)}; expected a {kind.__name__}")


def check_words(name: str, value: object) -> list[str]:
    """Return the texts of an iterable; one text alone is a list of one."""
    return [
        check_text(f"one of {name}", each)
        for each in ((value,) if isinstance(value, str) else check_items(name, value))
    ]


def check_mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return a mapping whose keys are texts."""
    if not isinstance(value, Mapping):
        raise ConfigError(reason=f"{name} is {show(value)}; expected a dictionary")
    for key in value:
        check_text(f"a key of {name}", key)
    return value


def check_function(name: str, value: object) -> None:
    """Raise ConfigError for what cannot be called."""
    if not callable(value):
        raise ConfigError(reason=f"{name} is {show(value)}; expected a function")


def check_path(name: str, value: object) -> str:
    """Return the path of a file as text."""
    path = fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(path, str) or not path or "\x00" in path:
        raise ConfigError(
            reason=f"{name} is {show(value)}; expected the path of a file, as text or a Path"
        )
    return path


def join_urls(name: str, value: object) -> str:
    """Return the comma list of one URL or of several in a list or tuple. A URL shows in no
    error.
    """
    given = list(value) if isinstance(value, list | tuple) else [value]
    several = [url for url in given if isinstance(url, str)]
    if not several or len(several) < len(given):
        wrong = next((url for url in given if not isinstance(url, str)), given)
        raise ConfigError(
            reason=(
                f"{name} is or holds a {type(wrong).__name__}; expected a URL as text, or a list of"
                " URLs"
            )
        )
    if len(several) > 1 and any("," in url for url in several):
        raise ConfigError(
            reason=f"{name} is a list, and one of its URLs has a comma; write the comma as %2C"
        )
    return ",".join(several)


def check_one_of(name: str, value: object, allowed: Collection[str]) -> str:
    """Return one of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(reason=f"{name} is {show(value)}; expected {' or '.join(allowed)}")
    return value


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold a text: half of a surrogate pair is no character."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def show(value: object) -> str:
    """Return a value for an error: ASCII, and cut."""
    try:
        text = ascii(value)
    except Exception:  # noqa: BLE001  # code of others
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}…"
