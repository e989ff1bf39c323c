"""Root of the errors, and errors of arguments, of states and of this machine."""

from __future__ import annotations

from typing import Any, ClassVar


class BusError(Exception):
    """Root of every error this package raises on purpose. The text is
    ``[CODE] found; expected; what to do``; the code never changes.
    """

    code: ClassVar[str] = "BUSMQ_ERROR"
    retriable: ClassVar[bool] = False
    template: ClassVar[str] = "{reason}"
    remedy: ClassVar[str] = ""
    """The general remedy, for the documentation, where it is not in the template."""

    __module__ = "busmq_spark.errors"  # where users import it, and what a traceback shows

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith(f"{BusError.__module__}."):
            cls.__module__ = BusError.__module__

    def __init__(self, **details: Any) -> None:
        super().__init__(f"[{self.code}] {self.template.format(**details)}")
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.details)


def _rebuild(cls: type[BusError], details: dict[str, Any]) -> BusError:
    return cls(**details)


class ConfigError(BusError):
    """A bad option or argument, found before any connection is made."""

    code = "BUSMQ_CONFIG"
    remedy = "Correct the option or argument that the message names."


class StateError(BusError):
    """A call that makes no sense now: the object is not attached, or is already."""

    code = "BUSMQ_STATE"
    remedy = "The message says which call comes first, or which one to leave out."
    template = "cannot {event} {what}: it is {state}. {remedy}"


class ToolMissing(BusError):
    """A program or package that this machine lacks."""

    code = "BUSMQ_TOOL_MISSING"
    remedy = "Install what the message names."
    template = "{tool} is missing: {reason}. {remedy}"
