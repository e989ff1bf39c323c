"""Two data centres for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from busmq_spark.embedded import EmbeddedRedis
from tests.mirror.centres import Centre, centre


@pytest.fixture(scope="module")
def far() -> Iterator[Centre]:
    """A data centre, of which this file has the only mirrors."""
    with EmbeddedRedis() as server, centre(server.url) as made:
        yield made


@pytest.fixture
def near(redis_url: str) -> Iterator[Centre]:
    with centre(redis_url) as made:
        yield made
