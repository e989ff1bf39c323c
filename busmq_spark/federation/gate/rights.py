"""The rights of peers: decided here for both protocols. Which rights a call needs stands with the
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

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NoReturn

from busmq_spark.errors import FederationRefused
from busmq_spark.federation.gate.grants import (
    EVENT_KIND,
    OWNED_KINDS,
    VERBS,
    Grants,
    Verb,
    outer_objects,
)

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
