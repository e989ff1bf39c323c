"""Checks of a link to a federation server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from busmq_spark.doctor.findings import Finding, Level, unknown
from busmq_spark.doctor.redis import clock_finding

DAY_S = 24 * 3600
MIN_CERTIFICATE_DAYS = 14


@dataclass(frozen=True, slots=True)
class FederationFacts:
    """The facts of a federation server. ``error``: why it could not be asked; ``left_s``: seconds
    until its certificate ends, None without TLS; ``grants``: verb → queues that it is granted on.
    """

    url: str
    error: str = ""
    left_s: float | None = None
    clock_ahead_s: float | None = None
    grants: Mapping[str, int] = field(default_factory=dict)
    unprobed: str = ""
    """Why the grants could not be found."""


def check_federation(facts: FederationFacts) -> list[Finding]:
    """Return the findings of one server: one of each code."""
    url = facts.url
    rest = ("federation-certificate", "federation-clock", "federation-grants")
    if facts.error:
        fix = "openssl s_client -connect HOST:PORT" if "BUSMQ_TLS" in facts.error else "busmq serve"
        reach = Finding("federation-reach", "failure", url, facts.error, fix)
        return [reach, *unknown(rest, url, "the server does not answer")]
    return [
        Finding("federation-reach", "ok", url, "answers"),
        _certificate(facts),
        clock_finding("federation-clock", url, facts.clock_ahead_s)
        if facts.clock_ahead_s is not None
        else unknown(["federation-clock"], url, "the server sends no time")[0],
        _grants(facts),
    ]


def _certificate(facts: FederationFacts) -> Finding:
    code = "federation-certificate"
    if facts.left_s is None:
        here = facts.url.startswith(("ws://127.", "ws://localhost", "ws://[::1]"))
        text = "the link has no TLS: the secret travels in clear text"
        level: Level = "ok" if here else "warning"
        return Finding(code, level, facts.url, text, "" if here else "export URL=wss://HOST/bus")
    days = facts.left_s / DAY_S
    late = days < MIN_CERTIFICATE_DAYS
    return Finding(
        code,
        "warning" if late else "ok",
        facts.url,
        f"the certificate is valid for {days:,.0f} days",
        "renew it, then: kill -HUP PID of busmq serve" if late else "",
    )


def _grants(facts: FederationFacts) -> Finding:
    if facts.unprobed:
        return unknown(["federation-grants"], facts.url, facts.unprobed)[0]
    granted = facts.grants
    text = (
        f"the secret may browse {granted.get('browse', 0):,} queues, consume"
        f" {granted.get('consume', 0):,} and administer {granted.get('admin', 0):,} of them;"
        f" it may {'push' if granted.get('push') else 'not push'}"
    )
    if any(granted.values()):
        return Finding("federation-grants", "ok", facts.url, text)
    fix = "add patterns to the secret in the file of busmq serve --secrets"
    return Finding("federation-grants", "warning", facts.url, text, fix)
