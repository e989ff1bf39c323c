"""Foreign bytes and machine numbers as text that may go to a terminal. Pure."""

from __future__ import annotations

import base64
import math
import unicodedata
from typing import Any

SHOWN_CHARS = 2000
"""Longest value written to a terminal; a pipe gets all of it."""
BINARY_BYTES = 32
"""Bytes of a binary value shown to people; ``--raw`` and ``--json`` give all of them."""
_NAMED_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}
# Control, surrogate, private use, unassigned, line and paragraph separators; format characters too
# (they turn text around), save the two joiners that emoji and several scripts need.
_UNSAFE_CATEGORIES = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp", "Cf"}
_JOINERS = "\u200c\u200d"


def escape_control_characters(text: str) -> str:
    """The text with every character escaped that could move the cursor, change colours or turn the
    line around.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_escape, text))


def _escape(char: str) -> str:
    if char in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[char]
    if char in _JOINERS or unicodedata.category(char) not in _UNSAFE_CATEGORIES:
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    )


def value_text(value: bytes, most: int | None = None) -> str:
    """A message for people: its text, or the first bytes of a binary one. At most ``most``
    characters.
    """
    text = utf8_text(value)
    if text is None:
        cut = " …" if len(value) > BINARY_BYTES else ""
        return f"<{format_count(len(value), 'byte')}: {value[:BINARY_BYTES].hex(' ')}{cut}>"
    if most is not None and len(text) > most:
        return f"{escape_control_characters(text[:most])} … <{format_size(len(value))} in all>"
    return escape_control_characters(text)


def value_json(value: bytes) -> dict[str, str]:
    """A message for programs: field ``value`` when it is UTF-8 text, else ``value_base64``."""
    text = utf8_text(value)
    return {"value_base64": base64.b64encode(value).decode()} if text is None else {"value": text}


def utf8_text(value: bytes) -> str | None:
    """The text of a value, None when it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def one_line(text: str) -> str:
    """Any text as one safe line."""
    return escape_control_characters(" ".join(text.split()))


def format_size(count_bytes: float) -> str:
    """``1.5 MB``; three digits at most, powers of 1024 as Redis counts."""
    units = ("B", "KB", "MB", "GB", "TB")
    power = min(len(units) - 1, int(math.log(count_bytes, 1024))) if count_bytes >= 1 else 0
    scaled = count_bytes / 1024**power
    return (
        f"{scaled:.0f} {units[power]}"
        if power == 0 or scaled >= 100
        else f"{scaled:.1f} {units[power]}"
    )


def format_number(value: float) -> str:
    """``336,776``: groups of three, for eyes."""
    return f"{value:,.0f}"


def format_count(value: int, noun: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{format_number(value)} {noun}{'' if value == 1 else 's'}"


def format_rate(items: float, seconds: float) -> str:
    """``12,345/s``."""
    return f"{format_number(items / max(seconds, 1e-9))}/s"


def format_duration(seconds: float) -> str:
    """The two largest units: ``6 d 23 h``, ``30 s``."""
    whole = max(0, int(seconds))
    parts = []
    for name, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        part, whole = divmod(whole, length)
        parts.append((part, name))
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return (
        " ".join(f"{part} {name}" for part, name in parts[:2] if part or len(parts) == 1) or "0 s"
    )


def json_default(value: Any) -> Any:
    """Return a JSON value for an object that ``json.dumps`` does not know."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
