"""Trackers that are not there are named when they are asked for; with real ones: tests/frameworks/test_trackers.py."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.errors import UsageError
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
