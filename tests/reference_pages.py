"""What the pages say of options and errors, made from the code: ``python -m tests.reference_pages``
writes README.md and `docs/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from busmq_spark import errors
from busmq_spark.doctor.findings import CHECKS
from busmq_spark.federation.bulk.operations import OPERATIONS
from busmq_spark.federation.gate.limits import PeerLimits
from busmq_spark.federation.gate.rights import VERBS, RequiredRight
from busmq_spark.federation.serve.objects import SERVED_CLASS_OF_KIND
from busmq_spark.federation.serve.objects.base import NeededVerbs
from busmq_spark.groups.topic import partition_queue
from busmq_spark.option_parsing import rows as option_rows
from busmq_spark.options import BusOptions, ReadOptions, StoreOptions, WriteOptions
from tests.federation.every_operation import calls

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("options.md", "errors.md", "federation.md", "doctor.md")),
]
_SHARED, _OF_SOURCE = (
    ["redis.url", "redis.layout", "ttl"],
    ["subscribe", "startingOffsets", "maxMessagesPerTrigger", "failOnDataLoss", "subscription"],
)
NEEDED = [*_SHARED, *_OF_SOURCE, "queue", "delivery"]
"""The options that a first program needs to know of."""
_PART = re.compile(r"(<!-- ([\w: ]+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def _table(head: Sequence[str], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"|{'|'.join(f' {cell} ' if cell != '---' else cell for cell in line)}|\n" for line in lines
    )


def _options(cls: type[Any], *, without: type[Any] | None = None) -> str:
    shared = {name for name, _, _ in option_rows(without)} if without else set()
    found = [
        (f"`{name}`", default, doc) for name, default, doc in option_rows(cls) if name not in shared
    ]
    return _table(["option", "default", "meaning"], found)


def _settings() -> str:
    names = [f"`{row.name}`" for row in fields(BusOptions)]
    return _table(
        ["setting", "default", "meaning"],
        [(name, *rest) for name, (_, *rest) in zip(names, option_rows(BusOptions), strict=True)],
    )


def _needed() -> str:
    found = {name: rest for cls in (WriteOptions, ReadOptions) for name, *rest in option_rows(cls)}
    return _table(
        ["option", "default", "meaning"], [(f"`{name}`", *found[name]) for name in NEEDED]
    )


def raised() -> list[type[errors.BusError]]:
    """The errors with a code of their own, in the order of the file."""
    classes = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.BusError)
    ]
    return [cls for cls in classes if cls is not errors.BusError]


def cause_and_remedy(cls: type[errors.BusError]) -> tuple[str, str]:
    """What the docstring says, and what to do in general; what the message says behind its first
    sentence, where that is the same.
    """
    home = next(
        base for base in cls.__mro__ if {"remedy", "template"} & vars(base).keys()
    )  # an error says more than the one it is a kind of
    remedy = vars(home).get("remedy") or f"{cls.template.partition('. ')[2]}."
    return " ".join((cls.__doc__ or "").split()).replace("``", "`"), remedy


def _errors() -> Iterator[str]:
    for cls in raised():
        cause, remedy = cause_and_remedy(cls)
        kind = (
            f' Its `details["kind"]` is `{cls.kind}`.'
            if issubclass(cls, errors.DataLoss) and cls is not errors.DataLoss
            else ""
        )
        again = " Waiting may mend it." if cls.retriable else ""
        yield (
            f"## {cls.code}\n\n`{cls.__name__}`, a"
            f" `{cls.__base__.__name__}`.{again}{kind}\n\n**Cause**: {cause}\n\n**What to do**:"
            f" {remedy}\n"
        )


_OBJECTS = {
    "queue": "the queue",
    "sink": "the sink",
    "subscription": "the subscription",
    "event": "each pattern",
}


def right_in_words(right: RequiredRight) -> str:
    """One cell entry: the verbs, and on what."""
    if right.kind == "event":
        return "`events` of each pattern"
    verbs = "any verb" if right.verbs == VERBS else " or ".join(f"`{verb}`" for verb in right.verbs)
    what = (
        "the first partition" if right.name == partition_queue("TOPIC", 0) else _OBJECTS[right.kind]
    )
    return f"{verbs} on {what if right.name is not None else f'any {right.kind}'}"


def _rights_of_operations() -> str:
    rows = []
    for title, (name, arguments) in calls(
        "QUEUE", subscription="SUBSCRIPTION", topic="TOPIC"
    ).items():
        operation = OPERATIONS[name]
        rights = operation.required_rights(*operation.decode_arguments(arguments))
        keys = ", ".join(f"`{key}`" for key in operation.keys) or "–"
        words = dict.fromkeys(map(right_in_words, rights))
        rows.append((f"`{name}`{title.removeprefix(name)}", "; ".join(words), keys))
    return _table(["operation", "right", "keys"], rows)


_KEYS_OF_KIND = {
    "queue": "all of the queue",
    "channel": "all of the queues `channel:<role>:<name>`",
    "pubsub": "the Redis channel `bus:pubsub:<name>`",
    "persistify": "`bus:persisted:<name>`",
    "service": "all of the queues `service:<name>` and `service:<name>:replyTo:<requester>`",
}
_OTHER_ARGUMENTS: dict[tuple[str, str], tuple[str, list[Any]]] = {
    ("queue", "consume"): ("`consume` with `remove: false`", [{"remove": False}]),
    ("queue", "metadata"): ("`metadata` that sets a field", ["name", "value"]),
}


def _verbs_in_words(needed: NeededVerbs) -> str:
    return (
        " and ".join(
            "any verb" if verbs == VERBS else " or ".join(f"`{verb}`" for verb in verbs)
            for verbs in needed
        )
        or "none"
    )


def _rights_of_methods() -> str:
    rows = []
    for kind, cls in SERVED_CLASS_OF_KIND.items():
        found: dict[str, list[str]] = {}
        for name, method in cls.methods.items():
            found.setdefault(_verbs_in_words(method.need), []).append(f"`{name}`")
            if (kind, name) in _OTHER_ARGUMENTS:
                text, values = _OTHER_ARGUMENTS[kind, name]
                served = cls.__new__(cls)
                found.setdefault(
                    _verbs_in_words(served.needed_verbs(name, method, values)), []
                ).append(text)
        rows += [
            (kind, ", ".join(names), needed, _KEYS_OF_KIND[kind]) for needed, names in found.items()
        ]
    return _table(["kind", "methods", "right", "keys"], rows)


def _limits() -> str:
    found = [
        (f"`{row.name}`", f"{row.default:,}", row.metadata["doc"]) for row in fields(PeerLimits)
    ]
    return _table(["limit", "default", "bounds, and what happens above"], found)


def _checks() -> str:
    rows = [
        (f'<a id="{check.code}"></a>`{check.code}`', check.title, check.why)
        for check in CHECKS.values()
    ]
    return _table(["code", "wanted", "why"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "options: needed": _needed,
    "options: both": lambda: _options(StoreOptions),
    "options: source": lambda: _options(ReadOptions, without=StoreOptions),
    "options: sink": lambda: _options(WriteOptions, without=StoreOptions),
    "options: bus": _settings,
    "rights: bulk": _rights_of_operations,
    "rights: busmq": _rights_of_methods,
    "federation: limits": _limits,
    "checks": _checks,
    "errors": lambda: "\n" + "\n".join(_errors()) + "\n",
}


def current(page: str) -> str:
    """The page with its generated parts as they are now."""
    return _PART.sub(
        lambda found: found[1] + PARTS[found[2]]() + found[3] if found[2] in PARTS else found[0],
        page,
    )


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(current(path.read_text("utf-8")), "utf-8")
