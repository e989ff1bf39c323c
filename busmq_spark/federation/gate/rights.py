"""The rights of peers: patterns of objects, the verbs of a secret on them, and the decision.

Patterns of objects, and the verbs that a secret has on them. Pure; rights.py decides with them.

A grant is a pattern of names, ``orders-*``, for objects of every kind, or of one:
``queue:orders-*``. ``*`` stands for any characters, also none; everything else for itself. A name
in ``deny`` is refused, whatever else allows it.

Subscriptions and sinks have owners (rights.py). Patterns reach them only with their kind:
``subscription:billing``, ``sink:nightly-*``.

Events have keys and patterns of their own (routing/event_patterns.py): ``events = ["payment.*"]``
lets a queue be subscribed with each pattern that one of these covers. ``deny =
["event:payment.secret"]`` refuses each pattern that some key of these falls under. Nothing else
gives this right, and it reaches no queue.

The rights of peers: decided here for both protocols. Which rights a call needs stands with the
call (bulk/operations.py, serve/objects). Pure.

Rule 1. Whatever a peer asks for is first said as rights: verbs on objects, at least one.
Rule 2. A sink belongs to the secret that uses it: sinks of two secrets are two sinks, whatever they
        are called, and neither is a sink of a query beside the server (queue/keys.py spells them
        apart). ``sink:`` patterns under ``push`` leave only what they name.
Rule 3. A subscription belongs to the secret that registered it. Others use it only where a
        ``subscription:`` pattern under ``consume`` names it, or with ``admin`` on its queue. If
        such patterns are given, they allow nothing else.
Rule 4. A token acts for the secret it was signed with. A narrowed token has sinks and subscriptions
        of its own, shared by tokens with the same narrowing.
Rule 5. A subscription of a queue to events belongs to its maker, by Rules 2 and 4. It needs
        ``events`` patterns that cover it, and ``push`` on the queue. ``create`` where there is no
        such queue.
Rule 6. Places that secrets share are counted by the secret, for all of its tokens together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from typing import Any, Literal, NoReturn, Self, cast, get_args

from busmq_spark.errors import ConfigError, FederationRefused
from busmq_spark.queue.keys import REPLY_QUEUE_SUFFIX
from busmq_spark.routing.event_patterns import check_pattern, covers, overlaps

Verb = Literal["browse", "consume", "push", "create", "admin"]
VERBS: tuple[Verb, ...] = get_args(Verb)
VERB_SETS: dict[str, tuple[Verb, ...]] = {
    "read": ("browse", "consume"),
    "write": ("push", "create"),
}
"""Settings that stand for several verbs."""
EVENTS_SETTING = "events"
EVENT_KIND = "event"
ALL_EVENTS = "#"
GRANT_SETTINGS = (*VERB_SETS, *VERBS)
OBJECT_KINDS = ("queue", "channel", "pubsub", "persistify", "service")
OWNED_KINDS = ("subscription", "sink")
DENY_SETTING = "deny"
KNOWN_SETTINGS = (*GRANT_SETTINGS, EVENTS_SETTING, DENY_SETTING)


@dataclass(frozen=True, slots=True)
class GrantPattern:
    """A pattern; matching takes time linear in the name, which a peer chooses."""

    kind: str | None
    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ConfigError for an empty pattern and for a kind that is misspelt: a ``deny`` that
        denies nothing must not pass.
        """
        kinds = (*OBJECT_KINDS, *OWNED_KINDS, EVENT_KIND)
        kind, colon, name = text.partition(":")
        if not colon or kind not in kinds:
            near = get_close_matches(kind.lower(), kinds, n=1, cutoff=0.75) if colon else []
            if near:
                raise ConfigError(
                    reason=(
                        f"pattern {text!r} begins with {kind!r}; did you mean {near[0] + ':'!r}?"
                        f" Kinds are: {', '.join(kinds)}"
                    )
                )
            kind, name = "", text
        if colon and text.startswith(f"{EVENT_KIND}:"):
            raise ConfigError(
                reason=(
                    f"pattern {text!r} is of events; expected it under deny, or without"
                    f" {EVENT_KIND}: under {EVENTS_SETTING}"
                )
            )
        if not name:
            raise ConfigError(
                reason=(
                    f"pattern {text!r} names nothing; expected a name such as orders-*, or *"
                    " for all"
                )
            )
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
        if (
            len(name) < len(first) + len(last)
            or not name.startswith(first)
            or not name.endswith(last)
        ):
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
    events: tuple[str, ...] = field(default=(), repr=False)
    denied_events: tuple[str, ...] = field(default=(), repr=False)
    """Patterns of events. Not in the repr: owners of narrowed tokens are named by a digest of it
    (rights.py).
    """

    @classmethod
    def all_allowed(cls) -> Self:
        """Everything is allowed: all verbs, on all names, and all events."""
        return cls({verb: (GrantPattern.parse("*"),) for verb in VERBS}, events=(ALL_EVENTS,))

    @classmethod
    def parse(cls, table: Mapping[str, Any], where: str) -> Self:
        """From lists of patterns under verbs, ``read``, ``write``, ``events`` and ``deny``. Raises
        ConfigError, which names ``where``.
        """
        for key in table:
            if key not in KNOWN_SETTINGS:
                near = get_close_matches(str(key), (*KNOWN_SETTINGS, "secret"), n=1, cutoff=0.6)
                hint = (
                    f"did you mean {near[0]!r}?"
                    if near
                    else f"known are: secret, {', '.join(KNOWN_SETTINGS)}"
                )
                raise ConfigError(reason=f"{where}: unknown setting {str(key)!r}; {hint}")
        texts = {key: _texts(table.get(key, []), where, key) for key in KNOWN_SETTINGS}
        head = f"{EVENT_KIND}:"
        events = _event_patterns(texts.pop(EVENTS_SETTING), where)
        denied_events = _event_patterns(
            [text.removeprefix(head) for text in texts[DENY_SETTING] if text.startswith(head)],
            where,
        )
        texts[DENY_SETTING] = [text for text in texts[DENY_SETTING] if not text.startswith(head)]
        lists = {key: tuple(map(GrantPattern.parse, found)) for key, found in texts.items()}
        named = {
            verb: (verb, *(key for key, verbs in VERB_SETS.items() if verb in verbs))
            for verb in VERBS
        }
        allowed = {
            verb: tuple(pattern for key in keys for pattern in lists[key])
            for verb, keys in named.items()
        }
        return cls(allowed, lists[DENY_SETTING], events, denied_events)

    def may(self, verb: str, kind: str, name: str) -> bool:
        """Whether ``verb`` (or each of a set of them) on the object is granted, and not denied."""
        if verb in VERB_SETS:
            return all(self.may(each, kind, name) for each in VERB_SETS[verb])
        if not any(pattern.matches(kind, name) for pattern in self._patterns_of(verb)):
            return False
        return not self.denies(kind, name)

    def may_take_events(self, pattern: str) -> bool:
        """Whether a queue may be subscribed with this pattern."""
        return any(covers(each, pattern) for each in self.events) and not any(
            overlaps(each, pattern) for each in self.denied_events
        )

    def denies(self, kind: str, name: str) -> bool:
        """Whether ``deny`` names it."""
        return any(pattern.matches(kind, name) for pattern in self.denied)

    def may_any(self, verb: str, kind: str) -> bool:
        """Whether any object of the kind may fall under what is granted."""
        return any(pattern.covers(kind) for pattern in self._patterns_of(verb))

    def _patterns_of(self, verb: str) -> Iterator[GrantPattern]:
        return iter(self.allowed.get(cast("Verb", verb), ()))


