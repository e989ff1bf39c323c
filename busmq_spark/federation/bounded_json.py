"""JSON of peers: a bound on its values, and a codec that works in short steps. Pure.

Bytes tell little about the size of parsed JSON: a million empty objects take 100 times their text.
The decoder and encoder in C cannot be interrupted: for one message of 16 MiB they may take half a
second, in which the server's loop does nothing else.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator, Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]  # typeshed lacks it
from json.encoder import encode_basestring as quoted
from typing import Any

MAX_JSON_VALUES = 200_000
"""Values, lists and objects in one text: some 40 MB of the worst kind, read in a tenth of a
second.
"""
_STRING_OR_SEPARATOR = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[,\[{]', re.DOTALL)


def has_too_many_values(text: bytes, most: int = MAX_JSON_VALUES) -> bool:
    """Whether it has more than so many values. Text in quotes counts as one value."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") <= most:
        return False
    found = 0
    for part in _STRING_OR_SEPARATOR.finditer(text):
        if part.end() - part.start() == 1:
            found += 1
            if found > most:
                return True
    return False


PIECE_BYTES = 16 * 1024
"""Bytes of one string, or of blanks, in one step."""
MAX_SHORT_BYTES, MAX_SHORT_VALUES = 64 * 1024, 2_000
"""A text up to so many bytes and values is read or written in one step."""
TOKENS_PER_STEP = 500
_TOKEN = re.compile(
    rb'"([^"\\\x00-\x1f]{0,16384}+)"'
    rb"|(-?(?:0|[1-9][0-9]{0,4300}+)(\.[0-9]{1,16384}+)?([eE][+-]?[0-9]{1,4300}+)?)"
    rb'|(true|false|null)|(["\[\]{},:])'
)
_BLANKS = re.compile(rb"[ \t\n\r]{0,16384}+")
_STRING_PIECE = re.compile(rb'(?:[^"\\\x00-\x1f]+|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*+')
_WORDS = {b"true": True, b"false": False, b"null": None}
Steps = Generator[None, None, Any]


def takes_long(text: bytes) -> bool:
    """Whether a JSON text should be read in steps."""
    if len(text) <= MAX_SHORT_VALUES:
        return False
    found = text.count(b",") + text.count(b"[") + text.count(b"{")
    return len(text) > MAX_SHORT_BYTES or found > MAX_SHORT_VALUES


def decode_steps(text: bytes, depth: int) -> Steps:
    """Return the value of a JSON text, as ``json.loads`` does; each ``yield`` ends a step.

    Raises ValueError for bad JSON, NaN, more than MAX_JSON_VALUES and deeper nesting.
    """
    built, at, tokens, pause_at = _JsonBuilder(depth), 0, 0, PIECE_BYTES
    while True:
        tokens += 1
        if tokens >= TOKENS_PER_STEP or at >= pause_at:
            tokens, pause_at = 0, at + PIECE_BYTES
            yield
        # Also nothing matches
        while (stop := _BLANKS.match(text, at).end()) > at:  # type: ignore[union-attr]
            at = stop
            yield
        if at == len(text):
            return built.result()
        if (token := _TOKEN.match(text, at)) is None:
            raise ValueError("no token")
        at, kind = token.end(), token.lastindex
        if token[6] == b'"':
            string, at = yield from _long_string(text, at)
            built.add(string)
        elif kind == 6:
            built.mark(token[6])
        elif kind == 1:
            built.add(token[1].decode())
        elif kind == 5:
            built.add(_WORDS[token[5]])
        else:
            built.add(int(token[2]) if token[3] is None and token[4] is None else float(token[2]))


class _JsonBuilder:
    """The value so far: the container that is open, those around it, and the next token's place."""

    def __init__(self, depth: int) -> None:
        self._depth, self._values = depth, 0
        self._around: list[tuple[Any, Any]] = []
        self._open: Any = None
        self._key: Any = None
        self._value: Any = None
        self._expected = "value"

    def result(self) -> Any:
        """The whole value."""
        self._expect("end")
        return self._value

    def mark(self, mark: bytes) -> None:
        """Take a bracket, a comma or a colon."""
        if mark in (b"[", b"{", b","):
            self._values += 1
            if self._values > MAX_JSON_VALUES:
                raise ValueError("too many values")
        if mark == b",":
            self._expect("comma or end")
            self._expected = "key" if isinstance(self._open, dict) else "value"
        elif mark == b":":
            self._expect("colon")
            self._expected = "value"
        elif mark in (b"[", b"{"):
            self._expect("value", "value or end")
            self._around.append((self._open, self._key))
            if len(self._around) > self._depth:
                raise ValueError("nested too deeply")
            self._open = [] if mark == b"[" else {}
            self._expected = "value or end" if mark == b"[" else "key or end"
        else:
            kind, empty = (list, "value or end") if mark == b"]" else (dict, "key or end")
            self._expect("comma or end", empty)
            if not isinstance(self._open, kind):
                raise ValueError("a bracket of another kind")
            value = self._open
            self._open, self._key = self._around.pop()
            self._put(value)

    def add(self, value: Any) -> None:
        """Take a text, a number or a word."""
        if self._expected in ("key", "key or end") and isinstance(value, str):
            self._key, self._expected = value, "colon"
            return
        self._expect("value", "value or end")
        self._put(value)

    def _put(self, value: Any) -> None:
        self._expected = "comma or end"
        if self._open is None:
            self._value, self._expected = value, "end"
        elif isinstance(self._open, dict):
            self._open[self._key] = value
        else:
            self._open.append(value)

    def _expect(self, *allowed: str) -> None:
        if self._expected not in allowed:
            raise ValueError(f"expected {self._expected}")


def _long_string(text: bytes, at: int) -> Generator[None, None, tuple[str, int]]:
    """The string whose first quote is before ``at``, and the place after its last one."""
    pieces: list[str] = []
    while True:
        limit = min(len(text), at + PIECE_BYTES)
        quote = text.find(b'"', at, limit)
        if text.find(b"\\", at, limit if quote < 0 else quote) < 0:
            stop = limit if quote < 0 else quote
        else:
            # Also nothing matches
            stop = _STRING_PIECE.match(text, at, limit).end()  # type: ignore[union-attr]
        is_last = text[stop : stop + 1] == b'"'
        while not is_last and stop > at and text[stop : stop + 1] and text[stop] & 0xC0 == 0x80:
            stop -= 1  # a character is not cut
        if stop == at and not is_last:
            raise ValueError("a string that does not end")
        piece = scanstring(f'"{text[at:stop].decode()}"', 1, True)[0]
        if not is_last and "\ud800" <= piece[-1:] <= "\udbff" and stop - at > 6:
            piece, stop = piece[:-1], stop - 6  # its second half follows
        pieces.append(piece)
        at = stop
        if is_last:
            return "".join(pieces), at + 1
        yield


def text_pieces(value: bytes) -> Iterator[bytes]:
    """The JSON string of a text, piece by piece; bytes that are no UTF-8 become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield b'"'
    for start in range(0, len(value), PIECE_BYTES):
        piece = decoder.decode(
            value[start : start + PIECE_BYTES], start + PIECE_BYTES >= len(value)
        )
        yield quoted(piece)[1:-1].encode()
    yield b'"'
