"""The Lua scripts of the pure rooms: text, digest, and the one include they know.

Each room has its scripts in ``lua/``; no two have one name. ``-- @include find`` is replaced by
``lua/include/find.lua`` of the room that has it, since Redis scripts cannot call each other. An
include may have includes; each comes once. Redis makes every function of a script anew for each
call: a function that few calls need is included, indented, inside the function that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable

_INCLUDE = "-- @include "

ROOMS = ("queue", "reading", "routing", "groups", "writing", "objects")
"""Rooms that have scripts. ``jvm-shim/pom.xml`` puts the same folders into the jar."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script; ``digest`` is what EVALSHA takes."""

    name: str
    text: str
    digest: str


_loaded_scripts: dict[str, Script] = {}
"""A plain dict and not a cache decorator: where the package travels by value (Spark Connect,
notebooks) its content travels along.
"""


def load(name: str) -> Script:
    """The script ``lua/<name>.lua`` with its includes; read once per process."""
    if name not in _loaded_scripts:
        _loaded_scripts[name] = _read(name)
    return _loaded_scripts[name]


def load_all() -> None:
    """Read every script now, before the package is sent to a machine that does not have its
    files.
    """
    for name in script_names():
        load(name)


def script_names() -> list[str]:
    """Return the names of all scripts."""
    return [
        file.name.removesuffix(".lua")
        for folder in _folders()
        for file in folder.iterdir()
        if file.name.endswith(".lua")
    ]


def find_file(path: str) -> Traversable:
    """Return the file of a script, or of an include (``include/find.lua``), in its room."""
    found = [folder / path for folder in _folders() if (folder / path).is_file()]
    if len(found) != 1:
        raise FileNotFoundError(f"{len(found)} files lua/{path}; expected one in one of {ROOMS}")
    return found[0]


def _folders() -> Iterator[Traversable]:
    package = files("busmq_spark")
    return (package / room / "lua" for room in ROOMS)


def _read(name: str) -> Script:
    text = "\n".join(_code(f"{name}.lua", set()))
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _code(path: str, there: set[str]) -> Iterator[str]:
    """The lines of a file with its includes, but for those that are ``there`` before it. Comments
    stay out of what travels and what Redis hashes.
    """
    for line in find_file(path).read_text("utf-8").splitlines():
        code = line.lstrip()
        if code.startswith(_INCLUDE):
            part = f"include/{code.removeprefix(_INCLUDE).strip()}.lua"
            around = there if code == line else {*there}  # an include of a function ends with it
            if part not in around:
                around.add(part)
                yield from (line[: len(line) - len(code)] + each for each in _code(part, around))
        elif not line.startswith("--"):
            yield line