def outer_objects(kind: str, name: str) -> list[tuple[str, str]]:
    """Which object a queue is the inside of, if of any: who may not use that does not get at it
    this way.
    """
    head, colon, rest = name.partition(":")
    if kind != "queue" or not colon:
        return []
    if head == "channel":
        return [("channel", rest.partition(":")[2])]
    return [("service", REPLY_QUEUE_SUFFIX.sub("", rest))] if head == "service" else []


def _texts(given: Any, where: str, key: str) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise ConfigError(
            reason=(
                f"{where}: {key} is not a list of patterns; expected for example {key} ="
                ' ["orders-*", "channel:chat"]'
            )
        )
    return given


def _event_patterns(texts: list[str], where: str) -> tuple[str, ...]:
    try:
        return tuple(map(check_pattern, texts))
    except ConfigError as error:
        raise ConfigError(reason=f"{where}: {error.details['reason']}") from None


Verbs = tuple[Verb, ...]


@dataclass(frozen=True, slots=True)
class RequiredRight:
    """One of the verbs on an object; without a name, on any object of the kind."""

    verbs: Verbs
    kind: str
    name: str | None

    def __str__(self) -> str:
        if self.kind == EVENT_KIND:
            return f"take events {self.name!r}"
        what = "use" if self.verbs == VERBS else " or ".join(self.verbs)
        return (
            f"{what} {self.kind} {self.name!r}"
            if self.name is not None
            else f"{what} any {self.kind}"
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a peer that has shown a secret, or a token signed with it. ``expires``:
    seconds since 1970 after which the token counts no more.
    """

    name: str
    grants: Grants
    narrowed: Grants | None = None
    expires: float | None = None
    key: bytes = field(default=b"", repr=False)
    """Tells secrets of the same name apart: a new secret has another key."""

    @property
    def owner(self) -> str:
        """Return the owner of the sinks and subscriptions that it registers; no colon in it."""
        if self.narrowed is None:
            return self.name
        events = (self.narrowed.events, self.narrowed.denied_events)
        text = f"{self.narrowed!r}{events if any(events) else ''}"
        return f"{self.name}~{sha256(text.encode()).hexdigest()[:12]}"

    def may(self, verb: str, kind: str, name: str) -> bool:
        """Whether it may ``verb`` the object. The queues inside a channel or service take the
        grants of both.
        """
        if kind == EVENT_KIND:
            return all(grants.may_take_events(name) for grants in self._grant_levels)
        if kind in OWNED_KINDS:
            return all(_may_own(grants, verb, kind, name) for grants in self._grant_levels)
        objects = [(kind, name), *outer_objects(kind, name)]
        return all(grants.may(verb, *each) for grants in self._grant_levels for each in objects)

    def has_right(self, right: RequiredRight) -> bool:
        """Whether it has this right."""
        if right.name is None:
            return any(
                all(grants.may_any(verb, right.kind) for grants in self._grant_levels)
                for verb in right.verbs
            )
        return any(self.may(verb, right.kind, right.name) for verb in right.verbs)

    def require_rights(self, rights: Iterable[RequiredRight]) -> None:
        """Raises FederationRefused for the first that it does not have, and when none is named."""
        none = True
        for right in rights:
            none = False
            if not self.has_right(right):
                self.raise_refused(str(right))
        if none:
            self.raise_refused("do what names no object")

    def may_use(self, queue: str, subscription: str, owner: str) -> bool:
        """Whether a subscription that belongs to ``owner`` is its to use."""
        named = any(grants.may_any("consume", "subscription") for grants in self._grant_levels)
        return (
            owner == self.owner
            or self.may("admin", "queue", queue)
            or (named and self.may("consume", "subscription", subscription))
        )

    def raise_refused(self, what: str) -> NoReturn:
        """Raises FederationRefused."""
        raise FederationRefused(url="this bus", reason=f"{self.name!r} may not {what}")

    @property
    def _grant_levels(self) -> list[Grants]:
        return [self.grants] if self.narrowed is None else [self.grants, self.narrowed]


def _may_own(grants: Grants, verb: str, kind: str, name: str) -> bool:
    """Whether subscriptions or sinks (``kind``) of this name may be its own. With patterns for the
    kind, those decide; without, an identity that may ``verb`` some queue may own subscriptions and
    sinks of every name.
    """
    if grants.denies(kind, name):
        return False
    return (
        grants.may(verb, kind, name)
        if grants.may_any(verb, kind)
        else grants.may_any(verb, "queue")
    )


ANYONE = Identity("anyone", Grants.all_allowed())
"""The identity of peers of a server without secrets, which listens on this machine only."""
