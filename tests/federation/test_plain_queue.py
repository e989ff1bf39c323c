"""Ids to positions over a wire that knows positions only; pushes that are refused for want of
room.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.federation.npm_servers.npm_queue import FederationNpmQueue, find_position


class Stored:
    """As much of a queue object as finding takes."""

    def __init__(self, ids: list[int]) -> None:
        self.ids, self.looks = ids, 0

    async def count_messages(self) -> int:
        return len(self.ids)

    async def peek(self, position: int) -> list[tuple[int, str]]:
        self.looks += 1
        return [(id, "") for id in self.ids[position : position + 1]]


@given(st.sets(st.integers(1, 60)).map(sorted), st.integers(1, 61))
def test_an_id_is_found_or_the_next_one_whatever_holes_there_are(ids: list[int], id: int) -> None:
    remote: Any = Stored(ids)
    wanted = next(((position, there) for position, there in enumerate(ids) if there >= id), None)
    assert asyncio.run(find_position(remote, id)) == wanted


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.data())
def test_where_ids_follow_each_other_two_looks_find_one(
    first: int, many: int, data: st.DataObject
) -> None:
    remote: Any = Stored(range(first, first + many))  # type: ignore[arg-type]  # as good as a list
    id = data.draw(st.integers(first, first + many - 1))
    assert asyncio.run(find_position(remote, id)) == (id - first, id)
    assert remote.looks <= 2


class Full:
    """A queue that refuses the second push, and has room again for the third."""

    is_over, attached = False, True

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.pushes = 0

    async def read_metadata(self) -> dict[str, str]:
        return {"ttl": "30", "maxsize": "3", "born": "b"}

    async def push(self, text: str) -> int | None:
        self.pushes += 1
        if self.pushes == 2:
            return None
        self.stored.append(text)
        return len(self.stored)


def test_what_comes_behind_a_refused_message_does_not_overtake_it() -> None:
    remote: Any = Full()

    async def open_object(*_: object) -> Any:
        return remote

    async def push() -> None:
        queue, left = FederationNpmQueue("q", open_object), ["a", "b", "c", "d"]
        assert await queue.push(left) == 3
        assert (remote.stored, left) == (["a"], ["b", "c", "d"])
        await queue.push(left)
        assert (remote.stored, left) == (["a", "b", "c", "d"], [])

    asyncio.run(push())
