"""Runs peer.js: a real npm busmq 3.1.0 that executes the commands of a test."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support import PATIENCE_S

FOLDER = Path(__file__).parent


def missing() -> str:
    """What is missing to run the peer, and how to get it; empty when nothing is."""
    if shutil.which("node") is None:
        return (
            "npm busmq needs Node.js 18 or newer with npm: install them, then run `make test` again"
        )
    if not (FOLDER / "node_modules" / "busmq").is_dir():
        return "npm busmq is not installed: run tests/peers/install.sh"
    return ""


def need(reason: str) -> None:
    """Without what a test needs it skips on a person's machine, where nothing can be asked of
    anybody, and fails in CI, where nothing skips.
    """
    if not reason:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}. In CI these tests do not skip")
    pytest.skip(reason)  # it is no dependency of the package; the reason says how to get it


class PeerError(Exception):
    """What npm busmq reported."""


class Peer:
    """One Node process with one bus. Calls wait for their result; messages are kept per queue, in
    the order they came.
    """

    def __init__(self, urls: list[str], **options: Any) -> None:
        """``options`` go to Bus.create: ``layout``, ``driver`` …"""
        # What it says when it ends by itself, in a file: nothing would read a pipe.
        # Closed by kill
        # Closed by kill
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._said}
        self._process = subprocess.Popen(
            ["node", "peer.js"], cwd=FOLDER, **pipes, text=True, encoding="utf-8"
        )
        self._results: queue.Queue[dict[str, Any]] = queue.Queue()
        self._messages: dict[str, queue.Queue[tuple[int, str]]] = {}
        self._events: dict[tuple[str, str], queue.Queue[list[Any]]] = {}
        self.errors: list[str] = []
        self._calls = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._call("connect", urls=urls, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    # What it can do

    def attach(self, name: str, **options: Any) -> bool:
        """Whether the queue existed before."""
        self._messages.setdefault(name, queue.Queue())
        return bool(self._call("attach", queue=name, options=options))

    def push(self, name: str, message: Any) -> int | None:
        """The id, or None when the queue is full."""
        id: int | None = self._call("push", queue=name, message=message)
        return id

    def push_all(self, name: str, messages: list[Any]) -> list[int]:
        ids: list[int] = self._call("pushAll", queue=name, messages=messages)
        return ids

    def consume(self, name: str, **options: Any) -> None:
        self._call("consume", queue=name, options=options)

    def ack(self, name: str, last: int) -> None:
        """Returns when Redis has executed it: count goes the same way behind it."""
        self._call("ack", queue=name, last=last)
        self.count(name)

    def stop(self, name: str) -> None:
        self._call("stop", queue=name)

    def count(self, name: str) -> int:
        return int(self._call("count", queue=name))

    def flush(self, name: str) -> None:
        self._call("flush", queue=name)

    def exists(self, name: str) -> bool:
        return bool(self._call("exists", queue=name))

    def metadata(self, name: str) -> dict[str, str] | None:
        found: dict[str, str] | None = self._call("metadata", queue=name)
        return found

    def ttl(self, name: str) -> int | None:
        ttl_s: int | None = self._call("ttl", queue=name)
        return ttl_s

    def detach(self, name: str) -> None:
        self._call("detach", queue=name)

    def close(self, name: str) -> None:
        self._call("close", queue=name)

    def disconnect(self) -> None:
        self._call("disconnect")

    def received(self, name: str, many: int) -> list[tuple[int, str]]:
        """The next ``many`` messages of a queue it consumes."""
        return [self._messages[name].get(timeout=PATIENCE_S) for _ in range(many)]

    def received_nothing_more(self, name: str) -> bool:
        """As far as it has said up to now: call something that goes the same way first, or
        :meth:`count`.
        """
        return self._messages[name].empty()

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._said.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what it had not read yet

    def call(self, op: str, **arguments: Any) -> Any:
        """Any operation of peer.js and its ``ops_*.js``; the result when Node says it is done.
        Raises PeerError.
        """
        return self._call(op, **arguments)

    def event(self, thing: str, kind: str) -> list[Any]:
        """The arguments of the next event of this kind of an object that ``ops_*.js`` made; waits
        for it.
        """
        return self._events_of(thing, kind).get(timeout=PATIENCE_S)

    def no_event(self, thing: str, kind: str) -> bool:
        """As far as it has said up to now."""
        return self._events_of(thing, kind).empty()

    # How

    def _events_of(self, thing: str, kind: str) -> queue.Queue[list[Any]]:
        """One for the thread that reads and the one that waits: of a defaultdict each may get its
        own, and the event is never seen.
        """
        return self._events.setdefault((thing, kind), queue.Queue())

    def _call(self, op: str, **arguments: Any) -> Any:
        self._calls += 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": self._calls, "op": op, **arguments}) + "\n")
        self._process.stdin.flush()
        result = self._results.get(timeout=PATIENCE_S)
        if "died" in result:
            raise PeerError(result["died"])
        assert result["id"] == self._calls
        if "error" in result:
            raise PeerError(result["error"])
        return result["result"]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            match said.get("event"):
                case None:
                    self._results.put(said)
                case kind if "object" in said:
                    self._events_of(said["object"], kind).put(said["args"])
                case "message":
                    id, text = said["args"]
                    self._messages[said["queue"]].put((int(id), text))
                case "error":
                    self.errors.append(said["args"][0])
        self._process.wait()
        self._said.seek(0)
        self._results.put({"died": f"the Node process has ended: {self._said.read()}"})
