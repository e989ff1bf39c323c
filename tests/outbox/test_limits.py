"""Limits of the process and of the disk: forwarding goes on and makes room, and the outbox takes
again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import OutboxFull
from busmq_spark.outbox import report
from tests.conftest import Fresh
from tests.outbox.conftest import Place, drain
from tests.outbox.running import Program, numbers
from tests.support import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.fault]


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(aof=True) as made:
        yield made


@pytest.mark.parametrize(
    ("limit", "size"), [(400_000, 50), (400_000, 20_000), (2_000_000, 3_000), (20_000_000, 200_000)]
)
def test_under_a_limit_of_the_file_size_it_fills_forwards_and_takes_again(
    server: EmbeddedRedis, path: Path, fresh: Fresh, limit: int, size: int
) -> None:
    """The limit holds from the start, and twice over: what was forwarded makes room."""
    queue, there = fresh("orders"), Place({"url": server.url})
    server.kill()
    with Program(path, server.url, queue, 1, {"BUSMQ_TEST_FILE_SIZE": str(limit)}) as program:
        program.wait("open")
        for round_ in range(1, 3):
            program.do("until-full", size)
            assert program.lines[-2] == "refused BUSMQ_OUTBOX_FULL"
            first = program.kept
            assert first > 5 * round_
            server.restart()
            program.do("drain")
            program.do("push", 5, size)
            program.do("drain")
            assert program.kept == first + 5
            server.kill()
        last = program.kept
        program.kill()
    server.restart()
    assert numbers(there.values(queue)) == [*range(1, last + 1)]
    with there.outbox(path) as outbox:
        outbox.wait_drained(60)
    assert numbers(there.values(queue)) == [*range(1, last + 1)]


def test_a_full_outbox_that_is_killed_under_its_limit_is_opened_under_it_again(
    server: EmbeddedRedis, path: Path, fresh: Fresh
) -> None:
    queue, there = fresh("orders"), Place({"url": server.url})
    more = {"BUSMQ_TEST_FILE_SIZE": "600000"}
    server.kill()
    with Program(path, server.url, queue, 1, more) as program:
        program.wait("open")
        program.do("until-full", 5_000)
        last = program.kept
        program.kill()
    server.restart()
    with Program(path, server.url, queue, last + 1, more) as program:
        program.wait("open")
        program.do("drain")
        program.do("push", 5, 5_000)
        program.do("drain")
    assert numbers(there.values(queue)) == [*range(1, last + 6)]


def test_a_limit_below_what_the_file_has_refuses_pushes_names_itself_and_lets_messages_go(
    server: EmbeddedRedis, path: Path, fresh: Fresh
) -> None:
    queue, there = fresh("orders"), Place({"url": server.url})
    server.kill()
    with Program(path, server.url, queue) as program:
        program.wait("open")
        program.do("push", 300, 10_000)
        program.do("limit", 1_000_000)
        program.do("until-full", 10_000)
        assert "ulimit -f" in next(line for line in program.lines if line.startswith("because"))
        last = program.kept
        server.restart()
        wait_until(lambda: len(there.values(queue)) == last)
        program.kill()
    with there.outbox(path) as outbox:
        outbox.wait_drained(60)
    assert numbers(there.values(queue)) == [*range(1, last + 1)]
    assert report.read_status(path).outgoing == 0


@pytest.mark.parametrize("cause", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_the_error_names_the_disk_and_the_cause_and_the_outbox_takes_again_when_it_is_over(
    path: Path, here: Place, fresh: Fresh, monkeypatch: pytest.MonkeyPatch, cause: int
) -> None:
    queue = fresh("orders")

    def refuse(*_: object) -> None:
        raise OSError(cause, os.strerror(cause))

    with here.outbox(path) as outbox:
        monkeypatch.setattr("os.posix_fallocate", refuse)
        with pytest.raises(OutboxFull, match=os.strerror(cause)) as full:
            outbox.push(queue, "refused")
        assert str(path.parent) in str(full.value)
        monkeypatch.undo()
        outbox.push(queue, 1)
        drain(outbox)
    assert here.values(queue) == [b"1"]
