"""Which strategy and group info files are of this launch: MindSpore writes them when it compiles (domain §2, §8)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ckptstore.mindspore.communication import layout_files
from ckptstore.storage.files import facts

if TYPE_CHECKING:
    from ckptstore.storage.files import FileFacts


class LayoutFiles:
    """The files that MindSpore was told to write, with what was there before.

    One that is as it was when this rank joined may be of an earlier launch: clocks of hosts differ, so only a change
    proves that it was written since.
    """

    def __init__(self) -> None:
        self._before: dict[str, FileFacts | None] = {}

    def note(self) -> None:
        """Remember what is there, of the files that are named now and were not before."""
        for path in layout_files():
            if path not in self._before:
                with suppress(OSError):  # what cannot be looked at proves nothing later
                    self._before[path] = facts(path)

    def written(self) -> list[str]:
        """The files that were written since they were noted."""
        found = []
        for path, before in self._before.items():
            with suppress(OSError):
                now = facts(path)
                if now is not None and now != before:
                    found.append(path)
        return found
