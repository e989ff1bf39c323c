"""The scene in which a data centre is lost: its proof, and that nothing of it is left."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, environment

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_origin_is_killed_and_the_query_goes_on_at_the_mirror_with_each_id_once(
    tmp_path: Path,
) -> None:
    run = [*COMMAND, "demo", "mirror", "--json"]
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
        "eu",
        "eu",
        "us",
        "us",
        "total",
    ]
    [lost] = [record for record in records if "checkpoint" in record]
    assert 0 < lost["checkpoint"] <= lost["copied"] <= lost["pushed"]
    [proof] = [record for record in records if "ids" in record]
    assert proof["ids"] == proof["seen"] > lost["copied"]
    assert (proof["missing"], proof["twice"], proof["wrong"]) == (0, 0, 0)
    assert list(tmp_path.iterdir()) == []
