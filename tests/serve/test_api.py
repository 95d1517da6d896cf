"""The API has the JSON of the command line, in pages; errors say what to do."""

import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from ckptstore.cli.main import cli
from ckptstore.core.copies import CopyState
from ckptstore.core.copy_keys import key_of
from ckptstore.doctor.run_facts import backlogs
from ckptstore.journal.recorder import shared
from ckptstore.serve.metrics import measure
from ckptstore.tiers import facts
from tests.jobs import Job, begun
from tests.resume.wide import statements
from tests.serve.printed import printed
from tests.tiers.jobs import copied, declared


def at_rest(value: Any) -> Any:
    """JSON without for how long a launch has been silent: that grows while the test runs."""
    return json.loads(re.sub(r"silent for \d+ \w+", "silent", json.dumps(value)))


def items(client: TestClient, address: str) -> Any:
    found = client.get(f"/api/v1{address}").json()
    assert found["next"] is None
    return found["items"]


@pytest.mark.usefixtures("job")
def test_it_answers_as_the_command_line(catalog: Catalog, client: TestClient) -> None:
    assert at_rest(items(client, "/runs")) == at_rest(printed(catalog, "runs"))
    assert at_rest(client.get("/api/v1/runs/run").json()) == at_rest(printed(catalog, "runs")[0])
    assert items(client, "/runs/run/saves") == printed(catalog, "list", "run")
    assert items(client, "/runs/run/saves/20") == printed(catalog, "show", "run", "20")
    assert at_rest(items(client, "/runs/run/history")) == at_rest(printed(catalog, "history", "run"))
    assert client.get("/api/v1/runs/run/resolution").json() == printed(catalog, "resolve", "run")
    plan = client.get("/api/v1/runs/run/gc?keep_last=1&floor=1").json()
    assert plan == printed(catalog, "gc", "run", "--keep-last", "1", "--floor", "1")
    assert [state["global_step"] for state in plan["remove"]] == [10]
    checks = client.get("/api/v1/doctor").json()["checks"]
    expected = printed(catalog, "doctor")["checks"]
    assert [check["name"] for check in checks] == [check["name"] for check in expected]
    assert [check.keys() for check in checks] == [check.keys() for check in expected]


def test_names_that_hold_a_slash(catalog: Catalog, client: TestClient, job: Job) -> None:
    catalog.rename("run", "team a/run")
    assert client.get("/api/v1/runs/team%20a%2Frun").json()["run"] == "team a/run"
    assert items(client, "/runs/team%20a/run/saves/10")[0]["global_step"] == 10
    assert 'href="/runs/team%20a%2Frun"' in client.get("/").text
    assert client.get("/runs/team%20a%2Frun/saves/20").status_code == 200
    assert job.run == "run"


@pytest.mark.parametrize("name", ["a/policy", "a/history", "a/gc", "a/saves", "a/saves/7", "a/launches", "a/retention"])
def test_a_name_that_ends_as_an_address_is_not_taken_for_one(
    catalog: Catalog, client: TestClient, job: Job, name: str
) -> None:
    catalog.rename("run", "a")
    begun(catalog, job.directory / "other", 5, run=name)
    quoted = name.replace("/", "%2F")
    assert client.get(f"/api/v1/runs/{quoted}").json()["run"] == name
    assert items(client, f"/runs/{quoted}/saves")[0]["global_step"] == 5
    assert f"<h1>Run {name}" in client.get(f"/runs/{quoted.lower()}").text


def test_pages_of_rows(catalog: Catalog, client: TestClient, job: Job) -> None:
    """A save that comes between two pages moves none to another one."""
    first = client.get("/api/v1/runs/run/saves?limit=1").json()
    assert [row["global_step"] for row in first["items"]] == [20]
    ranks = job.start()
    job.save(ranks, 30)
    second = client.get("/api/v1/runs/run/saves", params={"cursor": first["next"]}).json()
    assert ([row["global_step"] for row in second["items"]], second["next"]) == ([10], None)
    assert catalog.saves("run")[0].global_step == 30


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("address", "status", "title"),
    [
        ("/runs/nope", 404, "no run 'nope'"),
        ("/runs/run/saves/7", 404, "run 'run' has no save of step 7"),
        ("/runs/run/saves?limit=0", 400, "limit is '0'"),
        ("/runs/run/saves?cursor=%25", 400, "'%' is no cursor"),
        ("/runs/run/saves?cursor=WyJhIl0=", 400, "is no cursor"),
        (f"/runs/run/saves?cursor={b64encode(b'[' * 30_000).decode()}", 400, "is no cursor"),
        ("/runs/run/gc?keep_lots=1", 400, "keep_lots='1' is no rule"),
        ("/runs/run/gc?keep_last=-1", 400, "keep_last is '-1'"),
        ("/runs/run/gc", 409, "no rule says what to keep"),
        ("/nothing", 404, "there is nothing at this address"),
    ],
)
def test_errors_are_problems(client: TestClient, address: str, status: int, title: str) -> None:
    found = client.get(f"/api/v1{address}")
    assert (found.status_code, found.headers["content-type"]) == (status, "application/problem+json")
    assert title in found.json()["title"]
    assert found.json()["status"] == status


OF_RUN, OF_SAVE, OF_TIER = {"run"}, {"run", "kind"}, {"run", "tier"}
METRICS = {
    "build_info": {"version"},
    "restorable_step": OF_RUN,
    "restorable_timestamp_seconds": OF_RUN,
    "last_save_timestamp_seconds": OF_SAVE,
    "save_duration_seconds": OF_SAVE,
    "stored_bytes": OF_RUN,
    "trash_bytes": OF_RUN,
    "damaged_files": OF_RUN,
    "lagging_ranks": OF_RUN,
    "quarantined_states": OF_RUN,
    "launches_total": OF_RUN,
    "journal_backlog_records": OF_RUN,
    "filesystem_avail_bytes": OF_RUN,
}
METRICS_OF_TIERS = {
    "copies": {"run", "tier", "state"},
    "copied_bytes": OF_TIER,
    "uncopied_files": OF_TIER,
    "oldest_uncopied_timestamp_seconds": OF_TIER,
    "states_only_on_nodes": OF_RUN,
}


