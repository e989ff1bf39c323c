"""Jobs on every layout, through both drivers: fields that are read once, and outcomes that are
written once.
"""

from __future__ import annotations

from typing import Any

import pytest

from busmq_spark.errors.foreign import MAX_ERROR_CHARACTERS
from busmq_spark.groups import job as flows
from busmq_spark.groups.job import Answer, LeasedJob
from busmq_spark.groups.shared_group import LeasedMessage
from busmq_spark.queue.command_generators import Flow
from busmq_spark.queue.keys import JobKeys
from busmq_spark.redis_io.layout import RedisLayout
from busmq_spark.redis_io.queue_location import new_token
from tests.conftest import Fresh
from tests.contract.conftest import Redis, Run

TTL_S = 3600


class Worked:
    """One job, worked on by group ``g`` of queue ``q``."""

    def __init__(self, run: Run, redis: Redis, keys: JobKeys) -> None:
        self.run, self.redis, self.keys = run, redis, keys

    def work(
        self, token: str, message: int = 7, tries: int = 1, ms: int = 100, life: str = "life"
    ) -> LeasedJob:
        return LeasedJob(
            LeasedMessage(message, b"", tries, 50, token, ms), self.keys, "client", "g", life, ""
        )

    def first(self, message: int = 7, ms: int = 100) -> LeasedJob:
        """Of a message that nobody has leased before."""
        return self.work("f", message, 1, ms)._replace(
            delivery=LeasedMessage(message, b"", 1, ms, "f", ms)
        )

    def begin(self, token: str, *work: int, life: str = "life") -> Answer:
        [(answer, _)] = self.run(flows.begin_work([self.work(token, *work, life=life)], TTL_S))
        return answer

    def finish(
        self, token: str, *work: int, error: str | None = None, life: str = "life"
    ) -> Answer:
        [(answer, _)] = self.run(
            flows.write_outcomes([(self.work(token, *work, life=life), error)], "q", TTL_S)
        )
        return answer

    @property
    def outcome(self) -> tuple[bool, str, int, int] | None:
        [found] = self.run(flows.read_outcomes([self.keys]))
        return (found[0].ok, found[0].error, found[0].message, found[0].tries) if found else None


@pytest.fixture
def keys(where: RedisLayout, fresh: Fresh) -> JobKeys:
    return JobKeys(fresh("job"), where.cluster)


@pytest.fixture
def worked(run: Run, redis: Redis, keys: JobKeys) -> Worked:
    return Worked(run, redis, keys)


def saved(run: Run, keys: JobKeys, ttl_ms: int = 60_000, **fields: Any) -> None:
    run(
        flows.save_fields(
            [
                (
                    keys,
                    {
                        name: (flows.encode_field(name, value), ttl_ms)
                        for name, value in fields.items()
                    },
                )
            ]
        )
    )


def loaded(
    run: Run,
    keys: JobKeys,
    *names: str,
    forget: tuple[str, ...] = (),
    token: str = "",
    again: bool = False,
) -> list[Any]:
    found = run(flows.load_fields(keys, names, forget, token or new_token(), again=again))
    return [flows.decode_field(name, value) for name, value in zip(names, found, strict=True)]


def test_fields_are_read_and_those_to_be_forgotten_deleted_after_that(
    run: Run, redis: Redis, keys: JobKeys
) -> None:
    saved(run, keys, a=b"\x00\xff", b={"n": 1}, c="text")
    assert loaded(run, keys, "b", "missing", "a", forget=("a", "c")) == [
        {"n": 1},
        None,
        b"\x00\xff",
    ]
    assert loaded(run, keys, "a", "b", "c") == [None, {"n": 1}, None]
    assert loaded(run, keys, forget=("b", "missing")) == []
    assert [redis("EXISTS", keys.field(name)) for name in "abc"] == [0, 0, 0]


def test_fields_live_for_their_ttl(run: Run, redis: Redis, keys: JobKeys) -> None:
    saved(run, keys, 50_000, short=1)
    saved(run, keys, 500_000, long=1)
    assert (
        0
        < redis("PTTL", keys.field("short"))
        <= 50_000
        < redis("PTTL", keys.field("long"))
        <= 500_000
    )


def test_nothing_is_sent_where_nothing_is_asked_for(run: Run, keys: JobKeys) -> None:
    for flow in (flows.save_fields([(keys, {})]), flows.load_fields(keys, (), (), "t")):
        with pytest.raises(StopIteration):
            next(flow)


def test_a_field_that_was_forgotten_is_had_again_by_the_same_call_only(
    run: Run, redis: Redis, keys: JobKeys
) -> None:
    saved(run, keys, a=1, b=2)
    assert loaded(run, keys, "a", "b", forget=("a",), token="t") == [1, 2]
    assert loaded(run, keys, "a", "b", forget=("a",), token="t", again=True) == [
        1,
        2,
    ]  # its reply was lost
    assert loaded(run, keys, "a", "b", forget=("a",), token="other") == [None, 2]
    assert 0 < redis("TTL", keys.spare_field("a", "t")) <= flows.DELETED_FIELD_READABLE_S

    def dropped() -> Flow[None]:
        yield flows.forget_call(keys, ("a",), "t")

    run(dropped())
    assert loaded(run, keys, "a", forget=("a",), token="t") == [None]


