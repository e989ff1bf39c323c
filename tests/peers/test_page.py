"""The page beside npm busmq has every public method of the package, and none that it has not."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.peers.node import FOLDER

PAGE = Path(__file__).parents[2] / "busmq_spark" / "bus" / "README.md"
LIST = """
const names = (made) => Object.getOwnPropertyNames(made).filter((name) => typeof made[name] === 'function');
const Bus = require('busmq');
const bus = Bus.create({ redis: ['redis://127.0.0.1:1'] });
const found = { Bus: names(Object.getPrototypeOf(bus)) };
for (const kind of ['queue', 'channel', 'pubsub', 'service'])
  found[kind] = names(require('busmq/lib/' + kind).prototype);
found.persisted = names(bus.persistify('n', {}, []));
console.log(JSON.stringify(found));
process.exit(0);
"""  # noqa: E501
EMITTERS = {"on", "once", "emit", "log", "logger"}
"""Of every emitter; and the logger of a bus."""
SECTIONS = {
    "Bus": "Bus", "Queue": "queue", "Channel": "channel", "Pubsub": "pubsub",
    "Persisted object": "persisted", "Service": "service",
}  # fmt: skip
OTHERS = {"create", "createWriteStream", "reply", "persistify", "attached", "consuming"}
"""Functions of other objects, and events with an argument."""


def sections() -> dict[str, set[str]]:
    """The calls that the first column of each section names."""
    found = {}
    for part in PAGE.read_text("utf-8").split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        cells = [line.split("|")[1] for line in body.splitlines() if line.startswith("|")]
        if title in SECTIONS:
            calls = re.findall(r"`(?:\w+\.)?(\w+)\(", " ".join(cells))
            found[SECTIONS[title]] = set(calls)
    return found


@pytest.mark.peer
def test_the_page_has_each_method_of_the_package_and_no_other(npm: None) -> None:
    run = ["node", "-e", LIST]
    done = subprocess.run(run, cwd=FOLDER, capture_output=True, text=True, check=True)
    real = {
        kind: {name for name in names if not name.startswith("_") and name != "constructor"}
        for kind, names in json.loads(done.stdout.splitlines()[-1]).items()
    }
    named = sections()
    named["Bus"].add("persistify")
    assert named.keys() == real.keys()
    made_up = {kind: sorted(named[kind] - real[kind] - OTHERS) for kind in real}
    assert not any(made_up.values()), made_up
    missing = {kind: sorted(real[kind] - named[kind] - EMITTERS) for kind in real}
    assert not any(missing.values()), missing
