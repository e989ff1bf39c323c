"""What the checks of the variants find, without servers: of topics, of shared groups, of
mirrors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from busmq_spark.groups.dead_letter import DeadLetter
from busmq_spark.groups.topic import partition_of, partition_queues
from tests.bus.ledger import Ledger
from tests.soak.mirror import MirrorRun
from tests.soak.run import Violation
from tests.soak.shared import GROUP, SharedRun, check_group
from tests.soak.topic import KEYS, TopicRun

FED = 200
SIZES = [2, 3]
Sinks = dict[str, list[int]]


class SunkTopic(TopicRun):
    """The end of a round of a topic; both topics have grown in its middle."""

    def __init__(self, change: Callable[[Sinks], object]) -> None:
        before, after = partition_queues("in", SIZES[0]), partition_queues("in", SIZES[1])
        self.came_from = [
            its[partition_of(str(n % KEYS), len(its))]
            for n in range(FED)
            for its in [before if n < FED / 2 else after]
        ]
        self.topics = {"out": SimpleNamespace(name="out")}  # type: ignore[dict-item]
        self.sizes, self.errors = {"out": SIZES}, []
        sunk: Sinks = defaultdict(list)
        for n in range(FED):
            sunk[f"out/{partition_of(str(n % KEYS), SIZES[n >= FED / 2])}"].append(n)
        change(sunk)
        self.bus: Any = SimpleNamespace(
            values=lambda queue: [b"%07d" % n for n in sunk[queue]], kept_for_ever=list
        )


def swap(sunk: Sinks) -> None:
    sunk["out/0"][0], sunk["out/0"][1] = sunk["out/0"][1], sunk["out/0"][0]


def repeat_elsewhere(sunk: Sinks) -> None:
    """As a batch that is written again after the topic has grown."""
    sunk["out/2"].insert(0, next(n for n in range(FED // 2) if partition_of(str(n % KEYS), 3) == 2))


def misplace(sunk: Sinks) -> None:
    moved = next(n for n in sunk["out/0"] if partition_of(str(n % KEYS), 3) == 0)
    sunk["out/0"].remove(moved)
    sunk["out/1"].insert(0, moved)


TOPIC_WRONGS = {
    "never arrived": lambda sunk: sunk["out/1"].pop(),
    "after": swap,
    "came twice": repeat_elsewhere,
    "which its key never had": misplace,
}


@pytest.mark.parametrize("said", TOPIC_WRONGS)
def test_what_is_wrong_in_a_topic_is_a_violation(said: str) -> None:
    with pytest.raises(Violation, match=said):
        SunkTopic(TOPIC_WRONGS[said]).check()


def test_a_topic_that_has_grown_may_have_a_key_in_two_partitions() -> None:
    SunkTopic(lambda _: None).check()


class Group(SharedRun):
    """The end of a round with workers that had two tries: ids 1 to 5 were acked at once, id 8 is
    poison, and a worker was killed with ids 6 and 7.
    """

    def __init__(self, *, replies_kept: bool = True) -> None:
        self.ledger, self.tries, self.sources, self.fed, self.direct, self.drawn = (
            Ledger(),
            2,
            ["q"],
            {"q": 9},
            replies_kept,
            [],
        )
        self.hangs = set()
        self.letters = [self.letter(8), self.letter(7)]
        for id in (1, 2, 3, 4, 5, 9):
            self.lease(id, 1)
            self.ledger.acked.append((id, 1))
        for id in (6, 7, 8):
            self.lease(id, 1)
            self.lease(id, 2)
        self.ledger.acked.append((6, 2))

    def lease(self, id: int, tries: int) -> None:
        self.ledger.begun[id, tries].append(object())  # type: ignore[arg-type]  # any worker
        self.ledger.latest[id] = tries

    def letter(self, id: int, **other: Any) -> DeadLetter:
        words = {
            "queue": "q",
            "group": GROUP,
            "value": self.value(id - 1),
            "tries": 2,
            "error": "",
            "first": "",
            "last": "",
            **other,
        }
        return DeadLetter(id=id, **words)

    def check(self) -> None:
        check_group(self, self.letters)


GROUP_WRONGS: dict[str, Callable[[Group], object]] = {
    "no worker had begun them": lambda group: group.ledger.latest.pop(3),
    "begun twice in its try 1": lambda group: group.lease(3, 1),
    "begun in try 3 of 2": lambda group: group.lease(8, 3),
    "a dead letter is not what it should be": lambda group: group.letters.append(
        group.letter(7, tries=1)
    ),
    "not what it should be after": lambda group: group.letters.append(
        group.letter(7, value=b"another")
    ),
    "have no dead letter": lambda group: group.letters.pop(0),
    "id 3 was acked 2 times": lambda group: group.ledger.acked.append((3, 1)),
    "the ack of try 1 of id 3 was taken": lambda group: group.lease(3, 2),
    "was acked and has a dead letter": lambda group: group.letters.append(group.letter(6)),
}


@pytest.mark.parametrize("said", GROUP_WRONGS)
def test_what_is_wrong_in_a_shared_group_is_a_violation(said: str) -> None:
    group = Group()
    GROUP_WRONGS[said](group)
    with pytest.raises(Violation, match=said):
        group.check()


def test_a_dead_letter_of_a_worker_that_was_killed_is_right_and_may_come_twice() -> None:
    group = Group()
    group.letters += group.letters
    group.check()


def test_where_replies_are_lost_a_worker_may_take_for_its_own_what_another_has_settled() -> None:
    group = Group(replies_kept=False)
    group.ledger.acked.append((7, 1))
    group.check()


class SunkMirror(MirrorRun):
    """The end of a round whose mirror had 5 messages when it was promoted; 3 came then, with the
    same numbers that the lost site has given.
    """

    def __init__(
        self, sunk: list[bytes], *, harmed: bool = False, errors: tuple[str, ...] = ()
    ) -> None:
        self.sources, self.sink, self.fed, self.promoted = ["q"], "out", {"q": 8}, 5
        self.harmed, self.errors = harmed, list(errors)
        self.sink_bus: Any = SimpleNamespace(values=lambda _: sunk, kept_for_ever=list)
        self.bus, self.site = self.sink_bus, SimpleNamespace(bus=self.sink_bus)  # type: ignore[assignment]


COPIED = [b"%07d" % n for n in range(5)]
GIVEN_HERE = [b"%07d|here" % n for n in range(5, 8)]
LOST = [b"0000005", b"0000006"]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(SunkMirror(COPIED + GIVEN_HERE[:2]), id="the last is missing"),
        pytest.param(SunkMirror(COPIED[:4] + GIVEN_HERE), id="one of the copy is missing"),
        pytest.param(SunkMirror(COPIED + COPIED[4:] + GIVEN_HERE), id="one comes twice"),
        pytest.param(
            SunkMirror(COPIED + LOST + GIVEN_HERE[2:], harmed=True),
            id="those of the lost site hide others without an error",
        ),
    ],
)
def test_what_is_wrong_after_a_promotion_is_a_violation(run: SunkMirror) -> None:
    with pytest.raises(Violation):
        run.check()


def test_what_only_the_lost_site_had_may_have_been_read_if_an_error_says_so() -> None:
    SunkMirror(COPIED + GIVEN_HERE).check()
    SunkMirror(COPIED + LOST + GIVEN_HERE, harmed=True).check()
    SunkMirror(COPIED + LOST + GIVEN_HERE[2:], harmed=True, errors=("REDIS_ROLLED_BACK",)).check()
