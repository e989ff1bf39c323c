"""The size of a parsed JSON text: bytes tell little, a million empty objects are 100 times their
text. Pure.
"""

from __future__ import annotations

import re

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
