"""No catalog: training starts, saves, ends and is started again as with one, and later the catalog has it all."""

import re
import signal
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptstore.api import connect
from ckptstore.errors import CatalogUnavailableError
from tests import ckpt_bytes
from tests.conftest import new_postgres_database
from tests.contents import contents
from tests.mindspore.running import RECORDED_ALIKE, Run
from tests.postgres_server import Server, close_database, open_database


def nobody_answers(_: Path) -> str:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)  # the system takes the connections, and nobody ever says a word
    _kept.append(listener)
    return f"postgresql://me:s3cret@127.0.0.1:{listener.getsockname()[1]}/ckptstore"


def another_schema(out: Path) -> str:
    url = str(out / "newer.db")
    connect(url)
    with sqlite3.connect(url) as database:
        database.execute("UPDATE ckptstore_version SET version_num = '9999'")
    return url


def locked(out: Path) -> str:
    url = str(out / "locked.db")
    connect(url)
    holder = sqlite3.connect(url, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    _kept.append(holder)
    return url


def no_database(out: Path) -> str:
    (out / "text.db").write_text("this is no database, and nobody may overwrite it\n" * 99)
    return str(out / "text.db")


_kept: list[socket.socket | sqlite3.Connection] = []


@pytest.mark.parametrize("saves", RECORDED_ALIKE)
@pytest.mark.parametrize(
    "trouble",
    [
        nobody_answers,
        pytest.param(another_schema, marks=pytest.mark.long),
        pytest.param(locked, marks=pytest.mark.long),
        no_database,
    ],
)
def test_training_goes_on_without_a_catalog(
    trouble: Callable[[Path], str], tmp_path: Path, undisturbed: bytes, saves: str
) -> None:
    run = Run(tmp_path / "run", trouble(tmp_path), saves=saves)
    outcome = run.launch()
    assert outcome.code == 0, outcome.output
    assert outcome.start["fresh"]
    assert run.final() == undisturbed
    assert "Traceback" not in outcome.output
    assert "s3cret" not in outcome.output
    said = [re.sub(r"^.*?ckptstore: ", "", line) for line in outcome.output.splitlines() if "ckptstore: " in line]
    assert len(said) == len(set(said)), said
    assert len([line for line in said if "Training goes on without" in line]) == 1
    assert len(said) <= 3, said  # that it goes on without, that it starts afresh, that the catalog lacks the records
    steps = [30, 25, 20, 15, 10, 5]
    if trouble not in (nobody_answers, locked):  # which take their time, and a restart is the same there
        run.again(step=30, epochs=4)  # and nothing is lost: it goes on at the end of the third epoch
        steps = [40, 35, *steps]
    catalog = connect(str(tmp_path / "other.db"))
    catalog.scan(tmp_path / "run")
    assert [save.tally.global_step for save in catalog.saves("run")] == steps
    for kept in _kept:
        kept.close()
    _kept.clear()


@pytest.fixture
def database(postgres: str) -> tuple[str, str]:
    """A PostgreSQL database that exists and lets nobody in: its URL and its name."""
    url = new_postgres_database(postgres)
    name = url.split("/")[3].split("?")[0]
    connect(url)
    return url, name


@pytest.mark.parametrize("saves", RECORDED_ALIKE)
def test_a_job_that_crashes_during_an_outage_goes_on_in_it(
    postgres: str, database: tuple[str, str], tmp_path: Path, undisturbed: bytes, saves: str
) -> None:
    url, name = database
    run = Run(tmp_path, url, saves=saves)
    close_database(postgres, name)
    crashed = run.launch(fault="kill-journalled 17")
    assert crashed.code == -signal.SIGKILL, crashed.output
    again = run.launch(fault="raise 6")
    assert (again.code, again.start["global_step"]) == (1, 15), again.output
    run.again(step=21)  # the breakpoint, which no process could register
    assert run.final() == undisturbed
    open_database(postgres, name)
    run.again(step=30, epochs=4)
    assert run.steps() == [40, 35, 30, 25, 21, 20, 15, 10, 5]
    assert len({save.tally.launch for save in run.catalog.saves("run")}) == 4


@pytest.mark.parametrize("saves", RECORDED_ALIKE)
def test_records_reach_the_catalog_when_it_is_back(
    postgres: str, database: tuple[str, str], tmp_path: Path, saves: str
) -> None:
    """Nobody starts anything again: the recorder finds out by itself. It waits at step 12, and at 24."""
    url, name = database
    run = Run(tmp_path, url, saves=saves)
    close_database(postgres, name)

    def at_wait(step: int) -> str:
        if step == 12:
            open_database(postgres, name)
        return "flush"

    assert run.played(at_wait, fault="waits 12").count("HAS ALL True") == 2
    assert run.steps() == [30, 25, 20, 15, 10, 5]


@pytest.mark.parametrize("named", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_fresh_start_that_overlooked_an_earlier_one_is_stopped_and_the_next_one_is_right(
    tmp_path: Path, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch, *, named: bool
) -> None:
    """The catalog is away, and this machine never saw the run: the callback or the user says where it saves."""
    run = Run(tmp_path, another_schema(tmp_path))
    assert run.launch(fault="kill-journalled 17").code == -signal.SIGKILL
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    if named:
        monkeypatch.setenv("CKPTSTORE_DIRECTORIES", f"/nowhere:{tmp_path / 'ckpt'}")
    else:
        stopped = run.launch()
        assert stopped.code == 1
        assert "net-2_5.ckpt holds step 15 of run run, and the catalog " in stopped.output
        assert f"{run.url} did not know it then; start again" in stopped.output
    run.again(step=15)
    assert run.final() == undisturbed


def test_a_run_goes_on_by_its_present_name(tmp_path: Path, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was renamed on one machine, and trained on another under the present name alone."""
    run = Run(tmp_path)
    assert run.launch(fault="kill 7").code == -signal.SIGKILL
    run.catalog.rename("run", "thesis")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    assert run.launch(run="thesis", fault="kill 12").code == -signal.SIGKILL
    run.catalog.close()
    with sqlite3.connect(run.url) as database:
        database.execute("UPDATE ckptstore_version SET version_num = '9999'")
    run.again(step=15, run="thesis")
    assert run.final() == undisturbed


def test_a_fresh_start_by_the_present_name_of_a_run_is_stopped_and_the_next_one_is_right(
    tmp_path: Path, undisturbed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was renamed, the catalog is away, and this machine never saw the run."""
    run = Run(tmp_path)
    assert run.launch(fault="kill 17").code == -signal.SIGKILL
    run.catalog.rename("run", "thesis")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    run.url = another_schema(tmp_path)
    stopped = run.launch(run="thesis")
    assert stopped.code == 1
    assert "net-2_5.ckpt holds step 15 of run run, which was renamed to thesis, and the catalog " in stopped.output
    assert f"{run.url} did not know it then; start again" in stopped.output
    run.again(step=15, run="thesis")
    assert run.final() == undisturbed


def test_checkpoints_that_no_journal_tells_of_stop_a_fresh_start_without_the_catalog(tmp_path: Path) -> None:
    """They may be of this run, taken in by a scan; the callback alone knows where to look, and says it in time."""
    run = Run(tmp_path, another_schema(tmp_path))
    old = ckpt_bytes.write(tmp_path / "ckpt" / "rank_0" / "older-2_5.ckpt", 15)
    for _ in range(2):
        stopped = run.launch()
        assert stopped.code == 1
        unknown = "is in no journal, and the catalog, which may know this file, is unreachable or lost"
        assert f"older-2_5.ckpt {unknown}" in stopped.output
    old.unlink()
    assert run.launch(epochs=1).code == 0


def test_sigterm_lets_nothing_get_lost(tmp_path: Path) -> None:
    """Kubernetes sends it first, and the registrar is behind: what was saved is recorded, then the process is gone."""
    run = Run(tmp_path)
    outcome = run.launch(fault="exit-signal 11")
    assert outcome.code == -signal.SIGTERM, outcome.output
    assert run.steps() == [10, 5]


@pytest.mark.long
@pytest.mark.msrun
def test_two_ranks_whose_database_is_killed_in_the_middle(tmp_path: Path) -> None:
    """It trains on, is killed, goes on while the server is still dead; when that is back it tells the whole story."""
    server = Server(tmp_path / "pg")
    try:
        calm = Run(tmp_path / "calm")
        rough = Run(tmp_path / "rough", server.new_database())
        connect(rough.url)
        assert calm.launch(ranks=2).code == 0
        outage = [server._pid(), 7]
        killed = rough.launch(ranks=2, fault="kill-journalled 17", rank=1, outage=outage)
        assert killed.code != 0
        assert killed.start["fresh"]
        with pytest.raises(CatalogUnavailableError):
            connect(rough.url)
        again = rough.launch(ranks=2)
        assert again.code == 0, again.output
        assert again.start["global_step"] == 15
        for rank in range(2):
            assert rough.final(rank) == calm.final(rank)
        server.start()
        assert len(rough.catalog.files("run")) <= 2, "it was dead from step 7 on"
        assert rough.catalog.resolve("run").plan.global_step == 30
        saved = {(file.global_step, file.rank): file.digest for file in rough.catalog.files("run")}
        told = contents(rough.catalog)
    finally:
        server.close()
    assert saved == {(file.global_step, file.rank): file.digest for file in calm.catalog.files("run")}
    first, second = (row["id"] for row in sorted(told["launches"], key=lambda row: int(row["launch_order"])))
    starts = {row["launch_id"]: (row["parent_launch_id"], row["parent_step"]) for row in told["resolutions"]}
    assert starts == {first: (None, None), second: (first, 15)}
    outcomes = {(row["launch_id"], row["rank"], row["outcome"]) for row in told["outcomes"]}
    assert outcomes == {(second, 0, "saved"), (second, 1, "saved")}
    endings = {(row["rank"], row["global_step"], row["error"]) for row in told["endings"] if row["launch_id"] == second}
    assert endings == {(0, 30, None), (1, 30, None)}
