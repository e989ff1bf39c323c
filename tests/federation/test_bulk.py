"""The bytes of ``busmq.bulk.v1``: frames, operations and errors as values, and whatever else may
come.
"""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busmq_spark import errors
from busmq_spark.errors import (
    BusError,
    FederationRefused,
    QueueFlushed,
    QueueFull,
    RemoteError,
    WireError,
)
from busmq_spark.federation.bulk import frames
from busmq_spark.federation.bulk.frames import (
    BulkFrameKind,
    BulkProtocolFrame,
    decode_error,
    encode_error,
)
from busmq_spark.federation.bulk.operations import (
    OPERATIONS,
    RpcTarget,
    ServerHello,
)
from busmq_spark.federation.bulk.rpc_handler import BulkRpcHandler
from busmq_spark.federation.bulk.server import _BulkSession
from busmq_spark.federation.bulk.store import FederationBulkStore
from busmq_spark.queue.message import Position, Range
from busmq_spark.queue.queue import AttachResult
from busmq_spark.reading.reader_operations import AckResult, QueueState
from busmq_spark.reading.times_of_ids import TimeLookupResult, TimesOfIds
from busmq_spark.store.multi_source_store import MultiSourceStore
from busmq_spark.store.protocol import LossCauseEvidence, QueueCreateOptions, ReadStore, WriteStore
from busmq_spark.store.redis_store import RedisStore
from busmq_spark.writing.sink import CommitStoppedAtMaxsize, StagedList
from busmq_spark.writing.sink_runs import SinkRun

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "bulk-v1.json").read_text("utf-8"))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WHOLE = st.integers(-(2**53), 2**53)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
VALUES = st.lists(st.binary(max_size=50), min_size=1, max_size=30)
STAGED = st.builds(
    StagedList,
    TEXT,
    WHOLE,
    TEXT,
    st.lists(st.tuples(WHOLE, WHOLE), max_size=3).map(tuple),
    st.none() | WHOLE,
    WHOLE,
)
NAMES = st.lists(TEXT, max_size=4).map(tuple)
RUN, RANGE = (
    st.builds(SinkRun, TEXT, WHOLE, NAMES),
    st.builds(Range, TEXT, TEXT, WHOLE, WHOLE, WHOLE),
)
STATE = st.builds(QueueState, WHOLE, TEXT, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, TEXT, TEXT, WHOLE)


