"""The settings of a mirror: its queues, origin and options; values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from busmq_spark.arguments import (
    check_flag,
    check_one_of,
    check_path,
    check_text,
    check_whole,
    join_urls,
)
from busmq_spark.errors import ConfigError
from busmq_spark.extras import missing_package
from busmq_spark.options import LAYOUTS, RedisOptions
from busmq_spark.queue.keys import QueueKeys, check_name
from busmq_spark.redis_io.redis_layout import redis_layout

if TYPE_CHECKING:
    from busmq_spark.federation.address import FederationAddress

MIRROR_PATIENCE_S = 1.0
"""Seconds for which the links themselves retry a step; then the mirror pauses, and looks anew."""
RETENTIONS, NEW_LIVES = ("origin", "own"), ("stop", "follow")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSettings:
    """``origin`` is ``redis://…`` with the layout and credentials of the servers there, or
    ``wss://…`` with the secret of a federation server.
    """

    origin: str = field(repr=False)
    patterns: tuple[str, ...]
    """Names of queues; ``*``, ``?`` and ``[…]`` stand for parts of names."""
    secret: str = field(default="", repr=False)
    layout: str = "direct"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    master: str = "mymaster"
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    groups: bool = False
    """Whether the origin's group positions are copied."""
    retention: str = "origin"
    """origin: messages that the origin deletes are deleted here, too. own: they stay until the
    readers of the mirror have acked them.
    """
    new_life: str = "stop"
    """The reaction to a queue that was made anew at the origin: stop, which keeps the copy of its
    life before, or follow, which gives it up.
    """
    bytes_per_s: int = 0
    """Most bytes of values a second; 0: as fast as it goes."""
    name: str = ""
    """Of this bus, for the loop guard; '' is its address."""
    origin_name: str = ""
    """Of the bus that is mirrored; '' is its address."""
    replace: bool = False
    """Whether a queue of this bus' own is given up for the copy."""

    def __post_init__(self) -> None:
        self._check_types()
        if not self.patterns:
            raise ConfigError(
                reason=(
                    "no queue is named that shall be mirrored; expected names or patterns such as"
                    " 'orders-*'"
                )
            )
        check_one_of("retention", self.retention, RETENTIONS)
        check_one_of("new_life", self.new_life, NEW_LIVES)
        check_one_of("layout", self.layout, LAYOUTS)
        check_whole("bytes_per_s", self.bytes_per_s)
        if self.is_federated:
            self.federation.check_offline()
        else:
            redis_layout(self.redis)

    def _check_types(self) -> None:
        object.__setattr__(self, "origin", join_urls("the origin", self.origin))
        for pattern in self.patterns:
            check_name("queue to mirror", pattern)
        for name in ("groups", "replace"):
            check_flag(name, getattr(self, name))
        for name in ("secret", "user", "password", "master", "name", "origin_name"):
            if getattr(self, name) is not None and getattr(self, name) != "":
                check_text(name, getattr(self, name), secret=name in ("secret", "password"))
        for name in ("tls_ca", "tls_certificate", "tls_key"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_path(name, getattr(self, name)))

    @property
    def is_federated(self) -> bool:
        """Whether the origin is a federation server."""
        return self.origin.startswith(("ws://", "wss://"))

    @property
    def redis(self) -> RedisOptions:
        """The origin as servers."""
        return RedisOptions(
            url=self.origin,
            layout=self.layout,
            user=self.user,
            password=self.password,
            master=self.master,
            tls_ca=self.tls_ca,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
        )

    @property
    def federation(self) -> FederationAddress:
        """The origin as a federation server. Raises ToolMissing without the package for web
        sockets.
        """
        try:
            from busmq_spark.federation.address import FederationAddress
        except ModuleNotFoundError as error:
            raise missing_package(error, "federation") from None
        return FederationAddress(
            self.origin,
            self.secret,
            self.tls_ca,
            self.tls_certificate,
            self.tls_key,
            patience_s=MIRROR_PATIENCE_S,
        )

    @property
    def masked_origin(self) -> str:
        """The origin for people, without credentials."""
        return self.origin if self.is_federated else redis_layout(self.redis).masked_url

    @property
    def named_queues(self) -> list[str]:
        """Queues that are named and need not be looked for."""
        return [each for each in self.patterns if not any(sign in each for sign in "*?[")]

    def accepts(self, queue: str) -> bool:
        """Whether a queue is mirrored. Queues of channels and services, which live for moments, are
        accepted only by their name.
        """
        return matches(queue, self.patterns)


def matches(queue: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns is the name of the queue, or stands for it; for queues of
    channels and services only the first counts.
    """
    return queue in patterns or (
        QueueKeys(queue).has_clock and any(fnmatchcase(queue, each) for each in patterns)
    )
