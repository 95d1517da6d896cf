"""The keys under which files are copied."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from ckptstore.core.ids import derived_id

if TYPE_CHECKING:
    from ckptstore.core.model import Checkpoint

_LONGEST, _CUT = 200, 160  # the digest of a file stands before its name
# A prefix of a ModelCheckpoint may look like a digest, but an epoch and a step follow it then.
_COPY = re.compile(r"(?P<folder>/.+)/[0-9]+/[0-9a-f]{32}-(?![0-9]+_[0-9]+\.)[^/]+", re.DOTALL)


def key_of(file: Checkpoint, name: str = "", digest: str = "") -> str:
    """The key of a file's copy below the URL of any tier; or of a file beside it, by `name` and `digest`."""
    name, digest = name or file.path.rpartition("/")[2], digest or file.digest or ""
    return f"{folder_of(file.run)}{_plain(file.launch)}/{file.global_step}/{digest[:32]}-{_plain(name)}"


def folder_of(run: str) -> str:
    """The beginning of all keys of a run, by its first name. No key of another run begins so."""
    return f"{_plain(run)}/"


def folder_of_copy(path: str) -> str:
    """The folder RUN/LAUNCH in which a path is, if it looks like the path of a copy in a tier; else empty."""
    found = _COPY.fullmatch(path)
    return found["folder"] if found else ""


def _plain(name: str) -> str:
    """A name in characters that are not special in any store: `~20` stands for a space.

    File systems allow 255 bytes for a name: a long name is cut, and `~-` and an id of the whole name are appended.
    """
    dots = name if name.strip(".") else name.replace(".", "%2E")
    plain = quote(dots, safe="%" if dots != name else "").replace("~", "%7E").replace("%", "~")
    return plain if len(plain) <= _LONGEST else f"{plain[:_CUT]}~-{derived_id(name)}"
