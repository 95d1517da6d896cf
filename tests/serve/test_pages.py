"""Pages say what the command line says."""

import platform
import re
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ckptstore.api import Catalog
from ckptstore.catalog.tables import policies
from ckptstore.core.hints import Command
from ckptstore.core.model import Initial
from ckptstore.doctor.checkup import Checkup
from ckptstore.outside import threading
from ckptstore.resume.overview import RunRow
from ckptstore.retention import stored_policy
from ckptstore.retention.policy import Policy
from ckptstore.serve import pages, questions, view
from ckptstore.serve.app import make_app
from ckptstore.serve.events import news
from ckptstore.serve.guard import Rules
from ckptstore.serve.pages import page_of, worst_of
from ckptstore.tiers import facts
from tests.jobs import Job, begun, set_ending, started
from tests.serve.conftest import ADDRESS
from tests.tiers.jobs import copied, declared


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
    assert '<rect class="cell-keep"' in page
    assert "keep step 20: " in page
    assert "0 states would go, 2 stay" in page
    page = client.get("/runs/run/retention").text
    assert "no rule says what to keep, and no policy is stored for this run" in page
    assert 'name="keep_last"' in page


@pytest.mark.usefixtures("job")
def test_what_to_do_if_there_is_no_plan(catalog: Catalog, client: TestClient) -> None:
    """The page said what is wrong, and asked for rules: which policies there are was on the command line only."""
    for keep in (2, 3):
        stored_policy.store(catalog.database, "run", Policy(keep_last=keep))
    with catalog.database.write() as connection:  # as a backup from before has it
        connection.execute(policies.update().values(rules={"keep_last": 2, "floor": 2}, version="2026"))
    page = client.get("/runs/run/retention").text
    assert (
        "a journal has a newer policy than the catalog; store the right one: ckptstore policy run --keep-last 3" in page
    )


def test_a_policy_that_was_typed_in_another_encoding(catalog: Catalog, client: TestClient, tmp_path: Path) -> None:
    started(catalog, tmp_path, 10)
    stored_policy.store(catalog.database, "run", Policy(keep_last=5, keep_best=1, metric="gr\udcf6\udcdfe", mode="min"))
    shown = client.get("/runs/run/retention")
    assert (shown.status_code, "gr\\udcf6\\udcdfe" in shown.text) == (200, True)


