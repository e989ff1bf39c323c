"""The checks of a federation link, before real servers."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from busmq_spark.doctor.federation import check_federation
from busmq_spark.doctor.findings import exit_code
from busmq_spark.doctor.gather import read_federation
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.federation.address import FederationAddress
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import attach
from tests.conftest import link_to
from tests.serving import Serving, everything
from tests.tls import Authority, TlsProxy

pytestmark = pytest.mark.redis


def levels(address: FederationAddress, ahead_s: float = 0.0) -> dict[str, str]:
    facts = read_federation(address, lambda: time.time() + ahead_s)
    found = check_federation(facts)
    assert address.secret not in f"{found}" or not address.secret
    return {each.code.removeprefix("federation-"): each.level for each in found}


def test_a_link_is_examined(tmp_path: Path) -> None:
    """One of its queues is damaged, and says nothing of the link."""
    with EmbeddedRedis() as server:
        link = link_to(server.url)
        for name in ("broken", "orders"):
            link.run(attach(QueueKeys(name), "life", ttl_s=900))
        link.execute(command("SET", QueueKeys("broken").msgid, "no number"))
        link.close()
        examine_links_of(server.url, tmp_path)


def examine_links_of(redis_url: str, tmp_path: Path) -> None:
    weak = '[weak]\nsecret = "weak-secret-of-16"\nbrowse = ["none-*"]\n'
    with Serving(redis_url, tmp_path, everything("long-secret-of-16") + weak) as served:
        address = FederationAddress(served.url, "long-secret-of-16")
        fine = {"reach": "ok", "certificate": "ok", "clock": "ok", "grants": "ok"}
        assert levels(address) == fine
        facts = read_federation(address)
        assert facts.grants["browse"] >= facts.grants["consume"] >= 1
        assert (facts.grants["admin"] >= 1, facts.grants["push"]) == (True, 1)
        assert levels(address, 3600) == fine | {"clock": "warning"}
        assert levels(address, -3600) == fine | {"clock": "warning"}
        narrow = FederationAddress(served.url, "weak-secret-of-16")
        assert levels(narrow) == fine | {"grants": "warning"}
        wrong = FederationAddress(served.url, "other-secret-of-16")
        gone = dict.fromkeys(("certificate", "clock", "grants"), "unknown")
        assert levels(wrong) == {"reach": "failure"} | gone
        authority = Authority.in_(tmp_path / "ca")
        with TlsProxy(served.port, authority.server_context("localhost")) as proxy:
            url = f"wss://localhost:{proxy.port}/{served.url.rpartition('/')[2]}"
            trusted = FederationAddress(url, "long-secret-of-16", tls_ca=str(authority.file))
            assert levels(trusted) == fine
            ends = time.time() + (read_federation(trusted).left_s or 0)
            late = ends - time.time() - 5 * 86_400
            assert levels(trusted, late) == fine | {"certificate": "warning", "clock": "warning"}
            stranger = FederationAddress(url, "long-secret-of-16")
            assert levels(stranger) == {"reach": "failure"} | gone
        expired = authority.ca.issue_cert(
            "localhost", not_after=datetime.now(UTC) - timedelta(days=1)
        )
        context = authority.server_context("localhost")
        expired.configure_cert(context)
        with TlsProxy(served.port, context) as proxy:
            url = f"wss://localhost:{proxy.port}/bus"
            old = FederationAddress(url, "long-secret-of-16", tls_ca=str(authority.file))
            found = check_federation(read_federation(old))
            assert "expired" in found[0].found
            assert exit_code(found) == 2
    assert levels(address) == {"reach": "failure"} | gone