@pytest.mark.parametrize("there", [True, False])
def test_a_call_that_comes_behind_its_repetition_takes_nothing(
    run: Run, keys: JobKeys, there: bool
) -> None:
    if there:
        saved(run, keys, a=1)
    first = [1] if there else [None]
    assert loaded(run, keys, "a", forget=("a",), token="t", again=True) == first
    saved(run, keys, a=2)
    assert loaded(run, keys, "a", forget=("a",), token="t") == first
    assert loaded(run, keys, "a") == [2]


def test_an_outcome_is_written_once_and_lives_for_its_ttl(worked: Worked) -> None:
    assert worked.begin("a") == "ok"
    assert worked.outcome is None
    assert worked.finish("a") == "ok"
    assert worked.outcome == (True, "", 7, 1)
    assert worked.finish("a", error="again") == "done"
    assert worked.outcome == (True, "", 7, 1)
    assert 0 < worked.redis("TTL", worked.keys.outcomes) <= TTL_S


def test_who_comes_late_is_refused_once_the_next_has_begun(worked: Worked) -> None:
    worked.begin("a", 7, 1, 100)
    assert worked.begin("b", 7, 2, 200) == "ok"
    assert worked.finish("a", 7, 1, 100) == "late"
    assert worked.begin("a", 7, 1, 100) == "late"
    assert worked.outcome is None
    assert worked.finish("b", 7, 2, 200, error="no") == "ok"
    assert worked.outcome == (False, "no", 7, 2)
    assert worked.finish("a", 7, 1, 100) == "done"


def test_an_answer_behind_the_lease_counts_while_nobody_else_has_begun(worked: Worked) -> None:
    worked.begin("a", 7, 1, 100)
    assert worked.finish("a", 7, 1, 100) == "ok"
    assert (
        worked.begin("b", 7, 2, 200) == "done"
    )  # the first died before its ack: the second only acks


def test_a_lease_that_was_given_back_and_had_again_is_the_later_one(worked: Worked) -> None:
    worked.begin("a", 7, 1, 100)
    assert worked.begin("b", 7, 1, 150) == "ok"  # released: its try did not count
    assert worked.finish("a", 7, 1, 100) == "late"
    assert worked.begin("c", 7, 1, 150) == "late"  # in the same millisecond: it is leased again
    assert worked.begin("c", 7, 2, 120) == "ok"  # the clock was set back


def test_a_first_lease_begins_without_a_record_and_is_refused_once_the_next_has_begun(
    worked: Worked, run: Run, redis: Redis
) -> None:
    first = worked.first()
    assert run(flows.begin_work([first, worked.first(8)], TTL_S)) == [("ok", b"")] * 2
    assert redis("EXISTS", worked.keys.outcomes) == 0
    assert worked.begin("b", 7, 2, 200) == "ok"
    assert run(flows.write_outcomes([(first, None)], "q", TTL_S)) == [("late", b"")]
    assert worked.outcome is None
    assert worked.finish("b", 7, 2, 200) == "ok"


def test_a_first_lease_sees_what_is_written_of_its_job(worked: Worked, run: Run) -> None:
    """The group was made anew, or was set back; or the job was sent again, and then this message
    was leased.
    """
    worked.finish("a", 8)
    assert [
        answer
        for answer, _ in run(
            flows.begin_work([worked.first(7), worked.first(8), worked.first(9)], TTL_S)
        )
    ] == ["done", "done", "ok"]
    assert worked.finish("b", 8, 2, 300) == "done"
    assert worked.finish("f", 9, 1, 100) == "ok"


def test_a_job_that_one_call_names_twice_has_the_outcome_of_the_later_message(
    worked: Worked, run: Run
) -> None:
    works = [worked.first(8), worked.first(7), worked.first(9), worked.first(9)]
    assert [
        answer
        for answer, _ in run(
            flows.write_outcomes([(work, str(work.delivery.id)) for work in works], "q", TTL_S)
        )
    ] == [
        "ok",
        "done",
        "ok",
        "done",
    ]
    assert worked.outcome == (False, "9", 9, 1)


def test_who_gives_up_need_not_have_begun(worked: Worked) -> None:
    assert worked.finish("z", 7, 4, 900, error="used up") == "ok"
    assert worked.outcome == (False, "used up", 7, 4)


def test_a_job_that_is_sent_again_has_another_outcome_and_the_older_one_counts_no_more(
    worked: Worked,
) -> None:
    worked.finish("a", 7, error="first")
    assert worked.begin("b", 8) == "ok"
    assert worked.outcome == (False, "first", 7, 1)
    assert worked.finish("b", 8) == "ok"
    assert worked.outcome == (True, "", 8, 1)
    assert worked.finish("c", 7, 2) == "done"
    assert worked.begin("d", 1, life="next") == "ok"  # in another life of the queue ids begin again
    assert worked.finish("d", 1, life="next") == "ok"
    assert worked.outcome == (True, "", 1, 1)


