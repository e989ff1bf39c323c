"""A job: its fields, here and in Redis, and its outcomes.

job = jobs.new()
job["inbound"] = "Hello"
await job.save()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from busmq_spark.arguments import check_items, check_text
from busmq_spark.bus.queue.shared_group import MAX_LEASE_S, check_seconds
from busmq_spark.errors import LinkLost, Released
from busmq_spark.groups import job as flows
from busmq_spark.groups.job import JobOutcome
from busmq_spark.queue.keys import JobKeys
from busmq_spark.redis_io.queue_location import new_token

if TYPE_CHECKING:
    from busmq_spark.bus.context import BusContext
    from busmq_spark.bus.queue.queue import Queue

MIN_FIELD_TTL_S = 0.001


class JobOwner(Protocol):
    """The object for the jobs of one queue, as its jobs and its workers see it (``Jobs``)."""

    bus: BusContext
    outcome_ttl_s: int
    done: str
    """The queue to which outcomes are pushed as well; empty for none."""
    at_work: set[Any]
    """Its workers that have begun and not stopped."""

    @property
    def queue(self) -> Queue:
        """The queue of the jobs."""

    async def attached_queue(self) -> Queue:
        """Return the queue, attached."""

    async def wait(
        self, job: Job, groups: Iterable[str], *, timeout_s: float = 5, fail_fast: bool = True
    ) -> dict[str, JobOutcome]:
        """See Job.wait."""


class Job(Mapping[str, Any]):
    """A job of a queue. As a mapping it has the fields that were assigned or loaded here."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __init__(self, jobs: JobOwner, id: str, tries: int = 0) -> None:
        self.jobs, self.id = jobs, id
        self.tries = tries
        """For a handler: how often the group has begun it, with this time."""
        self._values: dict[str, Any] = {}
        self._unsaved: dict[str, float | None] = {}

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    @property
    def in_redis(self) -> JobKeys:
        """Its keys."""
        return JobKeys(self.id, self.jobs.queue.keys.cluster)

    def __getitem__(self, name: str) -> Any:
        return self._values[check_text("the name of a field", name)]

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def set(self, name: str, value: Any, *, ttl_s: float | None = None) -> None:
        """Set a field for the next save. Bytes are stored unchanged, every other value as JSON.

        Args:
            name: Name of the field.
            value: Value of the field.
            ttl_s: Seconds that the field lives after the save; by default the ttl of the queue.

        Raises:
            ConfigError: The name or the ttl is not valid.
            MessageRefused: The value cannot be stored.
        """
        flows.check_field(name)
        if ttl_s is not None:
            check_seconds("ttl_s", ttl_s, MIN_FIELD_TTL_S, 52 * MAX_LEASE_S)
        flows.encode_field(name, value)
        self._values[name] = value
        self._unsaved[name] = ttl_s

    @property
    def changed(self) -> bool:
        """Whether anything was set since the last save."""
        return bool(self._unsaved)

    def release(self, reason: str = "handed back", *, delay_s: float = 0) -> NoReturn:
        """End the handler and return the job. This run counts no try.

        Args:
            reason: Text for the log.
            delay_s: Seconds until the job may begin again.

        Raises:
            Released: Always. The handler must let it pass.
            ConfigError: An argument is not valid.
        """
        raise Released(reason, delay_s=delay_s)

    async def save(self) -> bool:
        """Store the fields that were set since the last save.

        Returns:
            Whether there was such a field. If not, nothing is sent.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        return await save_all([self])

    def unsaved_fields(self, ttl_s: int, only: str | None = None) -> dict[str, tuple[bytes, int]]:
        """Return the fields that changed since the last save, or ``only`` one of them, encoded,
        with their ttl in milliseconds: that of the queue, unless a field has its own.
        """
        return {
            name: (
                flows.encode_field(name, self._values[name]),
                round(1000 * (ttl_s if own_s is None else own_s)),
            )
            for name, own_s in self._unsaved.items()
            if only in (None, name)
        }

    async def load(self, *names: str, forget: Iterable[str] = ()) -> dict[str, Any]:
        """Read fields, and delete some of them in the same step. A missing field is None.

        Of several calls that delete a field, one gets its value.

        Args:
            *names: Names of the fields.
            forget: Names of fields to delete.

        Raises:
            MessageRefused: A field was not written by busmq_spark.
            LinkLost: The server cannot be reached in time.
        """
        several = (forget,) if isinstance(forget, str) else check_items("forget", forget)
        gone = [flows.check_field(name) for name in several]
        for name in names:
            flows.check_field(name)
        if not (names or gone):
            return {}
        queue, token = await self.jobs.attached_queue(), new_token()
        try:
            stored = await queue.run(flows.load_fields(self.in_redis, names, gone, token))
        except LinkLost:
            stored = await queue.run(
                flows.load_fields(self.in_redis, names, gone, token, again=True)
            )
        else:
            if gone:
                queue.begin(
                    flows.forget_call(self.in_redis, gone, token)
                )  # a field that is left goes by its ttl
        found = {
            name: flows.decode_field(name, value) for name, value in zip(names, stored, strict=True)
        }
        self._values |= found
        for name in (*names, *gone):
            self._unsaved.pop(name, None)
        return found

    async def result(self) -> Any:
        """Return the last value other than None that a handler of a worker returned, or that was
        saved as the field ``result``; None where there is none.

        A job that is sent again keeps it until a handler returns another value.
        """
        return (await self.load("result"))["result"]

    async def outcomes(self) -> dict[str, JobOutcome]:
        """Return the stored outcomes by group.

        Raises:
            LinkLost: The server cannot be reached in time.
        """
        queue = await self.jobs.attached_queue()
        [found] = await queue.run(flows.read_outcomes([self.in_redis]))
        return {each.group: each for each in found if each.queue == queue.name}

    async def wait(
        self, groups: Iterable[str], *, timeout_s: float = 5, fail_fast: bool = True
    ) -> dict[str, JobOutcome]:
        """Wait for the outcomes of this job.

        Args:
            groups: Names of the groups whose outcomes are waited for.
            timeout_s: Longest wait in seconds.
            fail_fast: Raise at the first job that is given up.

        Returns:
            The outcomes by group.

        Raises:
            JobFailed: A job was given up.
            JobTimeout: An outcome is missing after ``timeout_s``.
            ConfigError: An argument is not valid.
        """
        return await self.jobs.wait(self, groups, timeout_s=timeout_s, fail_fast=fail_fast)


async def save_all(jobs: Iterable[Job]) -> bool:
    """Save several jobs, like ``Job.save``, in few round trips for the jobs of one queue."""
    changed: dict[JobOwner, list[Job]] = {}
    for job in jobs:
        if job._unsaved:
            changed.setdefault(job.jobs, []).append(job)
    for owner, some in changed.items():
        taken = [(job, job._unsaved) for job in some]
        try:
            queue = await owner.attached_queue()
            fields = [(job.in_redis, job.unsaved_fields(queue.ttl_s)) for job in some]
            for job in some:
                job._unsaved = {}
            await queue.run(flows.save_fields(fields))
        except BaseException:
            for job, unsaved in taken:
                job._unsaved = {**unsaved, **job._unsaved}
            raise
    return bool(changed)
