"""A real server, a real catalog, and Debian's Chromium."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ckptstore.api import Catalog, connect
from tests.jobs import Job

COMMAND = Path(sys.executable).with_name("ckptstore")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Site:
    """The address of a server, and the catalog that it shows."""

    def __init__(self, address: str, catalog: Catalog, job: Job) -> None:
        self.address, self.catalog, self.job = address, catalog, job

    def printed(self, *command: str) -> Any:
        """The JSON of a command."""
        done = subprocess.run([COMMAND, *command, "--json"], capture_output=True, text=True, check=False)
        return json.loads(done.stdout)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A run of two ranks whose newest state lacks a file, and another one that is whole."""
    monkeypatch.setenv("CKPTSTORE_URL", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    catalog = connect()
    job = Job(catalog, tmp_path / "digits", run="digits")
    ranks = job.start()
    job.save(ranks, 10, 20, 30)
    for step in (10, 20, 30):
        ranks[0].record(step=step, loss=1 / step)
    (job.folder(1) / "net-3_10.ckpt").unlink()
    other = Job(catalog, tmp_path / "other", 1, run='team "a"/<b>')
    other.save(other.start(), 10)
    server = subprocess.Popen(
        [COMMAND, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    assert server.stdout is not None
    address = re.match(r"(http://\S+)/ shows", server.stdout.readline())
    assert address is not None
    yield Site(address[1], catalog, job)
    server.terminate()
    server.communicate()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.fail("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """A page; whatever it complains of, or asks of another host, fails the test."""
    context = browser.new_context()
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(site.address) else wrong.append(request.url))
    yield page
    context.close()
    assert wrong == []
