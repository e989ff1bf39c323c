"""Errors of jobs."""

from __future__ import annotations

from typing import Any

from busmq_spark.errors.base import BusError, ConfigError

MAX_DELAY_S = 7 * 86_400
"""Longest delay of a job that is handed back, as of a lease."""


class JobFailed(BusError):
    """A group gave up a job that is waited for; ``details["errors"]``: group → its error."""

    code = "BUSMQ_JOB_FAILED"
    remedy = (
        "Read the worker's own words in the message. The dead-letter queue has the message; `busmq"
        " dead replay` sends it again."
    )
    template = (
        "job {job} of queue {queue!r} is given up by {errors}. Its message is a dead letter;"
        " fail_fast=False returns outcomes instead"
    )

    @property
    def errors(self) -> dict[str, str]:
        """Group → why it gave up."""
        return dict(self.details["errors"])


class JobsNotSent(BusError):
    """A call that sends many jobs has not sent all of them. ``details``, in their order: how many
    are ``sent``, of how many it is ``unknown``, as the connection broke, and how many are ``left``,
    which are not sent. Jobs that are sent go on.
    """

    code = "BUSMQ_JOBS_NOT_SENT"
    retriable = True
    template = (
        "the first {sent} jobs are sent to queue {queue!r}, of the next {unknown} it is unknown,"
        " and the last {left} are not sent: {reason}. Send the last ones again; those that are"
        " unknown may be done twice if they are sent again"
    )


class JobTimeout(BusError, TimeoutError):
    """The groups that jobs are waited for have not all finished in time. They go on, and waiting
    can, too. ``details["jobs"]``: ids of those jobs. It is a TimeoutError, too.
    """

    code = "BUSMQ_JOB_TIMEOUT"
    retriable = True
    template = (
        "job {job} of queue {queue!r}{others}: no outcome of {missing} within {timeout_s} s. Is a"
        " worker there? jobs.get(id).wait(…) waits on"
    )

    def __init__(self, **details: Any) -> None:
        others = len(details.get("jobs", ())) - 1
        super().__init__(**{"others": f", and {others} others" if others > 0 else "", **details})


class WorkTimeout(BusError, TimeoutError):
    """A worker was not done in time: a handler was at work for longer than ``deadline_s``, or
    handlers still were when a pause had to have begun.
    """

    code = "BUSMQ_WORK_TIMEOUT"
    retriable = True
    template = (
        "{what} of group {group!r} of queue {queue!r}: not done within {timeout_s} s. {remedy}"
    )
    remedy = "Do less at once, or give it more time."

    def __init__(self, **details: Any) -> None:
        super().__init__(**{"remedy": self.remedy, **details})


class Rejected(BusError):
    """Raised by a handler: the job is given up at once, without another try, and its message
    becomes a dead letter.
    """

    code = "BUSMQ_REJECTED"
    remedy = "Read the handler's own words in the message."

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason=reason)


class Released(BusError):
    """Raised by a handler: the job is handed back, and may begin again in ``delay_s``. It is no
    try.
    """

    code = "BUSMQ_RELEASED"
    remedy = "Raise it inside a handler of jobs only: the worker hands the job back."

    def __init__(self, reason: str = "handed back", *, delay_s: float = 0) -> None:
        # What users give
        if not isinstance(delay_s, int | float) or not 0 <= delay_s <= MAX_DELAY_S:  # type: ignore[redundant-expr]
            wanted = f"expected 0 to {MAX_DELAY_S} seconds"
            raise ConfigError(reason=f"delay_s is {delay_s!r}; {wanted}")
        super().__init__(reason=reason, delay_s=delay_s)
