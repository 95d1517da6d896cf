"""A real server, a real catalog, and Debian's Chromium."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, sync_playwright

from ckptstore.api import Catalog, connect
from ckptstore.cli.main import cli
from tests.jobs import Job, started

COMMAND = Path(sys.executable).with_name("ckptstore")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


TOKEN = "s3cret"  # noqa: S105 — of these tests alone


class Site:
    """The address of a server, and the catalog that it shows."""

    def __init__(self, address: str, catalog: Catalog, job: Job) -> None:
        self.address, self.catalog, self.job = address, catalog, job

    def printed(self, *command: str) -> Any:
        """The JSON of a command."""
        url = self.catalog.database.url.render_as_string(hide_password=False)
        return json.loads(CliRunner().invoke(cli, ["--db", url, *command, "--json"]).stdout)


@contextmanager
def served(home: Path, *options: str) -> Iterator[Site]:
    """A run of two ranks whose newest state lacks a file, and another one that is whole."""
    url = f"sqlite:///{home}/catalog.db"
    own = {"CKPTSTORE_URL": url, "XDG_STATE_HOME": str(home / "state"), "CKPTSTORE_TOKEN": ""}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", own["XDG_STATE_HOME"])
        catalog = connect(url)
        job, ranks = started(catalog, home / "digits", 10, 20, 30, run="digits")
        for step in (10, 20, 30):
            ranks[0].record(step=step, loss=1 / step)
        (job.folder(1) / "net-3_10.ckpt").unlink()
        started(catalog, home / "other", 10, world_size=1, run='team "a"/<b>')
    command, environment = [COMMAND, "serve", "--port", "0", *options], os.environ | own | {"PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    address = re.match(r"(http://\S+)/ shows", server.stdout.readline())
    yield Site(address[1], catalog, job)
    server.terminate()
    server.communicate()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One that all tests look at and none changes."""
    with served(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Site]:
    """One of the test's own."""
    with served(tmp_path) as site:
        yield site


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Site]:
    """One of the test's own, that may be changed with the token."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with served(tmp_path, "--allow-changes", "--token-file", str(file)) as site:
        yield site


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.fail("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page; whatever it complains of, or asks of another machine, fails the test."""
    context = browser.new_context()
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith("http://127.0.0.1:") else wrong.append(request.url)
    )
    yield page
    context.close()
    assert wrong == []
