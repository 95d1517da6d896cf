"""A server in this process, with a run that has saved; and one that may change it, for who has the token."""

from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from ckptstore.serve import questions
from ckptstore.serve.app import make_app
from ckptstore.serve.guard import Rules
from tests.jobs import Job, started

TOKEN = "s3cret"  # noqa: S105 — of these tests alone
ADDRESS = "http://127.0.0.1:8766"
Ask = Callable[..., TestClient]


def visitor(server: TestClient, **asked: Any) -> TestClient:
    """Another client of a server that runs."""
    client = TestClient(server.app, base_url=ADDRESS, **asked)
    client.portal = server.portal
    return client


class Person:
    """Somebody at a browser: signs in, and sends the forms of the pages."""

    def __init__(self, server: TestClient) -> None:
        self.client = visitor(server, headers={"origin": ADDRESS, "accept": "text/html"})
        self.client.post("/sign-in", data={"token": TOKEN})

    def forms(self, address: str) -> dict[str, dict[str, str]]:
        """The fields of each form of a page, by the address that it is sent to."""
        found = self.client.get(address)
        assert found.status_code == 200, found.text
        return forms_in(found.text)

    def send(self, page: str, action: str, **fields: str) -> Any:
        """Send a form of a page, with what is typed into it."""
        return self.client.post(action, data=self.forms(page)[action] | fields)


def forms_in(page: str) -> dict[str, dict[str, str]]:
    """The fields of each form, and of each button that sends one elsewhere, by the address that it is sent to."""

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: dict[str, dict[str, str]] = {}
            self.now: dict[str, str] = {}

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = {name: value or "" for name, value in attrs}
            if tag == "form":
                self.now = self.found.setdefault(given.get("action", f"#{given.get('id', '')}"), {})
            if tag == "input" and "name" in given:
                self.now[given["name"]] = given.get("value", "")
            if "formaction" in given:
                self.found[given["formaction"]] = self.found.setdefault(f"#{given['form']}", {})

    reader = Reader()
    reader.feed(page)
    return reader.found


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture(autouse=True)
def _doctor_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "SOON_SECONDS", 60)


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    job, ranks = started(catalog, tmp_path, 10, 20)
    ranks[0].record(step=20, loss=0.25)
    return job


@pytest.fixture
def client(catalog: Catalog) -> Iterator[TestClient]:
    with TestClient(make_app(catalog, Rules()), base_url=ADDRESS) as client:
        yield client


@pytest.fixture
def changing(catalog: Catalog) -> Iterator[TestClient]:
    """A server that may change things; this client of it has no token."""
    with TestClient(make_app(catalog, Rules(token=TOKEN, may_change=True)), base_url=ADDRESS) as server:
        yield server


@pytest.fixture
def script(changing: TestClient) -> TestClient:
    """A script that has the token."""
    return visitor(changing, headers={"authorization": f"Bearer {TOKEN}"})


@pytest.fixture
def person(changing: TestClient) -> Person:
    return Person(changing)
