"""docs/kafka.md: every option of Spark's Kafka source has its row, and what is named as ours
exists.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.errors import ConfigError
from busmq_spark.option_parsing import KAFKA_OPTION_HINTS, parse
from busmq_spark.options import ReadOptions, WriteOptions

PAGE = Path(__file__).parents[1] / "docs" / "kafka.md"
SOURCE, SINK = PAGE.read_text("utf-8").split("## The sink")
OF_THE_SOURCE = [
    "kafka.bootstrap.servers",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "startingOffsetsByTimestampStrategy",
]
"""As Spark 4.3 has them."""


def table(text: str, head: str) -> dict[str, str]:
    """First column (Kafka) → second (ours), of the table with this head."""
    body = re.search(rf"\| {head} \| here \| \|\n\|---.*\n((?:\|.*\n)+)", text)
    assert body
    return {
        cells[1].strip(): cells[2].strip()
        for line in body[1].splitlines()
        if (cells := line.split("|"))
    }


def names(cls: type[Any]) -> dict[str, str]:
    """Each name and alias of an option → its name."""
    return {
        name: row.metadata["name"]
        for row in fields(cls)
        for name in (row.metadata["name"], row.metadata["alias"])
        if name
    }


@pytest.mark.parametrize("name", OF_THE_SOURCE)
def test_an_option_of_kafkas_source_is_on_the_page_and_does_what_the_page_says(name: str) -> None:
    ours = table(SOURCE, "Kafka")[f"`{name}`"].strip("`")
    if name in names(ReadOptions):
        assert names(ReadOptions)[name] == ours
    else:
        with pytest.raises(ConfigError) as told:
            parse(ReadOptions, {"subscribe": "q", name: "x"})
        assert (
            (f"option '{ours}'" in str(told.value))
            if ours != "not needed"
            else ("leave it out" in str(told.value))
        )


@pytest.mark.parametrize(
    ("text", "cls"), [(SOURCE, ReadOptions), (SINK, WriteOptions)], ids=["source", "sink"]
)
def test_what_the_page_names_as_ours_exists(text: str, cls: type[Any]) -> None:
    for ours in table(text, "Kafka").values():
        if ours != "not needed" and not ours.startswith("column "):
            assert ours.strip("`") in names(cls).values(), ours


def test_every_name_of_kafka_that_an_error_knows_is_on_the_page() -> None:
    assert set(KAFKA_OPTION_HINTS) <= {name.strip("`").lower() for name in table(SOURCE, "Kafka")}