def by_queue(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(TEXT, values, max_size=3)


ARGUMENTS: dict[str, tuple[st.SearchStrategy[Any], ...]] = {
    "hello": (WHOLE, TEXT),
    "discover": (),
    "attach": (NAMES, st.builds(QueueCreateOptions, st.booleans(), WHOLE, WHOLE)),
    "states": (by_queue(WHOLE),),
    "spans": (by_queue(st.tuples(WHOLE, WHOLE)),),
    "positions": (NAMES,),
    "marks": (by_queue(WHOLE),),
    "note_times": (NAMES,),
    "find_times": (by_queue(WHOLE),),
    "times": (by_queue(st.tuples(WHOLE, WHOLE)),),
    "ages": (by_queue(WHOLE),),
    "counters": (NAMES,),
    "ack": (by_queue(st.builds(Position, TEXT, WHOLE, TEXT, st.none() | WHOLE, WHOLE)), TEXT),
    "subscribe": (by_queue(st.sampled_from(["earliest", "latest"]) | WHOLE), TEXT),
    "subscriptions": (NAMES,),
    "lease": (NAMES, TEXT, TEXT, by_queue(TEXT)),
    "holders": (NAMES, TEXT),
    "keep_alive": (NAMES, TEXT, TEXT),
    "traces": (TEXT,),
    "bytes_until": (TEXT, WHOLE, WHOLE, WHOLE),
    "read": (RANGE, st.booleans(), WHOLE),
    "read_many": (st.lists(RANGE, max_size=3).map(tuple), st.booleans(), WHOLE),
    "read_with_spans": (st.lists(RANGE, max_size=3).map(tuple), WHOLE),
    "listen": (NAMES,),
    "wait": (WHOLE,),
    "begin": (TEXT, TEXT, NAMES),
    "renew": (RUN,),
    "stage": (TEXT, TEXT, WHOLE, RUN),
    "push": (TEXT,),
    "push_from": (TEXT, TEXT, st.lists(WHOLE, max_size=3).map(tuple)),
    "partitions": (TEXT,),
    "take_commands": (TEXT,),
    "event_queues": (st.lists(NAMES, max_size=3).map(tuple),),
    "subscribe_events": (TEXT, NAMES, st.booleans()),
    "record": (TEXT, WHOLE, st.lists(STAGED, max_size=3).map(tuple), TEXT, TEXT, WHOLE),
    "commit": (TEXT, TEXT, WHOLE, st.lists(STAGED, max_size=3).map(tuple)),
    "recorded": (TEXT, WHOLE),
    "sink_state": (TEXT, NAMES),
    "discard": (st.lists(STAGED, max_size=3).map(tuple),),
    "forget": (TEXT, st.lists(STAGED, max_size=3).map(tuple)),
    "ends": (NAMES,),
    "trim": (by_queue(WHOLE),),
}
RESULTS: dict[str, st.SearchStrategy[Any]] = {
    "hello": st.builds(ServerHello, WHOLE, st.booleans(), WHOLE),
    "discover": NAMES,
    "attach": by_queue(st.builds(AttachResult, st.booleans(), WHOLE, WHOLE, TEXT, st.booleans())),
    "states": by_queue(STATE),
    "counters": st.lists(st.none() | st.binary(max_size=20)).map(tuple),
    "note_times": by_queue(WHOLE),
    "times": by_queue(
        st.builds(TimesOfIds, TEXT, st.lists(st.tuples(WHOLE, WHOLE), max_size=3).map(tuple))
    ),
    "find_times": by_queue(st.builds(TimeLookupResult, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE)),
    "ack": by_queue(st.builds(AckResult, TEXT, TEXT)),
    "subscriptions": by_queue(by_queue(WHOLE)),
    "traces": st.builds(
        LossCauseEvidence, st.none() | st.tuples(WHOLE, WHOLE), WHOLE, st.booleans()
    ),
    "wait": st.booleans(),
    "begin": RUN,
    "stage": st.tuples(WHOLE, WHOLE),
    "record": st.lists(STAGED, max_size=3).map(tuple),
    "commit": st.none() | st.builds(CommitStoppedAtMaxsize, TEXT, WHOLE, WHOLE),
    "ends": by_queue(WHOLE),
    "trim": st.none(),
}


def through(head: Any) -> Any:
    """As it comes out at the other end."""
    return frames.decode_frame(BulkProtocolFrame(BulkFrameKind.CALL, 1, head).encode()).head


# -- frames ----------------------------------------------------------------------------------------


@given(
    st.sampled_from(BulkFrameKind),
    st.integers(0, frames.MAX_CALL_ID),
    JSON,
    st.binary(max_size=100),
)
def test_a_frame_comes_through_as_it_was(
    kind: BulkFrameKind, id: int, head: Any, body: bytes
) -> None:
    message = BulkProtocolFrame(kind, id, head, body).encode()
    found = frames.decode_frame(message)
    assert (found.kind, found.id, found.head, bytes(found.body)) == (kind, id, head, body)
    assert not body or (len(message) - len(body)) % 64 == 0


@pytest.mark.parametrize("case", GOLDEN["frames"], ids=lambda case: case["name"])
def test_frames_are_those_of_the_golden_file(case: dict[str, Any]) -> None:
    frame = BulkProtocolFrame(
        BulkFrameKind[case["kind"]], case["id"], case["head"], bytes.fromhex(case["body"])
    )
    assert frame.encode().hex() == case["message"]
    found = frames.decode_frame(bytes.fromhex(case["message"]))
    assert (found.kind, found.id, found.head, bytes(found.body)) == (
        frame.kind,
        frame.id,
        frame.head,
        frame.body,
    )


@given(VALUES)
def test_values_to_store_come_through(values: list[bytes]) -> None:
    assert frames.unpack_values(frames.pack_values(values)) == values


def test_values_to_store_are_packed_as_in_the_golden_file() -> None:
    values = [value.encode() for value in GOLDEN["values"]["values"]]
    assert frames.pack_values(values).hex() == GOLDEN["values"]["body"]


@given(VALUES, st.booleans())
def test_rows_come_through_and_use_the_memory_of_the_message(
    values: list[bytes], wide: bool
) -> None:
    array = pa.array(values, pa.large_binary() if wide else pa.binary())
    message = BulkProtocolFrame(
        BulkFrameKind.ROWS, 1, {"first": 7}, memoryview(frames.encode_rows(array))
    ).encode()
    body = frames.decode_frame(message).body
    found = frames.decode_rows(
        body, frames.decode_schema(memoryview(frames.encode_schema(frames.rows_schema(array))))
    )
    assert found.to_pylist() == values
    assert found.type == array.type
    lies = pa.py_buffer(body).address
    assert all(
        lies <= buffer.address < lies + len(body)
        for buffer in found.buffers()
        if buffer is not None and buffer.size
    )


def test_rows_and_schema_of_the_golden_file_are_still_read() -> None:
    rows = GOLDEN["rows"]
    schema = frames.decode_schema(bytes.fromhex(rows["schema"]))
    assert frames.decode_rows(bytes.fromhex(rows["batch"]), schema).to_pylist() == [
        value.encode() for value in rows["values"]
    ]


# -- what is wrong ---------------------------------------------------------------------------------


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_wire_error(data: bytes) -> None:
    with suppress(WireError):
        frames.decode_frame(data)
    with suppress(WireError):
        frames.unpack_values(data)
    with suppress(WireError):
        frames.decode_schema(data)


@settings(max_examples=500)
@given(VALUES, st.data())
def test_a_damaged_record_batch_is_rows_or_a_wire_error(
    values: list[bytes], data: st.DataObject
) -> None:
    array = pa.array(values, pa.binary())
    damaged = bytearray(frames.encode_rows(array).to_pybytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(damaged)))
    for body in (bytes(damaged), bytes(damaged[:stop])):
        with suppress(WireError):
            assert len(frames.decode_rows(body, frames.rows_schema(array)).to_pylist()) > 0


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("a text", "a text message"),
        (b"", "0 bytes"),
        (b"\x01\0\0\0\0\xff\xff\xff\xff", "a head of 4294967295 bytes"),
        (b"\x63\0\0\0\0\x01\0\0\x000", "frame kind 99"),
        (b"\x01\0\0\0\0\x03\0\0\0NaN", "no JSON"),
        (b"\x01\0\0\0\0\x03\0\0\x001.5", "no JSON"),
        (b"\x01\0\0\0\0\x02\0\0\0\xff\xff", "no JSON"),
        (
            BulkProtocolFrame(BulkFrameKind.CALL, 1, 0).encode_head()[:5]
            + b"\x40\x9c\0\0"
            + b"[" * 40_000,
            "no JSON",
        ),
    ],
)
def test_a_message_that_is_no_frame_is_recognized(message: Any, found: str) -> None:
    with pytest.raises(WireError, match=found):
        frames.decode_frame(message)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff\0\0\0\0",
        b"\x01\0\0\0\x05\0\0\0abc",
        b"\x01\0\0\0\x01\0\0\0abc",
    ],
)
def test_values_whose_lengths_do_not_add_up_are_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        frames.unpack_values(body)


