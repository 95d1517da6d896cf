"""What a run is doing, in the words that `runs` shows."""

from dataclasses import replace
from datetime import timedelta

import pytest

from ckptstore.resume.status import Signs, status

QUIET = Signs(
    has_saved=True,
    fruitless=0,
    errors=(),
    was_asked_to_exit=False,
    is_scanned=False,
    is_alive=False,
    is_gone=False,
    silent=timedelta(minutes=12),
)


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        ({}, "silent for 12 min"),
        ({"is_alive": True}, "training"),
        ({"is_alive": True, "has_saved": False}, "training"),
        ({"is_gone": True}, "killed"),
        ({"errors": [None, None]}, "finished"),
        ({"errors": [None, "RuntimeError"]}, "ended: RuntimeError"),
        ({"errors": ["RuntimeError", "OSError"], "is_gone": True}, "ended: OSError, RuntimeError"),
        ({"errors": [None], "was_asked_to_exit": True}, "exited on request"),
        ({"is_scanned": True}, "scanned"),
        ({"has_saved": False}, "never saved"),
        ({"has_saved": False, "silent": None}, "never saved"),
        ({"fruitless": 2, "errors": ["RuntimeError"]}, "ended: RuntimeError"),
        ({"fruitless": 3, "errors": ["RuntimeError"]}, "restart loop: 3 launches saved nothing"),
        ({"fruitless": 4, "errors": [None, None]}, "finished"),
        ({"fruitless": 5, "is_alive": True}, "restart loop: 5 launches saved nothing"),
    ],
)
def test_words(signs: dict[str, object], words: str) -> None:
    assert status(replace(QUIET, **signs)) == words  # type: ignore[arg-type]
