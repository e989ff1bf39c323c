"""The Java processes of all tests of the module that are driven from Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jvm import module
from tests.jvm.probe import IMPATIENT, Probe
from tests.peers.node import need
from tests.tls import authority, mutual_tls, plain_tls, stranger  # noqa: F401  # fixtures


@pytest.fixture(scope="session")
def probe() -> Iterator[Probe]:
    need(module.missing())
    made = Probe()
    yield made
    made.close()


@pytest.fixture(scope="session")
def impatient() -> Iterator[Probe]:
    """Another, for servers that do not answer."""
    need(module.missing())
    made = Probe(*IMPATIENT)
    yield made
    made.close()


@pytest.fixture
def asker(request: pytest.FixtureRequest, lost: bytes) -> Probe:
    """For a reply that is ``lost``: a link that is closed is opened again soon; on one that is
    silent no reply must be waited for long.
    """
    found: Probe = request.getfixturevalue("probe" if lost else "impatient")
    return found
