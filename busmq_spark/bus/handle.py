"""The end of every object of a bus: leaving its block, or ``aclose``."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn

from busmq_spark.errors import StateError


def not_picklable_error(thing: object) -> StateError:
    """Return the error of an object of a bus that is pickled or copied."""
    remedy = "Send its name, and make it anew on a bus of that process"
    return StateError(
        event="pickle",
        what=repr(thing),
        state="bound to the connections of this process",
        remedy=remedy,
    )


class Handle:
    """An object of a bus that is used inside ``async with``, or until ``aclose``."""

    def __reduce__(self) -> NoReturn:
        raise not_picklable_error(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.detach()

    async def aclose(self) -> None:
        """Do what leaving ``async with`` does. Nothing stored is deleted; no error when it was
        never opened.
        """
        await self.__aexit__(None, None, None)

    async def detach(self) -> None:
        """Let go of what it holds on the bus."""
        raise NotImplementedError
