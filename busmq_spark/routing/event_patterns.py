"""Keys of events, and the patterns they are subscribed with: words between dots, ``*`` for one
word, ``#`` at the end for any number of words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from busmq_spark.errors import ConfigError

MAX_PATTERN_CHARACTERS = 255
_WORD = r"[^\s.*#\x00-\x1f\x7f]+"
_KEY = re.compile(rf"{_WORD}(?:\.{_WORD})*")
_PATTERN = re.compile(rf"#|(?:{_WORD}|\*)(?:\.(?:{_WORD}|\*))*(?:\.#)?")


def check_key(key: object) -> str:
    """A key of an event. Raises ConfigError."""
    if not isinstance(key, str) or not _fits(_KEY, key):
        raise ConfigError(
            reason=(
                f"the key of an event is {key!r}; expected words with dots between them, such as"
                " user.signup, without * and #"
            )
        )
    return key


def check_pattern(pattern: object) -> str:
    """Check a pattern of a subscription. Raises ConfigError."""
    if not isinstance(pattern, str) or not _fits(_PATTERN, pattern):
        raise ConfigError(
            reason=(
                f"the pattern is {pattern!r}; expected words with dots between them, * for any one"
                " word, and # for the rest, at the end only"
            )
        )
    return pattern


def matches(pattern: str, key: str) -> bool:
    """Whether an event with this key is for who subscribed with this pattern: ``a.*`` has a.b,
    ``a.#`` has a, a.b and a.b.c.
    """
    wanted, words = pattern.split("."), key.split(".")
    rest = wanted[-1] == "#"
    if rest:
        wanted.pop()
    if len(words) < len(wanted) or (not rest and len(words) > len(wanted)):
        return False
    return all(want in ("*", word) for want, word in zip(wanted, words, strict=False))


def covers(granted: str, wanted: str) -> bool:
    """Whether every key that ``wanted`` matches is one that ``granted`` matches.

    Word by word, ``*`` covers each word and ``*``, a word covers itself only. A pattern that ends
    in ``#`` covers those with as many words or more; any other those with as many words and no
    ``#``. A key has a word at least, so ``#`` is the same as ``*.#``.
    """
    (outer, outer_rest), (inner, inner_rest) = _split(granted), _split(wanted)
    if len(inner) < len(outer) or (not outer_rest and (inner_rest or len(inner) > len(outer))):
        return False
    return all(one in ("*", other) for one, other in zip(outer, inner, strict=False))


def overlaps(one: str, other: str) -> bool:
    """Whether some key is matched by both patterns."""
    (left, left_rest), (right, right_rest) = _split(one), _split(other)
    if (len(left) < len(right) and not left_rest) or (len(right) < len(left) and not right_rest):
        return False
    return all("*" in (a, b) or a == b for a, b in zip(left, right, strict=False))


def _split(pattern: str) -> tuple[list[str], bool]:
    """Its words, and whether any number of words may follow them."""
    words = ("*.#" if pattern == "#" else pattern).split(".")
    return (words[:-1], True) if words[-1] == "#" else (words, False)


def destinations(table: Iterable[tuple[str, str]], keys: Iterable[str]) -> list[str]:
    """The distinct queues of a table of pattern and queue that an event with these keys goes to,
    sorted.
    """
    asked = list(keys)
    return sorted(
        {queue for pattern, queue in table if any(matches(pattern, key) for key in asked)}
    )


def _fits(form: re.Pattern[str], text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return len(text) <= MAX_PATTERN_CHARACTERS and form.fullmatch(text) is not None
