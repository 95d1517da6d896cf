"""Each answer is what the OpenAPI document says, no field more and none less."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from tests.jobs import Job

ADDRESSES = {
    "/runs": "/runs",
    "/runs/{run}": "/runs/run",
    "/runs/{run}/saves": "/runs/run/saves",
    "/runs/{run}/saves/{step}": "/runs/run/saves/20",
    "/runs/{run}/resolution": "/runs/run/resolution",
    "/runs/{run}/history": "/runs/run/history",
    "/runs/{run}/gc": "/runs/run/gc?keep_last=1&floor=1",
    "/doctor": "/doctor",
}


@pytest.fixture
def document(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api/v1/openapi.json").json()
    return found


def holds(document: dict[str, Any], schema: dict[str, Any], answer: Any) -> None:
    Draft202012Validator({**schema, "components": document["components"]}).validate(answer)


def test_every_answer_is_described(catalog: Catalog, client: TestClient, job: Job, document: dict[str, Any]) -> None:
    """Of a run that went back, lost a file, has a trash, and is quarantined in a state."""
    ranks = job.start()
    job.save(ranks, 30, 40)
    ranks[0].live_files.quarantine_after(35, "the loss was nan")
    catalog.branch(catalog.resolve("run", step=30).plan)  # type: ignore[arg-type]
    job.save(job.start(), 35, 50)
    (Path(job.folder(1)) / "net_2-5_10.ckpt").unlink()
    catalog.resolve("run")
    assert document["paths"].keys() == ADDRESSES.keys()
    for path, address in ADDRESSES.items():
        found = client.get(f"/api/v1{address}")
        assert found.status_code == 200, address
        described = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        holds(document, described, found.json())


@pytest.mark.parametrize("address", ["/runs/nope", "/runs?limit=x", "/nothing", "/runs/nope/gc"])
def test_every_error_is_described(client: TestClient, document: dict[str, Any], address: str) -> None:
    holds(document, document["components"]["schemas"]["Problem"], client.get(f"/api/v1{address}").json())
