"""A request for a graceful exit that was still set when training began: it ended the launch before."""

from __future__ import annotations

import json
import logging

from ckptstore.disk.files import replace_text
from ckptstore.outside import Path, os

log = logging.getLogger("ckptstore")


class StaleFlag:
    """A JSON file that asked for an exit before training began.

    Every rank ignores it until the file is written again. Rank 0 puts it back to 0.
    """

    def __init__(self, path: str, key: str) -> None:
        self.path = path
        self._key = key
        self._identity = _identity(path)

    def put_back(self) -> None:
        """Set the flag to 0, or log why that cannot be done."""
        asks = f"{self.path} still asks for an exit ({self._key}: 1)"
        try:
            _put_back(Path(self.path), self._key)
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s and cannot be set to 0 (%s): it is ignored until the file is written again", asks, error)
        else:
            log.warning("%s: put back to 0", asks)

    def was_written(self) -> bool:
        """Whether it is another file than the one that was noticed, or has other contents."""
        return _identity(self.path) != self._identity


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _put_back(path: Path, key: str) -> None:
    target = path.resolve()
    content = json.loads(target.read_text(encoding="utf-8"))
    replace_text(target, json.dumps({**content, key: 0}))
