"""The master that Redis Sentinel names. Asked at every connect, so a fail-over needs no
notification (Redis' guidelines for Sentinel clients).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis.exceptions as rx

from busmq_spark.errors import BusError, ConfigError
from busmq_spark.redis_io.connection_factory import (
    async_connection,
    opening,
    sync_connection,
)
from busmq_spark.redis_io.endpoint import NoServerReachable
from busmq_spark.redis_io.resp_codec import pack_words
from busmq_spark.redis_io.translate import translate_redis_error
from busmq_spark.redis_io.urls import (
    DEFAULT_MASTER,
    NO_LOGIN,
    DefaultCredentials,
    RedisServerAddress,
)

_SENTINEL_TIMEOUT_S = 2.0
"""Longest wait for one sentinel: the others may know better."""


@dataclass(frozen=True, slots=True)
class SentinelMaster:
    """The endpoint of a master that some sentinels watch. ``login`` is for the data servers; a
    sentinel's own credentials stand in its URL.
    """

    sentinels: tuple[RedisServerAddress, ...]
    name: str = DEFAULT_MASTER
    login: DefaultCredentials = NO_LOGIN

    may_move = True

    @property
    def masked_url(self) -> str:
        """``mymaster@`` and the sentinels."""
        return f"{self.name}@{','.join(sentinel.masked_url for sentinel in self.sentinels)}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of the sentinels and of the data servers."""
        own = tuple(secret for secret in (self.login.password, self.login.user) if secret)
        return (*own, *(secret for sentinel in self.sentinels for secret in sentinel.secrets))

    def resolve(self) -> RedisServerAddress:
        """Ask one sentinel after the other who is master."""
        problems: list[BusError | None] = []
        for sentinel in self.sentinels:
            connection = sync_connection(
                sentinel, reply_s=_SENTINEL_TIMEOUT_S, connect_s=_SENTINEL_TIMEOUT_S
            )
            try:
                connection.connect()
                connection.send_packed_command([self._master_command], check_health=False)
                reply = connection.read_response(disable_decoding=True)
            except (rx.RedisError, OSError) as error:
                problems.append(translate_redis_error(error, sentinel))
                continue
            finally:
                connection.disconnect()
            if (found := self._parse_server(reply)) is not None:
                return found
            problems.append(None)
        raise self._unreachable_error(problems)

    async def resolve_async(self) -> RedisServerAddress:
        """Resolve on the running loop."""
        problems: list[BusError | None] = []
        for sentinel in self.sentinels:
            connection = async_connection(sentinel)
            try:
                async with opening(connection, _SENTINEL_TIMEOUT_S, _SENTINEL_TIMEOUT_S):
                    await connection.connect()
                    await connection.send_packed_command(self._master_command, check_health=False)
                    reply = await connection.read_response(disable_decoding=True)
            except (rx.RedisError, OSError) as error:
                problems.append(translate_redis_error(error, sentinel))
                continue
            finally:
                await connection.disconnect(nowait=True)
            if (found := self._parse_server(reply)) is not None:
                return found
            problems.append(None)
        raise self._unreachable_error(problems)

    @property
    def _master_command(self) -> bytes:
        return pack_words(("SENTINEL", "get-master-addr-by-name", self.name))

    def _parse_server(self, reply: Any) -> RedisServerAddress | None:
        if not reply:
            return None
        host, port = (part.decode() for part in reply)
        tls = self.sentinels[0].tls
        return RedisServerAddress(
            host, int(port), tls, None, self.login.user, self.login.password, self.login.trust
        )

    def _unreachable_error(self, problems: list[BusError | None]) -> BusError:
        """Why no sentinel named a master: that it does not know the name weighs more than that
        others are down.
        """
        if None in problems:
            return ConfigError(
                reason=(
                    f"the sentinels know no master {self.name!r} ({self.masked_url}); name the one"
                    " they watch with redis.sentinelMaster"
                )
            )
        last = problems[-1]
        if last is not None and not last.retriable:
            return last
        return NoServerReachable(
            url=self.masked_url,
            reason=f"no sentinel answers: {last.details['reason'] if last else 'none is named'}",
        )
