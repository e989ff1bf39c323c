"""``busmq serve``: the bus for those who cannot reach its Redis, over web sockets."""

import asyncio
import re
import secrets as randomness
import signal
import ssl
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from busmq_spark.cli.exporter import BusExporter
from busmq_spark.cli.options import DEFAULT_PORT, JsonOption, parse_listen_address
from busmq_spark.cli.output import CliOutput
from busmq_spark.cli.queue_lookup import need_redis
from busmq_spark.errors import ConfigError
from busmq_spark.extras import missing_package
from busmq_spark.federation.gate.handshake import BULK_SUBPROTOCOL, PAGE_PATHS, is_loopback
from busmq_spark.federation.gate.keyring import Keyring
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.metrics import Metrics
from busmq_spark.options import BusOptions, RedisOptions

if TYPE_CHECKING:
    from busmq_spark.federation.serve.server import FederationServer

LIMITS_WITH_DEFAULTS = ", ".join(
    f"{row.name}={row.default:g}" if isinstance(row.default, float) else f"{row.name}={row.default}"
    for row in fields(PeerLimits)
)
SecretsOption = Annotated[
    Path | None,
    typer.Option(
        "--secrets",
        metavar="FILE",
        envvar="BUSMQ_FEDERATION_SECRETS",
        show_default=False,
        help="TOML file of secrets and what each of them may do.",
    ),
]
SecretsFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--secrets-dir",
        metavar="DIR",
        envvar="BUSMQ_FEDERATION_SECRETS_DIR",
        show_default=False,
        help=(
            "Folder with one file for each name of --secrets, which then has only the rights: the"
            " secret of NAME is in the file NAME, the one before in NAME.previous."
        ),
    ),
]
ClientCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-ca",
        metavar="FILE",
        help="PEM file: clients must show a certificate of one of these authorities.",
        show_default=False,
    ),
]
ProxyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NETWORK",
        help=(
            "A proxy, or a network of them, whose X-Forwarded-For names the client; may be"
            " repeated."
        ),
        show_default=False,
    ),
]

AudienceOption = Annotated[
    str | None,
    typer.Option(
        "--audience",
        metavar="NAME",
        show_default=False,
        help="Name of the servers that tokens are for; a server refuses all others.",
    ),
]
MetricsSecretOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-secret",
        metavar="NAME",
        show_default=False,
        help="Name of the secret whose holder sees the names of secrets at /metrics.",
    ),
]


_SERVER_SETTINGS = (
    "host",
    "port",
    "path",
    "origins",
    "proxies",
    "compression",
    "audience",
    "metrics_secret",
)
"""Settings of ``_ListenSettings`` that FederationServer takes by these names."""


_FileVersions = list[tuple[str, int, int, int]]


@dataclass(frozen=True, slots=True)
class _ListenSettings:
    """The address and the files of a listening server."""

    host: str
    port: int
    path: str
    origins: tuple[str, ...]
    proxies: tuple[str, ...]
    secrets: Path | None
    secrets_folder: Path | None
    files: tuple[Path | None, Path | None, Path | None]
    """PEM files for TLS: certificate, key, authorities of clients."""
    compression: bool
    audience: str | None
    metrics_secret: str | None

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def keyring(self) -> Keyring | None:
        """Return the secrets as they are in the files now; None without --secrets."""
        return Keyring.load(self.secrets, self.secrets_folder) if self.secrets else None

    def versions(self) -> _FileVersions:
        """Return a value for each file that changes with the file."""
        named = [path for path in (self.secrets, *self.files) if path is not None]
        with suppress(OSError):
            named += sorted(self.secrets_folder.iterdir()) if self.secrets_folder else []
        found = []
        for path in named:
            with suppress(OSError):
                now = path.stat()
                found.append((str(path), now.st_ino, now.st_mtime_ns, now.st_size))
        return found


