"""docs/protocol.md is that of the code: its scripts, operations and keys are all there are, and
what comments cite exists.
"""

from __future__ import annotations

import re
from inspect import Parameter, getmembers, isfunction, signature
from typing import Any

import pytest

from busmq_spark.federation.bulk.frames import BulkFrameKind
from busmq_spark.federation.bulk.operations import OPERATIONS, BulkJsonCodec, codec_of
from busmq_spark.queue import keys
from busmq_spark.queue.caching import cached_attribute
from busmq_spark.queue.keys import JobKeys, QueueKeys, TopicKeys
from busmq_spark.queue.message import Position, Range
from busmq_spark.queue.queue import AttachResult
from busmq_spark.reading.reader_operations import AckResult, QueueState
from busmq_spark.reading.times_of_ids import TimeLookupResult
from busmq_spark.store.protocol import LossCauseEvidence, QueueCreateOptions
from busmq_spark.writing.mirror import OriginQueueState
from busmq_spark.writing.sink import CommitStoppedAtMaxsize, StagedList
from busmq_spark.writing.sink_runs import SinkRun
from tests.protocol_page import PAGE, ROOT, with_scripts

RECORDS: dict[str, BulkJsonCodec] = {
    name: codec_of(kind)
    for name, kind in {
        "Position": Position,
        "Range": Range,
        "Creation": QueueCreateOptions,
        "Attached": AttachResult,
        "State": QueueState,
        "Span": OriginQueueState,
        "TimeLookupResult": TimeLookupResult,
        "AckResult": AckResult,
        "LossCauseEvidence": LossCauseEvidence,
        "Staged": StagedList,
        "Run": SinkRun,
        "Full": CommitStoppedAtMaxsize,
    }.items()
}
TEXT = PAGE.read_text("utf-8")
_CITED = re.compile(r"protocol (?:chapter )?(Q\d+|\d+(?:\.\d+)?)")
_MORE = re.compile(r"protocol [^()\n]*?(?:,| and| to) (Q\d+|\d+\.\d+)")


def sources() -> list[str]:
    """The text of every file of the product."""
    folders = [
        (ROOT / "busmq_spark", "*.py"),
        (ROOT / "busmq_spark", "*.lua"),
        (ROOT / "jvm-shim" / "src", "*.java"),
    ]
    return [
        path.read_text("utf-8") for folder, pattern in folders for path in folder.rglob(pattern)
    ]


def test_the_heads_of_the_scripts_are_those_of_the_files() -> None:
    assert with_scripts(TEXT) == TEXT, (
        "the page is old: python -m tests.protocol_page writes it anew"
    )


def test_every_section_that_a_comment_cites_exists() -> None:
    headings = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\b", TEXT, re.MULTILINE)) | set(
        re.findall(r"^\| (Q\d+) \|", TEXT, re.MULTILINE)
    )
    cited = {
        number
        for text in sources()
        for pattern in (_CITED, _MORE)
        for number in pattern.findall(text)
    }
    assert len(cited) > 20
    assert cited - headings == set()


def test_the_table_of_operations_has_each_of_them() -> None:
    chapter = TEXT.partition("### 8.2")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", chapter, re.MULTILINE)) == set(OPERATIONS)


def test_the_table_of_composite_values_has_as_many_fields_as_go_over_the_wire() -> None:
    table = TEXT.partition("| value | fields |\n|---|---|\n")[2].partition("\n\n")[0]
    found = dict(re.findall(r"^\| (\w+) \| (.*) \|$", table, re.MULTILINE))
    assert found.keys() == RECORDS.keys()
    for name, codec in RECORDS.items():
        fields = (
            re.sub(r"\([^()]*\)|\[(?:[^][]|\[[^][]*\])*\]", "", found[name])
            .partition(";")[0]
            .split(",")
        )
        with pytest.raises(ValueError, match=rf"^a list of {len(fields)}$"):
            codec.decode([])


def test_the_table_of_frames_has_each_kind_with_its_number() -> None:
    chapter = TEXT.partition("### 8.1")[2].partition("### 8.2")[0]
    assert {
        name: int(number)
        for number, name in re.findall(r"^\| (\d) \| ([A-Z]+) \|", chapter, re.MULTILINE)
    } == {k.name: k.value for k in BulkFrameKind}


def filled_in(function: Any) -> Any:
    """The key that a function spells, with the names of its parameters in the place of their
    values.
    """
    return function(
        *(
            f"<{name}>"
            for name, parameter in signature(function).parameters.items()
            if parameter.default is Parameter.empty
        )
    )


def keys_of(owner: QueueKeys | TopicKeys | JobKeys) -> set[str]:
    """Every key that one of the classes of queue/keys.py spells."""
    attributes = [
        name
        for name, found in vars(type(owner)).items()
        if not name.startswith("_") and isinstance(found, cached_attribute | property)
    ]
    spelled = [getattr(owner, name) for name in attributes]
    spelled += [
        filled_in(getattr(owner, name))
        for name, found in vars(type(owner)).items()
        if isfunction(found) and not name.startswith("_")
    ]
    return {
        key
        for found in spelled
        for key in (found if isinstance(found, tuple) else [found])
        if isinstance(key, str) and ":" in key
    }


def every_key() -> list[str]:
    """All that queue/keys.py spells: keys of queues, topics and jobs, other keys, and channels."""
    others = {
        filled_in(found)
        for _, found in getmembers(keys, isfunction)
        if signature(found).return_annotation == "str"
    }
    found = {
        keys.EVENT_SUBSCRIPTIONS_KEY,
        *(key for key in others if key.startswith("bus:") and not key.endswith(":")),
    }
    found |= {key.replace("bus:queue:<id>", "<id>") for key in keys_of(QueueKeys("<id>"))}
    found |= keys_of(TopicKeys("<name>")) | keys_of(JobKeys("<job>"))
    return sorted(
        key for key in found - {"<id>", "bus:job:<job>"} if "*" not in key
    )  # but for what only begins keys, and patterns of keys


def test_every_key_is_found() -> None:
    assert {
        "<id>:acks",
        "<id>:group:<name>:due",
        "bus:sink:<sink>",
        "bus:topic:<name>:members:<group>",
        "bus:job:<job>:done",
    } <= {*every_key()}


@pytest.mark.parametrize("key", every_key())
def test_every_key_is_among_those_of_npm_or_has_its_row_in_the_table_of_ours(key: str) -> None:
    ours = TEXT.partition("### 6.1")[2].partition("### 6.2")[0]
    of_npm = (
        TEXT.partition("### 1.1")[2].partition("### 1.2")[0]
        + TEXT.partition("## 4.")[2].partition("## 5.")[0]
    )
    assert f"| `{key}` |" in ours or f"`{key}`" in of_npm


def test_every_file_that_the_page_names_exists() -> None:
    for path in re.findall(r"`((?:busmq_spark|tests|jvm-shim)/[\w/.-]+)`", TEXT):
        assert (ROOT / path).exists(), path
