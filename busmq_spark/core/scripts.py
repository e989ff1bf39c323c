"""The Lua scripts beside this file: text, digest, and the one include they know.

``-- @include find`` in a script is replaced by ``lua/include/find.lua``, since Redis scripts cannot call each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

_INCLUDE = "-- @include "


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script; ``digest`` is what EVALSHA takes."""

    name: str
    text: str
    digest: str


@cache
def load(name: str) -> Script:
    """The script ``lua/<name>.lua`` with its includes; read once per process."""
    folder = files("busmq_spark.core") / "lua"
    lines = []
    for line in (folder / f"{name}.lua").read_text("utf-8").splitlines():
        if line.startswith(_INCLUDE):
            part = (folder / "include" / f"{line.removeprefix(_INCLUDE).strip()}.lua").read_text("utf-8")
            lines += [code for code in part.splitlines() if not code.startswith("--")]
        elif not line.startswith("--"):
            lines.append(line)  # the header comments stay out of what travels and what Redis hashes
    text = "\n".join(lines)
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
