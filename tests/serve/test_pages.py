"""Pages say what the command line says."""

from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from ckptstore.serve.events import news
from tests.jobs import Job


def test_the_pages_of_a_run_say_where_it_goes_on_and_why_not_newer(
    catalog: Catalog, client: TestClient, job: Job
) -> None:
    (Path(job.folder(1)) / "net-2_10.ckpt").unlink()
    page = client.get("/runs/run").text
    assert "After <strong>step 10</strong>, saved by launch L1" in page
    assert "step 20 of launch L1: rank 1:" in page
    assert "net-2_10.ckpt is gone" in page
    assert '<span class="cells">#-</span>' in page
    assert "ckptstore resolve run --explain" in page
    assert catalog.resolve("run").plan is not None


@pytest.mark.usefixtures("job")
def test_what_gc_would_do(client: TestClient) -> None:
    page = client.get("/runs/run/retention?keep_last=1").text
    assert "No file is touched by this page" in page
    assert "0 states would go, 2 stay" in page
    page = client.get("/runs/run/retention").text
    assert "no rule says what to keep, and no policy is stored for this run" in page
    assert 'name="keep_last"' in page


def test_no_runs_yet(client: TestClient) -> None:
    assert "There are no runs yet." in client.get("/").text


def test_what_is_not_there(client: TestClient) -> None:
    found = client.get("/runs/nope")
    assert found.status_code == 404
    assert "no run &#39;nope&#39;" in found.text
    assert "There is nothing at this address." in client.get("/nothing").text


def test_what_happened_between_two_looks(catalog: Catalog, job: Job) -> None:
    before = {row.run: row for row in catalog.runs()}
    assert list(news({}, before)) == [
        ("launch_started", {"run": "run"}),
        ("saved", {"run": "run", "global_step": 20, "kind": "periodic"}),
    ]
    assert list(news(before, before)) == []
    silent = {run: replace(row, status=f"silent for {s} s") for s, (run, row) in enumerate(before.items(), 60)}
    assert list(news(silent, {run: replace(row, status="silent for 90 s") for run, row in silent.items()})) == []
    assert [name for name, _ in news(before, {run: replace(row, status="killed") for run, row in before.items()})] == [
        "status"
    ]
    job.save(job.start(), 30)
    now = {row.run: row for row in catalog.runs()}
    assert [name for name, _ in news(before, now)] == ["launch_started", "saved"]
    assert list(news(now, {})) == [("forgotten", {"run": "run"})]
