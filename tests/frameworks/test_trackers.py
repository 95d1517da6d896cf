"""`launch.link` with real MLflow and Weights & Biases, which keep their runs in a directory."""

from pathlib import Path

import pytest

from tests.frameworks.running import TENSORFLOW, last_line, script


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_tracker_shows_which_states_there_are(tracker: str, tmp_path: Path) -> None:
    told = last_line(script(TENSORFLOW, "linked.py", tracker, cwd=tmp_path, WANDB_MODE="offline", WANDB_SILENT="true"))
    assert told == {
        "ckptstore.newest_state": "linked/one@20",
        "ckptstore.step": "20" if tracker == "mlflow" else 20,
        "ckptstore.loss": 0.25,
        "ckptstore.accuracy": 0.75,
    }


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_without_an_active_run_it_says_so(tracker: str, tmp_path: Path) -> None:
    told = script(TENSORFLOW, "linked.py", tracker, "none", cwd=tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    assert f"{tracker} has no active run; call {tracker}." in told
