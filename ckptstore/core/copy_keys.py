"""Which files are copied, and under which keys."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from ckptstore.core.ids import derived_id
from ckptstore.core.model import Content, FileState
from ckptstore.core.naming import SEVERAL

if TYPE_CHECKING:
    from ckptstore.core.model import Checkpoint

_LONGEST, _CUT = 200, 160  # the digest of a file stands before its name


def is_copied(file: Checkpoint) -> bool:
    """Whether copies are made of a file: a whole one, by itself, whose digest is recorded."""
    is_single = file.format not in SEVERAL and file.content is not Content.PART
    return file.state is FileState.COMPLETE and file.digest is not None and is_single


def key_of(file: Checkpoint, name: str = "", digest: str = "") -> str:
    """The key of a file's copy, below the URL of any tier; or of a file beside it, of this name and digest."""
    name, digest = name or file.path.rpartition("/")[2], digest or file.digest or ""
    return f"{folder_of(file.run)}{_plain(file.launch)}/{file.global_step}/{digest[:32]}-{_plain(name)}"


def folder_of(run: str) -> str:
    """What the keys of a run, by its first name, begin with, and no others."""
    return f"{_plain(run)}/"


def _plain(name: str) -> str:
    """A name in letters that no store has a meaning for: `~20` stands for a space.

    A file system takes no name of more than 255 bytes: a long one is cut, and an id of all of it is put behind `~-`.
    """
    dots = name if name.strip(".") else name.replace(".", "%2E")
    plain = quote(dots, safe="%" if dots != name else "").replace("~", "%7E").replace("%", "~")
    return plain if len(plain) <= _LONGEST else f"{plain[:_CUT]}~-{derived_id(name)}"
