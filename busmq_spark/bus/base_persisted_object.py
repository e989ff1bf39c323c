"""An object whose fields live in Redis under a name, shared with Node peers (protocol 4.2). Only
what changed is written.

@dataclass
class Job:
    status: str = "new"
    tries: int = 0

async with bus.persist("job:7", Job, ttl_s=600) as job:  # loaded; in here it is kept alive
    job.value.tries += 1 await job.save()                                     # writes one field; so
    does leaving without an error
async with bus.persist("settings") as settings:          # without a class: a dictionary
    settings["theme"] = {"dark": True}
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from busmq_spark.arguments import check_text, check_whole, show
from busmq_spark.bus.emitter import Handle
from busmq_spark.errors import BusError, ConfigError, StateError
from busmq_spark.objects import persisted
from busmq_spark.objects.persisted import (
    PersistedFieldChanges,
    TrackedFields,
    has_default,
    hints_of,
)
from busmq_spark.queue.command_generators import Flow, T
from busmq_spark.queue.keys import check_name, persisted_key

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext

DEFAULT_OBJECT_TTL_S = 60
D = TypeVar("D")
log = logging.getLogger("busmq_spark")


class BasePersistedObject(Handle):
    """The part that both kinds of persisted objects share. Assigning, reading and ``dirty`` need no
    Redis; the rest is awaited.

    A change is what was assigned, or differs from what was last loaded or saved: a list in a field
    may be appended to.
    """

    def __init__(self, bus: BusContext, name: str, start: TrackedFields, ttl_s: int) -> None:
        self.bus, self.name, self.key = (
            bus,
            check_name("persisted object", name),
            persisted_key(name),
        )
        self.ttl_s = _check_ttl(ttl_s)
        """Seconds it lives after the last save or touch."""
        self.is_kept_alive = False
        """Whether it is kept alive."""
        self.existed = False
        """Whether the last load found anything."""
        self.server = 0
        """Index of the server that has it; known while it is kept alive."""
        self._fields = start
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def __aenter__(self) -> Self:
        await self.persist()
        try:
            await self.load()
        except BaseException:
            await self.detach()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Save, unless the body failed: then what it changed is half done, and is not stored."""
        try:
            if kind is None:
                await self.save()
        finally:
            await self.detach()

    # -- Redis -------------------------------------------------------------------------------------

    async def save(self) -> bool:
        """Write what has changed and touch the object; whether there was anything. Nothing changed:
        nothing is sent.

        A change made while this is under way is for the next save. After a failure all fields of
        the call still count as changed. An object that vanished from Redis gets its other fields
        back too, except those that another client has written meanwhile.
        """
        async with self._lock:
            mine, done = self._fields, False
            while sending := mine.send():
                try:
                    created = await self._write(sending)
                except BaseException:
                    mine.on_save_failed(sending)
                    raise
                mine.on_saved(sending, created)
                done = True
                if not mine.incomplete:
                    break
            return done

    async def load(self) -> bool:
        """Take over what Redis has; whether it has anything. Changes not saved yet stay.

        A field that is not stored (any more) gets back the value it began with. A field that cannot
        be decoded keeps its value here, and its name is in ``misfits``.
        """
        async with self._lock:
            mine = self._fields
            stored = await self._read()
            for name, expected in mine.load(stored).items():
                log.warning(
                    "persisted object %r: field %r is skipped; what is stored is not what was"
                    " expected: %s",
                    self.name,
                    name,
                    expected,
                )
            self.existed = bool(stored)
            return self.existed

    async def touch(self) -> bool:
        """Let it live for ``ttl_s`` from now on; whether it is there."""
        found = await self._touch()
        self._on_touch_reply(found)
        return found

    async def persist(self, ttl_s: int | None = None) -> None:
        """Keep it alive: touched now and every ttl/3 until ``unpersist``, ``detach`` or the bus
        ends. Called again it takes the new ttl.
        """
        self._set_ttl(ttl_s)
        await self.touch()
        if not self.is_kept_alive:
            self.server = await self.bus.servers.locate(self.key)
            self.is_kept_alive = True
            self.bus._adopt(self)
        self.bus.keep_alive.keep(self)

    def unpersist(self) -> None:
        """Keep it alive no longer, and forget what was loaded and what was changed. The stored
        fields stay for ``ttl_s``.
        """
        self._leave()
        self._fields = self._make_fields()

    async def detach(self) -> None:
        """Keep it alive no longer; unlike ``unpersist`` this forgets nothing."""
        if self._leave() and (dirty := self._fields.dirty):
            log.warning(
                "persisted object %r: changes of %s are not saved",
                self.name,
                ", ".join(sorted(dirty)),
            )

    # -- here --------------------------------------------------------------------------------------

    @property
    def dirty(self) -> frozenset[str]:
        """Names of the fields that the next save writes."""
        return frozenset(self._fields.dirty)

    @property
    def misfits(self) -> Mapping[str, str]:
        """Fields that the last load could not take over, as the text that is stored: no JSON, or of
        another type. Assigning one replaces it.
        """
        return dict(self._fields.misfits)

    def _on_touch_reply(self, found: bool) -> None:
        """Handle the result of a touch."""
        if not found and self._fields.on_gone():
            log.warning(
                "persisted object %r is gone from Redis; the next save writes all of it", self.name
            )

    def _not_touched(self, error: BusError) -> None:
        """The keep-alive could not reach the server; it goes on trying."""
        log.debug("persisted object %r was not touched: %s", self.name, error)

    def _leave(self) -> bool:
        kept, self.is_kept_alive = self.is_kept_alive, False
        if kept:
            self.bus.keep_alive.remove_object(self)
            self.bus.release(self)
        return kept

    def _make_fields(self) -> TrackedFields:
        raise NotImplementedError

    def _set_ttl(self, ttl_s: int | None) -> None:
        self.ttl_s = self.ttl_s if ttl_s is None else _check_ttl(ttl_s)

    async def _write(self, sending: PersistedFieldChanges) -> int:
        """Store the fields and touch the object; how many of ``sending.fields`` were not there
        before.
        """
        return await self._run(persisted.save(self.key, sending, self.ttl_s))

    async def _read(self) -> dict[str, bytes]:
        """Every field that is stored."""
        return await self._run(persisted.load(self.key))

    async def _touch(self) -> bool:
        """Whether it is there."""
        [found] = await self._run(persisted.touch([(self.key, self.ttl_s)]))
        return found

    async def _run(self, flow: Flow[T]) -> T:
        server = self.server if self.is_kept_alive else await self.bus.servers.locate(self.key)
        return await self.bus.servers.commands[server].run(flow)


