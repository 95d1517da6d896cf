"""A training whose loss is no number any more: it is said at once, and what was good before stays."""

from pathlib import Path

import pytest
from mindspore.train import Callback

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.core.model import Checkpoint, Kind, Rule
from ckptstore.mindspore.session import GoodStates
from ckptstore.retention.policy import Policy
from ckptstore.training.start import Progress
from tests.mindspore.trainings import DoAt, Job, complaints, poisoned, saving


def bad(directory: Path, *, max_kept: int = 3, **settings: object) -> Job:
    """A job that saves every step, and whose states are bad from step 5 on."""
    job = Job(dataset=poisoned(5))
    ckpt_cb = saving(directory, save_checkpoint_steps=1, keep_checkpoint_max=max_kept)
    job.train(ckpt_cb, job.registrar(ckpt_cb, **settings))
    return job


def test_a_loss_of_nan__before_deleted_good_states_in_silence__now_is_said_and_the_last_one_stays(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each save is quarantined, and keep_checkpoint_max deletes the oldest ones."""
    job = bad(tmp_path)
    (said,) = complaints(caplog)
    assert said.startswith("step 5 of run run is quarantined: the loss of its last step was ")
    kept = tmp_path / "kept" / job.launch.id
    assert f"The last good state is step 4, which is kept as {kept / 'net-1_4.ckpt'}: stop the job" in said
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["net-1_10.ckpt", "net-1_11.ckpt", "net-1_12.ckpt"]
    assert sorted(path.name for path in kept.iterdir()) == ["net-1_3.ckpt", "net-1_4.ckpt"]
    caplog.clear()
    again = Job(dataset=poisoned(5))
    assert again.start.global_step == 4
    (said,) = complaints(caplog)
    assert said.startswith("run run goes on after step 4, since step 12 is quarantined: ")
    assert "The same fault returns unless you remove its cause" in said
    reasons = {reason.rule for each in catalog.resolve("run").rejections for reason in each.reasons}
    assert reasons == {Rule.QUARANTINED}
    assert Job(dataset=poisoned(5), take_quarantined=True).start.global_step == 12


def test_a_catalog_that_was_lost_has_the_kept_state(catalog: Catalog, tmp_path: Path) -> None:
    bad(tmp_path / "ckpt")
    other = ckptstore.connect(str(tmp_path / "other.db"))
    other.scan(tmp_path / "ckpt", run="run")
    assert other.resolve("run").plan.global_step == 4


class Counting(Callback):
    """It counts its steps, and says what its state is."""

    steps = 0

    def on_train_step_end(self, run_context: object) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


def test_the_companion_of_the_last_good_state_is_kept_with_it(catalog: Catalog, tmp_path: Path) -> None:
    job = Job(dataset=poisoned(5))
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=1, keep_checkpoint_max=3)
    recorded = DoAt(5, lambda: job.launch.progress.recorder.flush(60))
    job.train(Counting(), recorded, ckpt_cb, job.registrar(ckpt_cb))
    counting = Counting()
    again = Job(dataset=poisoned(99))
    assert again.start.global_step == 4
    ckpt_cb = saving(tmp_path)
    again.train(counting, ckpt_cb, again.registrar(ckpt_cb))
    assert counting.steps == again.launch.global_step == 12
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)), now=True)
    assert not list((tmp_path / "kept").rglob("net*"))


def test_what_is_kept_goes_with_its_state(catalog: Catalog, tmp_path: Path) -> None:
    bad(tmp_path)
    job = Job(dataset=poisoned(99))
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=1)
    job.train(ckpt_cb, job.registrar(ckpt_cb))
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2)), now=True)
    assert not list((tmp_path / "kept").rglob("*.ckpt"))
    assert catalog.resolve("run").plan.global_step == 12


def test_retention_in_training_holds_what_is_good(catalog: Catalog, tmp_path: Path) -> None:
    bad(tmp_path, max_kept=50, retention=Policy(keep_last=1, floor=1))
    assert catalog.resolve("run").plan.global_step == 4


def saved(directory: Path, step: int, quarantine: str = "") -> Checkpoint:
    path = directory / f"net-1_{step}.ckpt"
    path.write_bytes(b"%d" % step)
    return Checkpoint(
        run="run", launch="L1", kind=Kind.PERIODIC, global_step=step, rank=0, path=str(path), quarantine=quarantine
    )


def test_two_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = GoodStates("run", Progress())
    kept = []
    for step, is_bad in enumerate([0, 0, 0, 1, 1, 0, 1, 1], 1):
        kept.append([file.global_step for file in good.saved(saved(tmp_path, step, "nan" * is_bad))])
    assert kept == [[], [], [], [2, 3], [], [], [6], []]
    assert [record.getMessage()[:20] for record in caplog.records] == ["step 4 of run run is", "step 7 of run run is"]
    assert sorted(path.read_bytes() for path in (tmp_path / "kept" / "L1").iterdir()) == [b"2", b"3", b"6"]


def test_the_first_state_is_bad(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = GoodStates("run", Progress())
    assert good.saved(saved(tmp_path, 1, "nan")) == []
    assert "The last good state is step 0: stop the job" in caplog.text


def test_a_file_that_cannot_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = GoodStates("run", Progress())
    file = saved(tmp_path, 1)
    good.saved(file)
    (tmp_path / "kept").write_bytes(b"in the way")
    assert good.saved(saved(tmp_path, 2, "nan")) == []
    assert f"{file.path} is not kept from keep_checkpoint_max: " in caplog.text


def test_a_file_that_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As where keep_checkpoint_max is 1: MindSpore deletes the good one before it writes the bad one."""
    good = GoodStates("run", Progress())
    file = saved(tmp_path, 1)
    good.saved(file)
    Path(file.path).unlink()
    assert good.saved(saved(tmp_path, 2, "nan")) == []
    assert "Step 1 was good, and its file is gone: keep_checkpoint_max must be 2 or more: stop the job" in caplog.text
