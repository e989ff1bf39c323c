"""Patterns of objects, and the verbs that a secret has on them. Pure; rights.py decides with them.

A grant is a pattern of names, ``orders-*``, for objects of every kind, or of one: ``queue:orders-*``. ``*`` stands for any characters, also
none; everything else for itself. What ``deny`` names is refused, whatever else allows it.

Subscriptions and sinks have owners (rights.py). Patterns reach them only with their kind: ``subscription:billing``, ``sink:nightly-*``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Self, cast, get_args

from busmq_spark.core.keys import REPLY_QUEUE_SUFFIX
from busmq_spark.errors import ConfigError

Verb = Literal["browse", "consume", "push", "create", "admin"]
VERBS: tuple[Verb, ...] = get_args(Verb)
VERB_SETS: dict[str, tuple[Verb, ...]] = {"read": ("browse", "consume"), "write": ("push", "create")}
"""Settings that stand for several verbs."""
GRANT_SETTINGS = (*VERB_SETS, *VERBS)
OBJECT_KINDS = ("queue", "channel", "pubsub", "persistify", "service")
OWNED_KINDS = ("subscription", "sink")
DENY_SETTING = "deny"


@dataclass(frozen=True, slots=True)
class GrantPattern:
    """One pattern; matching takes time linear in the name, which a peer chooses."""

    kind: str | None
    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ConfigError for an empty pattern and for a kind that is misspelt: a ``deny`` that denies nothing must not pass."""
        kinds = (*OBJECT_KINDS, *OWNED_KINDS)
        kind, colon, name = text.partition(":")
        if not colon or kind not in kinds:
            near = get_close_matches(kind.lower(), kinds, n=1, cutoff=0.75) if colon else []
            if near:
                raise ConfigError(reason=f"pattern {text!r} begins with {kind!r}; did you mean {near[0] + ':'!r}? Kinds are: {', '.join(kinds)}")
            kind, name = "", text
        if not name:
            raise ConfigError(reason=f"pattern {text!r} names nothing; expected a name such as orders-*, or * for all")
        return cls(kind or None, tuple(name.split("*")))

    def covers(self, kind: str) -> bool:
        """Whether any object of this kind may fall under it."""
        return self.kind == kind or (self.kind is None and kind in OBJECT_KINDS)

    def matches(self, kind: str, name: str) -> bool:
        """Whether the object falls under it."""
        if not self.covers(kind):
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
    """Patterns by verb. A verb implies no other: a right to push gives no right to browse."""

    allowed: Mapping[Verb, tuple[GrantPattern, ...]]
    denied: tuple[GrantPattern, ...] = ()

    @classmethod
    def all_allowed(cls) -> Self:
        """Everything is allowed: all verbs, on all names."""
        return cls({verb: (GrantPattern.parse("*"),) for verb in VERBS})

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str) -> Self:
        """From lists of patterns under verbs, ``read``, ``write`` and ``deny``. Raises ConfigError, which names ``where``."""
        for key in table:
            if key not in (*GRANT_SETTINGS, DENY_SETTING):
                near = get_close_matches(str(key), (*GRANT_SETTINGS, DENY_SETTING, "secret"), n=1, cutoff=0.6)
                hint = f"did you mean {near[0]!r}?" if near else f"known are: secret, {', '.join((*GRANT_SETTINGS, DENY_SETTING))}"
                raise ConfigError(reason=f"{where}: unknown setting {str(key)!r}; {hint}")
        lists = {key: _patterns(table.get(key, []), where, key) for key in (*GRANT_SETTINGS, DENY_SETTING)}
        named = {verb: (verb, *(key for key, verbs in VERB_SETS.items() if verb in verbs)) for verb in VERBS}
        return cls({verb: tuple(pattern for key in keys for pattern in lists[key]) for verb, keys in named.items()}, lists[DENY_SETTING])

    def may(self, verb: str, kind: str, name: str) -> bool:
        """Whether ``verb`` (or each of a set of them) on the object is granted, and not denied."""
        if verb in VERB_SETS:
            return all(self.may(each, kind, name) for each in VERB_SETS[verb])
        if not any(pattern.matches(kind, name) for pattern in self._patterns_of(verb)):
            return False
        return not self.denies(kind, name)

    def denies(self, kind: str, name: str) -> bool:
        """Whether ``deny`` names it."""
        return any(pattern.matches(kind, name) for pattern in self.denied)

    def may_any(self, verb: str, kind: str) -> bool:
        """Whether any object of the kind may fall under what is granted."""
        return any(pattern.covers(kind) for pattern in self._patterns_of(verb))

    def _patterns_of(self, verb: str) -> Iterator[GrantPattern]:
        return iter(self.allowed.get(cast("Verb", verb), ()))


def outer_objects(kind: str, name: str) -> list[tuple[str, str]]:
    """Which object a queue is the inside of, if of any: who may not use that does not get at it this way."""
    head, colon, rest = name.partition(":")
    if kind != "queue" or not colon:
        return []
    if head == "channel":
        return [("channel", rest.partition(":")[2])]
    return [("service", REPLY_QUEUE_SUFFIX.sub("", rest))] if head == "service" else []


def _patterns(given: Any, where: str, key: str) -> tuple[GrantPattern, ...]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise ConfigError(reason=f'{where}: {key} is not a list of patterns; expected for example {key} = ["orders-*", "channel:chat"]')
    return tuple(GrantPattern.parse(text) for text in given)
