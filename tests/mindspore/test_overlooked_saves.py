"""Saves that the catalog does not know of, where a launch begins or while it trains."""

import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from mindspore.train import CheckpointConfig, ModelCheckpoint

import ckptstore.mindspore
from ckptstore.api import Catalog, connect
from ckptstore.errors import RefusedError
from ckptstore.journal import jsonl
from ckptstore.training.save_places import newer_state
from tests import ckpt_bytes
from tests.cli.advice import follow
from tests.contents import back_up
from tests.jobs import newest
from tests.journal.builders import make_unreadable
from tests.mindspore.trainings import (
    DoAt,
    Job,
    complaints,
    create_dataset,
    create_model,
    on_purpose,
    saving,
    train,
    trained,
)


@pytest.mark.parametrize(("saved", "begins"), [(False, "from the beginning"), (True, "after step 6")])
def test_a_start_stops_where_states_are_that_its_catalog_never_heard_of(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, saved: bool, begins: str
) -> None:
    """A catalog from an old backup, on a machine that never saw the run: it knows launches, but not their states."""
    if saved:
        train(create_model(), tmp_path / "first")
    launch = ckptstore.mindspore.join("run")
    kept = tmp_path / "backup.db"
    back_up(catalog, kept)
    model, dataset = create_model(), create_dataset()
    start = launch.resume(model, dataset)
    ckpt_cb = saving(tmp_path / "second", save_checkpoint_steps=3)
    callbacks = [ckpt_cb, launch.registrar(ckpt_cb)]
    model.train(start.initial_epoch + 2, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch)
    newest = catalog.resolve("run").plan
    monkeypatch.setenv("CKPTSTORE_URL", str(kept))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    told = rf"starts {begins}, but .* holds step {newest.global_step} of run run, .* start again"
    with pytest.raises(RefusedError, match=told):
        train(create_model(), tmp_path / "second")
    model = create_model()
    assert ckptstore.mindspore.join("run").resume(model, dataset).global_step == newest.global_step