def parsed(metrics: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples of each metric by the values of their labels; each has a help and a type, and no other labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics):
        assert family.documentation
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            name = sample.name.removeprefix("ckptstore_")
            assert sample.labels.keys() == (METRICS | METRICS_OF_TIERS)[name], sample
            found.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_metrics(client: TestClient, job: Job) -> None:
    ranks = job.begin()
    job.save(ranks, 30)
    job.save(ranks[:1], 40)
    ranks[0].save(lambda path: Path(path).write_bytes(b"x"), global_step=50, directory=job.folder(0), kind="dying_gasp")
    found = parsed(client.get("/metrics").text)
    assert found.keys() == METRICS.keys()
    assert found["restorable_step"] == {("run",): 30}
    assert found["launches_total"] == {("run",): 2}
    assert found["last_save_timestamp_seconds"].keys() == {("periodic", "run"), ("dying_gasp", "run")}
    assert (found["damaged_files"], found["lagging_ranks"]) == ({("run",): 0}, {("run",): 1})
    assert found["journal_backlog_records"] == {("run",): 0}


def test_records_that_another_catalog_has_are_a_backlog(
    catalog: Catalog, client: TestClient, other: Catalog, job: Job
) -> None:
    job.save(job.begin(), 30)
    begun(catalog, job.directory, 35, run="beside")
    assert backlogs(catalog.database) == {"beside": 0, "run": 0}
    elsewhere = Job(other, job.directory)
    elsewhere.launches = 2
    elsewhere.save(elsewhere.begin(resume=False), 40)
    records = parsed(client.get("/metrics").text)["journal_backlog_records"]
    assert min(records.values()) >= 2


def test_metrics_of_what_is_wrong(catalog: Catalog, client: TestClient, job: Job, tmp_path: Path) -> None:
    path = job.folder(1) / "net-2_10.ckpt"
    path.write_bytes(b"x")
    catalog.verify("run")
    ranks = job.start()
    for rank in ranks:
        rank.save(lambda path: Path(path).write_bytes(b"x" * 99), global_step=30, directory=job.folder(rank.rank))
    for rank in ranks:
        rank.live_files.quarantine_after(29, "the loss was nan")
    found = client.get("/metrics").text
    assert 'ckptstore_damaged_files{run="run"} 1.0' in found
    assert 'ckptstore_quarantined_states{run="run"} 1.0' in found
    assert 'ckptstore_save_duration_seconds{kind="periodic",run="run"}' in found
    url = catalog.database.url.render_as_string(hide_password=False)
    file = tmp_path / "ckptstore.prom"
    CliRunner().invoke(cli, ["--db", url, "metrics", "--textfile", str(file)], catch_exceptions=False)
    printed = CliRunner().invoke(cli, ["--db", url, "metrics"], catch_exceptions=False).stdout
    assert _but_free_bytes(file.read_text()) == _but_free_bytes(printed)
    assert 'ckptstore_damaged_files{run="run"} 1.0' in file.read_text()


def test_metrics_of_tiers(catalog: Catalog, client: TestClient, job: Job, tmp_path: Path) -> None:
    tier = declared(catalog, tmp_path / "far", "far", 2)
    old, new = catalog.show("run", 10), catalog.show("run", 20)
    copied(catalog, tier, [*old, new[0]])
    facts.record_copy(shared(catalog.database), new[1], tier, CopyState.FAILED, detail="full")
    found = parsed(client.get("/metrics").text)
    assert found.keys() == (METRICS | METRICS_OF_TIERS).keys() - {"save_duration_seconds"}
    assert len({key_of(file) for file in old}) == 1, "replicas share a copy, which is counted once"
    assert found["copies"] == {("run", "ready", "far"): 2, ("run", "failed", "far"): 1}
    assert found["copied_bytes"] == {("run", "far"): sum(file.size or 0 for file in (old[0], new[0]))}
    assert found["uncopied_files"] == {("run", "far"): 1}
    assert found["oldest_uncopied_timestamp_seconds"] == {("run", "far"): new[1].created_at.timestamp()}
    assert found["states_only_on_nodes"] == {("run",): 1}


def test_a_tier_that_was_taken_back_has_no_metrics(
    catalog: Catalog, client: TestClient, job: Job, tmp_path: Path
) -> None:
    copied(catalog, declared(catalog, tmp_path / "far", "far", 2), catalog.show("run", 10))
    facts.remove(catalog.database, "far")
    assert not parsed(client.get("/metrics").text).keys() & METRICS_OF_TIERS.keys()
    assert job.run == "run"


def test_runs_and_tiers_cost_metrics_no_statements(catalog: Catalog, job: Job, tmp_path: Path) -> None:
    copied(catalog, declared(catalog, tmp_path / "far", "far", 2), catalog.show("run", 10))
    asked = []
    for name in ("b", "c"):
        with statements() as of_metrics:
            measure(catalog.database)
        asked.append(len(of_metrics))
        begun(catalog, tmp_path / name, 10, run=name)
        copied(catalog, declared(catalog, tmp_path / f"far-{name}", f"far-{name}", 2), catalog.show(name, 10))
    assert asked[0] == asked[1]
    assert job.run == "run"


def _but_free_bytes(metrics: str) -> list[str]:
    return [line for line in metrics.splitlines() if "avail_bytes{" not in line]
