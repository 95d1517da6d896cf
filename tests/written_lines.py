"""Checks each line that the package writes into a journal: another catalog must be able to read it."""

import json
from typing import Any

from ckptstore.core.events import OutsideError, from_line
from ckptstore.journal import jsonl, recorder

UNREADABLE: list[str] = []
"""Since the last check."""


def note() -> None:
    """From now on each line is read as it is made."""
    for module in (jsonl, recorder):
        module.to_line = _noting(module.to_line)


def _noting(make: Any) -> Any:
    def made(event: Any, directory: str) -> Any:
        line = make(event, directory)
        try:
            from_line(json.loads(json.dumps(line)), directory)
        except OutsideError:
            pass  # it is told beside another directory, on purpose
        except ValueError as error:
            UNREADABLE.append(f"{error}: {line}")
        return line

    return made


def check() -> None:
    unreadable = UNREADABLE.copy()
    UNREADABLE.clear()
    assert unreadable == []
