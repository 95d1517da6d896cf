"""What a restart gets from MLflow's logged models."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from bench import files
from bench.cases.case import (
    KEEP,
    KILLED,
    NAME_LIES,
    NEWEST_CUT,
    RANK_MISSING,
    REFUSES,
    RESTARTS,
    SAVES,
    Judged,
    cut,
    die,
    killed,
    left,
    main,
    went_on,
)
from bench.peers.mlflow import Mlflow

RANKS = 4


def _keeper(home: Path, saves: int = SAVES) -> Mlflow:
    keeper = Mlflow(home, synced=True)
    keeper.save(range(1, saves + 1))
    return keeper


def newest_cut(home: Path) -> Judged:
    keeper = _keeper(home)
    (path,) = (each for each in home.rglob("state.ckpt") if each.read_bytes() == files.content(SAVES))
    cut(path)
    return went_on(keeper.newest(), SAVES - 1, "it hands out the cut file: nobody looks at artifacts")


def dying_gc(home: Path) -> None:
    """Killed after the first models are marked, before `mlflow gc` deletes."""
    with mock.patch("mlflow.cli.gc.main", die):
        Mlflow(home, synced=True).prune(KEEP)


def killed_between(home: Path) -> Judged:
    keeper = _keeper(home, 2 * KEEP)
    killed(dying_gc, home)
    keeper.prune(KEEP)
    known = sorted(keeper.steps())
    kept = list(range(KEEP + 1, 2 * KEEP + 1))
    orphans = [] if len(list(home.rglob("state.ckpt"))) == len(known) else ["files"]
    empty = sum(not any(path.iterdir()) for path in (home / "artifacts" / "models").iterdir())
    return left(
        known, kept, orphans, f"the next mlflow gc deletes what is marked, and leaves {empty} empty directories"
    )


def restarts(_home: Path) -> Judged:
    return Judged(REFUSES, "it has no rule of how many to keep: each script deletes by itself")


def rank_missing(home: Path) -> Judged:
    """Each rank adds its file to the model, which one of them made and calls ready."""
    keeper = Mlflow(home, synced=True)
    client, experiment = keeper._client()
    for step in range(1, SAVES + 1):
        model = client.create_logged_model(experiment, name=f"step-{step}", params={"global_step": str(step)})
        for rank in range(RANKS - (step == SAVES)):
            folder = Path(model.artifact_location) / f"rank_{rank}"
            folder.mkdir(parents=True)
            files.write(folder / files.name(step), step, synced=True)
        client.finalize_logged_model(model.model_id, "READY")
    return went_on(keeper.newest(), SAVES - 1, "it does not know how many files a model has")


def name_lies(home: Path) -> Judged:
    """A model's name says a higher step than its parameter."""
    keeper = _keeper(home, SAVES - 1)
    client, experiment = keeper._client()
    for name, step in (("net_1-3_9", 26), ("net_1-3_3", 30)):
        model = client.create_logged_model(experiment, name=name, params={"global_step": str(step)})
        client.finalize_logged_model(model.model_id, "READY")
    return went_on(keeper.newest(), 30, "it takes what was logged last, and the step that it was told")


if __name__ == "__main__":
    main(
        {
            NEWEST_CUT: newest_cut,
            KILLED: killed_between,
            RESTARTS: restarts,
            RANK_MISSING: rank_missing,
            NAME_LIES: name_lies,
        }
    )
