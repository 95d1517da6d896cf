"""Which JSON file a job looks into at every step for a request to exit (OnRequestExit's `config_file`), and its state.

No catalog knows it: the registrar notes it beside the files of graceful exits, in `.ckptstore/exit_flag-rank_{R}.json`.
Here a flag is only looked at.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ckptstore.storage.claims import FOLDER

KEY = "GracefulExit"
"""What OnRequestExit asks the file for; 1 is a request (MindSpore: `train/callback/_on_request_exit.py`)."""

_REQUESTED = 1
_NOTE = re.compile(r"^exit_flag-rank_\d+\.json$")
_MOST_BYTES = 1 << 16
_MOST_FILES = 64


@dataclass(frozen=True)
class Flag:
    """A file that asks for a graceful exit, if the value of `key` in it is 1."""

    path: str
    key: str = KEY


def note(directory: str, rank: int, flag: Flag) -> None:
    """Note beside the checkpoints of a directory where a rank looks for a request to exit. Raises `OSError`."""
    folder = Path(directory) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".exit_flag-rank_{rank}.{os.getpid()}"
    try:
        draft.write_text(json.dumps(flag.__dict__), encoding="ascii")
        draft.replace(folder / f"exit_flag-rank_{rank}.json")
    finally:
        draft.unlink(missing_ok=True)


def notes_in(folder: str) -> tuple[str, ...]:
    """The notes in a folder that ckptstore keeps. Raises `OSError` where it cannot be read."""
    try:
        return tuple(sorted(f"{folder}/{name}" for name in os.listdir(folder) if _NOTE.match(name)))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return ()


def noted(note_path: str) -> Flag | None:
    """What a note says; None if it cannot be read."""
    try:
        told = json.loads(Path(note_path).read_text(encoding="ascii"))
        return Flag(str(told["path"]), str(told["key"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def flags_in(directory: str) -> list[Flag]:
    """The JSON files in a directory that have the key of a flag, whatever they are named."""
    try:
        with os.scandir(directory) as entries:
            paths = sorted(entry.path for entry in entries if entry.name.endswith(".json") and entry.is_file())
    except OSError:
        return []
    return [Flag(path) for path in paths[:_MOST_FILES] if KEY in (_read(path) or {})]


def up_since(flag: Flag) -> datetime | None:
    """When the file was written that asks for an exit; None if it does not ask, or is not there."""
    told = _read(flag.path)
    if told is None or told.get(flag.key) != _REQUESTED:
        return None
    try:
        return datetime.fromtimestamp(Path(flag.path).stat().st_mtime, timezone.utc)
    except OSError:
        return None


def _read(path: str) -> dict[str, object] | None:
    try:
        with Path(path).open("rb") as file:
            told = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):  # nested too deeply: it is no flag
        return None
    return told if isinstance(told, dict) else None
