"""docs/protocol.md is that of the code: its scripts, operations and keys are all there are, and what comments cite exists."""

from __future__ import annotations

import re

import pytest

from busmq_spark.core.keys import QueueKeys
from busmq_spark.federation.bulk import operations
from busmq_spark.federation.bulk.frames import BulkFrameKind
from busmq_spark.federation.bulk.operations import OPERATIONS, JsonCodec
from tests.protocol_page import PAGE, ROOT, with_scripts

RECORDS: dict[str, JsonCodec] = {
    "Position": operations.POSITION,
    "Range": operations.RANGE,
    "Creation": operations.CREATION,
    "Attached": operations.ATTACHED,
    "State": operations.STATE,
    "Span": operations.SPAN,
    "FoundTime": operations.FOUND_TIME,
    "AckResult": operations.ACK_RESULT,
    "RemovalTraces": operations.TRACES,
    "Staged": operations.STAGED,
    "Run": operations.RUN,
    "Full": operations.FULL,
}
TEXT = PAGE.read_text("utf-8")
_CITED = re.compile(r"protocol (?:chapter )?(Q\d+|\d+(?:\.\d+)?)")
_MORE = re.compile(r"protocol [^()\n]*?(?:,| and| to) (Q\d+|\d+\.\d+)")


def sources() -> list[str]:
    """The text of every file of the product."""
    folders = [(ROOT / "busmq_spark", "*.py"), (ROOT / "busmq_spark", "*.lua"), (ROOT / "jvm-shim" / "src", "*.java")]
    return [path.read_text("utf-8") for folder, pattern in folders for path in folder.rglob(pattern)]


def test_the_heads_of_the_scripts_are_those_of_the_files() -> None:
    assert with_scripts(TEXT) == TEXT, "the page is old: python -m tests.protocol_page writes it anew"


def test_every_section_that_a_comment_cites_exists() -> None:
    headings = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\b", TEXT, re.MULTILINE)) | set(re.findall(r"^\| (Q\d+) \|", TEXT, re.MULTILINE))
    cited = {number for text in sources() for pattern in (_CITED, _MORE) for number in pattern.findall(text)}
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
        fields = re.sub(r"\([^()]*\)|\[(?:[^][]|\[[^][]*\])*\]", "", found[name]).partition(";")[0].split(",")
        with pytest.raises(ValueError, match=rf"^a list of {len(fields)}$"):
            codec.decode([])


def test_the_table_of_frames_has_each_kind_with_its_number() -> None:
    chapter = TEXT.partition("### 8.1")[2].partition("### 8.2")[0]
    assert {name: int(number) for number, name in re.findall(r"^\| (\d) \| ([A-Z]+) \|", chapter, re.MULTILINE)} == {
        k.name: k.value for k in BulkFrameKind
    }


@pytest.mark.parametrize("suffix", sorted({key.rpartition("x")[2] for key in (*QueueKeys("x").all, QueueKeys("x").owners)}))
def test_every_key_of_a_queue_is_on_the_page(suffix: str) -> None:
    assert f"`<id>{suffix}`" in TEXT


def test_every_file_that_the_page_names_exists() -> None:
    for path in re.findall(r"`((?:busmq_spark|tests|jvm-shim)/[\w/.-]+)`", TEXT):
        assert (ROOT / path).exists(), path
