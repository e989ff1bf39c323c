"""The codes of the checks, and the findings that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["ok", "warning", "failure", "unknown"]
"""``unknown``: the check could not be made."""
Subject: TypeAlias = Literal["redis", "bus", "federation", "spark"]
EXIT_CODES: dict[Level, int] = {"ok": 0, "warning": 1, "failure": 2, "unknown": 2}
MAX_FINDINGS_PER_CODE = 20
"""Findings of one code that have a row of their own; the last row counts the others."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check. ``title`` describes the sound state, and ``why`` the harm of any other."""

    code: str
    subject: Subject
    title: str
    why: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. ``where``: a masked URL, a queue or a file; ``fix``: the command that
    mends it. ``count``: how many objects the finding stands for.
    """

    code: str
    level: Level
    where: str
    found: str
    fix: str = ""
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, with the reason that the check matters."""
        return {**asdict(self), "why": CHECKS[self.code].why}


_TABLES: tuple[tuple[Subject, dict[str, tuple[str, str]]], ...] = (
    (
        "redis",
        {
            "redis-reach": (
                "Redis answers",
                "Without an answer nothing is pushed, read or acknowledged.",
            ),
            "redis-role": (
                "The server is a master, and its layout is named",
                (
                    "A replica refuses pushes and acks. A node of a cluster refuses the keys of"
                    " other nodes."
                ),
            ),
            "redis-version": (
                "Redis is 6.2 or newer",
                "The scripts of the bus use commands of Redis 6.2.",
            ),
            "redis-eviction": (
                "maxmemory-policy is noeviction",
                (
                    "With another policy Redis removes queues without an error when memory runs"
                    " short."
                ),
            ),
            "redis-evicted": (
                "Redis has evicted no keys",
                "An evicted key was a queue, a position or staged rows. No error names it.",
            ),
            "redis-memory": (
                "Memory lasts for a day at the present rate",
                "A full Redis refuses pushes; one without maxmemory is killed by the system.",
            ),
            "redis-persistence": (
                "The append-only file is on, and its writes succeed",
                ("Without it a restart loses messages. After a failed write Redis refuses pushes."),
            ),
            "redis-replicas": (
                "Each replica is connected and lags by less than 10 s",
                "A fail-over to a replica that lags loses the messages that it does not have.",
            ),
            "redis-min-replicas": (
                "min-replicas-to-write is set where replicas are, and met",
                (
                    "Without it a master that lost its replicas confirms messages that a"
                    " fail-over loses. With too few replicas Redis refuses pushes."
                ),
            ),
            "redis-slow-commands": (
                "No command took 20 ms or more in the last hour",
                "Redis runs one command at a time: each client waits for a slow one.",
            ),
            "redis-output-buffers": (
                "The output buffers of subscribers and replicas have useful limits",
                (
                    "Without a limit one slow subscriber takes all memory. With a low one Redis"
                    " cuts off subscribers, or a replica whose copy then begins again."
                ),
            ),
            "redis-clock": (
                "The clock of Redis and the clock here differ by less than 2 s",
                "Times of messages, lags in seconds and expiries of tokens depend on both.",
            ),
            "redis-rights": (
                "The user has the rights of docs/layouts.md",
                "A missing right fails a query or a feature when it first needs the command.",
            ),
            "redis-cluster-slots": (
                "The cluster serves all slots",
                "Queues of a slot without a master can be neither read nor written.",
            ),
            "redis-cluster-names": (
                "This machine resolves the host of each node of the cluster",
                (
                    "A client is sent to the node that has the queue, by the name that the"
                    " cluster announces."
                ),
            ),
            "redis-sentinels": (
                "Three or more sentinels watch the master and have their quorum",
                "Without a majority of sentinels there is no fail-over.",
            ),
        },
    ),
    (
        "bus",
        {
            "queue-nearly-full": (
                "Each queue is below 80 % of its maxsize",
                "A full queue refuses pushes: sinks wait, then fail.",
            ),
            "queue-expires": (
                "No queue with unread messages expires within a day",
                (
                    "An expired queue takes its messages along. Pushes, reads and running"
                    " queries keep a queue alive."
                ),
            ),
            "queue-damaged": (
                "The keys of each queue are sound",
                "A damaged queue fails each reader and writer of it.",
            ),
            "subscription-abandoned": (
                "No unused subscription keeps messages",
                "Messages that a subscription has not acknowledged stay in memory for ever.",
            ),
            "staged-rows": (
                "Each staged list has a run that renews it",
                "The rows of a dead run take memory for up to an hour.",
            ),
            "dead-letters": (
                "No dead letter is older than a day",
                "A dead letter is a message that no reader has handled. Its queue expires.",
            ),
            "mirror-stopped": (
                "A process copies each mirror, without an error",
                "A mirror that nothing copies misses messages when its data centre is needed.",
            ),
            "outbox": (
                "The messages of each given outbox go out",
                "An outbox that forwards nothing fills the disk of its machine.",
            ),
        },
    ),
    (
        "federation",
        {
            "federation-reach": (
                "The federation server answers and knows the secret",
                "Without an answer no peer reads or pushes over this link.",
            ),
            "federation-certificate": (
                "The certificate is valid for 14 days or more",
                "After its last day each new connection is refused.",
            ),
            "federation-clock": (
                "The clock of the server and the clock here differ by less than 2 s",
                "Signed tokens expire by the clock of the server.",
            ),
            "federation-grants": (
                "The secret grants something",
                "A call that the grants do not cover is refused.",
            ),
        },
    ),
    (
        "spark",
        {
            "spark-session": (
                "Spark starts, and its executors run Python",
                "Without executors no query runs.",
            ),
            "spark-python": (
                "Driver and executors run the same minor version of Python, 3.11 or newer",
                "Spark refuses functions that another version of Python has pickled.",
            ),
            "spark-pyarrow": (
                "Driver and executors have the same major version of pyarrow",
                "Rows travel between Java and Python as Arrow batches.",
            ),
            "spark-package": (
                "Driver and executors have the same version of busmq_spark",
                "Tasks unpickle values that the driver has made.",
            ),
            "spark-jar": (
                "The jar is loaded, and its version is that of the package",
                (
                    "Without the jar Python serves each query, and real-time mode and tables"
                    " are missing. Jar and package share formats of checkpoints."
                ),
            ),
            "spark-java": (
                "Spark runs on Java 17 or newer",
                "Spark 4 does not start on an older Java.",
            ),
            "spark-settings": (
                "The session has the settings of busmq_spark.tune",
                "Without them small batches take up to twice as long.",
            ),
            "spark-checkpoint": (
                "The checkpoint folder supports fsync and atomic rename",
                (
                    "Spark commits a batch by a rename. A folder without it loses or repeats"
                    " batches after a crash."
                ),
            ),
        },
    ),
)
CHECKS: dict[str, Check] = {
    code: Check(code, subject, title, why)
    for subject, table in _TABLES
    for code, (title, why) in table.items()
}
"""All checks, by code. ``docs/doctor.md`` is generated from it."""