def serve(  # noqa: PLR0913  # the options of a command
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 picks a free one.")
    ] = f"127.0.0.1:{DEFAULT_PORT}",
    *,
    path: Annotated[
        str, typer.Option(help="The path of the bus; at any other there is nothing.")
    ] = "/bus",
    secrets: SecretsOption = None,
    secrets_dir: SecretsFolderOption = None,
    certificate_file: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            help="PEM file of this server's certificate: serve wss://.",
            show_default=False,
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--tls-key", metavar="FILE", help="PEM file of its private key.", show_default=False
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help=(
                "Browsers may come from pages of this origin only, such as https://app.example.com;"
                " may be repeated."
            ),
        ),
    ] = None,
    client_ca: ClientCaOption = None,
    trust_proxy: ProxyOption = None,
    audience: AudienceOption = None,
    metrics_secret: MetricsSecretOption = None,
    compression: Annotated[
        bool,
        typer.Option(
            "--compression", help="Compress messages for peers that ask for it: for slow links."
        ),
    ] = False,
    export_queues: Annotated[
        bool,
        typer.Option(
            "--export-queues",
            help="Show queues, readers and Redis at /metrics, too, as busmq exporter does.",
        ),
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help=(
                "Change a limit of what a peer may cost; may be repeated. They are:"
                f" {LIMITS_WITH_DEFAULTS}."
            ),
        ),
    ] = None,
    redis: RedisOptions,
    as_json: JsonOption = False,
) -> None:
    """Serve the bus to peers that cannot reach its Redis: Node, browsers, Python, Spark.

    A client shows a secret when it connects. Without --secrets one is made for this run, and only
    this machine can connect. /livez, /readyz and /metrics (Prometheus) answer on the same port.
    SIGTERM refuses new connections, answers calls under way and lets every object detach before the
    end. Files of secrets and certificates are read anew when they change, and at SIGHUP: peers
    whose secret is gone are cut off. A name may have two secrets: secret = ["new", "old"].

    ```
    busmq serve
    busmq serve --listen 0.0.0.0:7130 --secrets secrets.toml --tls-cert bus.pem --tls-key bus.key
    ```

    The file of secrets:

    ```
    [reports]
    secret = "at least 16 characters"
    read = ["orders-*", "channel:chat"]
    deny = ["orders-private-*"]
    ```

    The verbs are browse, consume, push, create and admin; read is browse and consume, write is push
    and create. A subscription belongs to the secret that registered it: others need consume =
    ["subscription:its-name"]. events = ["payment.*"] lets it subscribe queues to these events;
    without it no events are.
    """
    out = CliOutput(as_json)
    host, port = parse_listen_address(listen)
    files = (certificate_file, key_file, client_ca)
    place = _ListenSettings(
        host,
        port,
        path,
        tuple(origin or ()),
        tuple(trust_proxy or ()),
        secrets,
        secrets_dir,
        files,
        compression,
        audience,
        metrics_secret,
    )
    if secrets_dir and not secrets:
        raise ConfigError(
            reason=(
                "--secrets-dir is given without --secrets; expected both: the rights of each name"
                " are in the file of --secrets"
            )
        )
    used = place.versions()  # before the first look at the files, so that no change is missed
    tls = make_tls_context(*files)
    limits = limits_with(limit or [])
    secret = None if secrets else randomness.token_urlsafe(24)
    if secret and not place.is_loopback:
        raise ConfigError(
            reason=(
                f"{listen} can be reached from other machines, so it needs secrets. Give --secrets"
                " FILE, or listen on 127.0.0.1"
            )
        )
    if export_queues and metrics_secret is None and (trust_proxy or not place.is_loopback):
        where = "a proxy" if place.is_loopback else "other machines"
        raise ConfigError(
            reason=(
                f"{listen} can be reached from {where}, and --export-queues shows the names"
                " of queues. Give --metrics-secret NAME, or listen on 127.0.0.1 without"
                " --trust-proxy"
            )
        )
    keyring = place.keyring() or Keyring.single(str(secret))
    need_redis(redis)
    metrics = Metrics()
    with ExitStack() as stack:
        if export_queues:
            source = BusExporter(redis)
            stack.callback(source.close)
            metrics.add_source(source)
        code = asyncio.run(_serve(out, redis, place, used, keyring, limits, secret, tls, metrics))
    if code:
        raise KeyboardInterrupt


async def _serve(  # noqa: PLR0913, PLR0917  # what the command was given
    out: CliOutput,
    redis: RedisOptions,
    place: _ListenSettings,
    used: _FileVersions,
    keyring: Keyring,
    limits: PeerLimits,
    secret: str | None,
    tls: ssl.SSLContext | None,
    metrics: Metrics,
) -> bool:
    """Until a signal comes; whether it was Ctrl-C."""
    try:
        from busmq_spark.bus.bus import Bus
        from busmq_spark.federation.serve.server import FederationServer
    except ModuleNotFoundError as error:
        raise missing_package(error, "busmq serve") from None
    loop, ended = asyncio.get_running_loop(), asyncio.Future[bool]()

    def leave(interrupted: bool) -> None:
        if not ended.done():
            ended.set_result(interrupted)
        for each in (signal.SIGINT, signal.SIGTERM):  # a second one does not wait for anything
            loop.remove_signal_handler(each)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    settings = {
        row.name: getattr(redis, row.name) for row in fields(BusOptions) if hasattr(redis, row.name)
    }
    async with Bus(**settings) as bus:
        server = FederationServer(
            bus,
            keyring,
            **{name: getattr(place, name) for name in _SERVER_SETTINGS},
            limits=limits,
            tls=tls,
            metrics=metrics,
        )
        async with server:
            loop.add_signal_handler(signal.SIGINT, leave, True)
            loop.add_signal_handler(signal.SIGTERM, leave, False)
            loop.add_signal_handler(signal.SIGHUP, _reload, out, server, place)
            _print_welcome(out, server.url, place, keyring, secret, encrypted=tls is not None)
            watching = asyncio.create_task(_reload_changed(out, server, place, used))
            interrupted = await ended
            watching.cancel()
            out.note("Leaving: objects detach, peers are sent away.")
    return interrupted


