"""The scene with two data centres: its proof, and that nothing of it is left."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, environment
from tests.cli.test_demo import interrupted
from tests.support import PATIENCE_S, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(900)]


def test_one_of_two_data_centres_goes_away_and_comes_back_and_every_order_is_there_once_in_order(
    tmp_path: Path,
) -> None:
    run = [*COMMAND, "demo", "federation", "--json"]
    done = subprocess.run(
        run,
        cwd=tmp_path,
        env=environment(None),
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["stage"] for record in records if "stage" in record] == [
        "centres",
        "both",
        "eu away",
        "eu back",
        "total",
    ]
    [away] = [record for record in records if record.get("stage") == "eu away"]
    assert away["rows"]["us"] > 0
    centres = {record["centre"]: record for record in records if "centre" in record}
    for record in centres.values():
        assert record["pushed"] == record["arrived"] > 10_000
        assert (record["missing"], record["twice"], record["out_of_order"]) == (0, 0, 0)
    assert set(centres) == {"eu", "us"}
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with interrupted(tmp_path, "demo", "federation") as demo:
        # What becomes of Spark is the matter of test_demo.py.
        wait_until(lambda: demo.has_said("centres"), 2 * PATIENCE_S, what="both centres are up")
