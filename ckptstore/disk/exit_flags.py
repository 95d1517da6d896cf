"""The request to a launch to save and leave: a file beside the checkpoints of each rank, as MindSpore reads it.

It is for one launch, whose key is in the name of the file. It does not stop a later launch.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from ckptstore.core import bounded_json
from ckptstore.disk.files import opened_directory, read_small, readable
from ckptstore.disk.name_claims import FOLDER
from ckptstore.outside import Path, os, token_hex

if TYPE_CHECKING:
    from ckptstore.core.model import LaunchKey

KEY = "GracefulExit"
"""The key that MindSpore's OnRequestExit looks for (`train/callback/_on_request_exit.py`)."""

_PREFIX = "exit-"
_LONGEST = 1 << 16  # bytes


def flag_path(directory: str, key: LaunchKey) -> str:
    """The path of the request to a launch in a directory that it saves to."""
    return f"{directory}/{FOLDER}/{_PREFIX}{key}.json"


def content(run: str, reason: str) -> str:
    """The text of a request to a launch of a run."""
    return json.dumps({KEY: 1, "run": run, "reason": reason})


def put(directory: str, key: LaunchKey, run: str, reason: str) -> None:
    """Write the request to a launch of a run. Can be repeated. Follows no link. Raises `OSError`."""
    told = content(run, reason).encode()
    name = Path(flag_path(directory, key)).name
    draft = f".{name}.{token_hex(4)}"  # hooks of several pods have one process id
    with opened_directory(f"{directory}/{FOLDER}") as folder:
        try:
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644, dir_fd=folder)
            try:
                os.fchmod(file, 0o644)  # MindSpore reads it as the user who trains
                os.write(file, told)
            finally:
                os.close(file)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)


def take_back(directory: str, key: LaunchKey) -> None:
    """Remove the request to a launch, if there is one. Raises `OSError`."""
    with opened_directory(f"{directory}/{FOLDER}") as folder, suppress(FileNotFoundError):
        os.unlink(Path(flag_path(directory, key)).name, dir_fd=folder)


def clear_others(directory: str, key: LaunchKey, run: str) -> None:
    """Remove the requests to earlier launches of the run: they have ended. Those that cannot be removed stay."""
    with suppress(OSError), opened_directory(f"{directory}/{FOLDER}") as folder:
        own = Path(flag_path(directory, key)).name
        with readable(folder) as listed:
            names = os.listdir(listed)
        for name in names:
            if name.startswith(_PREFIX) and name != own and _run_of(name, folder) == run:
                os.unlink(name, dir_fd=folder)


def _run_of(name: str, folder: int) -> object:
    try:
        told = bounded_json.parse(read_small(name, _LONGEST, folder) or b"")
    except (OSError, ValueError):
        return None
    return told.get("run") if isinstance(told, dict) else None
