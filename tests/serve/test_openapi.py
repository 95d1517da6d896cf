"""Each answer is what the OpenAPI document says, no field more and none less."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from ckptstore.serve.app import make_app
from ckptstore.serve.guard import Rules
from tests.jobs import Job
from tests.serve.conftest import ADDRESS

ADDRESSES = {
    "/runs": "/runs",
    "/runs/{run}": "/runs/run",
    "/runs/{run}/saves": "/runs/run/saves",
    "/runs/{run}/saves/{step}": "/runs/run/saves/20",
    "/runs/{run}/resolution": "/runs/run/resolution",
    "/runs/{run}/history": "/runs/run/history",
    "/runs/{run}/gc": "/runs/run/gc?keep_last=1&floor=1",
    "/runs/{run}/policy": "/runs/run/policy",
    "/doctor": "/doctor",
}
CHANGES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("/runs/{run}/saves/{step}/pin", "/runs/run/saves/20/pin", {}),
    ("/runs/{run}/saves/{step}/unpin", "/runs/run/saves/20/unpin", {}),
    ("/runs/{run}/saves/{step}/tag", "/runs/run/saves/20/tag", {"tag": "best"}),
    ("/runs/{run}/untag", "/runs/run/untag", {"tag": "best"}),
    ("/runs/{run}/policy", "/runs/run/policy", {"policy": {"keep_last": 1, "floor": 1}}),
    ("/runs/{run}/policy", "/runs/run/policy", {"policy": None}),
    ("/runs/{run}/gc", "/runs/run/gc?keep_last=1&floor=1", {}),
    ("/runs/{run}/undo", "/runs/run/undo", {}),
)


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
    assert {path for path, each in document["paths"].items() if "get" in each} == ADDRESSES.keys()
    for path, address in ADDRESSES.items():
        found = client.get(f"/api/v1{address}")
        assert found.status_code == 200, address
        described = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        holds(document, described, found.json())


@pytest.mark.parametrize("address", ["/runs/nope", "/runs?limit=x", "/nothing", "/runs/nope/gc"])
def test_every_error_is_described(client: TestClient, document: dict[str, Any], address: str) -> None:
    holds(document, document["components"]["schemas"]["Problem"], client.get(f"/api/v1{address}").json())


def test_an_error_of_the_program_is_described_too(
    catalog: Catalog, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that reads the answer of a broken server reads JSON; a person gets a page."""

    def breaks() -> None:
        raise RuntimeError("s3cret")

    monkeypatch.setattr(catalog, "runs", breaks)
    with TestClient(make_app(catalog, Rules()), base_url=ADDRESS, raise_server_exceptions=False) as client:
        found, page = client.get("/api/v1/runs"), client.get("/")
    assert (found.status_code, found.headers["content-type"]) == (500, "application/problem+json")
    holds(document, document["components"]["schemas"]["Problem"], found.json())
    assert (page.status_code, page.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "s3cret" not in found.text + page.text


def test_every_change_is_described(job: Job, script: TestClient, document: dict[str, Any]) -> None:
    """What is sent, and what is answered."""
    job.save(job.start(), 30)
    assert {path for path, each in document["paths"].items() if "post" in each} == {path for path, *_ in CHANGES}
    for path, address, sent in CHANGES:
        described = document["paths"][path]["post"]
        holds(document, described["requestBody"]["content"]["application/json"]["schema"], sent)
        plan = script.get(f"/api/v1{address}").headers.get("etag", "")
        found = script.post(f"/api/v1{address}", json=sent, headers={"if-match": plan})
        assert found.status_code == 200, found.text
        holds(document, described["responses"]["200"]["content"]["application/json"]["schema"], found.json())
        wrong = script.post(f"/api/v1{address}", json={"wrong": 1})
        holds(document, document["components"]["schemas"]["Problem"], wrong.json())
