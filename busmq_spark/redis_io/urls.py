"""The URLs of servers, and the check of the addresses that a user gave.

Text to servers: ``redis://[user:password@]host[:port]``, ``rediss://`` for TLS,
``unix:///path``; several separated by commas.

The order of the list matters, as in npm busmq (all peers use the same), and a user part without a
colon is the password: ``redis://secret@host``. The bus is always in database 0: npm peers and
clusters know no other. Each other part of a URL is refused.

jvm-shim/src/main/java/busmq/spark/redis/Urls.java does the same.

The addresses in the options a user gave, checked as far as can be before anything is connected.
Needs no client of Redis: planners check, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote_to_bytes

from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import (
    COMMA,
    check_secret,
    describe_stray_character,
    host_and_port,
    split_url,
)
from busmq_spark.options import RedisOptions

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
DEFAULT_MASTER = "mymaster"
"""The default name of the master in most installations of Sentinel."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the PEM files with which TLS is checked. A path of None means the system's
    authorities, and no certificate of our own.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    check_hostname: bool = True


SYSTEM_TLS_FILES = TlsFiles()


class PasswordInFile(str):
    """The password in a file, as it was read first. Each new connection reads the file again, so a
    password can be changed while a program runs.
    """

    __slots__ = ("_last", "_path")
    _path: Path
    _last: str

    def __new__(cls, path: str | Path) -> Self:
        """Read the file. Raises ConfigError."""
        found = super().__new__(cls, _read_password(Path(path)))
        found._path, found._last = Path(path), str(found)
        return found

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (str(self._path),)

    def read(self) -> str:
        """Return the password in the file now; the one read last while it cannot be read."""
        with suppress(ConfigError):
            self._last = _read_password(self._path)
        return self._last


MAX_PASSWORD_FILE_BYTES = 4096


