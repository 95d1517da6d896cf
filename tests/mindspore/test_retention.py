"""Retention by the registrar, in real training: old states go while it trains, and nothing of training changes."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.retention.policy import Policy
from tests.mindspore.running import Run
from tests.mindspore.trainings import Job, complaints, saving

KEEP_2 = {"retention": {"keep_last": 2}}
NEVER = {"keep_checkpoint_max": 10_000}


def on_disk(run: Run) -> list[str]:
    return sorted(path.name for path in (run.out / "ckpt" / "rank_0").glob("*.ckpt"))


def test_old_states_go_while_it_trains(tmp_path: Path, undisturbed: bytes) -> None:
    run = Run(tmp_path / "run")
    done = run.launch(config=NEVER, registrar=KEEP_2, fault="keep-up")
    assert done.code == 0, done.output
    assert run.final() == undisturbed
    assert on_disk(run) == ["net-3_10.ckpt", "net-3_5.ckpt"]
    assert run.steps() == [30, 25]
    while sorted(run.steps()) != [5, 10, 15, 20, 25, 30]:
        assert run.catalog.undo("run").files, "every gc is undone in turn"
    assert len(on_disk(run)) == 6
    assert "keep_checkpoint_max" not in done.output


def test_what_mindspore_would_delete_beside_the_rules_is_said(tmp_path: Path) -> None:
    """MindSpore deleted the state of step 10, which keep_every keeps, without a word."""
    run = Run(tmp_path / "run")
    keep = {"retention": {"keep_last": 2, "keep_every": 10}}
    done = run.launch(config={"keep_checkpoint_max": 3}, registrar=keep, fault="keep-up")
    assert "keep_checkpoint_max=3 of a ModelCheckpoint deletes files that keep_every" in done.output


def test_what_mindspore_would_delete_by_time_is_said(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of six steps only the first and the last were left."""
    job = Job()
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=1, keep_checkpoint_max=None, keep_checkpoint_per_n_minutes=30)
    job.train(ckpt_cb, job.registrar(ckpt_cb, retention=Policy(keep_last=3)))
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["net-1_1.ckpt", "net-1_6.ckpt"]
    (told,) = (each for each in complaints(caplog) if "keep_checkpoint" in each)
    assert told.startswith("keep_checkpoint_per_n_minutes=30 of a ModelCheckpoint deletes files that keep_last of the")
