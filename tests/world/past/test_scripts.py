"""What showed each bug of the past shows none now; `python -m tests.world.past --scripts` puts them back first."""

import subprocess
from pathlib import Path

import pytest

from tests.world.past.scripts import SCRIPTS

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_what_showed_a_bug_of_the_past_shows_none(name: str) -> None:
    SCRIPTS[name].run(SCRIPTS[name].places[0])


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_each_patch_fits_the_code_of_today(name: str) -> None:
    """Where the code around it was reworded, a patch with fuzz may land elsewhere, and breaks something else."""
    command = ["patch", "--dry-run", "-p1", "-F0", "-i", str(HERE / f"{name}.patch")]
    fits = subprocess.run(command, cwd=HERE.parents[2], capture_output=True, text=True, check=False)
    assert not fits.returncode, fits.stdout
