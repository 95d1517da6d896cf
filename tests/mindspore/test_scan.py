"""Trees that real MindSpore runs left are scanned into an empty catalog: it resolves as the one that was kept live."""

from pathlib import Path
from typing import Any

import pytest

from tests.mindspore.running import Run
from tests.mindspore.scanning import scan_and_compare

SAFETENSORS = {"format": "safetensors", "exception_save": False}


@pytest.mark.parametrize(
    "launches",
    [
        [{"fault": "raise-before 18"}],
        [{"fault": "kill 17"}, {"fault": "raise 8"}, {"fault": "kill 4"}],
        [{"fault": "kill 17", "config": SAFETENSORS}, {"fault": "kill 8", "config": SAFETENSORS}],
        [
            {"fault": "raise 12", "exits": True},
            {"fault": "exit-flag 5", "exits": True},
            {"fault": "kill 3", "exits": True},
            {"fault": "exit-signal 4", "exits": True},
        ],
    ],
)
def test_a_scan_finds_what_the_registrar_knew(tmp_path: Path, launches: list[dict[str, Any]]) -> None:
    run = Run(tmp_path / "run")
    for asked in launches:
        run.launch(**asked)
    # Which of two whole files of one state is taken may differ: a graceful exit's beside a periodic one.
    same_files = not any(asked.get("exits") for asked in launches)
    scan_and_compare(run.catalog, "run", run.out, world_size=1, same_files=same_files)
