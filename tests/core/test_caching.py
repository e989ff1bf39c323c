"""What is computed once, and travels without its lock."""

from __future__ import annotations

import pickle
from threading import Lock

from busmq_spark.queue.caching import MemoizedFunction, ProcessLocalCache, cached_attribute


class Square:
    """A number that counts how often it was squared."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.asked = 0

    @cached_attribute
    def area(self) -> int:
        """Side times side."""
        self.asked += 1
        return self.side**2


def test_an_attribute_is_computed_once_for_each_object() -> None:
    two, three = Square(2), Square(3)
    assert (two.area, two.area, three.area) == (4, 4, 9)
    assert (two.asked, three.asked) == (1, 1)


def test_the_attribute_of_the_class_is_what_describes_it() -> None:
    assert isinstance(Square.area, cached_attribute)
    assert Square.area.__doc__ == "Side times side."


def test_results_are_remembered_up_to_a_number_of_them() -> None:
    asked: list[int] = []
    double = MemoizedFunction(lambda n: asked.append(n) or 2 * n, 2)
    assert [double(n) for n in (1, 2, 1, 2)] == [2, 4, 2, 4]
    assert asked == [1, 2]
    assert [double(n) for n in (3, 3, 1)] == [6, 6, 2]
    assert asked == [1, 2, 3, 1]


def test_a_function_with_memory_travels_without_its_results() -> None:
    remembered = MemoizedFunction(abs, 5)
    remembered(-3)
    travelled = pickle.loads(pickle.dumps(remembered))
    assert travelled._results == {}
    assert travelled(-4) == 4


def test_what_a_process_keeps_open_travels_empty() -> None:
    kept = ProcessLocalCache(link=Lock())
    assert pickle.loads(pickle.dumps(kept)) == {}
    assert list(kept) == ["link"]
