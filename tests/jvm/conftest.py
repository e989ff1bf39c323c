"""One Java process for all tests of the module that are driven from Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jvm import module
from tests.jvm.probe import Probe
from tests.peers.node import need
from tests.tls import authority, mutual_tls, plain_tls, stranger  # noqa: F401  # fixtures


@pytest.fixture(scope="session")
def probe() -> Iterator[Probe]:
    need(module.missing())
    made = Probe()
    yield made
    made.close()
