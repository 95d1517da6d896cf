"""Records which rank of a launch writes under a name in a directory: another rank that claims the name learns of it."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict, dataclass

from ckptstore.core import bounded_json
from ckptstore.core.ids import derived_id
from ckptstore.outside import Path, open_file, os, socket, token_hex

FOLDER = ".ckptstore"
"""The directory of ckptstore beside checkpoints."""

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""The errors of a file system without hard links."""

_LONGEST = 1 << 16  # bytes


@dataclass(frozen=True)
class Writer:
    """A rank of a launch, and the host that it runs on."""

    launch: str
    rank: int
    host: str


def host_name() -> str:
    """The name of the host that this process runs on."""
    return socket.gethostname()


def claim(directory: str, name: str, *, launch: str, rank: int) -> Writer | None:
    """Claim `name` in `directory` for this rank; return the rank that claimed it before in this launch, or None.

    The claim is a file that is created in one step. So it works on shared file systems, and two disks with the same
    path have separate claims. Claims of other launches in the directory are over, and are removed. Raises `OSError`,
    also if the directory has no `.ckptstore`.
    """
    folder = Path(directory) / FOLDER
    own = Writer(launch, rank, host_name())
    path = _path(folder, name, launch)
    draft = path.with_name(f"{path.name}.{token_hex(8)}")
    try:
        _write(draft, own)
        try:
            os.link(draft, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            _write(path, own)
    except FileExistsError:
        other = _read(path)
        return None if other in (None, own) else other
    finally:
        draft.unlink(missing_ok=True)
    for each in os.listdir(folder):
        if each.startswith("writer-") and each.endswith(".json") and not each.startswith(_prefix(launch)):
            (folder / each).unlink(missing_ok=True)
    return None


def release(directory: str, name: str, *, launch: str, rank: int) -> None:
    """Take this rank's claim back, at the end of training. Raises `OSError`."""
    path = _path(Path(directory) / FOLDER, name, launch)
    if _read(path) == Writer(launch, rank, host_name()):
        path.unlink(missing_ok=True)


def _write(path: Path, writer: Writer) -> None:
    """Make a file that names a rank, through no link. Raises `FileExistsError` if the path exists."""
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(asdict(writer)))


def _path(folder: Path, name: str, launch: str) -> Path:
    return folder / f"{_prefix(launch)}{derived_id(name, size=12)}.json"


def _prefix(launch: str) -> str:
    return f"writer-{derived_id(launch, size=6)}-"


def _read(path: Path) -> Writer | None:
    more = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with open_file(path, "rb", opener=lambda name, flags: os.open(name, flags | more)) as file:
            return Writer(**bounded_json.parse(file.read(_LONGEST)))
    except (FileNotFoundError, ValueError, TypeError):
        return None
