"""The addresses in the options a user gave, checked as far as can be before anything is connected.
Needs no client of Redis: planners check, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import check_secret
from busmq_spark.options import RedisOptions
from busmq_spark.redis_io.urls import (
    DEFAULT_MASTER,
    DEFAULT_PORT,
    SENTINEL_PORT,
    DefaultCredentials,
    RedisServerAddress,
    TlsFiles,
    parse,
)


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