def test_a_journal_that_the_disk_does_not_give_stops_a_start(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog was lost, and the journal alone tells of the run: it began at step 0 without a word."""
    train(create_model(), tmp_path)
    (hidden,) = jsonl.journals_in(str(tmp_path))
    make_unreadable(hidden, monkeypatch)
    anew = connect(tmp_path / "anew.db")
    with pytest.raises(RefusedError, match=f"{hidden}, which may tell of a newer state, cannot be read"):
        Job(launch=ckptstore.mindspore.join("run", catalog=anew, directories=[tmp_path]))
    monkeypatch.undo()
    assert Job(launch=ckptstore.mindspore.join("run", catalog=anew, directories=[tmp_path])).start.global_step == 6


def test_a_launch_that_restores_by_itself_may_save_beside_states_that_were_given_up(
    catalog: Catalog, tmp_path: Path
) -> None:
    """It took the states of the branch for ones that its start had overlooked."""
    trained(tmp_path, epochs=2)
    job = Job(step=2)
    job.train(saving(tmp_path / "ckpt", "later", save_checkpoint_steps=6), job.registrar())
    launch = ckptstore.mindspore.join("run")
    assert launch.resolve().global_step == 6
    path = ckpt_bytes.write(tmp_path / "ckpt" / "own.ckpt", 7, 7)
    assert launch.register(path, global_step=7).global_step == 7


@pytest.mark.parametrize("copied_before", ["any launch", "the rename"])
def test_a_start_by_the_present_name_stops_where_the_run_saved_before_it_was_renamed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied_before: str
) -> None:
    """A catalog from a backup, or a new one, on a machine that never saw the run: the journals tell of the rename."""
    kept = tmp_path / "backup.db"
    if copied_before == "any launch":
        back_up(catalog, kept)
    train(create_model(), tmp_path / "first")
    if copied_before == "the rename":
        back_up(catalog, kept)
    catalog.rename("run", "thesis")
    monkeypatch.setenv("CKPTSTORE_URL", str(kept))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
    told = (
        r"starts from the beginning, but .* holds step 6 of run run, which was renamed to thesis, .* call join\('run'\)"
    )
    for _ in range(2):
        job = Job(launch=ckptstore.mindspore.join("thesis"))
        with pytest.raises(RefusedError, match=told):
            job.train(job.registrar(saving(tmp_path / "first")))
    assert Job().start.global_step == 6


def test_newer_states_that_were_moved_to_where_a_launch_saves(catalog: Catalog, tmp_path: Path) -> None:
    """The catalog knew them at another place, and the launch began from what it could see."""
    train(create_model(), tmp_path / "first")
    train(create_model(), tmp_path / "second")
    (tmp_path / "second").rename(tmp_path / "third")
    told = (
        r"starts after step 6, but .*third/.* holds step 12 of run run, and the catalog .* did not know it then; start"
    )
    with pytest.raises(RefusedError, match=told):
        train(create_model(), tmp_path / "third")
    assert Job().start.global_step == 12


def test_saves_that_nobody_knew_of_do_not_stop_a_training_that_has_begun(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in a directory that the callback names in the second epoch only, and in that of the third."""
    readers: list[str] = []

    def read(*asked: Any, **named: Any) -> Any:
        readers.append(threading.current_thread().name)
        return newer_state(*asked, **named)

    monkeypatch.setattr("ckptstore.training.save_places.newer_state", read)
    lost = connect(str(tmp_path / "lost.db")).join("run", launch_id="OLD")
    for epoch in (2, 3):
        path = ckpt_bytes.write(tmp_path / f"epoch_{epoch}" / "old-1_1.ckpt", 50 * epoch)
        lost.register(path, global_step=50 * epoch, optimizer_step=50 * epoch)
    job = Job()
    ckpt_cb = ModelCheckpoint(
        "net", lambda params: str(tmp_path / f"epoch_{params.cur_epoch_num}"), CheckpointConfig(save_checkpoint_steps=6)
    )
    with caplog.at_level("INFO", "ckptstore"):
        job.train(ckpt_cb, job.registrar(), epochs=3)
    assert set(readers) == {"ckptstore"}
    (said,) = complaints(caplog)
    assert "holds step 100 of run run, and the catalog " in said
    assert " did not know it then. Training goes on, and its saves are registered" in said
    assert "start again with resume(lineage='OLD')" in said
    size = job.dataset.get_dataset_size()
    assert {file.global_step for file in catalog.files("run") if file.launch == job.launch.id} == {
        size,
        2 * size,
        3 * size,
    }
    following = catalog.join("run", launch_id="next")
    plan = following.resolve(lineage="OLD")
    assert plan.global_step == 150


@pytest.mark.usefixtures("catalog")
def test_a_first_start_beside_older_files_is_told_of_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The catalog is there and does not know them: an earlier experiment's, or a run whose catalog was lost."""
    ckpt_bytes.write(tmp_path / "ckpt" / "older-2_5.ckpt", 15)
    trained(tmp_path)
    (said,) = complaints(caplog)
    assert "older-2_5.ckpt is in no journal, and the catalog knows no save of run run" in said
    assert follow(os.environ["CKPTSTORE_URL"], said[said.index("stop the job") :]).code == 0


def test_the_message_takes_the_run_back_to_older_files_after_the_job_has_saved(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody forgot to scan, and read the message too late: the scan alone leaves the job's own states the newest."""
    create_model().train(2, create_dataset(), callbacks=[saving(tmp_path / "ckpt", "plain")])
    job = trained(tmp_path)
    (said,) = complaints(caplog)
    url = os.environ["CKPTSTORE_URL"]
    assert "6 states of 1 launch adopted" in follow(url, said[said.index("stop the job") :]).out
    assert newest(catalog) == 6
    (scanned,) = {file.launch for file in catalog.files("run")} - {job.launch.id}
    assert follow(url, said[said.index("has saved by then") :], LAUNCH=scanned).code == 0
    assert newest(catalog) == 12


@pytest.mark.parametrize("what", ["training", "copy"])
def test_a_start_is_told_of_what_was_saved_without_ckptstore_since_the_scan(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """The script trained on, and nobody scanned again; a copy of the state that is loaded is no newer one."""
    home = tmp_path / "ckpt"
    model, dataset = create_model(), create_dataset()
    model.train(1, dataset, callbacks=[saving(home, "plain")])
    catalog.scan(home, run="run", world_size=1)
    if what == "training":
        model.train(2, dataset, callbacks=[saving(home, "plain")], initial_epoch=1)
    else:
        shutil.copy(home / "plain-1_6.ckpt", home / "kept-1_6.ckpt")
    job = Job()
    assert job.start.global_step == 6
    job.fail(DoAt(1, on_purpose), saving(home), job.registrar(), epochs=2)
    said = complaints(caplog)
    if what == "copy":
        assert said == []
        return
    assert re.search(r"plain_1-2_\d.ckpt is in no journal, and holds more updates than step 6, which is", said[0])
    assert follow(os.environ["CKPTSTORE_URL"], said[0][said[0].index("stop the job") :]).code == 0
    assert Job().start.global_step == 12


def test_what_another_launch_saved_since_the_start_was_not_known_then(catalog: Catalog, tmp_path: Path) -> None:
    """It said that the catalog did not know it, which by then does: only this launch began before it."""
    first = Job()
    train(create_model(), tmp_path)
    with pytest.raises(RefusedError, match="holds step 6 of run run, and the catalog .* did not know it then; start a"):
        first.train(first.launch.saver(tmp_path, every=2))
    assert Job().start.global_step == 6
