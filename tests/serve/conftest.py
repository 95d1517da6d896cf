"""A server in this process, with a run that has saved."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from ckptstore.serve.app import make_app
from ckptstore.serve.guard import Rules
from tests.jobs import Job, started

Ask = Callable[..., TestClient]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def job(catalog: Catalog, tmp_path: Path) -> Job:
    job, ranks = started(catalog, tmp_path, 10, 20)
    ranks[0].record(step=20, loss=0.25)
    return job


@pytest.fixture
def client(catalog: Catalog) -> Iterator[TestClient]:
    with TestClient(make_app(catalog, Rules()), base_url="http://127.0.0.1:8766") as client:
        yield client
