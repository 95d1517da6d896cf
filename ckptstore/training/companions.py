"""Companions: small files beside checkpoints, with state that MindSpore's files lack. Each names its checkpoint.

Losing a companion loses no weights. One that is cut, or of another checkpoint, is never used.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

from ckptstore.core.bounded_json import parse
from ckptstore.core.naming import companion_of
from ckptstore.disk.files import facts, make_durable, read_small, replace_text
from ckptstore.errors import reason_of
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptstore.core.model import Checkpoint

    Content = dict[str, Any]

log = logging.getLogger("ckptstore")

MOST_BYTES = (64 << 20) + 1000
"""The most bytes of a companion."""


class Found(NamedTuple):
    """The content of a companion, as JSON; empty if there is none to use. `problem` is why an existing one is not."""

    content: str = ""
    problem: str = ""


class Companions:
    """Writes the companions of a rank's files, each once its file is recorded. For one thread.

    `recorded` returns the record of the file at a path; None if there is none, or if the file is gone.
    """

    def __init__(self, recorded: Callable[[str], Checkpoint | None], *, durable: bool) -> None:
        self._recorded = recorded
        self._durable = durable
        self._waiting: dict[str, tuple[int, Callable[[], Content]]] = {}

    def keep(self, path: str, step: int, content: Callable[[], Content]) -> None:
        """Write the result of `content` beside the file of a step once that is recorded. Replaces an older one."""
        self._waiting[path] = step, content
        file = self._recorded(path)
        if file is not None and (file.size, file.mtime_ns) == facts(path):
            self.write(file)  # else it is written now, perhaps again: MindSpore went back after a fault

    def write(self, file: Checkpoint) -> None:
        """Write the content that waits for a whole file, which is recorded. Content of earlier steps is dropped."""
        self._waiting = {path: each for path, each in self._waiting.items() if each[0] >= file.global_step}
        step, content = self._waiting.get(file.path, (None, dict))
        if step == file.global_step:
            del self._waiting[file.path]
            write(file, content(), durable=self._durable)


def write(file: Checkpoint, content: Content, *, durable: bool) -> None:
    """Write the companion of a file. One that is too large is only logged. Raises `OSError`."""
    content = {"of": _identity(file), **content}
    path = Path(companion_of(file.path))
    whole = json.dumps({"checksum": _checksum(content), "content": content})
    if len(whole) > MOST_BYTES:
        log.warning("%s is not written: more than 64 MB are kept beside the parameters", path)
        return
    replace_text(path, whole)
    if durable:
        make_durable(str(path))


def read(file: Checkpoint) -> Found:
    """The content of the companion of a file. The file itself need not exist any more."""
    path = companion_of(file.path)
    try:
        raw = read_small(path, MOST_BYTES)
    except FileNotFoundError:
        return Found()
    except OSError as error:
        return Found(problem=f"{path} cannot be read ({reason_of(error)})")
    if raw is None:
        return Found(problem=f"{path} is no companion of a checkpoint")
    try:
        told = parse(raw)
        content = told["content"]
        is_whole = told["checksum"] == _checksum(content)
        is_of_file = content["of"] == _identity(file)
    except (ValueError, TypeError, KeyError):
        return Found(problem=f"{path} is cut or damaged")
    if not is_whole:
        return Found(problem=f"{path} is cut or damaged")
    return Found(json.dumps(content)) if is_of_file else Found(problem=f"{path} is of another checkpoint")


def _identity(file: Checkpoint) -> Content:
    return {
        "run": file.run,
        "launch": file.launch,
        "rank": file.rank,
        "global_step": file.global_step,
        "size": file.size,
        "digest": file.digest,
    }


def _checksum(content: Content) -> str:
    return blake3(json.dumps(content, sort_keys=True).encode()).hexdigest()
