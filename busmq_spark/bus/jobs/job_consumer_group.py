"""The options of a worker, and the group that it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, TypedDict

from busmq_spark.bus.jobs.job import MIN_FIELD_TTL_S
from busmq_spark.bus.queue.base_group import check_start
from busmq_spark.bus.queue.shared_group import SharedGroup, SharedGroupOptions, check_seconds
from busmq_spark.errors import ConfigError
from busmq_spark.groups.shared_group import Action, LeasedMessage
from busmq_spark.queue.command_generators import Flow, T
from busmq_spark.reading.reader_subscriptions import check_name

if TYPE_CHECKING:
    from busmq_spark.bus.jobs.worker import Worker
    from busmq_spark.bus.queue.queue import Queue


class WorkerKeywords(TypedDict, total=False):
    """The options of a worker; see Jobs.worker."""

    limit: int
    lease_s: float
    tries: int
    deadline_s: float | None
    start: str | int
    group_limit: int
    dead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of a worker. Raises ConfigError."""

    group: str
    limit: int = 8
    lease_s: float = 30
    tries: int = 3
    deadline_s: float | None = 30
    start: str | int = "new"
    group_limit: int | None = None
    dead: str | None = None

    def __post_init__(self) -> None:
        check_limit(self.limit)
        check_name(self.group)
        check_start(self.start)
        if self.deadline_s is not None:
            check_seconds("deadline_s", self.deadline_s, MIN_FIELD_TTL_S)
        self.group_options()

    def group_options(self) -> SharedGroupOptions:
        """Return the options of its group."""
        return SharedGroupOptions(
            lease_s=self.lease_s, tries=self.tries, limit=self.group_limit, dead=self.dead
        )


def check_limit(limit: object) -> None:
    """Raises ConfigError."""
    if type(limit) is not int or limit < 1:
        raise ConfigError(
            reason=(
                f"limit is {limit!r}; expected a whole number of at least 1: how many handlers run"
                " at once"
            )
        )


class JobConsumerGroup(SharedGroup):
    """The group of a worker: a message that it gives up has an outcome, too."""

    def __init__(self, queue: Queue, worker: Worker) -> None:
        start = "latest" if worker.options.start == "new" else worker.options.start
        super().__init__(queue, worker.options.group, start, worker.options.group_options())
        self._worker = worker

    @property
    def life(self) -> str:
        """Of the queue, in which it reads."""
        return self._born

    @property
    def names(self) -> tuple[str, str]:
        """Of queue and group, for the log."""
        return self._log_names

    async def run_with_retries(self, flow: Callable[[], Flow[T]]) -> T:
        """Run a flow that is safe to repeat; again as long as the server may be expected back."""
        return await self._run_with_retries(lambda _: self._run(flow()))

    async def ack_settled(self, some: Sequence[LeasedMessage]) -> None:
        """Ack what has an outcome."""
        await self._settle(
            sorted(some, key=itemgetter(0)), "ack"
        )  # ids in a row are one lease, and one settlement
        if self._worker.options.group_limit:
            self.wake()

    async def sleep_unless_woken(self, seconds: float) -> None:
        """Sleep, or until there may be something to read."""
        await self._sleep_unless_woken(seconds)

    def wake(self) -> None:
        """Read again at once."""
        self._wake.set()

    async def _settle(
        self, deliveries: Sequence[LeasedMessage], action: Action, ms: int = 0
    ) -> list[LeasedMessage]:
        """A lease counts as late that begins in the millisecond of one that was released."""
        least = 1 if action == "release" else 0
        return await super()._settle(deliveries, action, max(ms, least))

    async def _without_outcome(self, spent: Sequence[LeasedMessage]) -> Sequence[LeasedMessage]:
        return await self._worker.without_outcome(spent)

    async def _on_given_up(self, some: Sequence[LeasedMessage], error: str) -> None:
        works = [work for work in map(self._worker.work_of, some) if work is not None]
        await self._worker.write([(work, error) for work in works])
