"""A browser with the npm package's own bundle in a page, and our server for it to talk to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, Page, found, pages
from tests.peers import node
from tests.peers.node import need

PAGE = """<!doctype html>
<meta charset="utf-8">
<script src="busmq.js"></script>
<script>
  // The bundle speaks in callbacks; tests wait for promises.
  const made = (bus, kind, ...args) => new Promise((done, failed) => bus[kind](...args, (error, object) => (error ? failed(error) : done(object))));
  const asked = (object, method, ...args) =>
    new Promise((done, failed) => object[method](...args, (error, result) => (error ? failed(new Error(JSON.stringify(error))) : done(result))));
  const told = (object, event) => new Promise((done) => object.once(event, (...args) => done(args)));
  const until = async (condition) => {
    while (!condition()) await new Promise((again) => setTimeout(again, 10));
  };
</script>
"""  # noqa: E501


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = found()
    need(node.missing())
    need(
        ""
        if path
        else (
            "no Chromium: install one (on Debian and Ubuntu: apt-get install chromium), then run"
            " `make test` again"
        )
    )
    assert path is not None
    with Browser(path, tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page with the published bundle, unchanged."""
    folder: Path = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text(PAGE, encoding="utf-8")
    shutil.copy(node.FOLDER / "node_modules" / "busmq" / "busmq.js", folder)
    with pages(folder) as address:
        yield f"{address}/index.html"


@pytest.fixture
def page(browser: Browser, site: str) -> Page:
    """A new tab."""
    return browser.open(site)
