"""What tests of scans share."""

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree of a job, there as soon as something is saved in it; a scan calls its run `job`."""
    return tmp_path / "job"
