"""Several holders of one persisted object against a model: what a save writes, what a load takes
over, what is lost by neither.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busmq_spark.errors import MessageRefused
from busmq_spark.objects import persisted
from busmq_spark.objects.persisted import PersistedFieldChanges, TrackedFields, from_text, to_text
from busmq_spark.queue.command_generators import RedisCall, run_sync

NAMES = ["a", "b", "c"]


class Hash:
    """Redis, as far as a persisted object needs it. Used by the flows themselves."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def execute(self, step: Any) -> Any:
        return [self._one(call) for call in step] if isinstance(step, list) else self._one(step)

    def _one(self, call: RedisCall) -> Any:
        name, _, *words = call.words
        match name:
            case "HSET":
                given = dict(zip(map(str, words[0::2]), words[1::2], strict=True))
                new = len(given.keys() - self.stored.keys())
                self.stored |= given  # type: ignore[arg-type]
                return new
            case "HSETNX":
                self.stored.setdefault(str(words[0]), words[1])  # type: ignore[arg-type]
                return 1
            case "EXPIRE":
                return int(bool(self.stored))
            case "HGETALL":
                return [
                    word for name, text in self.stored.items() for word in (name.encode(), text)
                ]
        raise AssertionError(call)


class Client:
    """One holder. A save is in three steps, as on a wire: it begins, Redis executes it, the reply
    comes back or is lost.
    """

    def __init__(self, redis: Hash, fields: TrackedFields) -> None:
        self.redis, self.fields = redis, fields
        self.under_way: PersistedFieldChanges | None = None
        self.created: int | None = None
        self.view: dict[str, Any] = dict(fields.values)
        self.dirty: set[str] = set()
        self.sent: set[str] = set()

    def set(self, name: str, value: Any) -> None:
        self.fields.assign(name, value)
        self.view[name] = value
        self.dirty.add(name)

    def begin(self) -> None:
        if self.under_way is None:
            self.under_way, self.created = self.fields.send(), None
            assert set(self.under_way.fields) == self.dirty
            self.sent, self.dirty = self.dirty, set()

    def arrive(self) -> None:
        if self.under_way and self.created is None:
            self.created = run_sync(persisted.save("k", self.under_way, 60), self.redis.execute)

    def end(self, *, lost: bool) -> None:
        if self.under_way is None:
            return
        if self.under_way and (lost or self.created is None):
            self.fields.on_save_failed(self.under_way)
            self.dirty |= self.sent
        elif self.under_way:
            assert self.created is not None
            self.fields.on_saved(self.under_way, self.created)
        self.under_way = None

    def load(self) -> None:
        if self.under_way is None:  # the object itself does one thing after the other
            stored = run_sync(persisted.load("k"), self.redis.execute)
            self.fields.load(stored)
            kept = {name: self.view[name] for name in self.dirty}
            self.view = {**{name: from_text(text) for name, text in stored.items()}, **kept}


actions = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(NAMES), st.integers(0, 3) | st.none()),
    st.tuples(st.sampled_from(["begin", "arrive", "end", "lose", "load", "save"])),
)


@given(st.lists(st.tuples(st.integers(0, 1), actions), max_size=40))
def test_two_holders_see_and_store_what_the_model_does(
    steps: list[tuple[int, tuple[Any, ...]]],
) -> None:
    redis = Hash()
    clients = [Client(redis, TrackedFields({})) for _ in range(2)]
    for who, (what, *args) in steps:
        client = clients[who]
        match what:
            case "set":
                client.set(*args)
            case "begin" | "arrive" | "load":
                getattr(client, what)()
            case "end" | "lose":
                client.end(lost=what == "lose")
            case "save":
                before, to_write = (
                    dict(redis.stored),
                    {name: to_text(client.view[name]) for name in client.dirty},
                )
                if client.under_way is None:
                    client.begin()
                    client.arrive()
                    client.end(lost=False)
                    assert redis.stored == before | to_write
        assert client.fields.values == client.view
        on_the_way = set() if client.under_way is None else client.sent
        assert client.dirty <= client.fields.dirty <= client.dirty | on_the_way


def saved(fields: TrackedFields, redis: Hash) -> PersistedFieldChanges:
    sending = fields.send()
    if sending:
        fields.on_saved(sending, run_sync(persisted.save("k", sending, 60), redis.execute))
    return sending


def loaded(fields: TrackedFields, redis: Hash) -> dict[str, str]:
    return fields.load(run_sync(persisted.load("k"), redis.execute))


def test_a_change_made_during_a_save_is_for_the_next_one() -> None:
    redis, fields = Hash(), TrackedFields({})
    fields.assign("a", 1)
    sending = fields.send()
    fields.assign("a", 2)
    fields.on_saved(sending, 1)
    assert fields.values == {"a": 2}
    assert saved(fields, redis).fields == {"a": b"2"}


