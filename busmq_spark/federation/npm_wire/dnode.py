"""The lines of remote calls, and the functions that travel in them as numbers (protocol 5.5).

Rule 1. A line is one JSON object and a line feed. Nothing a peer sends raises anything but
        WireError.
Rule 2. Each side numbers the functions it passes on from 0 upwards, per channel, and never uses a
        number twice.
Rule 3. A client's call carries all its arguments in one object keyed by place; whatever else is
        invoked gets a plain list.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring as quoted
from typing import Any

from busmq_spark.errors import WireError
from busmq_spark.federation.bounded_json import (
    MAX_JSON_VALUES,
    decode_steps,
    has_too_many_values,
    text_pieces,
)
from busmq_spark.queue.message import refuse_constant

MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_DEPTH, LINE_DEPTH = 100, 3
"""Deepest nesting of a line, and how much of it is the line's own: far below Python's limit of
recursion, so that what was read can be walked and written again.
"""
MAX_FUNCTIONS = 10_000
MAX_CALLBACKS_PER_LINE = 1000
"""Most functions in one line; npm busmq sends one or two."""
ARRAY_INDEX = re.compile("0|[1-9][0-9]{0,8}")
EMPTY_LINES = re.compile(rb"\n+")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
UNSAFE_KEYS = {"__proto__", "constructor", "prototype"}
ValuePath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DnodeCallbackRef:
    """A function of the peer, as found in the arguments of a line: invoke it by its number."""

    id: int


@dataclass(frozen=True, slots=True)
class DnodeMessage:
    """A call, word by word as it travels: ``arguments`` hold ``[Function]`` where ``callbacks``
    names the function.
    """

    method: int | str
    arguments: list[Any]
    callbacks: dict[str, ValuePath] = field(default_factory=dict)
    links: tuple[tuple[ValuePath, ValuePath], ...] = ()

    def encode(self) -> bytes:
        """The bytes, byte by byte those of Node. Raises WireError for what JSON cannot
        express.
        """
        members: dict[str, Any] = {"method": self.method, "arguments": self.arguments}
        if self.method != "cull":
            members |= {
                "callbacks": self.callbacks,
                "links": [{"from": from_, "to": to} for from_, to in self.links],
            }
        return encode_json(members) + b"\n"

    @classmethod
    def decode(cls, line: bytes, depth: int = MAX_DEPTH) -> DnodeMessage:
        """Read one line, with or without its line feed; arguments may be nested ``depth`` deep, at
        most MAX_DEPTH. Raises WireError.
        """
        return cls._from_members(decode_json(line, "a line", min(depth + LINE_DEPTH, MAX_DEPTH)))

    @classmethod
    def decode_steps(
        cls, line: bytes, depth: int = MAX_DEPTH
    ) -> Generator[None, None, DnodeMessage]:
        """Decode like ``decode``, in short steps: for a line that takes long."""
        try:
            members = yield from decode_steps(line, min(depth + LINE_DEPTH, MAX_DEPTH))
        except ValueError as error:
            raise WireError(
                found=f"a line of {len(line)} bytes that is no JSON ({error})",
                expected="compact JSON in UTF-8",
            ) from None
        return cls._from_members(members)

    @classmethod
    def _from_members(cls, members: Any) -> DnodeMessage:
        if not isinstance(members, dict):
            raise WireError(
                found="a line that is no object", expected="method, arguments, callbacks and links"
            )
        return cls(
            _check_method(members.get("method")),
            _check_list(members.get("arguments"), "arguments"),
            _decode_callbacks(members.get("callbacks")),
            _decode_links(members.get("links")),
        )

    def values(self) -> list[Any]:
        """The arguments with a DnodeCallbackRef in the place of each function. Raises
        WireError when a path leads nowhere.

        Of a circular value the place where it would begin anew keeps the text ``[Circular]``: no
        message can be circular.
        """
        return (
            _place_callbacks(self.arguments, self.callbacks) if self.callbacks else self.arguments
        )

    def call_values(self) -> list[Any]:
        """The arguments of a client's call: those of its object in the order of their places, gaps
        ignored.
        """
        values = self.values()
        if not values:
            return []
        given = values[0]
        if isinstance(given, list):
            return given
        if not isinstance(given, dict) or not all(
            place.isdecimal() and place.isascii() and len(place) < 5 for place in given
        ):
            raise WireError(
                found="a call whose arguments are not in one object",
                expected='places as keys: {"0":…,"1":…}',
            )
        return (
            list(given.values())
            if len(given) < 2
            else [given[place] for place in sorted(given, key=int)]
        )


class DnodeCallbacks:
    """The functions of this side that the peer may call on one channel."""

    def __init__(self, most: int = MAX_FUNCTIONS, first: int = 0) -> None:
        """``first``: a server's methods have the numbers before it."""
        self._most, self._next = most, first
        self._by_id: dict[int, Callable[..., Any]] = {}
        self._ids: dict[Callable[..., Any], int] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: int) -> Callable[..., Any] | None:
        """The function with this number; return None when there never was one, or it is
        forgotten.
        """
        return self._by_id.get(id)

    def register(self, function: Callable[..., Any], *, anew: bool = False) -> int:
        """Its number: the one it has, unless ``anew``, else the next. Raises WireError when
        too many are kept.
        """
        if not anew and (known := self._ids.get(function)) is not None:
            return known
        if len(self._by_id) >= self._most:
            raise WireError(
                found=f"more than {self._most} functions in use on one channel",
                expected="fewer: use the same function again",
            )
        id = self._next
        self._next += 1
        self._by_id[id] = function
        self._ids.setdefault(function, id)
        return id

    def forget(self, id: int) -> None:
        """Let go of a function; its number is not used again. Unknown numbers are ignored."""
        function = self._by_id.pop(id, None)
        if function is not None and self._ids.get(function) == id:
            del self._ids[function]


