"""The address of a federation server, and its TLS settings; values only."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from websockets.exceptions import InvalidURI
from websockets.uri import WebSocketURI, parse_uri

from busmq_spark.errors import BusError, ConfigError, FederationLost, TlsError
from busmq_spark.option_parsing import check_secret
from busmq_spark.parsers import can_be_in_header, check_web_socket_url
from busmq_spark.redis_io.retry import PATIENCE_S

CONNECT_TIMEOUT_S = 5.0
NOT_AUTHORIZED_REASON = (
    "it does not know the secret that the Authorization header carries, or the token has expired"
    " (401). An npm busmq server reads the secret from the URL only: for one, set"
    " federation.secretInUrl (Spark) or secret_in_url (Python), and use TLS"
)
"""The reason of a 401 for a client that has shown the secret in the header only."""


@dataclass(frozen=True, slots=True)
class FederationAddress:
    """The address of a federation server and the secret for it. Values only, so it may be pickled;
    the secret (or signed token) is in no repr.
    """

    url: str
    secret: str = field(default="", repr=False)
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_check_hostname: bool = True
    patience_s: float = PATIENCE_S
    """Seconds for which one step is retried while no server answers."""
    secret_in_url: bool = False
    """For npm servers, which look for it there only: URLs are logged on the way."""

    def parse_url(self) -> WebSocketURI:
        """Raises ConfigError for what is no address; its text does not repeat a password."""
        try:
            check_web_socket_url(self.url)
            found = parse_uri(self.url)
        except (InvalidURI, ValueError) as error:
            reason = str(error) if type(error) is ValueError else "it cannot be read"
            raise ConfigError(
                reason=(
                    f"federation.url is no web-socket address: {reason}; expected"
                    " ws://host:port/bus or wss://host/bus, and the secret in federation.secret"
                )
            ) from None
        check_federation_secret("federation.secret", self.secret, secret_in_url=self.secret_in_url)
        return found

    def check_offline(self) -> None:
        """Raises ConfigError for what can be known to be wrong without connecting."""
        if self.parse_url().secure:
            self.make_ssl_context()

    def make_ssl_context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises ConfigError for files that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            context.check_hostname = self.tls_check_hostname
            if self.tls_certificate:
                context.load_cert_chain(self.tls_certificate, self.tls_key, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(
                reason=f"a file of federation.tls.* cannot be used: {error}"
            ) from None
        return context


def dial_error(url: str, error: Exception) -> BusError:
    """Return the error of a connection that could not be made.

    It is a TlsError where TLS found a fault that waiting does not mend. A peer that goes away
    during its handshake is lost.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(url=url, reason=error.verify_message.rstrip("."))
    ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    # asyncio raises one without arguments for the same.
    if ended or (url.startswith("wss:") and isinstance(error, OSError) and not error.args):
        reason = "it closed the connection in the TLS handshake, as a port without TLS does"
        return FederationLost(url=url, reason=reason)
    if isinstance(error, ssl.SSLError):
        return TlsError(url=url, reason=(error.reason or str(error)).replace("_", " ").lower())
    reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
    return FederationLost(url=url, reason=reason or type(error).__name__)


def no_answer_error(url: str, error: Exception | None) -> FederationLost:
    """Return the error of a server whose answer to the handshake is not HTTP."""
    return FederationLost(
        url=url, reason=f"no HTTP answer to the handshake ({type(error).__name__})"
    )


def authorization_header(secret: str) -> dict[str, str]:
    """The header that shows a secret or a signed token; none where no header can carry it."""
    return {"Authorization": f"Bearer {secret}"} if secret and can_be_in_header(secret) else {}


def check_federation_secret(what: str, secret: str, *, secret_in_url: bool) -> None:
    """Raises ConfigError for a secret that our servers refuse to load. Npm servers take more, in
    the URL.
    """
    check_secret(what, secret)
    if not secret_in_url and not can_be_in_header(secret):
        raise ConfigError(
            reason=(
                f"{what} has characters that no HTTP header can carry; expected visible ASCII ones"
            )
        )