def test_only_our_two_schemas_are_taken() -> None:
    other = pa.schema([pa.field("value", pa.string())])
    with pytest.raises(WireError, match="an Arrow schema of 1 columns"):
        frames.decode_schema(other.serialize().to_pybytes())


@pytest.mark.parametrize("last", [4_000_000, 3, -1])
def test_rows_that_point_beyond_their_message_are_refused(last: int) -> None:
    array = pa.array([b"aaaa", b"bbbb"], pa.binary())
    body, borders = frames.encode_rows(array).to_pybytes(), struct.pack("<iii", 0, 4, 8)
    assert body.count(borders) == 1
    with pytest.raises(WireError):
        frames.decode_rows(
            body.replace(borders, struct.pack("<iii", 0, 4, last)), frames.rows_schema(array)
        )


def test_rows_that_are_compressed_are_refused_before_they_are_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = frames.rows_schema(pa.array([b""], pa.binary()))
    packed = bulk_compressed(
        pa.RecordBatch.from_arrays([pa.array([bytes(50_000_000)], pa.binary())], schema=narrow)
    )
    assert len(packed) < 1_000_000
    monkeypatch.setattr(pa.ipc, "read_record_batch", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(WireError, match="not compressed"):
        frames.decode_rows(packed, narrow)


def test_rows_that_are_compressed_or_null_are_refused() -> None:
    narrow = frames.rows_schema(pa.array([b""], pa.binary()))
    batch = pa.RecordBatch.from_arrays([pa.array([b"x" * 100_000], pa.binary())], schema=narrow)
    packed = bulk_compressed(batch)
    with pytest.raises(WireError, match="not compressed"):
        frames.decode_rows(packed, narrow)
    null = (
        pa.RecordBatch.from_arrays([pa.array([None, b"1"], pa.binary())], ["value"])
        .serialize()
        .to_pybytes()
    )
    with pytest.raises(WireError):
        frames.decode_rows(null, narrow)


def bulk_compressed(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
    ) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    found: bytes = reader.read_next_message().serialize().to_pybytes()
    return found


# -- operations ------------------------------------------------------------------------------------


def test_every_operation_is_tried_here() -> None:
    assert ARGUMENTS.keys() == OPERATIONS.keys()
    assert RESULTS.keys() <= OPERATIONS.keys()


SERVERS = {
    RpcTarget.STORE: (RedisStore, "{}"),
    RpcTarget.PEER: (BulkRpcHandler, "{}"),
    **dict.fromkeys((RpcTarget.SESSION, RpcTarget.CONCURRENT), (_BulkSession, "_{}")),
}
"""Who serves, and how the method of an operation is called there. One beside the others is given
the call's id, too.
"""
PROTOCOL = {
    name
    for store in (ReadStore, WriteStore)
    for name, found in vars(store).items()
    if isfunction(found) and not name.startswith("_")
}
OTHERS = {
    "hello",
    "listen",
    "wait",
    "stage",
    "push",
    "push_from",
    "take_commands",
    "event_queues",
    "subscribe_events",
    "ends",
    "trim",
}
OTHERS |= {
    "spans",
    "positions",
    "read_with_spans",
}  # what source and sink do not ask, or in other words
LOCAL = {"keys", "locate", "topic_queues", "appender", "commit_many", "truncate", "close"}
"""What the client answers itself, or with other operations."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_declared_is_served(name: str) -> None:
    operation = OPERATIONS[name]
    served, spelling = SERVERS[operation.served_by]
    given = [
        None,
        *([1] if operation.served_by is RpcTarget.CONCURRENT else []),
        *ARGUMENTS[name],
        *([[b""]] if operation.has_body else []),
    ]
    signature(getattr(served, spelling.format(name))).bind(
        *given
    )  # raises TypeError where it takes others


def test_what_source_and_sink_ask_is_an_operation_and_passed_on() -> None:
    assert {*OPERATIONS} >= PROTOCOL - LOCAL
    assert {*OPERATIONS} - PROTOCOL == OTHERS
    for name in PROTOCOL:
        wanted = getattr(ReadStore if hasattr(ReadStore, name) else WriteStore, name)
        assert [*signature(getattr(FederationBulkStore, name)).parameters] == [
            *signature(wanted).parameters
        ]
        if hasattr(ReadStore, name):
            assert [*signature(getattr(MultiSourceStore, name)).parameters] == [
                *signature(wanted).parameters
            ]


@pytest.mark.parametrize("name", ARGUMENTS)
@settings(max_examples=20)
@given(data=st.data())
def test_arguments_come_through_as_they_were(name: str, data: st.DataObject) -> None:
    given = data.draw(st.tuples(*ARGUMENTS[name]))
    operation = OPERATIONS[name]
    assert operation.decode_arguments(through(operation.arguments.encode(given))) == given
    assert [*operation.required_rights(*given)]  # names an object, whatever it is asked with


@pytest.mark.parametrize("name", RESULTS)
@settings(max_examples=20)
@given(data=st.data())
def test_results_come_through_as_they_were(name: str, data: st.DataObject) -> None:
    given = data.draw(RESULTS[name])
    assert OPERATIONS[name].decode_result(through(OPERATIONS[name].result.encode(given))) == given


@pytest.mark.parametrize("name", ARGUMENTS)
@settings(max_examples=30)
@given(head=JSON)
def test_arguments_and_results_of_any_other_form_are_a_wire_error(name: str, head: Any) -> None:
    with suppress(WireError):
        OPERATIONS[name].decode_arguments(head)
    with suppress(WireError):
        OPERATIONS[name].decode_result(head)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("states", [{"q": True}]),
        ("states", [{"q": 2**53 + 1}]),
        ("states", [{"\ud800": 1}]),
        ("traces", ["x" * 5000]),
        ("traces", ["q", "more"]),
        ("hello", None),
        ("subscribe", [{"q": "middle"}, ""]),
        ("ack", [{"q": ["born", 1, "mark", None]}, ""]),
    ],
)
def test_arguments_of_the_wrong_type_are_an_error(name: str, head: Any) -> None:
    with pytest.raises(WireError, match="arguments or a result of another form"):
        OPERATIONS[name].decode_arguments(head)


# -- errors ----------------------------------------------------------------------------------------


def known() -> list[type[BusError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, BusError)
    ]


def test_an_error_of_the_server_is_the_same_error_at_the_client() -> None:
    for error in (
        QueueFull(queue="q", maxsize=3, left=2, waited=""),
        QueueFlushed(queue="q", expected="ids 1..2", found="nothing"),
        errors.StaleBatch(sink="s", batch=3, found=4),
    ):
        found = decode_error(through(encode_error(error)), "ws://there")
        assert (type(found), found.details, str(found)) == (type(error), error.details, str(error))


def test_codes_of_errors_are_unique_or_the_root_of_a_family() -> None:
    codes = [cls.code for cls in known()]
    assert sorted(codes) == sorted(set(codes))


def test_where_the_servers_redis_is_stays_with_the_server() -> None:
    error = errors.LinkLost(url="redis://10.0.0.7:6379", reason="10.0.0.7:6379 refused")
    found = decode_error(through(encode_error(error)), "ws://there")
    assert type(found) is errors.LinkLost
    assert "10.0.0.7" not in json.dumps(encode_error(error))
    refused = decode_error(
        through(encode_error(FederationRefused(url="", reason="no"))), "ws://there"
    )
    assert "ws://there" in str(refused)


def test_an_error_of_a_later_version_is_a_remote_error() -> None:
    for head in (
        {"code": "BUSMQ_LATER", "details": {}, "text": "what it says\x1b[2J\nnext"},
        {"code": "BUSMQ_QUEUE_FULL", "details": {"queue": "q"}, "text": "details are missing"},
        {"code": "BUSMQ_QUEUE_FULL", "details": {"self": "q"}, "text": "a detail no call takes"},
    ):
        found = decode_error(head, "ws://there")
        assert type(found) is RemoteError
        assert "\x1b" not in str(found)
        assert "\n" not in str(found)


@given(
    JSON
    | st.fixed_dictionaries(
        {
            "code": st.sampled_from([cls.code for cls in known()]),
            "details": st.dictionaries(st.text(), JSON),
            "text": JSON,
        }
    )
)
def test_any_head_of_an_error_is_an_error_or_a_wire_error(head: Any) -> None:
    with suppress(WireError):
        assert isinstance(decode_error(head, "ws://there"), BusError)
