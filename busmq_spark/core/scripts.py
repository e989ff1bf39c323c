"""The Lua scripts beside this file: text, digest, and the one include they know.

``-- @include find`` in a script is replaced by ``lua/include/find.lua``, since Redis scripts cannot call each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files

_INCLUDE = "-- @include "


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script; ``digest`` is what EVALSHA takes."""

    name: str
    text: str
    digest: str


_loaded: dict[str, Script] = {}
"""A plain dict and not a cache decorator: where the package travels by value (Spark Connect, notebooks) its content travels along."""


def load(name: str) -> Script:
    """The script ``lua/<name>.lua`` with its includes; read once per process."""
    if name not in _loaded:
        _loaded[name] = _read(name)
    return _loaded[name]


def load_all() -> None:
    """Read every script now, before the package is sent to a machine that does not have its files."""
    for file in (files("busmq_spark.core") / "lua").iterdir():
        if file.name.endswith(".lua"):
            load(file.name.removesuffix(".lua"))


def _read(name: str) -> Script:
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