def codes_of(*subjects: Subject) -> list[str]:
    """Return the codes of some subjects."""
    return [code for code, check in CHECKS.items() if check.subject in subjects]


def unknown(codes: Iterable[str], where: str, reason: str, fix: str = "") -> list[Finding]:
    """Return one finding for each check that could not be made."""
    return [Finding(code, "unknown", where, f"not checked: {reason}", fix) for code in codes]


def capped(findings: Sequence[Finding], where: str) -> list[Finding]:
    """Return the findings of one check, the worst first; one row counts those above
    MAX_FINDINGS_PER_CODE.
    """
    if len(findings) <= MAX_FINDINGS_PER_CODE:
        return [*findings]
    rest = findings[MAX_FINDINGS_PER_CODE - 1 :]
    last = Finding(rest[0].code, rest[0].level, where, f"{len(rest):,} more", count=len(rest))
    return [*findings[: MAX_FINDINGS_PER_CODE - 1], last]


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 when all is well, 1 for warnings, 2 for failures and for checks not made."""
    return max((EXIT_CODES[each.level] for each in findings), default=0)


def count_by_code(findings: Iterable[Finding]) -> dict[tuple[str, Level], int]:
    """Return the number of findings of each code of Redis and bus, for each level but ok; zeros
    are included.
    """
    levels: tuple[Level, ...] = ("warning", "failure", "unknown")
    counts = {(code, level): 0 for code in codes_of("redis", "bus") for level in levels}
    for each in findings:
        if each.level != "ok":
            key = (each.code, each.level)
            counts[key] = counts.get(key, 0) + each.count
    return counts
