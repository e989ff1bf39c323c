"""Errors across the wire: what a peer is shown, and what it is not, over either protocol."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from busmq_spark import errors
from busmq_spark.errors import BusError, RemoteError
from busmq_spark.federation import error_codec
from busmq_spark.federation.bulk.frames import decode_error, encode_error

URL = "redis://10.1.2.3:6379"
ABOUT_US: list[BusError] = [
    errors.LinkLost(url=URL, reason="no route"),
    errors.Unauthorized(url=URL, reason="wrong password"),
    errors.TlsError(url=URL, reason="a bad certificate"),
    errors.ServerRefused(url=URL, reason="ERR of a script"),
    errors.ServerFull(url=URL, reason="maxmemory"),
]
ABOUT_THE_CALL: list[BusError] = [
    errors.ConfigError(reason="ttl is -1; expected seconds"),
    errors.QueueFull(queue="q", maxsize=5, left=2, waited=""),
    errors.QueueBusy(queue="q", found="has a consumer", remedy="Wait"),
    errors.StateError(event="push to", what="queue 'q'", state="not attached", remedy="Attach it"),
    errors.MessageRefused(reason="no JSON"),
    errors.RequestTimeout(service="s", timeout_s=0.005),
    errors.RequestFailed(service="s", reason="no", error={"message": "no", "code": 5}),
    errors.FederationRefused(url="this bus", reason="'peer' may not push"),
]


@pytest.mark.parametrize("error", ABOUT_US, ids=lambda error: error.code)
def test_a_peer_learns_nothing_of_our_redis(error: BusError) -> None:
    told = f"{error_codec.error_to_wire(error)} {error_codec.error_event_text(error)}"
    assert error.code in told
    for found in error.details.values():
        assert found not in told
    back = error_codec.error_from_wire(error_codec.error_to_wire(error))
    assert isinstance(back, RemoteError)
    assert back.details["remote"] == error.code


@pytest.mark.parametrize("error", ABOUT_US, ids=lambda error: error.code)
def test_a_peer_of_the_bulk_protocol_learns_no_more(error: BusError) -> None:
    head = encode_error(error)
    for found in error.details.values():
        assert found not in json.dumps(head)
    back = decode_error(head, "ws://there")
    assert type(back) is type(error), "its class says whether to try again"


def test_every_error_that_names_an_address_is_about_us() -> None:
    """A new class is closed until it is put among those that are open, and one with an address must
    not be.
    """
    named = {
        kind.code
        for kind in error_codec.ERRORS_SHOWN_TO_PEERS.values()
        if re.search(r"\{url\b", kind.template)
    }
    assert named == {"BUSMQ_FEDERATION_REFUSED"}  # its address is "this bus"


@pytest.mark.parametrize("error", ABOUT_THE_CALL, ids=lambda error: error.code)
def test_an_error_about_the_call_arrives_as_it_was(error: BusError) -> None:
    back = error_codec.error_from_wire(error_codec.error_to_wire(error))
    assert (type(back), back.details, str(back)) == (type(error), error.details, str(error))
    assert type(decode_error(json.loads(json.dumps(encode_error(error))), "ws://there")) is type(
        error
    )


@pytest.mark.parametrize(
    "value",
    [
        "text of npm",
        {},
        {"command": "EVALSHA", "code": "NOSCRIPT"},
        {"code": "BUSMQ_QUEUE_FULL", "details": {"x": 1}},
        5,
        ["x"],
        True,
        {"code": {}},
    ],
)
def test_whatever_is_not_null_is_an_error(value: Any) -> None:
    assert isinstance(error_codec.error_from_wire(value), RemoteError)