@pytest.mark.usefixtures("job")
def test_a_plan_of_very_many_states_shows_the_newest(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_STATES_SHOWN", 1)
    page = client.get("/runs/run/retention?keep_last=1").text
    assert "0 states would go, 2 stay" in page
    assert page.count("<rect class") == page.count('<tr class="keep">') == 1
    assert "1 older state is not shown; <code>ckptstore gc run</code>" in page


@pytest.mark.usefixtures("job")
def test_commands_on_pages_can_be_pasted_into_a_shell(
    catalog: Catalog, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.rename("run", "a run")
    for name in ("_SAVES_SHOWN", "_STATES_SHOWN", "_CHECKS_SHOWN"):
        monkeypatch.setattr(pages, name, 1)
    monkeypatch.setattr(Command, "given", ("--db", "/data/catalog.db"))
    for address, words in (
        ("/runs/a%20run", "list &#39;a run&#39;"),
        ("/runs/a%20run/retention?keep_last=1", "gc &#39;a run&#39;"),
        ("/doctor", "doctor"),
    ):
        assert f"<code>ckptstore --db /data/catalog.db {words}</code>" in client.get(address).text


def test_a_run_has_its_pictures_and_their_numbers(catalog: Catalog, client: TestClient, job: Job) -> None:
    (Path(job.folder(1)) / "net-2_10.ckpt").unlink()
    catalog.verify("run")
    again = job.begin()
    job.save(again, 30)
    set_ending(again[0], 35, 35, "RuntimeError")
    page = client.get("/runs/run").text
    assert '<a href="/runs/run/saves/30#rank-1" tabindex="-1" aria-label="step 30, rank 1: its own file">' in page
    assert "step 20, rank 1: gone" in page
    assert "launch L1: 2 saves, steps 10 to 20, 1 of them abandoned" in page
    assert "launch L2 from step 10: 1 save, steps 30 to 30" in page
    assert 'class="crash"' in page
    assert "launch L2: 1 save, ended: RuntimeError" in page
    assert "room for more than 1000 saves" in page
    assert "loss 0.25" in page


@pytest.mark.usefixtures("job")
def test_the_timeline_counts_saves_that_it_does_not_mark(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch had at most 200 saves there, and each one before these 200 had none."""
    monkeypatch.setattr(view, "_MARKS", 1)
    assert "launch L1: 2 saves, its end is not known: step 20" in client.get("/runs/run").text


@pytest.mark.usefixtures("job")
def test_a_run_that_was_restarted_very_often_has_a_page(
    catalog: Catalog, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree of its launches was as deep as there were restarts: the page ended with a RecursionError."""
    (first,) = catalog.history("run")
    later = [replace(first.launch, id=f"L{i}", parent=f"L{i - 1}", parent_step=i) for i in range(2, 1001)]
    rows = [first, *(replace(first, launch=launch) for launch in later)]
    monkeypatch.setattr(Catalog, "history", lambda *_: rows)
    page = client.get("/runs/run").text
    assert "launch L2 from step 2: 0 saves" in page
    assert "launch L1000 from step 1000 of L999: 0 saves" in page
    assert page.count('<ul class="tree">') == 8


@pytest.mark.usefixtures("job")
def test_a_run_that_began_from_another_runs_state_says_so(
    catalog: Catalog, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of launches had "-" there, and the tree nothing, though `history` named the state."""
    (row,) = catalog.history("run")
    began = replace(row.launch, initial=Initial("base", "L9", 500, "base@good"))
    monkeypatch.setattr(Catalog, "history", lambda *_: [replace(row, launch=began)])
    assert "<td>step 500 of run base</td>" in client.get("/runs/run/launches").text
    assert "launch L1 from step 500 of run base: 2 saves" in client.get("/runs/run").text


def test_a_save_says_who_loads_what_where_it_ran_and_how_to_load_it(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path / "data", world_size=3, layout="data_parallel")
    job.save(ranks[:2], 10)
    with TestClient(make_app(catalog, Rules()), base_url="http://127.0.0.1:8766") as client:
        page = client.get("/runs/run/saves/10").text
        assert "Replicas of each other, by data_parallel: ranks 0-2." in page
        assert re.search(r"<td>ranks? 0, 2</td>|<td>ranks? 1-2</td>", page)
        assert "<code data-copy>ckptstore.mindspore.load(&#39;run@10&#39;, network)</code>" in page
        assert platform.node() in page
        job.save(ranks[:1], 20)
        (job.folder(0) / "net-2_10.ckpt").unlink()
        page = client.get("/runs/run/saves/20").text
        assert "It cannot be restored." in page
        assert "net-2_10.ckpt is gone" in page


def test_a_save_that_no_start_takes_says_how_to_go_back_to_it(catalog: Catalog, client: TestClient, job: Job) -> None:
    """Only the page of its run had the command: here the save looked lost."""
    plan = catalog.resolve("run", step=10).plan
    assert plan is not None
    catalog.branch(plan)
    job.save(job.start(), 30)
    page = client.get("/runs/run/saves/20").text
    assert "the run went back to an older state, and went on from that" in page
    assert "ckptstore resolve run/L1@20 --branch" in page
    assert catalog.resolve("run/L1@20").plan is not None


def test_the_pages_say_which_tiers_have_what(catalog: Catalog, client: TestClient, job: Job, tmp_path: Path) -> None:
    assert "Copies in tiers" not in client.get("/runs/run").text
    tier = declared(catalog, tmp_path / "far", "far", 2)
    gone = declared(catalog, tmp_path / "gone", "gone", 2)
    new = catalog.show("run", 20)
    copied(catalog, tier, [*catalog.show("run", 10), new[0]])
    copied(catalog, gone, new)
    facts.remove(catalog.database, "gone")
    with TestClient(make_app(catalog, Rules()), base_url=ADDRESS) as later:
        page = re.sub(r"\s+", " ", later.get("/runs/run").text)
        of_tier = page.partition("Copies in tiers")[2].partition("</table>")[0]
        assert f"<code>{tier.url}</code>" in of_tier
        assert '<a href="/runs/run/saves/10">10</a>' in of_tier
        assert '<td class="number">2</td>' in of_tier, "the ranks are replicas: step 10 has one copy"
        assert "1 file, " in of_tier
        assert gone.url not in page
        first, second = later.get("/runs/run/saves/20").text.split('id="rank-1"')
        assert ("<td>far</td>" in first, "<td>far</td>" in second) == (True, False)
    assert job.run == "run"


def test_the_link_to_the_last_page_of_runs_promises_no_number(
    catalog: Catalog, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said how many runs are on this page, as if as many came: "Next 100 runs" before the last one."""
    rows = [RunRow(f"run-{number:03}", 1, None, None, 0, "training", 0, 0) for number in range(101)]
    monkeypatch.setattr(catalog, "runs", lambda: rows)
    assert '<a href="/?after=0%3Arun-099">Next page</a>' in client.get("/").text


def test_runs_that_need_somebody_come_first_and_a_page_has_a_hundred() -> None:
    rows = [RunRow(f"run-{number:03}", 1, None, None, 0, "training", 0, 0) for number in range(150)]
    rows[120] = replace(rows[120], status="killed")
    worst = worst_of(
        [
            {"name": "disk", "run": "run-130", "status": "warning"},
            {"name": "trash", "run": "run-130", "status": "note"},
            {"name": "disk", "run": "run-131", "status": "ok"},
        ]
    )
    shown, after = page_of(rows, worst, "")
    assert [each.row.run for each in shown[:3]] == ["run-120", "run-130", "run-000"]
    assert (len(shown), after) == (100, "0:run-097")
    rest, over = page_of(rows, worst, after or "")
    assert {each.row.run for each in (*shown, *rest)} == {row.run for row in rows}
    assert (len(rest), over) == (50, None)


@pytest.mark.usefixtures("job")
def test_doctor_is_not_waited_for(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    is_free = threading.Event()
    monkeypatch.setattr(questions, "SOON_SECONDS", 0.01)
    monkeypatch.setattr(questions, "examine", lambda *_: is_free.wait() and Checkup(()))
    assert "Doctor is still looking" in client.get("/").text
    assert "Doctor is still looking" in client.get("/doctor").text
    is_free.set()


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
