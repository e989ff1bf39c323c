"""What several files of tests of topics need."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from busmq_spark.bus.bus import Bus
from busmq_spark.bus.topics.member import Member
from busmq_spark.bus.topics.topic import Topic
from busmq_spark.errors import LinkLost, QueueBusy
from tests.bus.tools import UNTIL_S, until

Seen = list[tuple[int, int, str]]
"""Partition, id and text of messages, in the order in which they were handled."""


class Reader:
    """A member of a group on a bus of its own that acks what it gets, until it leaves."""

    def __init__(
        self,
        place: dict[str, object],
        topic: str,
        group: str = "g",
        seen: Seen | None = None,
        *,
        refused: bool = False,
    ) -> None:
        """``refused``: an ack may come too late, and is no error."""
        self.bus = Bus(**place)  # type: ignore[arg-type]
        self._topic, self._group, self._late = topic, group, (QueueBusy,) if refused else ()
        self.seen: Seen = [] if seen is None else seen
        self.events: list[tuple[str, int]] = []

    async def __aenter__(self) -> Reader:
        await self.bus.__aenter__()
        self.member: Member = self.bus.topic(self._topic).group(self._group)
        for event in Member.events:
            self.member.on(
                event, lambda partition, event=event: self.events.append((event, partition))
            )
        await self.member.__aenter__()
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def leave(self) -> None:
        """Cleanly: what is being handled is acked first."""
        await self.member.stop()
        await self._reading
        await self.bus.__aexit__(None, None, None)

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def _read(self) -> None:
        async for batch in self.member.batches(most=50):
            self.seen += [(batch.partition, each.id, each.text) for each in batch]
            with suppress(*self._late):
                await self.member.ack(batch)


class Producer:
    """Pushes without end: values ``key:n``, where n counts up per key."""

    def __init__(self, topic: Topic, keys: int = 40, pause_s: float = 0.002) -> None:
        self.topic, self._keys, self._pause_s = topic, [f"k{n}" for n in range(keys)], pause_s
        self.pushed = 0
        self._enough = False

    async def __aenter__(self) -> Producer:
        self._pushing = asyncio.ensure_future(self._push())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._enough = True
        await self._pushing

    async def _push(self) -> None:
        while not self._enough:
            with suppress(LinkLost):
                await self.topic.push_many(
                    [f"{key}:{self.pushed}" for key in self._keys], keys=self._keys
                )
            self.pushed += 1
            await asyncio.sleep(self._pause_s)


def spread(readers: list[Reader], partitions: int) -> bool:
    """Whether the readers own all partitions, in contiguous ranges whose sizes differ by one at
    most.
    """
    mine = [reader.member.partitions for reader in readers]
    sizes = [len(part) for part in mine]
    whole = sorted(partition for part in mine for partition in part) == list(range(partitions))
    return (
        whole
        and max(sizes) - min(sizes) <= 1
        and all(part == list(range(part[0], part[-1] + 1)) for part in mine if part)
    )


async def balanced(readers: list[Reader], partitions: int) -> None:
    """Returns when they do."""
    await until(lambda: spread(readers, partitions))


async def all_read(topic: Topic, group: str = "g") -> None:
    """Returns when the group has acked everything."""
    async with asyncio.timeout(UNTIL_S):
        # Redis publishes no ack
        while any(each.behind for each in await topic.groups() if each.name == group):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def in_order(seen: Seen) -> bool:
    """Whether the first time that each message was seen keeps the order of its partition, and of
    its key.
    """
    last: dict[object, int] = {}
    met: set[tuple[int, int]] = set()
    for partition, id, text in seen:
        key, _, number = text.partition(":")
        if (partition, id) not in met:
            met.add((partition, id))
            if id <= last.get(partition, 0) or int(number) <= last.get(key, -1):
                return False
            last[partition], last[key] = id, int(number)
    return True


def repeated(seen: Seen) -> list[tuple[int, int]]:
    """Messages that were handled more than once."""
    return [
        message
        for message, times in Counter((partition, id) for partition, id, _ in seen).items()
        if times > 1
    ]