def methods_message(methods: Iterable[str]) -> DnodeMessage:
    """Return the server's message after ``ready``: the methods get the numbers 0, 1, … in the order
    of the client's list.
    """
    names = list(methods)
    return DnodeMessage(
        "methods",
        [dict.fromkeys(names, "[Function]")],
        {str(id): ("0", name) for id, name in enumerate(names)},
    )


def invocation_line(id: int, tail: bytes) -> bytes:
    """The bytes of an invocation of the function ``id``; ``tail`` is the same for all functions."""
    return b'{"method":%d%b' % (id, tail)


def message_tail(text: str, number: int) -> bytes:
    """The tail of an invocation with a text and a number: the shortest way, since each message of a
    queue takes it.
    """
    return b',"arguments":[%b,%d],"callbacks":{},"links":[]}\n' % (
        encode_utf8(quoted(text)),
        number,
    )


def message_tail_steps(
    value: bytes, number: int | None, most: int
) -> Generator[None, None, bytes | int]:
    """The tail of an invocation with a message, and its number if it has one, in short steps.

    Return its length instead when that is more than ``most``.
    """
    pieces, size = [b',"arguments":['], 0
    for piece in text_pieces(value):
        size += len(piece)
        if size <= most:
            pieces.append(piece)
        else:
            pieces.clear()
        yield
    pieces.append(b"" if number is None else b",%d" % number)
    pieces.append(b'],"callbacks":{},"links":[]}\n')
    return b"".join(pieces) if size <= most else size


def invocation_tail(arguments: Iterable[Any]) -> bytes:
    """The tail of an invocation with plain arguments, functions not among them. Raises
    WireError.
    """
    return call_message(0, arguments, DnodeCallbacks(0)).encode()[len(b'{"method":0') :]


def result_line(id: int, number: int) -> bytes:
    """The bytes of the answer ``(null, number)``: the shortest way, since each push takes it."""
    return b'{"method":%d,"arguments":[null,%d],"callbacks":{},"links":[]}\n' % (id, number)


