"""A headless Chromium that a test drives over the DevTools protocol: open a page, run a script in
it, wait for its promise.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from tests.support import PATIENCE_S, wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The last five: without them it looks for hosts of its maker at every start.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)
ANSWER_S = 90.0


def found() -> str | None:
    """The browser of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class ScriptError(Exception):
    """What a script in the page threw."""


class Page:
    """One tab. Scripts run one after the other and may be asynchronous."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    def run(self, script: str, **values: Any) -> Any:
        """What ``script``, the body of an asynchronous function, returns. ``values`` are its
        constants.
        """
        constants = "".join(
            f"const {name} = {json.dumps(value)};" for name, value in values.items()
        )
        expression = f"(async () => {{ {constants} {script} }})()"
        answer = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]
            raise ScriptError(thrown.get("exception", {}).get("description") or thrown["text"])
        return answer["result"].get("value")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol; events that come before its answer are passed
        over.
        """
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._socket.recv(timeout=ANSWER_S))
            if said.get("id") == number:
                if "error" in said:
                    raise ScriptError(str(said["error"]))
                result: dict[str, Any] = said["result"]
                return result


class Browser:
    """Chromium with an empty profile in ``folder``; ends with the scope."""

    def __init__(self, path: str, folder: Path) -> None:
        self._folder = folder
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                [path, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
                stdout=log,
                stderr=log,
                env=_variables(folder),
            )
        self._sockets = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sockets.close()
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def open(self, url: str) -> Page:
        """A new tab that has loaded ``url``."""
        port_file = self._folder / "DevToolsActivePort"
        wait_until(
            lambda: port_file.exists() and port_file.read_text().count("\n") == 1,
            what="Chromium says where it listens",
        )
        port, path = port_file.read_text().split("\n")
        browser = self._page(f"ws://127.0.0.1:{port}{path}")
        target = browser.ask("Target.createTarget", url=url)["targetId"]
        page = self._page(f"ws://127.0.0.1:{port}/devtools/page/{target}")

        def loaded() -> bool:
            with suppress(
                ScriptError
            ):  # what was evaluated while the tab went from its empty page to this one
                return bool(
                    page.run(
                        "return document.readyState === 'complete' && location.href === url",
                        url=url,
                    )
                )
            return False

        wait_until(loaded, what=f"{url} is loaded")
        return page

    def _page(self, url: str) -> Page:
        return Page(
            self._sockets.enter_context(
                connect(url, max_size=None, compression=None, open_timeout=ANSWER_S)
            )
        )


def _variables(folder: Path) -> dict[str, str]:
    """A home of its own, and no bus of the desktop to ask for."""
    return {
        **os.environ,
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "XDG_CACHE_HOME": str(folder),
    }


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def pages(folder: Path) -> Iterator[str]:
    """The address under which the files of ``folder`` are served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
