"""Named secrets, their rights, and tokens signed with them.

    [reports]                            # the name, for logs; not secret
    secret = "…"                         # at least 16 characters; ["new", "old"] in a rotation
    read = ["orders-*", "channel:a-*"]   # browse and consume; see rights.py
    write = ["queue:audit"]              # push and create
    browse = []                          # look, and remove nothing
    consume = ["subscription:billing"]   # take, ack, and hold against others
    push = []
    create = []
    admin = []                           # flush, delete, truncate
    events = ["payment.*"]               # patterns that queues may be subscribed with
    deny = ["orders-private-*"]

Rule 1. There is no default secret, and no way to switch the check off.
Rule 2. No secret leaves this file: not in an error, not in a log, not in a repr.
Rule 3. The time of a look-up depends neither on which secret matches nor on how much of it does.
Rule 4. A name has one secret, or two during a rotation: peers may show either, and tokens are
        signed with the first.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import stat
import time
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from busmq_spark.errors import ConfigError
from busmq_spark.federation.gate import token
from busmq_spark.federation.gate.rights import GRANT_SETTINGS, KNOWN_SETTINGS, Grants, Identity
from busmq_spark.option_parsing import can_be_in_header, check_secret

MIN_SECRET_CHARACTERS = 16
"""Fewest characters of a secret: anyone with a token can guess at its secret offline, without a
limit of tries.
"""
MAX_KEYRING_FILE_BYTES = 1024 * 1024
log = logging.getLogger("busmq_spark")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# npm clients put the secret into the URL as it is.
_SAFE_IN_URL = re.compile(r"[A-Za-z0-9!$'()*,./:;=?@_~-]*")


@dataclass(frozen=True, slots=True, repr=False)
class _NamedSecret:
    name: str
    digest: bytes
    signing: bytes
    grants: Grants

    @property
    def key_id(self) -> bytes:
        """Identifies the key. The secret cannot be computed from it, and it cannot sign
        anything.
        """
        return hmac.digest(self.signing, b"busmq_spark id", sha256)[:16]


class Keyring:
    """The secrets a server knows."""

    def __init__(
        self,
        secrets: Mapping[str, tuple[str | Sequence[str], Grants]],
        *,
        shortest: int = MIN_SECRET_CHARACTERS,
        clock: Callable[[], float] = time.time,
        also_in_url_only: bool = False,
    ) -> None:
        """Of each name its secret, or two of them, and its rights. ``also_in_url_only``: take
        secrets that no HTTP header carries. Npm clients can show them, ours cannot.
        """
        if not secrets:
            raise ConfigError(
                reason="a keyring holds no secret; expected at least one, there is no default"
            )
        self._clock = clock
        self._keys = tuple(
            _named_secret(name, each, grants, shortest, also_in_url_only)
            for name, (secret, grants) in secrets.items()
            for each in ([secret] if isinstance(secret, str) else secret)
        )
        if len({key.digest for key in self._keys}) < len(self._keys):
            raise ConfigError(
                reason=(
                    f"two of the secrets {', '.join(secrets)} are equal; expected one of its own"
                    " for each name"
                )
            )

    @classmethod
    def single(
        cls,
        secret: str,
        *,
        name: str = "all",
        shortest: int = MIN_SECRET_CHARACTERS,
        also_in_url_only: bool = False,
    ) -> Self:
        """Return a keyring with one secret that has every right.

        Args:
            secret: The secret, of at least ``shortest`` characters.
            name: Name of the secret in logs.
            shortest: Fewest characters of the secret.
            also_in_url_only: Accept a secret that no HTTP header can carry; npm clients can send it
                in a URL.

        Raises:
            ConfigError: The secret is too short or has characters that cannot be sent.
        """
        return cls(
            {name: (secret, Grants.all_allowed())},
            shortest=shortest,
            also_in_url_only=also_in_url_only,
        )

    @classmethod
    def load(cls, path: str | Path, directory: str | Path | None = None) -> Self:
        """Return the secrets of a TOML file. Other users of the machine must not be able to read
        the file.

        Args:
            path: Path of the file.
            directory: A folder with one file for each name in ``path``, which then has the rights
                only. The file holds the secret, and ``<name>.previous`` the one before.

        Raises:
            ConfigError: A file is missing, readable by others, or not valid.
        """
        where = f"secrets file {str(path)!r}"
        found = _SecretsFolder(Path(directory)) if directory is not None else None
        try:
            tables = tomllib.loads(_read_file(Path(path), where, private=found is None))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(reason=f"{where} is not TOML: {error}") from None
        secrets = {
            name: _parse_secret_entry(
                table, f"{where}, [{name}]", None if found is None else found.secrets(name)
            )
            for name, table in tables.items()
        }
        if found is not None:
            found.check_all_named(secrets)
        if not secrets:
            raise ConfigError(
                reason=(
                    f'{where} names no secret; expected for example [reports], secret = "…", read ='
                    ' ["orders-*"]'
                )
            )
        return cls(secrets)

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.names)})"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the secrets."""
        return tuple(dict.fromkeys(key.name for key in self._keys))

    def identify(self, secret: str) -> Identity | None:
        """Return the identity of a secret."""
        digest, found = _digest(secret), None
        for key in self._keys:  # all of them, always
            if hmac.compare_digest(digest, key.digest):
                found = key
        return None if found is None else Identity(found.name, found.grants, key=found.key_id)

    def identify_token(self, text: str, audience: str | None = None) -> Identity | None:
        """Return the identity of a token, while it is valid, for a server with this name."""
        keys = [(key.name, key.signing) for key in self._keys]
        found = token.verify_token(text, keys, self._clock(), audience)
        if found is None:
            return None
        claim, key = found[0], self._keys[found[1]]
        return Identity(key.name, key.grants, claim.narrowed, claim.expires, key.key_id)

    def identify_either(self, text: str, audience: str | None = None) -> Identity | None:
        """Return the identity of a secret or token, for a server with this name."""
        return self.identify(text) or self.identify_token(text, audience)

    def holds(self, identity: Identity) -> bool:
        """Whether the secret that a peer has shown is still one of these, with the same grants."""
        return any(
            (key.name, key.key_id, key.grants) == (identity.name, identity.key, identity.grants)
            for key in self._keys
        )

    def may_keep_event_row(self, owner: str, pattern: str, queue: str) -> bool:
        """Whether what a peer has subscribed a queue to is still its right; so it is where another
        server knows its secret.
        """
        name = owner.partition("~")[0]
        grants = next((key.grants for key in self._keys if key.name == name), None)
        return grants is None or (
            grants.may_take_events(pattern) and grants.may("push", "queue", queue)
        )

    def sign(
        self,
        name: str,
        expires_s: float,
        narrow: Mapping[str, Any] | None = None,
        *,
        audience: str | None = None,
    ) -> str:
        """Return a token of a secret. Its characters need no escaping in a URL.

        Args:
            name: Name of the secret.
            expires_s: Seconds until the token ends. It also ends with its secret.
            narrow: A table of rights, like those of the file. The token has the rights that both
                the secret and the table allow.
            audience: Name of the servers that accept the token; by default all servers that know
                the secret.

        Raises:
            ConfigError: The name is not known, or a right is not valid.
        """
        key = next((key for key in self._keys if key.name == name), None)
        if key is None:
            raise ConfigError(
                reason=f"there is no secret named {name!r}; known are: {', '.join(self.names)}"
            )
        return token.sign_token(name, key.signing, self._clock(), expires_s, narrow, audience)


