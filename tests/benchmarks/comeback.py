"""Thousands of clients, each with a web socket and a queue that is attached, come back after
``busmq serve`` was killed and started again.
"""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.benchmarks.federation import SECRET
from tests.benchmarks.harness import Row, Spread, redis
from tests.serving import Serving, everything
from tests.tls import Authority

CLIENTS, PROCESSES = 3_000, 3
RUNS = 3
HERE = Path(__file__).parents[2]


def run(clients: int = CLIENTS, runs: int = RUNS) -> Iterator[Row]:
    for words in ("", " with TLS"):
        found = list(comebacks(clients, runs, tls=bool(words)))
        wall, server, ours, handshakes = (
            Spread.of([each[name] for each in found])
            for name in ("wall_s", "server_s", "clients_s", "handshakes")
        )
        spent = f"CPU of the server {server.text(1, ' s')}, of the clients {ours.text(1, ' s')}"
        shown = f"all, in {wall.text(1, ' s')}; {spent}; {handshakes.text(2)} handshakes each"
        yield Row(
            f"{clients:,} clients{words} are back after `busmq serve` was killed and started again",
            shown,
            "all",
            True,
        )


def comebacks(clients: int, runs: int, *, tls: bool) -> Iterator[dict[str, float]]:
    """What each of some restarts takes, from the moment the server listens."""
    with redis() as (server, _), tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, ca, options = Path(name), "", list[str]()
        for limit in (
            "connections",
            "connections_per_address",
            "connections_per_secret",
            "handshakes",
        ):
            options += ["--limit", f"{limit}={2 * clients}"]
        if tls:
            authority = Authority.in_(folder / "tls")
            certificate, key = authority.issue("127.0.0.1")
            ca, options = (
                str(authority.file),
                [*options, "--tls-cert", str(certificate), "--tls-key", str(key)],
            )
        serving = Serving(server.url, folder, everything(SECRET), *options)
        stack.callback(lambda: serving.kill())  # noqa: PLW0108  # the one of then
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.comeback_clients",
            serving.url,
            SECRET,
            str(clients // PROCESSES),
            ca,
        ]
        processes = [
            subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]
        for process in processes:
            stack.callback(process.kill)
        before = sum(said(process) for process in processes)
        for turn in range(runs):
            serving.kill()
            serving = Serving(
                server.url, folder, everything(SECRET), *options, listen=f"127.0.0.1:{serving.port}"
            )
            began = time.perf_counter()
            after = sum(said(process) for process in processes)
            spent = {
                "wall_s": time.perf_counter() - began,
                "server_s": sum(psutil.Process(serving.process.pid).cpu_times()[:2]),
            }
            spent |= {"clients_s": after - before, "handshakes": handshakes(serving, ca) / clients}
            print(
                f"    {'TLS' if tls else 'plain'} {turn + 1}/{runs}: {spent}",
                file=sys.stderr,
                flush=True,
            )
            yield spent
            before = after


def said(process: subprocess.Popen[str]) -> float:
    """The next number that it says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the clients have failed"
    return float(line)


def handshakes(serving: Serving, ca: str) -> float:
    """How many the server has accepted; more than there are clients where some gave up."""
    page = serving.url.replace("ws", "http", 1).replace("/bus", "/metrics")
    trust = ssl.create_default_context(cafile=ca) if ca else None
    with urllib.request.urlopen(page, context=trust, timeout=60) as answer:
        return sum(
            map(
                float,
                re.findall(
                    r"^busmq_federation_accepted_total\S* (\S+)$",
                    answer.read().decode(),
                    re.MULTILINE,
                ),
            )
        )