FILE_CHECK_PAUSE_S = 1.0
"""Seconds between two looks at the files. A change is read when two looks in a row find the same,
so that a file which is being written is not read half.
"""


async def _reload_changed(
    out: CliOutput, server: "FederationServer", place: _ListenSettings, used: _FileVersions
) -> None:
    """Read the files anew whenever one of them has changed. ``used`` has the versions in use."""
    before = used
    while True:
        await asyncio.sleep(FILE_CHECK_PAUSE_S)
        now = place.versions()
        if now == before and now != used:
            used = now
            _reload(out, server, place)
        before = now


def _reload(out: CliOutput, server: "FederationServer", place: _ListenSettings) -> None:
    """Read the files anew; with one that cannot be used nothing changes."""
    try:
        server.reload(place.keyring(), make_tls_context(*place.files))
    except ConfigError as error:
        out.warn(f"nothing is reloaded: {error}")
    else:
        out.note("The secrets and certificates are read anew.")


def _print_welcome(
    out: CliOutput,
    url: str,
    place: _ListenSettings,
    keyring: Keyring,
    secret: str | None,
    *,
    encrypted: bool,
) -> None:
    if not place.is_loopback and not encrypted:
        out.warn(
            "without --tls-cert secrets and messages travel in the clear; use it, or a proxy in"
            " front of this that speaks TLS"
        )
    if secret:
        out.note(
            f"The secret of this run is {secret} and cannot be used from another machine. To choose"
            " who may do what: --secrets FILE",
            "bold",
        )
    if out.as_json:
        out.print_json(
            url=url,
            secrets=keyring.names,
            protocols=["busmq", BULK_SUBPROTOCOL],
            pages=[*PAGE_PATHS],
        )
    else:
        shown = url.replace("wss://", "https://").replace("ws://", "http://")
        out.print_lines(
            Text.assemble("The bus is served at ", (url, "bold cyan"), "."),
            "",
            "In Node:",
            Text(f"  Bus.create({{federate: {{urls: ['{shown}'], secret: '…'}}}})", "green"),
            "",
            Text("Ctrl-C ends it.", "dim"),
        )
    out.flush()


def make_tls_context(
    cert: Path | None, key: Path | None, client_ca: Path | None = None
) -> ssl.SSLContext | None:
    """The TLS context of the server; return None without a certificate. With ``client_ca`` clients
    must show one, too.
    """
    if cert is None:
        if key is not None or client_ca is not None:
            given = "--tls-key" if key is not None else "--tls-client-ca"
            raise ConfigError(
                reason=(
                    f"{given} is given without --tls-cert. Give both, or neither to serve"
                    " without TLS"
                )
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")  # else OpenSSL would ask the terminal
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # also what OpenSSL says
        named_file = error.filename or f"{cert}{f' and {key}' if key else ''}"
        raise ConfigError(
            reason=(
                f"no TLS with {named_file}: {error.strerror or error}; expected PEM files of a"
                " certificate and its key, not encrypted"
            )
        ) from None
    return context


def limits_with(given: list[str]) -> PeerLimits:
    """The limits with some of them changed."""
    known: Mapping[str, type] = {row.name: type(row.default) for row in fields(PeerLimits)}
    changed: dict[str, float] = {}
    for text in given:
        name, _, number = text.partition("=")
        if name not in known or not re.fullmatch(
            r"\d{1,12}" if known[name] is int else r"\d{1,12}(\.\d{1,6})?", number
        ):
            raise ConfigError(
                reason=f"--limit is {text!r}; expected NAME=NUMBER with one of: {', '.join(known)}"
            )
        changed[name] = known[name](number)
    # The types are those of the table
    return replace(PeerLimits(), **changed)  # type: ignore[arg-type]