def test_what_a_failed_save_sent_is_still_to_be_saved_even_if_it_was_the_value_known() -> None:
    redis, fields = Hash(), TrackedFields({})
    redis.stored = {"a": b"1"}
    loaded(fields, redis)
    fields.assign("a", 1)
    fields.on_save_failed(fields.send())
    assert saved(fields, redis).fields == {"a": b"1"}


def test_a_change_inside_a_value_is_found_also_during_a_save_and_before_a_load() -> None:
    redis, fields = Hash(), TrackedFields({"list": []})
    fields.values["list"].append(1)
    sending = fields.send()
    fields.values["list"].append(2)
    fields.on_saved(sending, 1)
    redis.stored = {"list": b"[1]"}
    loaded(fields, redis)
    assert fields.values == {"list": [1, 2]}
    assert saved(fields, redis).fields == {"list": b"[1,2]"}
    assert not saved(fields, redis)


def test_what_stands_in_redis_in_another_spelling_is_no_change() -> None:
    redis, fields = Hash(), TrackedFields({})
    redis.stored = {"a": b'{ "x" : 1.50 }'}
    loaded(fields, redis)
    assert fields.dirty == set()


def test_values_of_an_instance_are_saved_and_give_way_to_a_load() -> None:
    redis, hints = Hash(), {"a": int, "b": int}
    first = TrackedFields({"a": 1, "b": 2}, hints, unsaved=True)
    assert saved(first, redis).fields == {"a": b"1", "b": b"2"}
    redis.stored = {"a": b"7"}
    second = TrackedFields({"a": 1, "b": 2}, hints, unsaved=True)
    loaded(second, redis)
    assert second.values == {"a": 7, "b": 2}
    assert saved(second, redis).fields == {"b": b"2"}


def test_defaults_of_a_class_are_not_saved_and_come_back_when_a_load_finds_nothing() -> None:
    redis, fields = Hash(), TrackedFields({"a": 1, "b": []}, {"a": int, "b": list})
    assert not saved(fields, redis)
    redis.stored = {"a": b"7", "b": b"[1]"}
    loaded(fields, redis)
    assert fields.values == {"a": 7, "b": [1]}
    redis.stored = {}
    loaded(fields, redis)
    assert fields.values == {"a": 1, "b": []}
    assert fields.dirty == set()


@pytest.mark.parametrize("noticed", ["by a touch", "by the save"])
def test_an_object_that_vanished_is_written_again_unless_another_has_done_so(noticed: str) -> None:
    redis, fields = Hash(), TrackedFields({})
    for name in NAMES:
        fields.assign(name, 1)
    saved(fields, redis)
    redis.stored = {"c": b'"somebody else\'s"'}
    if noticed == "by a touch":
        assert fields.on_gone()
        assert fields.dirty == set()
    fields.assign("a", 2)
    while fields.dirty or fields.incomplete:
        saved(fields, redis)
    assert redis.stored == {"a": b"2", "b": b"1", "c": b'"somebody else\'s"'}


def test_a_misfit_is_reported_once_kept_apart_and_replaced_only_by_an_assignment() -> None:
    redis, fields = Hash(), TrackedFields({})
    redis.stored = {"good": b"1", "bad": b"undefined"}
    assert loaded(fields, redis) == {"bad": "JSON"}
    assert loaded(fields, redis) == {}
    assert (fields.values, fields.misfits) == ({"good": 1}, {"bad": "undefined"})
    fields.assign("good", 2)
    assert "bad" not in saved(fields, redis).fields
    fields.assign("bad", 3)
    saved(fields, redis)
    assert (redis.stored["bad"], fields.misfits) == (b"3", {})


def test_a_field_of_another_type_keeps_the_value_it_has_here() -> None:
    redis, fields = Hash(), TrackedFields({"a": 5}, {"a": int})
    redis.stored = {"a": b'"five"', "other": b"1"}
    assert loaded(fields, redis) == {"a": "expected int, found str"}
    assert (fields.values, fields.dirty) == ({"a": 5}, set())


def test_fields_that_a_dataclass_does_not_have_are_neither_read_nor_written() -> None:
    redis, fields = Hash(), TrackedFields({"a": 5}, {"a": int})
    redis.stored = {"other": b"zz"}
    assert loaded(fields, redis) == {}
    fields.values["a"] = 6
    saved(fields, redis)
    assert redis.stored == {"other": b"zz", "a": b"6"}


def test_a_value_that_became_unfit_in_place_is_named_and_nothing_is_sent() -> None:
    fields = TrackedFields({"a": [], "b": 1})
    fields.assign("b", 2)
    fields.values["a"].append(object())
    assert fields.dirty == {"a", "b"}
    with pytest.raises(MessageRefused, match="field 'a'"):
        fields.send()
    fields.values["a"].clear()
    assert fields.send().fields == {"b": b"2"}


def test_an_unfit_value_is_refused_at_the_assignment() -> None:
    fields = TrackedFields({})
    with pytest.raises(MessageRefused, match="field 'a'"):
        fields.assign("a", object())
    assert fields.values == {}