def _named_secret(
    name: str, secret: str, grants: Grants, shortest: int, also_in_url_only: bool
) -> _NamedSecret:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            reason=f"a secret is called {name!r}; expected letters, digits, _ . and -, at most 64"
        )
    check_secret(f"the secret {name!r}", secret)
    if not (also_in_url_only or can_be_in_header(secret)):
        reason = (
            f"the secret {name!r} has characters that no HTTP header can carry, so clients refuse"
            " it; expected visible ASCII ones"
        )
        raise ConfigError(reason=f"{reason}. Make one with: openssl rand -hex 24")
    if len(secret) < shortest:
        found = "empty" if not secret else f"{len(secret)} characters long"
        raise ConfigError(
            reason=(
                f"the secret {name!r} is {found}; expected at least {shortest}. Make one with:"
                " openssl rand -hex 24"
            )
        )
    if not _SAFE_IN_URL.fullmatch(secret):
        log.warning(
            "the secret %r has characters that mean something else in a URL: npm busmq clients,"
            " which do not escape it, are refused",
            name,
        )
    return _NamedSecret(name, _digest(secret), token.signing_key(secret), grants)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


PREVIOUS_FILE_ENDING = ".previous"
"""Ending of the file with the secret that a name had before."""


class _SecretsFolder:
    """A folder with one file for each secret, as Kubernetes mounts them: ``..data`` is a link to
    the folder with the files, and changes for all of them at once.
    """

    def __init__(self, folder: Path) -> None:
        self._where = f"secrets folder {str(folder)!r}"
        self._folder = folder
        try:
            link = folder / "..data"
            self._files = {
                each.name: each
                for each in (link.resolve(strict=True) if link.exists() else folder).iterdir()
                if not each.name.startswith("..")
            }
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
            text = getattr(error, "strerror", None) or str(error)
            raise ConfigError(reason=f"{self._where} cannot be read: {text}") from None

    def secrets(self, name: str) -> list[str]:
        """Return the secret of a name, and the one before. Raises ConfigError where it has none."""
        if name not in self._files:
            raise ConfigError(
                reason=(
                    f"{self._where} has no file {name!r}; expected one with the secret of [{name}]"
                )
            )
        names = [name, name + PREVIOUS_FILE_ENDING]
        return [self._read(each) for each in names if each in self._files]

    def check_all_named(self, names: Collection[str]) -> None:
        """Raises ConfigError for a file whose name has no rights."""
        known = {*names, *(name + PREVIOUS_FILE_ENDING for name in names)}
        if stray := sorted({*self._files} - known):
            raise ConfigError(
                reason=(
                    f"{self._where} has a file {stray[0]!r} whose name has no table in --secrets;"
                    f" expected the names {', '.join(names)}"
                )
            )

    def _read(self, name: str) -> str:
        where = f"the file {name!r} of {self._where}"
        return _read_file(self._files[name], where).removesuffix("\n").removesuffix("\r")


