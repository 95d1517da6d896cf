"""Has a checkpoint written on a path aside: it gets its name once it is whole and on the disk, never over another."""

from __future__ import annotations

import re
from hashlib import blake2b
from itertools import chain, count
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from ckptstore.core.naming import INDEX, parse_tensorflow
from ckptstore.disk.files import make_durable, names_in, sync
from ckptstore.disk.name_claims import FOLDER, NO_LINKS
from ckptstore.disk.several import members_at, status_of
from ckptstore.errors import UsageError
from ckptstore.outside import Path, os, shutil

if TYPE_CHECKING:
    from collections.abc import Callable

_SAVING = "saving"
_NAME = re.compile(r"(?P<stem>.+?)(?P<suffixes>(?:\.[A-Za-z]\w*)*)", re.DOTALL)


class Aside:
    """Where a rank of a launch writes what it saves to a directory: a folder of its own beside the journals."""

    def __init__(self, directory: str, run: str, launch: str, rank: int) -> None:
        self.directory = directory
        self._above = Path(directory, FOLDER, _SAVING)
        self._whose = f"rank_{rank}-{_short(run)}-"
        self._folder = self._above / f"{self._whose}{_short(launch)}"

    def clear_others(self) -> None:
        """Delete what earlier launches of the rank left: they have ended, else this one would not have begun."""
        for name in names_in(str(self._above)):
            if name.startswith(self._whose) and name != self._folder.name:
                shutil.rmtree(self._above / name, ignore_errors=True)

    def save(self, name: str, write: Callable[[str], object], before: Callable[[str], object] = lambda _: None) -> str:
        """Call `write` with a path aside, and move what it leaves there into the directory. Returns its new path.

        It may be a file, a directory, or a prefix of TensorFlow. If the name is taken, `_1`, `_2` … is put before its
        suffixes. `before` is called with the new path before the move. Raises what they raise, `UsageError` if `write`
        left nothing there, and `OSError`.
        """
        self.clear()
        self._folder.mkdir(parents=True)
        try:
            path = str(self._folder / name)
            write(path)
            there = names_in(self.directory)
            taken = there | {parsed.prefix for each in there if (parsed := parse_tensorflow(each))}
            final = f"{self.directory}/{next(free for free in _names(name) if free not in taken)}"
            before(final)
            _give(path, final)
        finally:
            self.clear()
        return final

    def clear(self) -> None:
        """Delete what is left of a save that never ended."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _short(name: str) -> str:
    return blake2b(name.encode(), digest_size=8).hexdigest()


def _names(name: str) -> chain[str]:
    """A name, and what it becomes where that is taken."""
    match = _NAME.fullmatch(name)
    stem, suffixes = match.group("stem", "suffixes") if match else (name, "")
    return chain([name], (f"{stem}_{repeat}{suffixes}" for repeat in count(1)))


def _give(path: str, final: str) -> None:
    """Give a checkpoint that is whole its name: a prefix gets its index last, and is none without it."""
    status = status_of(path)
    if status is not None and S_ISREG(status.st_mode):
        parts = [(path, final)]
    else:
        members = members_at(path, status)
        if not members:
            left = ", ".join(sorted(names_in(str(Path(path).parent)))) or "nothing"
            raise UsageError(f"what was given to save wrote nothing at {path}, but {left}", "write to that very path")
        if status is not None and S_ISDIR(status.st_mode):
            for each in members:
                make_durable(each.path)
            os.rename(path, final)
            sync(str(Path(final).parent))
            return
        parts = [(each.path, f"{final}{each.path.removeprefix(path)}") for each in members]
        parts.sort(key=lambda part: part[0].endswith(INDEX))
    for source, target in parts:
        make_durable(source)
        try:
            os.link(source, target, follow_symlinks=False)  # never over another file
        except OSError as error:
            if error.errno not in NO_LINKS or Path(target).exists():
                raise
            os.rename(source, target)
    sync(str(Path(final).parent))
