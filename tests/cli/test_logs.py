"""``--log-format`` and ``--log-level`` of the commands that run for long."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from busmq_spark.cli.logs import JsonLogHandler, fields_of
from busmq_spark.cli.output import CliOutput, CliWarningHandler
from busmq_spark.errors import QueueMissing
from tests.cli.conftest import Busmq
from tests.federation.raw import Raw
from tests.serving import Serving, everything
from tests.support import PATIENCE_S, wait_until

SECRET = "a-secret-0123456789"


def lines_of(server: Serving) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.read_text().splitlines()]


def test_serve_logs_clients_and_reloads_as_json(redis_url: str, tmp_path: Path) -> None:
    options = ("--log-format", "json", "--log-level", "info")

    async def come(port: int, secret: str) -> None:
        raw = await Raw.open(port, "/bus", f"Authorization: Bearer {secret}")
        await raw.close()

    with Serving(redis_url, tmp_path, everything(SECRET), *options) as server:
        with pytest.raises(ConnectionRefusedError):
            asyncio.run(come(server.port, "wrong"))
        asyncio.run(come(server.port, SECRET))
        wait_until(lambda: "has connected" in server.log.read_text(), PATIENCE_S, "a client")
        server.process.send_signal(1)
        wait_until(lambda: "read anew" in server.log.read_text(), PATIENCE_S, "a reload")
    told = lines_of(server)
    [refused] = [line for line in told if "refused a client" in line.get("message", "")]
    assert (refused["level"], refused["reason"], refused["address"]) == (
        "info",
        "secret",
        "127.0.0.1",
    )
    accepted = next(line for line in told if "has connected" in line.get("message", ""))
    assert accepted["peer"] == "all"
    assert len(accepted["connection"]) == 32
    assert accepted["time"].endswith("+00:00")
    assert SECRET not in server.log.read_text()


def test_serve_logs_clients_as_text_from_the_level_on(redis_url: str, tmp_path: Path) -> None:
    async def come(port: int) -> None:
        await (await Raw.open(port, "/bus", f"Authorization: Bearer {SECRET}")).close()

    with Serving(redis_url, tmp_path, everything(SECRET), "--log-level", "info") as server:
        asyncio.run(come(server.port))
        wait_until(lambda: "has connected" in server.log.read_text(), PATIENCE_S, "a client")


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_log_that_cannot_be_written_breaks_nothing(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: object = False
    with suppress(OSError), Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr("sys.stderr", full)
        handler = JsonLogHandler() if form == "json" else CliWarningHandler(CliOutput(False))
        written = handler.handle(record("nothing"))
    assert written


def record(text: str, *values: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("busmq_spark", logging.WARNING, "f", 1, text, values, None)
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize(
    ("told", "fields"),
    [
        (record("queue %r, group %r: %d left", "q", "g", 3), {"queue": "q", "group": "g"}),
        (record("50%% of queue %r", "q"), {"queue": "q"}),
        (record("%s", QueueMissing(queue="q")), {"code": "BUSMQ_QUEUE_MISSING", "queue": "q"}),
        (record("%d of %s", 1, 2, peer="p", query="x"), {"peer": "p", "query": "x"}),
        (record("nothing"), {}),
    ],
)
def test_fields_of_a_record(told: logging.LogRecord, fields: dict[str, object]) -> None:
    assert fields_of(told) == fields


@pytest.mark.parametrize("option", ["--log-format", "--log-level"])
@pytest.mark.parametrize("command", ["serve", "exporter", "mirror run q --from x"])
def test_a_bad_value_is_one_line(busmq: Busmq, command: str, option: str) -> None:
    done = busmq(*command.split(), option, "loud")
    assert done.code == 2
    assert option in done.err
    assert "Traceback" not in done.err