def _read_file(path: Path, where: str, *, private: bool = True) -> str:
    try:
        with path.open("rb") as file:
            _check_access(os.fstat(file.fileno()), path, where, private=private)
            content = file.read(MAX_KEYRING_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(reason=f"{where} cannot be read: {error.strerror}") from None
    if len(content) > MAX_KEYRING_FILE_BYTES:
        raise ConfigError(
            reason=f"{where} is longer than {MAX_KEYRING_FILE_BYTES} bytes; expected a few secrets"
        )
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise ConfigError(reason=f"{where} is not UTF-8 text but UTF-16; save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            reason=(
                f"{where} is not UTF-8 text: byte {content[error.start]:#04x} in line {line}; save"
                " it as UTF-8"
            )
        ) from None


def _check_access(found: os.stat_result, path: Path, where: str, *, private: bool) -> None:
    """Raises ConfigError for a file of another user, and for one that others may change or, if it
    is private, read, or its group may change.
    """
    mode = stat.S_IMODE(found.st_mode)
    if mode & (stat.S_IRWXO if private else stat.S_IWOTH):
        raise ConfigError(
            reason=(
                f"{where} may be read or changed by every user of this machine (mode {mode:04o});"
                f" run: chmod o-rwx {path}. Of a secret that Kubernetes mounts, set defaultMode:"
                " 0440 and fsGroup"
            )
        )
    if mode & stat.S_IWGRP:
        raise ConfigError(
            reason=f"{where} may be changed by its group (mode {mode:04o}); run: chmod g-w {path}"
        )
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            reason=(
                f"{where} belongs to user {found.st_uid}, who may change it; expected this user or"
                " root"
            )
        )


def _parse_secret_entry(
    table: Any, where: str, stored: list[str] | None
) -> tuple[list[str], Grants]:
    """Return the secrets of a table and its rights. ``stored``: the secrets are these, from the
    folder of secrets.
    """
    if not isinstance(table, dict):
        raise ConfigError(
            reason=(
                f"{where} is not a table; expected [name], and below it secret,"
                f" {', '.join(KNOWN_SETTINGS)}"
            )
        )
    secret = table.get("secret", stored)
    if stored is not None and "secret" in table:
        raise ConfigError(
            reason=f"{where}: secret is here and in the folder of --secrets-dir; leave it out here"
        )
    secrets = [secret] if isinstance(secret, str) else secret
    if not (
        isinstance(secrets, list)
        and 1 <= len(secrets) <= 2
        and all(isinstance(each, str) for each in secrets)
    ):
        problem = "missing" if secret is None else "no text, and no list of two"
        raise ConfigError(
            reason=f'{where}: secret is {problem}; expected secret = "…" or ["new", "old"]'
        )
    grants = Grants.parse({key: value for key, value in table.items() if key != "secret"}, where)
    if not any(grants.allowed.values()) and not table.keys() & {*GRANT_SETTINGS}:
        raise ConfigError(
            reason=(
                f"{where} may do nothing; expected one or more of"
                f" {', '.join(f'{verb} = […]' for verb in GRANT_SETTINGS)}"
            )
        )
    return secrets, grants
