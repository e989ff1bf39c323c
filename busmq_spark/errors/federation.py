"""Errors of federation servers and their peers."""

from __future__ import annotations

from busmq_spark.errors.base import BusError
from busmq_spark.errors.queue import ProtocolError
from busmq_spark.errors.redis import LinkLost


class FederationLost(LinkLost):
    """A federation server cannot be reached, or did not answer in time."""

    code = "BUSMQ_FEDERATION_LOST"
    template = (
        "cannot reach the federation server at {url}: {reason}. Check that it runs and that this"
        " address is reachable from here"
    )


class FederationRefused(BusError):
    """A federation server refused the secret, or what was asked goes beyond what the secret may
    do.
    """

    code = "BUSMQ_FEDERATION_REFUSED"
    template = (
        "the federation server at {url} refused: {reason}. Check the secret, and what its name may"
        " do there"
    )


class RemoteError(BusError):
    """A federation server answered with an error that this version has no class for;
    ``details["remote"]`` is its code.
    """

    code = "BUSMQ_REMOTE"
    remedy = (
        "Look up that code in the documentation of the server's version, or install that version"
        " here."
    )
    template = "the federation server answered with {remote}: {reason}"


class WireError(ProtocolError):
    """A federation peer sent bytes that are no packet, creation message or RPC line. Its channel
    ends.
    """

    code = "BUSMQ_WIRE"
    template = (
        "a federation peer sent {found}; expected {expected}. Its channel is closed. See which"
        " program connects here"
    )