def test_fields_are_stored_with_an_outcome_and_only_with_it(
    worked: Worked, run: Run, redis: Redis
) -> None:
    def finish(message: int, tries: int, **fields: str) -> Answer:
        stored = {name: (flows.encode_field(name, value), 60_000) for name, value in fields.items()}
        [(answer, _)] = run(
            flows.write_outcomes([(worked.work("a", message, tries), None)], "q", TTL_S, [stored])
        )
        return answer

    worked.begin("b", 7, 2, 200)
    assert finish(7, 1, x="late", y="late") == "late"
    assert loaded(run, worked.keys, "x", "y") == [None, None]
    assert finish(7, 3, x="first", y="first") == "ok"
    assert loaded(run, worked.keys, "x", "y", forget=("x",)) == ["first", "first"]
    assert 0 < redis("PTTL", worked.keys.field("y")) <= 60_000
    assert finish(7, 4, x="again", y="again") == "done"
    assert loaded(run, worked.keys, "x", "y") == [None, "first"]
    assert finish(8, 1, y="next") == "ok"
    assert loaded(run, worked.keys, "x", "y") == [None, "next"]


def test_groups_do_not_meet_and_neither_do_jobs(run: Run, worked: Worked, fresh: Fresh) -> None:
    other = JobKeys(fresh("job"), worked.keys.cluster)
    works = [
        worked.work("a"),
        worked.work("b")._replace(group="h"),
        worked.work("c")._replace(keys=other),
    ]
    assert run(flows.begin_work(works, TTL_S)) == [("ok", b"")] * 3
    assert [
        answer
        for answer, _ in run(flows.write_outcomes([(work, None) for work in works], "q", TTL_S))
    ] == ["ok"] * 3
    assert [
        sorted(each.group for each in found)
        for found in run(flows.read_outcomes([worked.keys, other]))
    ] == [["g", "h"], ["g"]]
    assert run(flows.read_outcomes([])) == []


def test_many_works_of_one_call_are_answered_each_for_itself(
    run: Run, worked: Worked, fresh: Fresh
) -> None:
    keys = [JobKeys(fresh("job"), worked.keys.cluster) for _ in range(250)]
    works = [worked.work("a", message)._replace(keys=each) for message, each in enumerate(keys, 1)]
    assert run(flows.begin_work(works, TTL_S)) == [("ok", b"")] * 250
    assert (
        run(
            flows.begin_work(
                [
                    work._replace(delivery=work.delivery._replace(tries=2, token="b"))
                    for work in works[::5]
                ],
                TTL_S,
            )
        )
        == [("ok", b"")] * 50
    )
    errors = [None if number % 2 else "\u20ac" * 3000 for number in range(250)]
    answers = run(flows.write_outcomes(list(zip(works, errors, strict=True)), "q", TTL_S))
    assert answers == [("ok" if number % 5 else "late", b"") for number in range(250)]
    found = run(flows.read_outcomes(keys))
    texts = [(error or "")[:MAX_ERROR_CHARACTERS] for error in errors]
    assert [[(each.job, each.message, each.ok, each.error) for each in some] for some in found] == [
        [(each.id, number + 1, errors[number] is None, texts[number])] if number % 5 else []
        for number, each in enumerate(keys)
    ]
    answers = run(flows.write_outcomes([(work, None) for work in works], "q", TTL_S))
    assert [answer for answer, _ in answers] == [
        "done" if number % 5 else "late" for number in range(250)
    ]


def test_outcomes_come_along_where_they_are_to_be_pushed_to_a_queue_as_well(
    run: Run, worked: Worked, fresh: Fresh
) -> None:
    other = worked.work("b")._replace(keys=JobKeys(fresh("job"), worked.keys.cluster))
    [(first, text), (second, _)] = run(
        flows.write_outcomes(
            [(worked.work("a")._replace(done="q.done"), None), (other, None)], "q", TTL_S
        )
    )
    assert (first, second) == ("ok", "ok")
    [[stored]] = run(flows.read_outcomes([worked.keys]))
    assert flows.decode_outcome(text) == stored
    [(again, text)] = run(
        flows.begin_work([worked.work("c", 7, 2, 300)._replace(done="q.done")], TTL_S)
    )
    assert (again, flows.decode_outcome(text)) == ("done", stored)


def test_who_has_not_begun_may_finish_until_another_has_begun(worked: Worked) -> None:
    assert worked.begin("b", 7, 2, 200) == "ok"
    assert worked.finish("a", 7, 1, 100) == "late"
    assert worked.finish("b", 7, 2, 200) == "ok"
    assert worked.finish("a", 7, 1, 100) == "done"


def test_everything_has_a_ttl(worked: Worked, run: Run, redis: Redis) -> None:
    saved(run, worked.keys, a=1, b=2)
    loaded(run, worked.keys, "a", forget=("a",))
    worked.begin("a")
    assert all(redis("PTTL", key) > 0 for key in (worked.keys.field("b"), worked.keys.outcomes))