def _read_password(path: Path) -> str:
    where = f"password file {str(path)!r}"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_PASSWORD_FILE_BYTES + 1)
        text = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ConfigError(reason=f"{where} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(reason=f"{where} is not UTF-8 text") from None
    if not text or len(content) > MAX_PASSWORD_FILE_BYTES:
        found = f"has more than {MAX_PASSWORD_FILE_BYTES} bytes" if text else "is empty"
        raise ConfigError(reason=f"{where} {found}; expected one password")
    check_secret(f"the password in {where}", text)
    return text


@dataclass(frozen=True, slots=True)
class DefaultCredentials:
    """DefaultCredentials for servers whose URL has none, and how their TLS is checked."""

    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    trust: TlsFiles = SYSTEM_TLS_FILES


NO_LOGIN = DefaultCredentials()


@dataclass(frozen=True, slots=True)
class RedisServerAddress:
    """The address of a Redis server. Its repr and ``masked_url`` show no credentials."""

    host: str
    port: int
    tls: bool = False
    path: str | None = None
    user: str | None = field(default=None, repr=False)
    """Not shown either: of a password with a colon, given without a user, the first half lands
    here.
    """
    password: str | None = field(default=None, repr=False)
    trust: TlsFiles = SYSTEM_TLS_FILES

    may_move = False

    def resolve(self) -> RedisServerAddress:
        """Itself: a server is an endpoint that never moves."""
        return self

    async def resolve_async(self) -> RedisServerAddress:
        """Itself."""
        return self

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the secrets, which no text for people may contain."""
        return tuple(secret for secret in (self.password, self.user) if secret)

    @property
    def masked_url(self) -> str:
        """The address for people: credentials replaced by ``***``."""
        secret = "***@" if self.user or self.password else ""
        if self.path:
            return f"unix://{secret}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{secret}{host}:{self.port}"


_MAX_SOCKET_PATH_BYTES = 107
"""Linux' limit."""


def parse(
    urls: str, login: DefaultCredentials = NO_LOGIN, default_port: int = DEFAULT_PORT
) -> tuple[RedisServerAddress, ...]:
    """The servers of a comma list. ``login`` holds for every URL that has no credentials of its
    own.

    Raises ConfigError that says which URL and why, and repeats nothing of it: a password that
    breaks its URL may stand anywhere in it.
    """
    if not urls.strip():
        raise ConfigError(
            reason="redis.url is empty; expected redis://host:port, or several separated by commas"
        )
    given = COMMA.split(urls)
    servers: list[RedisServerAddress] = []
    for place, url in enumerate(given, 1):
        try:
            server = _parse_server(url, login, default_port)
            for before, other in enumerate(servers, 1):
                if (server.host, server.port, server.path) == (other.host, other.port, other.path):
                    raise _UrlError(f"it names the server of URL {before} again")
        except ValueError as bad:
            which = f"URL {place} of {len(given)} in redis.url" if len(given) > 1 else "redis.url"
            raise ConfigError(
                reason=(
                    f"{which}: {bad}; expected redis://[user:password@]host[:port], rediss://… or "
                    "unix:///path. In a password percent-encode , @ / ? # [ ] and %"
                )
            ) from None
        servers.append(server)
    return tuple(servers)


class _UrlError(ValueError):
    """A fault of a URL, in words of ours only."""


def _parse_server(url: str, default: DefaultCredentials, default_port: int) -> RedisServerAddress:
    if stray := describe_stray_character(url, inside=True) if url else "is empty":
        raise _UrlError(f"it {stray}")
    parts = split_url(url)
    if parts is None or parts.scheme not in ("redis", "rediss", "unix"):
        hint = " (sentinels and clusters are named with redis.layout)"
        layout = re.match(r"[^:/@]*(sentinel|cluster)", url.lower())
        raise _UrlError(f"it does not begin with a known scheme{hint if layout else ''}")
    scheme, place, path, query, fragment = parts
    login, at, address = place.rpartition("@")
    if set("[]") & set(login):
        raise _UrlError("it is not a URL")
    if "@" in f"{path}{query}{fragment}" and (login or scheme != "unix" or query or fragment):
        raise _UrlError("it has an @ after its address")
    if at and not login.strip(":"):
        raise _UrlError("it has an @ with neither user nor password before it")
    user, secret = _parse_credentials(login)
    if secret is None:
        user, secret = user or default.user, default.password
    if scheme == "unix":
        host, port, socket = "", None, _parse_socket_path(address, path)
    else:
        (host, port), socket = host_and_port(address), ""
        if path not in ("", "/", "/0"):
            raise _UrlError(_describe_path(path))
    if query or fragment:
        kind = "a query (?…)" if query else "a fragment (#…)"
        raise _UrlError(f"it has {kind}, and a setting in a URL is none here; use the options")
    if socket:
        return RedisServerAddress("", 0, path=socket, user=user, password=secret)
    return RedisServerAddress(
        host, port or default_port, scheme == "rediss", None, user, secret, default.trust
    )


def _describe_path(path: str) -> str:
    shown = f"database {path[1:]}" if re.fullmatch("/[0-9]{1,4}", path) else "a path"
    return (
        f"it names {shown}, and a bus is always in database 0, as npm peers and clusters know no "
        "other; take the path off, and use a Redis of its own to keep two buses apart"
    )


def _parse_socket_path(address: str, path: str) -> str:
    if address or path in ("", "/"):
        raise _UrlError("it has a host" if address else "it has no path")
    found = _decode_percent(path)
    if stray := describe_stray_character(found):
        raise _UrlError(f"its path {stray}")
    if len(os.fsencode(found)) > _MAX_SOCKET_PATH_BYTES:
        limit = f"the {_MAX_SOCKET_PATH_BYTES} bytes that the name of a unix socket may have"
        raise _UrlError(f"its path is longer than {limit}")
    return found


def _parse_credentials(text: str) -> tuple[str | None, str | None]:
    user, colon, secret = text.partition(":")
    if not colon:
        user, secret = "", text
    return _decode_percent(user) or None, _decode_percent(secret) or None


def _decode_percent(text: str) -> str:
    try:
        if not re.search("%(?![0-9A-Fa-f]{2})", text):
            return unquote_to_bytes(text).decode()
    except UnicodeError:
        pass
    raise _UrlError("it has a % that begins no percent-encoded UTF-8 character (% itself is %25)")


def parse_servers(
    options: RedisOptions,
) -> tuple[tuple[RedisServerAddress, ...], DefaultCredentials]:
    """The servers of the URL and the login for those without one. Raises ConfigError for a bad URL,
    TLS file or mixture.
    """
    trust = TlsFiles(
        options.tls_ca, options.tls_certificate, options.tls_key, options.tls_check_hostname
    )
    check_secret("redis.password", options.password)
    login = DefaultCredentials(options.user, options.password, trust)
    sentinel = options.layout == "sentinel"
    # The credentials in the options are for the data servers; those of a sentinel are in its URL.
    servers = parse(
        options.address,
        DefaultCredentials(trust=trust) if sentinel else login,
        SENTINEL_PORT if sentinel else DEFAULT_PORT,
    )
    _check_layout(options, servers)
    _check_tls(options, servers)
    return servers, login


def _check_layout(options: RedisOptions, servers: Sequence[RedisServerAddress]) -> None:
    layout = options.layout
    if options.master != DEFAULT_MASTER and layout != "sentinel":
        found = f"redis.sentinelMaster is {options.master!r}, but redis.layout is {layout}"
        raise ConfigError(
            reason=f"{found}; set redis.layout=sentinel, with the sentinels in redis.url"
        )
    if layout == "direct":
        return
    if any(server.path for server in servers):
        raise ConfigError(
            reason=(
                f"redis.url has a unix socket, but redis.layout={layout} needs hosts that every"
                " node can be reached by"
            )
        )
    if len({server.tls for server in servers}) > 1:
        raise ConfigError(
            reason=(
                f"redis.url mixes redis:// and rediss://; with redis.layout={layout} all nodes"
                " speak TLS or none does"
            )
        )


def _check_tls(options: RedisOptions, servers: Sequence[RedisServerAddress]) -> None:
    files = {
        "redis.tls.ca": options.tls_ca,
        "redis.tls.certificate": options.tls_certificate,
        "redis.tls.key": options.tls_key,
    }
    given = [name for name, path in files.items() if path] + (
        [] if options.tls_check_hostname else ["redis.tls.checkHostname"]
    )
    if given and not any(server.tls for server in servers):
        raise ConfigError(
            reason=(
                f"{given[0]} is set, but no URL in redis.url speaks TLS; write rediss:// instead of"
                " redis://"
            )
        )
    if options.tls_key and not options.tls_certificate:
        raise ConfigError(
            reason=(
                "redis.tls.key is set without redis.tls.certificate, the certificate it belongs to;"
                " set both"
            )
        )
    for name, path in files.items():
        if path and not Path(path).is_file():
            raise ConfigError(
                reason=(
                    f"{name} is {path!r}, which is no file on this machine; every driver and"
                    " executor needs it at that path"
                )
            )
    if not given:
        return
    import ssl  # it takes as long as the rest of this file, and few queries have files of their own

    try:
        context = ssl.create_default_context(cafile=options.tls_ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            reason=(
                f"redis.tls.ca, {options.tls_ca!r}, holds no certificate in PEM form that can be"
                f" read ({_on_one_line(error)})"
            )
        ) from None
    try:
        if options.tls_certificate:
            context.load_cert_chain(
                options.tls_certificate, options.tls_key, password=_refuse_encrypted_key
            )
    except (ssl.SSLError, OSError, ValueError) as error:
        found = (
            f"redis.tls.certificate, {options.tls_certificate!r}, and its private key cannot be"
            f" used ({_on_one_line(error)})"
        )
        raise ConfigError(reason=f"{found}; both must be PEM and belong together") from None


def _refuse_encrypted_key() -> str:
    raise ValueError("the key is encrypted; give one that is not")


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
