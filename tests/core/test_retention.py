"""The limits of what a queue keeps, as they are given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from busmq_spark.errors import ConfigError
from busmq_spark.queue.retention import parse_limits


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((None, None, None), "end"),
        (("7d", None, None), "604800:0:0"),
        ((90, 5, None), "90:5:0"),
        ((timedelta(hours=1), None, "1k"), "3600:0:1024"),
        ((None, 2**53 - 1, 1), "0:9007199254740991:1"),
    ],
)
def test_limits_are_spelled_one_way(given: Any, text: str) -> None:
    assert parse_limits(*given) == text


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("tomorrow", None, None), "age is 'tomorrow'; expected seconds"),
        ((0, None, None), "age is 0; expected a whole number of at least 1"),
        ((None, 0, None), "messages is 0"),
        ((None, "7", None), "messages is '7'"),
        ((None, 2**53, None), "messages is 9007199254740992"),
        ((None, None, "much"), "bytes is 'much'; expected bytes, or"),
        ((True, None, None), "age is True"),
    ],
)
def test_a_limit_that_is_none_is_named(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_limits(*given)
