"""Who may do what with which object. Pure.

A grant is a pattern of names, ``orders-*``, for objects of every kind, or of one: ``queue:orders-*``. ``*`` stands for any characters, also
none; everything else for itself. What ``deny`` names is refused, whatever else allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Self

from busmq_spark.core.keys import REPLIES
from busmq_spark.errors import ConfigError

Verb = Literal["read", "write", "admin"]
VERBS: tuple[Verb, ...] = ("read", "write", "admin")
KINDS = ("queue", "channel", "pubsub", "persistify", "service")
DENY = "deny"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern; matching takes time linear in the name, which a peer chooses."""

    kind: str | None
    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ConfigError for an empty pattern and for a kind that is misspelt: a ``deny`` that denies nothing must not pass."""
        kind, colon, name = text.partition(":")
        if not colon or kind not in KINDS:
            near = get_close_matches(kind.lower(), KINDS, n=1, cutoff=0.75) if colon else []
            if near:
                raise ConfigError(reason=f"pattern {text!r} begins with {kind!r}; did you mean {near[0] + ':'!r}? Kinds are: {', '.join(KINDS)}")
            kind, name = "", text
        if not name:
            raise ConfigError(reason=f"pattern {text!r} names nothing; expected a name such as orders-*, or * for all")
        return cls(kind or None, tuple(name.split("*")))

    def matches(self, kind: str, name: str) -> bool:
        """Whether the object falls under it."""
        if self.kind not in (None, kind):
            return False
        first, *middle = self.pieces
        if not middle:
            return name == first
        last = middle.pop()
        if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
            return False
        at, end = len(first), len(name) - len(last)
        for piece in middle:
            at = name.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


@dataclass(frozen=True, slots=True)
class Grants:
    """Patterns by verb. A verb implies no other: whoever may write may not read unless it says so."""

    allowed: Mapping[str, tuple[Pattern, ...]]
    denied: tuple[Pattern, ...] = ()

    @classmethod
    def everything(cls) -> Self:
        """All verbs on everything."""
        return cls({verb: (Pattern.parse("*"),) for verb in VERBS})

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str) -> Self:
        """From lists of patterns under ``read``, ``write``, ``admin`` and ``deny``. Raises ConfigError, which names ``where``."""
        for key in table:
            if key not in (*VERBS, DENY):
                near = get_close_matches(str(key), (*VERBS, DENY, "secret"), n=1, cutoff=0.6)
                hint = f"did you mean {near[0]!r}?" if near else f"known are: secret, {', '.join((*VERBS, DENY))}"
                raise ConfigError(reason=f"{where}: unknown setting {str(key)!r}; {hint}")
        return cls({verb: _patterns(table.get(verb, []), where, verb) for verb in VERBS}, _patterns(table.get(DENY, []), where, DENY))

    def may(self, verb: str, kind: str, name: str) -> bool:
        """Whether ``verb`` on the object is granted, and not denied."""
        if kind not in KINDS or not any(pattern.matches(kind, name) for pattern in self.allowed.get(verb, ())):
            return False
        return not any(pattern.matches(kind, name) for pattern in self.denied)


def inside_of(kind: str, name: str) -> list[tuple[str, str]]:
    """Which object a queue is the inside of, if of any: whoever may not use that does not get at it this way."""
    head, colon, rest = name.partition(":")
    if kind != "queue" or not colon:
        return []
    if head == "channel":
        return [("channel", rest.partition(":")[2])]
    return [("service", REPLIES.sub("", rest))] if head == "service" else []


def _patterns(given: Any, where: str, key: str) -> tuple[Pattern, ...]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise ConfigError(reason=f'{where}: {key} is not a list of patterns; expected for example {key} = ["orders-*", "channel:chat"]')
    return tuple(Pattern.parse(text) for text in given)
