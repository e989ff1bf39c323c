"""The bytes of the federation wire: as captured from npm busmq and its browsers, both ways, and
whatever else may come.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import WireError
from busmq_spark.federation.npm_wire.channels import (
    METHODS_OF_TYPE,
    MuxPacket,
    ObjectCreationMessage,
    make_creation,
)
from busmq_spark.federation.npm_wire.dnode import (
    DnodeCallbackRef,
    DnodeCallbacks,
    DnodeMessage,
    LineBuffer,
    call_message,
    invocation_line,
    message_tail,
    methods_message,
    result_line,
)
from tests.federation.tools import UNDEFINED, pack_call

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "federation-wire.json").read_text("utf-8")
)
CASES = {
    case["case"].partition(":")[0]: [said["line"].encode() for said in case["lines"]]
    for case in GOLDEN["cases"]
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
PATHS = st.lists(
    st.text(max_size=5).filter(lambda step: step not in ("__proto__", "constructor", "prototype")),
    min_size=1,
    max_size=4,
).map(tuple)


# -- goldens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("packet", GOLDEN["packets"])
def test_packets_are_those_of_npm(packet: dict[str, str]) -> None:
    value = MuxPacket(packet["channel"], packet["body"].encode() if packet["type"] == "1" else None)
    assert value.encode().hex() == packet["payload_hex"]
    assert MuxPacket.decode(bytes.fromhex(packet["payload_hex"])) == value


@pytest.mark.parametrize(
    "line", [*GOLDEN["lines"], *(line.decode() for case in CASES.values() for line in case)]
)
def test_every_captured_line_is_read_and_written_again_byte_by_byte(line: str) -> None:
    assert DnodeMessage.decode(line.encode()).encode() == line.encode()


@pytest.mark.parametrize("body", GOLDEN["creations"])
def test_every_captured_creation_message_is_read_and_written_again_byte_by_byte(body: str) -> None:
    assert ObjectCreationMessage.decode(body.encode()).encode() == body.encode()


@pytest.mark.parametrize("large", GOLDEN["large"])
def test_a_large_line_is_the_one_whose_digest_was_captured(large: dict[str, str]) -> None:
    body = f"{large['head']}{'y' * 100_000}{large['tail']}".encode()
    packet = MuxPacket(large["channel"], DnodeMessage.decode(body).encode()).encode()
    assert hashlib.sha256(packet).hexdigest() == large["sha256"]


def test_the_lists_of_methods_and_their_numbers_are_those_of_npm() -> None:
    made = [ObjectCreationMessage.decode(body.encode()) for body in GOLDEN["creations"]]
    for kind, methods in METHODS_OF_TYPE.items():
        assert methods in [one.methods for one in made if one.type == kind]
    captured = [
        line.encode()
        for line in GOLDEN["lines"]
        if line.startswith('{"method":"methods"') and '"on"' in line
    ]
    assert methods_message(METHODS_OF_TYPE["queue"]).encode() in captured
    assert methods_message(METHODS_OF_TYPE["pubsub"]).encode() in captured


def test_the_short_ways_write_the_same_lines() -> None:
    assert result_line(6, 1) == DnodeMessage(6, [None, 1]).encode()
    assert result_line(6, 1).decode() in GOLDEN["lines"]
    for text in (
        "hello",
        'line1\nline2 z\u0000\u001f"\\',
        "h\u00e9\U0001f600",
        "\u2028",
        "half \ud800 pair",
    ):
        assert invocation_line(3, message_tail(text, 7)) == DnodeMessage(3, [text, 7]).encode()
    assert (
        invocation_line(2, message_tail('line1\nline2\u2028z\u0000\u001f"\\', 3)).decode()
        in GOLDEN["lines"]
    )


# -- functions -------------------------------------------------------------------------------------


def other() -> None: ...
def nothing() -> None: ...


def calls(*calls: list[Any]) -> list[bytes]:
    functions = DnodeCallbacks()
    return [pack_call(0, arguments, functions).encode() for arguments in calls]


def test_functions_get_the_numbers_that_npm_gives_them() -> None:
    assert calls([nothing, nothing]) == CASES["same function twice in one call"]
    assert calls([nothing], [nothing]) == CASES["same function in two calls"]
    assert calls([nothing], [other]) == CASES["fresh functions"]
    assert calls([{"max": 1, "throttle": nothing}]) == CASES["function nested in an option object"]
    assert calls([[1, nothing]]) == CASES["function inside an array"]
    assert calls([]) == CASES["no arguments"]
    assert (
        calls([UNDEFINED, None, None, "1970-01-01T00:00:00.000Z", None])
        == CASES["undefined / NaN / Infinity / Date / null values"]
    )


def test_a_circular_argument_becomes_a_link_and_is_read_without_its_circle() -> None:
    circular: dict[str, Any] = {"a": 1}
    circular["self"] = circular
    assert calls([circular]) == CASES["circular reference -> links"]
    [line] = CASES["circular reference -> links"]
    assert DnodeMessage.decode(line).call_values() == [{"a": 1, "self": "[Circular]"}]


def test_functions_are_found_at_any_depth_and_the_line_stays_as_it_was() -> None:
    text = (
        '{"method":18,"arguments":[{"0":{"a":[{"b":"[Function]"}],"c":"[Function]"},'
        '"1":"[Function]"}],"callbacks":{"3":["0","0","a","0","b"],'
    )
    line = DnodeMessage.decode(f'{text}"4":["0","1"]}}}}'.encode())
    assert line.call_values() == [
        {"a": [{"b": DnodeCallbackRef(3)}], "c": "[Function]"},
        DnodeCallbackRef(4),
    ]
    assert line.arguments == [
        {"0": {"a": [{"b": "[Function]"}], "c": "[Function]"}, "1": "[Function]"}
    ]


def test_the_text_of_a_function_is_just_text() -> None:
    [line] = CASES["literal string [Function] is just a string"]
    assert DnodeMessage.decode(line).call_values() == ["[Function]"]


def test_a_gap_moves_later_arguments_up_as_in_npm() -> None:
    line = DnodeMessage.decode(b'{"method":13,"arguments":[{"2":"c","10":"d","1":"b"}]}')
    assert line.call_values() == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [("[]", []), ("[{}]", []), ('[["a",1]]', ["a", 1]), ('[{"0":{"x":1}}]', [{"x": 1}])],
)
def test_the_arguments_of_a_call(arguments: str, values: list[Any]) -> None:
    assert (
        DnodeMessage.decode(f'{{"method":1,"arguments":{arguments}}}'.encode()).call_values()
        == values
    )


def test_what_a_server_invokes_has_a_plain_list() -> None:
    assert (
        call_message(3, [nothing], DnodeCallbacks()).encode()
        == b'{"method":3,"arguments":["[Function]"],"callbacks":{"0":["0"]},"links":[]}\n'
    )


def test_numbers_are_never_used_twice_and_bounded_in_number() -> None:
    functions = DnodeCallbacks(most=2)
    assert [
        functions.register(nothing),
        functions.register(other),
        functions.register(nothing),
    ] == [0, 1, 0]
    with pytest.raises(WireError, match="more than 2 functions"):
        functions.register(calls)
    functions.forget(0)
    functions.forget(77)
    assert functions.get(0) is None
    assert functions.register(nothing) == 2
    assert len(functions) == 2
    for id in (1, 2):
        functions.forget(id)
    assert [functions.register(nothing), functions.register(other)] == [3, 4]


# -- lines in packets ------------------------------------------------------------------------------


@given(
    st.lists(
        st.text(
            alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1
        ),
        max_size=5,
    ),
    st.integers(1, 7),
)
def test_lines_come_out_whole_however_packets_cut_them(texts: list[str], size: int) -> None:
    data, lines = "".join(f"{text}\n" for text in texts).encode(), LineBuffer()
    found = [
        line
        for start in range(0, len(data), size)
        for line in lines.feed(data[start : start + size])
    ]
    assert [line.decode() for line in found] == texts


@pytest.mark.parametrize("packets", [[b"123456\n"], [b"123", b"456"], [b"1"] * 6])
def test_a_line_that_gets_too_long_is_refused(packets: list[bytes]) -> None:
    lines = LineBuffer(most=5)
    with pytest.raises(WireError, match="more than 5 bytes"):
        [line for packet in packets for line in lines.feed(packet)]


@pytest.mark.parametrize("index", ["00", "01", "+0", " 0", "٠"])
def test_a_place_in_a_list_has_one_spelling_so_that_no_list_is_copied_many_times(
    index: str,
) -> None:
    with pytest.raises(WireError, match="leads nowhere"):
        DnodeMessage(5, [[1, 2]], {"0": (index, "1")}).values()
    with pytest.raises(WireError, match="leads nowhere"):
        DnodeMessage(5, [1, 2], {"0": (index,)}).values()


def test_a_line_with_very_many_functions_is_refused() -> None:
    callbacks = {str(number): ["0"] for number in range(1001)}
    with pytest.raises(WireError, match="1001 functions"):
        DnodeMessage.decode(
            json.dumps({"method": 0, "arguments": [1], "callbacks": callbacks}).encode()
        )


# -- whatever comes --------------------------------------------------------------------------------


@given(
    st.integers(0, 2**53 - 1)
    | st.text(max_size=8).filter(
        lambda name: name not in ("cull", "__proto__", "constructor", "prototype")
    ),
    st.lists(JSON),
)
def test_lines_come_back_as_they_were(method: int | str, arguments: list[Any]) -> None:
    line = DnodeMessage(method, arguments)
    assert DnodeMessage.decode(line.encode()) == line


@given(
    st.dictionaries(st.integers(0, 2**40).map(str), PATHS, max_size=3),
    st.lists(st.tuples(PATHS, PATHS), max_size=2).map(tuple),
)
def test_paths_come_back_as_they_were(callbacks: dict[str, Any], links: Any) -> None:
    line = DnodeMessage(1, [], callbacks, links)
    assert DnodeMessage.decode(line.encode()) == line


@given(
    st.text(alphabet="0123456789abcdef", min_size=16, max_size=16),
    st.none() | st.binary(min_size=1),
)
def test_packets_come_back_as_they_were(channel: str, body: bytes | None) -> None:
    assert MuxPacket.decode(MuxPacket(channel, body).encode()) == MuxPacket(channel, body)


@given(
    st.sampled_from(sorted(METHODS_OF_TYPE)),
    st.text(min_size=1, max_size=20, alphabet=st.characters(exclude_categories=["Cs"])),
)
def test_creation_messages_come_back_as_they_were(kind: Any, name: str) -> None:
    assert ObjectCreationMessage.decode(make_creation(kind, name).encode()) == make_creation(
        kind, name
    )


@given(
    st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_are_read_or_refused_as_no_wire(data: bytes) -> None:
    for decode in (MuxPacket.decode, DnodeMessage.decode, ObjectCreationMessage.decode):
        with suppress(WireError):
            decode(data)


@given(st.data())
def test_damaged_messages_are_read_or_refused_as_no_wire(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from([*GOLDEN["lines"], *GOLDEN["creations"]])).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"{", b"]", b"[[", b'"', b"1e999", b"-"])
        )
        body = body or bytearray(b"x")
    with suppress(WireError):
        line = DnodeMessage.decode(bytes(body))
        line.call_values()
        line.values()
        line.encode()
    with suppress(WireError):
        made = ObjectCreationMessage.decode(bytes(body))
        made.encode()
        assert (made.name, made.roles) is not None


NESTED = b'{"method":1,"arguments":%b}'
BAD_LINES = {
    "deep": NESTED % (b"[" * 101 + b"]" * 101),
    "deeper than the stack": NESTED % (b"[" * 1_000_000),
    "deep objects": NESTED % (b"[" + b'{"a":' * 99_999 + b"1" + b"}" * 99_999 + b"]"),
    "bad UTF-8": b'{"method":1,"arguments":["\xff"]}',
    "cut": b'{"method":1,"argum',
    "NaN": NESTED % b"[NaN]",
    "a huge number": NESTED % (b"[" + b"9" * 5000 + b"]"),
    "no object": b"[]",
    "nothing": b"null",
    "method a float": b'{"method":1.5,"arguments":[]}',
    "method a truth": b'{"method":true,"arguments":[]}',
    "method negative": b'{"method":-1,"arguments":[]}',
    "method an object": b'{"method":{},"arguments":[]}',
    "method of every object": b'{"method":"__proto__","arguments":[]}',
    "no arguments": b'{"method":1}',
    "arguments an object": b'{"method":1,"arguments":{}}',
    "callbacks a list": b'{"method":1,"arguments":[],"callbacks":[1]}',
    "callback without number": b'{"method":1,"arguments":[],"callbacks":{"x":["0"]}}',
    "callback with a letter for a number": (
        '{"method":1,"arguments":[],"callbacks":{"²":["0"]}}'.encode()
    ),
    "path to every object": b'{"method":1,"arguments":[{}],"callbacks":{"0":["0","__proto__"]}}',
    "path of numbers": b'{"method":1,"arguments":[1],"callbacks":{"0":[0]}}',
    "path of nothing": b'{"method":1,"arguments":[1],"callbacks":{"0":[]}}',
    "links an object": b'{"method":1,"arguments":[1],"links":{"a":1}}',
    "link a number": b'{"method":1,"arguments":[1],"links":[1]}',
    "link without end": b'{"method":1,"arguments":[1],"links":[{"from":["0"]}]}',
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_refused(name: str) -> None:
    with pytest.raises(WireError):
        DnodeMessage.decode(BAD_LINES[name])


@pytest.mark.parametrize(
    "members",
    [
        b'"arguments":[{"0":1}],"callbacks":{"0":["0","1"]}',
        b'"arguments":["a"],"callbacks":{"0":["0","0"]}',
        b'"arguments":[[]],"callbacks":{"0":["9"]}',
    ],
)
def test_a_path_that_leads_nowhere_is_refused(members: bytes) -> None:
    with pytest.raises(WireError, match="leads nowhere"):
        DnodeMessage.decode(b'{"method":1,' + members + b"}").values()


@pytest.mark.parametrize(
    "arguments",
    [
        b'["hello"]',
        b"[1]",
        b'[{"a":1}]',
        b'[{"-1":1,"0":2}]',
        '[{"²":1}]'.encode(),
        b'[{"99999":1}]',
        b"[null]",
    ],
)
def test_a_call_without_places_is_refused(arguments: bytes) -> None:
    with pytest.raises(WireError):
        DnodeMessage.decode(b'{"method":1,"arguments":' + arguments + b"}").call_values()


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"0123456789abcdef",
        b"0123456789abcdef1",
        b"0123456789abcdef3x",
        b"012345678\xff\xff\xff\xff\xff\xffx1x",
        b"\x00" * 16 + b"1x",
    ],
)
def test_a_bad_packet_is_refused(message: bytes) -> None:
    with pytest.raises(WireError):
        MuxPacket.decode(message)


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"disconnect","methods":[],"args":["x"]}',
        b'{"type":["queue"],"methods":[],"args":["x"]}',
        b'{"type":"queue","methods":["on"]}',
        b'{"type":"queue","methods":["on"],"args":[]}',
        b'{"type":"queue","methods":["on"],"args":[""]}',
        b'{"type":"queue","methods":["on"],"args":["\\ud800"]}',
        b'{"type":"queue","methods":["on"],"args":[{"a":1}]}',
        b'{"type":"queue","methods":["on"],"args":["x",1,2,3]}',
        b'{"type":"queue","methods":["on","on"],"args":["x"]}',
        b'{"type":"queue","methods":["constructor"],"args":["x"]}',
        b'{"type":"queue","methods":["__proto__"],"args":["x"]}',
        b'{"type":"queue","methods":[1],"args":["x"]}',
        b'{"type":"queue","methods":"on","args":["x"]}',
        b'{"type":"queue","methods":'
        + json.dumps([f"m{n}" for n in range(65)]).encode()
        + b',"args":["x"]}',
        b'{"type":"queue","methods":[],"args":["' + b"x" * 1025 + b'"]}',
        b'{"type":"channel","methods":[],"args":["x",1,"remote"]}',
        b'{"type":"channel","methods":[],"args":["x","a:b","remote"]}',
        b'{"type":"persistify","methods":[],"args":["x",{},[1]]}',
        b'{"type":"persistify","methods":[],"args":["x",[],{}]}',
        b'{"type":"pubsub","methods":[],"args":["x"],"more":"' + b"x" * 65536 + b'"}',
        b"ready",
    ],
)
def test_a_bad_creation_message_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        ObjectCreationMessage.decode(body)


def test_a_channel_without_roles_has_the_default_ones() -> None:
    assert ObjectCreationMessage("channel", (), ["chat"]).roles == ("local", "remote")
    assert ObjectCreationMessage("channel", (), ["chat", "server"]).roles == ("server", "remote")
    assert ObjectCreationMessage("channel", (), ["chat", "server", "client"]).roles == (
        "server",
        "client",
    )


def test_what_cannot_be_written_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (float("nan"), {1, 2}, b"bytes", deep):
        with pytest.raises(WireError):
            pack_call(0, [value], DnodeCallbacks()).encode()
