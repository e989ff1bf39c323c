"""Servers, proxies and drivers of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from busmq_spark.embedded import EmbeddedRedis
from tests.faults.process import DriverProcess, Garage
from tests.faults.proxy import Proxy
from tests.faults.scene import Bus
from tests.jvm import module


@pytest.fixture(scope="package", autouse=True)
def _jar() -> None:
    """What is killed here keeps its checkpoints with the Java module, wherever that can be
    built.
    """
    if not module.missing():
        module.built()


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    """A Redis that survives a kill: AOF, fsync always."""
    with EmbeddedRedis(aof=True) as made:
        yield made


@pytest.fixture
def bus(server: EmbeddedRedis) -> Bus:
    return Bus(server)


@pytest.fixture
def proxy(server: EmbeddedRedis) -> Iterator[Proxy]:
    with Proxy(server.port) as made:
        yield made


@pytest.fixture(scope="package")
def garage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Garage]:
    with Garage(tmp_path_factory.mktemp("drivers")) as made:
        yield made


@pytest.fixture(scope="package")
def _workshop(garage: Garage) -> Iterator[DriverProcess]:
    with garage.take(last=True) as made:
        yield made


@pytest.fixture
def workshop(_workshop: DriverProcess) -> Iterator[DriverProcess]:
    """A driver that is not killed and serves one test after another."""
    yield _workshop
    _workshop.stop()
