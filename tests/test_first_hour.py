"""The page of a first hour is what the commands print today."""

import importlib.util
from pathlib import Path
from typing import Any

from tests.command_line import COMMAND
from tests.mindspore.running import python
from tests.starting import LIBRARY, warm_python

ROOT = Path(__file__).parents[1]


def test_the_page_is_what_the_commands_print(tmp_path: Path) -> None:
    """Where it is not, and should be: python examples/first_hour/hour.py > docs/tutorial/first-hour.md."""
    spec: Any = importlib.util.spec_from_file_location("hour", ROOT / "examples" / "first_hour" / "hour.py")
    hour = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hour)
    programs = {"python": python(), "ckptstore": [*warm_python(*LIBRARY), str(COMMAND)]}
    played = hour.transcript(tmp_path, programs)
    assert played.splitlines() == (ROOT / "docs" / "tutorial" / "first-hour.md").read_text().splitlines()