class LineBuffer:
    """Cuts what comes in packets into lines. Raises WireError when one gets too long."""

    def __init__(self, most: int = MAX_LINE_BYTES) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self.partial_bytes = 0
        """Bytes of a line that is not complete yet."""

    def feed(self, body: bytes) -> Iterator[bytes]:
        """The lines that are complete now, one by one, without those that are empty; the rest waits
        for more.
        """
        start = 0
        while (end := body.find(b"\n", start)) >= 0:
            line = body[start:end]
            complete = b"".join([*self._parts, line]) if self._parts else line
            self._parts.clear()
            self.partial_bytes = 0
            self._check_line_size(len(complete))
            if complete:
                yield complete
                start = end + 1
            else:
                # There is one at least
                start = EMPTY_LINES.match(body, end).end()  # type: ignore[union-attr]
        if rest := body[start:]:
            self.partial_bytes += len(rest)
            self._check_line_size(self.partial_bytes)
            self._parts.append(rest)
            if len(self._parts) > 100:  # one byte a packet must not cost an object each
                self._parts = [b"".join(self._parts)]

    def _check_line_size(self, size: int) -> None:
        if size > self._most:
            raise WireError(
                found=f"a line of more than {self._most} bytes", expected="a shorter one"
            )


# -- JSON as Node writes it ------------------------------------------------------------------------