class PersistedDict(BasePersistedObject, Mapping[str, Any]):
    """A persisted object as a dictionary: any names, any values that JSON can express; a value of
    None is stored as null.

    A field cannot be deleted, since peers would not notice: assign None.
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __init__(self, bus: BusContext, name: str, ttl_s: int = DEFAULT_OBJECT_TTL_S) -> None:
        super().__init__(bus, name, TrackedFields({}), ttl_s)

    def __getitem__(self, name: str) -> Any:
        return self._fields.values[check_text("the name of a field", name)]

    def __setitem__(self, name: str, value: Any) -> None:
        """Raises MessageRefused for a value that JSON cannot express."""
        self._fields.assign(name, value)

    def __delitem__(self, name: str) -> None:
        """Refused: peers that have the field would not notice."""
        raise StateError(
            event="delete",
            what=f"field {name!r}",
            state="part of a persisted object",
            remedy="Assign None instead",
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields.values)

    def __len__(self) -> int:
        return len(self._fields.values)

    def update(
        self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **more: Any
    ) -> None:
        """Set several fields."""
        try:
            several = dict(values, **more)
        except (TypeError, ValueError):
            raise ConfigError(
                reason=f"values is {show(values)}; expected a dictionary, or pairs"
            ) from None
        for name, value in several.items():
            self[name] = value

    def _make_fields(self) -> TrackedFields:
        return TrackedFields({})


class PersistedDataclass(BasePersistedObject, Generic[D]):
    """A persisted object with the fields of a dataclass; ``value`` is the dataclass. Fields it does
    not have are neither read nor written.

    Made from a class, its fields begin with their defaults, which are not stored unless they are
    changed. Made from an instance, the values it brings are stored by the first save, except where
    a load before has found others.
    """

    def __init__(
        self, bus: BusContext, name: str, shape: type[D] | D, ttl_s: int = DEFAULT_OBJECT_TTL_S
    ) -> None:
        self.shape = shape
        """The shape that it was made from: a dataclass, or an instance of one."""
        self.value: D = _record_instance_of(shape)
        self._hints = hints_of(type(self.value))
        super().__init__(
            bus,
            name,
            TrackedFields(
                _DataclassMapping(self.value, tuple(self._hints)),
                self._hints,
                unsaved=not isinstance(shape, type),
            ),
            ttl_s,
        )

    def _make_fields(self) -> TrackedFields:
        """``value`` stays as it is, but none of it counts as changed."""
        return TrackedFields(_DataclassMapping(self.value, tuple(self._hints)), self._hints)


class _DataclassMapping(MutableMapping[str, Any]):
    """The fields of a dataclass instance as a mapping."""

    def __init__(self, instance: object, names: tuple[str, ...]) -> None:
        self._instance, self._names = instance, names

    def __getitem__(self, name: str) -> Any:
        return getattr(self._instance, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._instance, name, value)

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"field {name!r} of a dataclass cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _record_instance_of(shape: Any) -> Any:
    """The instance itself, or one made of defaults."""
    if not is_dataclass(shape):
        raise ConfigError(
            reason=(
                f"{shape!r} is no dataclass; hand over a dataclass, an instance of one, or nothing"
                " for a dictionary"
            )
        )
    # The attribute of dataclasses for it is not declared
    # What dataclasses keep it under is no declared attribute
    if getattr(shape, "__dataclass_params__").frozen:  # noqa: B009
        raise ConfigError(reason="a frozen dataclass cannot be filled by a load; drop frozen=True")
    if not isinstance(shape, type):
        return shape
    if needed := [field.name for field in fields(shape) if field.init and not has_default(field)]:
        raise ConfigError(
            reason=(
                f"field {needed[0]!r} of {shape.__name__} has no default, which it needs until it"
                " is loaded; add one, or hand over an instance"
            )
        )
    return shape()


def _check_ttl(ttl_s: int) -> int:
    return check_whole("ttl_s", ttl_s, 1)
