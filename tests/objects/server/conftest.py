"""A Swift for all tests of this folder; one that is killed, or full, has a directory and processes of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptstore.objects.asked import ask
from ckptstore.objects.settings import settings
from ckptstore.objects.store import Store
from ckptstore.objects.tiers import open_tier
from tests.objects.server.faults import Faults
from tests.objects.server.swift import BUCKET, KEY, SECRET, Swift


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    server = Swift(tmp_path_factory.mktemp("swift"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Store]:
    """The store at an endpoint, below a prefix of the test's own; its bucket is made."""

    def opened(endpoint: str) -> Store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert ask(settings(), BUCKET, "PUT").status in (200, 409)
        return open_tier(f"s3://{BUCKET}/{tmp_path.name}")

    return opened


@pytest.fixture
def store(running: Swift, use: Callable[[str], Store]) -> Store:
    return use(running.endpoint)


@pytest.fixture
def faults(running: Swift) -> Iterator[Faults]:
    proxy = Faults(running.ports["proxy"])
    yield proxy
    proxy.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Swift]:
    """A server that the test may kill, pause and start."""
    server = Swift(tmp_path / "swift")
    server.start()
    yield server
    server.go_on()
    server.kill()