def encode_json(value: Any) -> bytes:
    """Compact, in the order of insertion, characters as they are; half a surrogate pair as
    ``\\udxxx``. Raises WireError.
    """
    try:
        return encode_utf8(_ENCODER.encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(
            found=f"a value that is no JSON ({error})", expected="what JSON can express"
        ) from None


def decode_json(data: bytes, what: str, depth: int = MAX_DEPTH) -> Any:
    """Decode JSON text. Raises WireError for bad UTF-8, bad JSON, NaN and the like, and for
    deeper nesting.
    """
    if has_too_many_values(data):
        raise WireError(
            found=f"{what} of {len(data)} bytes with more than {MAX_JSON_VALUES} values",
            expected="fewer",
        )
    try:
        value = _DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else type(error).__name__
        raise WireError(
            found=f"{what} of {len(data)} bytes that is no JSON ({reason})",
            expected="compact JSON in UTF-8",
        ) from None
    if data.count(b"[") + data.count(b"{") > depth and _nesting_depth(value) > depth:
        raise WireError(
            found=f"{what} that is nested more than {depth} deep", expected="a flatter one"
        )
    return value


def encode_utf8(text: str) -> bytes:
    """The bytes of a JSON text."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return LONE_SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text).encode()


class _StrictDecoder(json.JSONDecoder):
    """JSON without NaN and the like. It can be pickled by value with the package, which the state
    of a decoder in C cannot.
    """

    def __init__(self) -> None:
        super().__init__(parse_constant=refuse_constant)

    def __reduce__(self) -> tuple[type[_StrictDecoder], tuple[()]]:
        return _StrictDecoder, ()


# Made once: json.loads and json.dumps make one for each call that has settings of its own.
_DECODER = _StrictDecoder()
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _nesting_depth(value: Any) -> int:
    """Return the depth of nested lists and objects, found without recursion."""
    depth, level = 0, [value]
    while level := [part for part in level if isinstance(part, list | dict)]:
        depth += 1
        level = [
            inner for part in level for inner in (part.values() if isinstance(part, dict) else part)
        ]
    return depth


# -- the members of a line -------------------------------------------------------------------------


def _check_method(found: Any) -> int | str:
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**53:
        return found
    if isinstance(found, str) and found not in UNSAFE_KEYS:
        return found
    raise WireError(
        found="a line whose method is neither a number nor a name",
        expected="the number of a function",
    )


def _check_list(found: Any, what: str) -> list[Any]:
    if not isinstance(found, list):
        raise WireError(found=f"a line whose {what} are no list", expected="a list")
    return found


def _decode_callbacks(found: Any) -> dict[str, ValuePath]:
    if found is None or found == {}:
        return {}
    if not isinstance(found, dict):
        raise WireError(
            found="a line whose callbacks are no object", expected="numbers with their paths"
        )
    if len(found) > MAX_CALLBACKS_PER_LINE:
        raise WireError(
            found=f"a line with {len(found)} functions",
            expected=f"at most {MAX_CALLBACKS_PER_LINE}",
        )
    return {_check_callback_number(id): _decode_path(path) for id, path in found.items()}


def _decode_links(found: Any) -> tuple[tuple[ValuePath, ValuePath], ...]:
    if found is None or found == []:
        return ()
    links = _check_list(found, "links")
    if not all(isinstance(link, dict) for link in links):
        raise WireError(found="a link that is no object", expected="from and to")
    return tuple((_decode_path(link.get("from")), _decode_path(link.get("to"))) for link in links)


def _check_callback_number(id: str) -> str:
    if id.isascii() and id.isdecimal() and len(id) <= 15:
        return id
    raise WireError(found="a callback without a number", expected="a decimal number")


def _decode_path(found: Any) -> ValuePath:
    if (
        not isinstance(found, list)
        or not 0 < len(found) <= MAX_DEPTH
        or not all(isinstance(step, str) for step in found)
        or UNSAFE_KEYS & {*found}
    ):
        raise WireError(
            found="a path that is no list of names", expected='steps as text: ["0","1"]'
        )
    return tuple(found)


# -- functions in their places ---------------------------------------------------------------------


def _place_callbacks(arguments: list[Any], callbacks: Mapping[str, ValuePath]) -> list[Any]:
    """A copy, as deep as the paths go, with a DnodeCallbackRef at the end of each."""
    root = list(arguments)
    copied: dict[ValuePath, Any] = {(): root}
    for id, path in callbacks.items():
        for length in range(1, len(path)):
            if path[:length] not in copied:
                whole, step = copied[path[: length - 1]], path[length - 1]
                copied[path[:length]] = inner = copy.copy(_item_at(whole, step))
                whole[_index_or_key(whole, step)] = inner
        whole, step = copied[path[:-1]], path[-1]
        _item_at(whole, step)
        whole[_index_or_key(whole, step)] = DnodeCallbackRef(int(id))
    return root


def _index_or_key(whole: Any, step: str) -> Any:
    return int(step) if isinstance(whole, list) else step


def _item_at(whole: Any, step: str) -> Any:
    if isinstance(whole, dict) and step in whole:
        return whole[step]
    # The spelling of JavaScript: "00" is another path to the same list, which would be copied once
    # for each.
    if isinstance(whole, list) and ARRAY_INDEX.fullmatch(step) and int(step) < len(whole):
        return whole[int(step)]
    raise WireError(
        found="a path to a function that leads nowhere",
        expected="a path to a place in the arguments",
    )


def call_message(
    method: int | str, arguments: Iterable[Any], functions: DnodeCallbacks
) -> DnodeMessage:
    """The line that invokes a peer's function with ``arguments``: a plain list, functions in it
    registered.
    """
    callbacks: dict[str, ValuePath] = {}
    links: list[tuple[ValuePath, ValuePath]] = []

    def walk(value: Any, path: ValuePath, above: dict[int, ValuePath]) -> Any:
        if isinstance(value, dict | list):
            if (start := above.get(id(value))) is not None:
                links.append((start, path))
                return "[Circular]"
            inner = {**above, id(value): path}
            if isinstance(value, dict):
                return {
                    str(name): walk(part, (*path, str(name)), inner) for name, part in value.items()
                }
            return [walk(part, (*path, str(place)), inner) for place, part in enumerate(value)]
        if callable(value):
            number = functions.register(value)
            if str(number) in callbacks:
                number = functions.register(value, anew=True)
            callbacks[str(number)] = path
            return "[Function]"
        return value

    try:
        packed = walk(list(arguments), (), {})
    except RecursionError:
        raise WireError(
            found="arguments nested too deeply", expected=f"at most {MAX_DEPTH} levels"
        ) from None
    return DnodeMessage(
        method,
        packed,
        dict(sorted(callbacks.items(), key=lambda entry: int(entry[0]))),
        tuple(links),
    )
