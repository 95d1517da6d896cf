"""Going back on purpose in a real run, and files that a launch cannot load."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore.train import CheckpointConfig, ModelCheckpoint

import ckptstore.mindspore
from ckptstore.core.model import Rule
from ckptstore.errors import CkptstoreError, DamageError
from ckptstore.mindspore import resume
from ckptstore.ops.connect import Catalog

from .test_resume import catalog, create_dataset, create_model

__all__ = ["catalog"]


def train(directory: Path, **asked: Any) -> tuple[int, bytes]:
    """One launch to the end of epoch 2, step 12, that saves every second step: where it started, and its end."""
    model, dataset = create_model(), create_dataset()
    joined = ckptstore.mindspore.join("run")
    start = joined.resume(model, dataset, **asked)
    config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=50)
    ckpt_cb = ModelCheckpoint("net", str(directory / "ckpt"), config)
    callbacks = [ckpt_cb, joined.registrar(ckpt_cb)]
    model.train(2, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch, dataset_sink_mode=False)
    ms.save_checkpoint(model.train_network, str(directory / "end.ckpt"))
    return start.global_step, (directory / "end.ckpt").read_bytes()


def newest(catalog: Catalog) -> Any:
    return catalog.resolve("run")


def test_a_branch_goes_on_from_the_step_that_was_asked_for(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ckptstore")
    start, end = train(tmp_path)
    assert start == 0
    ckptstore.mindspore.join("run").resume(create_model(), create_dataset(), step=4)  # and dies
    plan = newest(catalog).plan
    assert plan.global_step == 4
    assert train(tmp_path) == (4, end)
    assert newest(catalog).plan.global_step == 12
    assert newest(catalog).plan.launch.id != plan.launch.id
    given_up = {row.tally.global_step for row in catalog.saves("run") if row.abandoned}
    assert given_up == {6, 8, 10, 12}
    assert "going on after step 4 (epoch 1, step 4 of 6), saved by launch" in caplog.text
    start_again = ckptstore.mindspore.join("run").resume(create_model(), create_dataset(), lineage=plan.launch.id)
    assert (start_again.global_step, start_again.plan.launch.id) == (12, plan.launch.id)


def test_a_file_that_cannot_be_loaded_stops_the_start_and_is_passed_over_by_the_next(
    catalog: Catalog, tmp_path: Path
) -> None:
    """Its size and time are the recorded ones: nothing but reading it tells."""
    train(tmp_path)
    path = Path(newest(catalog).plan.ranks[0].source.path)
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert newest(catalog).plan.global_step == 12
    with pytest.raises(DamageError, match="has other bytes than those recorded"):
        train(tmp_path)
    found = newest(catalog)
    assert found.plan.global_step == 10
    reason = found.rejections[0].reasons[0]
    assert (found.rejections[0].global_step, reason.rule) == (12, Rule.QUARANTINED)
    assert "could not be loaded: it has other bytes than those recorded (rank 0 of launch " in reason.detail
    assert train(tmp_path)[0] == 10


@pytest.mark.parametrize(("number", "after"), [(errno.EIO, 10), (errno.ESTALE, 12)])
def test_only_a_disk_that_has_lost_the_bytes_speaks_against_the_file(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: int
) -> None:
    """A mount that is gone for a while must not cost the newest state."""
    train(tmp_path)

    def failing(_: str) -> str:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(resume, "digest", failing)
        with pytest.raises(CkptstoreError, match=f"cannot be read .{os.strerror(number)}"):
            train(tmp_path)
    assert newest(catalog).plan.global_step == after
