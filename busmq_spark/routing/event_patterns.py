"""Keys of events, the patterns they are subscribed with, and the index of patterns.

Keys of events, and the patterns they are subscribed with: words between dots, ``*`` for one
word, ``#`` at the end for any number of words.

Which rows of the table of subscriptions take the events of a key, found word by word. Pure.

A look-up visits the words of the key and the ``*`` beside them. Rows with other words cost nothing.
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


LOCAL_OWNER = ""
"""The owner of rows that programs beside a federation server have made."""
_NOBODY: frozenset[str] = frozenset()


def owners_of(value: str) -> frozenset[str]:
    """The owners of a row, by its value: ``@<owner>=<token>`` is a peer, another word a program."""
    words = value.split(" ")
    return frozenset(
        word[1:].partition("=")[0] if word[:1] == "@" else LOCAL_OWNER for word in words
    )


class _Node:
    """A word of patterns: rows that end here, those with ``#`` next, words that follow."""

    __slots__ = ("ending", "following", "rest")

    def __init__(self) -> None:
        self.ending: dict[str, frozenset[str]] = {}
        self.rest: dict[str, frozenset[str]] = {}
        self.following: dict[str, _Node] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.ending or self.rest or self.following)


class EventIndex:
    """The rows of a table, by the words of their patterns.

    Rows whose first word no key has asked for wait as they are.
    """

    def __init__(self) -> None:
        self._root = _Node()
        self._waiting: dict[str, dict[tuple[str, str], str]] = {}
        self._placed: set[str] = set()
        """The first words whose rows have nodes."""

    def put(self, pattern: str, queue: str, value: str) -> None:
        """Add a row, or change its value."""
        first = pattern.partition(".")[0]
        if first in self._placed:
            self._place(pattern, queue, value)
        else:
            self._waiting.setdefault(first, {})[pattern, queue] = value

    def remove(self, pattern: str, queue: str) -> None:
        """Forget a row."""
        first = pattern.partition(".")[0]
        if first not in self._placed:
            waiting = self._waiting.get(first, {})
            waiting.pop((pattern, queue), None)
            if not waiting:
                self._waiting.pop(first, None)
            return
        path = self._path(pattern, create=False)
        if not path:
            return
        self._rows_at(path[-1], pattern).pop(queue, None)
        words = pattern.split(".")
        for at in range(len(path) - 1, 0, -1):
            if not path[at].is_empty:
                return
            del path[at - 1].following[words[at - 1]]

    def find(self, key: str) -> dict[str, frozenset[str]]:
        """The queues that take the events of a key, each with the owners of its rows."""
        words = key.split(".")
        for first in (words[0], "*", "#"):
            for (pattern, queue), value in self._waiting.pop(first, {}).items():
                self._placed.add(first)
                self._place(pattern, queue, value)
        found: dict[str, frozenset[str]] = {}
        nodes = [self._root]
        for word in words:
            merge_owners(found, (node.rest for node in nodes))
            nodes = [
                following
                for node in nodes
                for each in (word, "*")
                if (following := node.following.get(each))
            ]
        merge_owners(found, (rows for node in nodes for rows in (node.rest, node.ending)))
        return found

    def _place(self, pattern: str, queue: str, value: str) -> None:
        self._rows_at(self._path(pattern, create=True)[-1], pattern)[queue] = owners_of(value)

    @staticmethod
    def _rows_at(node: _Node, pattern: str) -> dict[str, frozenset[str]]:
        return node.rest if pattern.endswith("#") else node.ending

    def _path(self, pattern: str, *, create: bool) -> list[_Node]:
        """The nodes of a pattern's words, from the root on; none where one of them is missing."""
        path = [self._root]
        for word in pattern.removesuffix("#").rstrip(".").split(".") if pattern != "#" else ():
            node = path[-1].following.get(word)
            if node is None:
                if not create:
                    return []
                node = path[-1].following[word] = _Node()
            path.append(node)
        return path


def merge_owners(
    into: dict[str, frozenset[str]], several: Iterable[dict[str, frozenset[str]]]
) -> None:
    """Add queues with their owners to ``into``."""
    for rows in several:
        for queue, owners in rows.items():
            into[queue] = into.get(queue, _NOBODY) | owners
