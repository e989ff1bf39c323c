"""The end of every object of a bus: leaving its block, or ``aclose``."""

from __future__ import annotations

from types import TracebackType


class Handle:
    """An object of a bus that is used inside ``async with``, or until ``aclose``."""

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
