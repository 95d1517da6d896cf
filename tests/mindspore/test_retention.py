"""Retention by the registrar, in real training: old states go while it trains, and nothing of training changes."""

from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("config", "policy", "left", "told"),
    [
        ({"keep_checkpoint_max": 3}, {"keep_last": 2, "keep_every": 2}, 3, "keep_checkpoint_max=3 … keep_every"),
        (
            {"keep_checkpoint_max": None, "keep_checkpoint_per_n_minutes": 30},
            {"keep_last": 3},
            2,
            "keep_checkpoint_per_n_minutes=30 … keep_last",
        ),
    ],
    ids=["by number", "by time"],
)
def test_what_mindspore_would_delete_beside_the_rules_is_said(  # noqa: PLR0917
    catalog: Catalog,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, Any],
    policy: dict[str, int],
    left: int,
    told: str,
) -> None:
    """MindSpore deleted states that a rule keeps, without a word; by time all but the first and the last one."""
    job = Job()
    ckpt_cb = saving(tmp_path, save_checkpoint_steps=1, **config)
    job.train(ckpt_cb, job.registrar(ckpt_cb, retention=Policy(**policy)))
    assert len(list(tmp_path.glob("*.ckpt"))) == left
    (said,) = (each for each in complaints(caplog) if "keep_checkpoint" in each)
    assert said.startswith(told.replace("…", "of a ModelCheckpoint deletes files that"))
