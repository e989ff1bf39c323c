"""TLS of the Java module: own authority, client certificate, and clear errors when one side does
not trust the other.
"""

from __future__ import annotations

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from busmq_spark.embedded import EmbeddedRedis
from tests.jvm.probe import Probe, Refused, call
from tests.tls import Authority, TlsProxy

pytestmark = [pytest.mark.jvm, pytest.mark.redis]
PING = [call("PING")]


def at(proxy: TlsProxy) -> str:
    return f"rediss://127.0.0.1:{proxy.port}"


def test_a_server_of_the_own_authority_is_trusted_and_its_pushes_are_signalled(
    probe: Probe, plain_tls: TlsProxy, authority: Authority
) -> None:
    links = probe.open(at(plain_tls), redis_tls_ca=str(authority.file))
    assert links.run_all([call("ECHO", "x" * 100_000), *PING]) == ["x" * 100_000, "PONG"]
    links.listen(q=0)
    assert links.rings(10_000)


@pytest.mark.parametrize("form", ["PKCS8", "TraditionalOpenSSL"])
@pytest.mark.parametrize("kind", ["ECDSA", "RSA"])
def test_a_client_certificate_is_shown_whatever_the_form_of_its_key(
    probe: Probe, mutual_tls: TlsProxy, authority: Authority, form: str, kind: str
) -> None:
    leaf = authority.ca.issue_cert("client", key_type=trustme.KeyType[kind])
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    certificate, file = (
        authority.folder / f"{kind}-{form}.pem",
        authority.folder / f"{kind}-{form}.key",
    )
    certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    file.write_bytes(key.private_bytes(Encoding.PEM, getattr(PrivateFormat, form), NoEncryption()))
    links = probe.open(
        at(mutual_tls),
        redis_tls_ca=str(authority.file),
        redis_tls_certificate=str(certificate),
        redis_tls_key=str(file),
    )
    assert links.run_all(PING) == ["PONG"]


def test_a_key_in_the_file_of_its_certificate_needs_no_option(
    probe: Probe, mutual_tls: TlsProxy, authority: Authority
) -> None:
    certificate, key = authority.issue("both")
    both = authority.folder / "both-in-one.pem"
    both.write_text(key.read_text() + certificate.read_text())
    links = probe.open(
        at(mutual_tls), redis_tls_ca=str(authority.file), redis_tls_certificate=str(both)
    )
    assert links.run_all(PING) == ["PONG"]


def test_without_the_certificate_that_the_server_requires_the_error_names_the_option(
    probe: Probe, mutual_tls: TlsProxy, authority: Authority
) -> None:
    with pytest.raises(Refused, match=r"redis\.tls\.certificate"):
        probe.open(at(mutual_tls), redis_tls_ca=str(authority.file)).run_all(PING)


@pytest.mark.parametrize("system", [True, False], ids=["system's", "stranger"])
def test_a_server_of_another_authority_is_not_trusted(
    probe: Probe, plain_tls: TlsProxy, stranger: Authority, system: bool
) -> None:
    trusted = {} if system else {"redis_tls_ca": str(stranger.file)}
    with pytest.raises(Refused, match=r"BUSMQ_TLS.*redis\.tls\.ca"):
        probe.open(at(plain_tls), **trusted).run_all(PING)


def test_a_certificate_for_another_host_is_refused_unless_the_name_is_not_checked(
    probe: Probe, authority: Authority, redis_server: EmbeddedRedis
) -> None:
    with TlsProxy(redis_server.port, authority.server_context("elsewhere.example")) as proxy:
        with pytest.raises(Refused, match="BUSMQ_TLS"):
            probe.open(at(proxy), redis_tls_ca=str(authority.file)).run_all(PING)
        unchecked = probe.open(
            at(proxy), redis_tls_ca=str(authority.file), redis_tls_checkHostname="false"
        )
        assert unchecked.run_all(PING) == ["PONG"]


def test_a_port_without_tls_is_named_as_such(
    impatient: Probe, redis_server: EmbeddedRedis, authority: Authority
) -> None:
    with pytest.raises(Refused, match="TLS"):
        impatient.open(
            f"rediss://127.0.0.1:{redis_server.port}", redis_tls_ca=str(authority.file)
        ).run_all(PING)
