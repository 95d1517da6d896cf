"""Trackers that are not there are named when they are asked for; with real ones: tests/frameworks/test_trackers.py."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ckptstore.api import Catalog
from ckptstore.errors import UsageError
from ckptstore.training.links import Links
from tests.jobs import started


@pytest.mark.parametrize(
    ("tracker", "error"),
    [("mlflow", "mlflow cannot be imported"), ("tensorboard", "there is no tracker 'tensorboard'; use one of: mlflow")],
)
def test_a_tracker_that_is_not_there(catalog: Catalog, tmp_path: Path, tracker: str, error: str) -> None:
    job, ranks = started(catalog, tmp_path)
    with pytest.raises(UsageError, match=error):
        ranks[0].link(tracker)
    ranks[1].link(tracker)  # rank 0 tells for all
    job.save(ranks, 10)


def test_metrics_of_an_older_state_make_it_not_the_newest_one(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary: dict[str, object] = {}
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(summary=summary)))
    job, ranks = started(catalog, tmp_path, world_size=1)
    links = Links("run/one", "wandb")
    (older,), (newer,) = job.save(ranks, 10), job.save(ranks, 20)
    for file in (older, newer, older.amended(metrics={"accuracy": 0.5})):
        links.add(file)
    links._finish()
    assert summary == {"ckptstore.newest_state": "run/one@20", "ckptstore.step": 20}
