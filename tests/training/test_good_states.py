"""The newest good files are kept when the first bad one is saved, each time that comes."""

from pathlib import Path

import pytest

from ckptstore.core.model import Checkpoint, Kind
from ckptstore.training.good_states import GoodStates
from ckptstore.training.start import Progress


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
