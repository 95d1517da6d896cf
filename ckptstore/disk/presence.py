"""Whether a recorded directory of a run is present, and not an empty mount point or another disk in its place.

- A directory that a run saves to has an identity: the name of an empty file in its `.ckptstore`. It moves with the
  directory, and a copy has it too. Files and announcements are recorded with it.
- The directory of a file is present if it can be opened through no link, and has the identity of the record.
- A record may have no identity (the directory is read-only, or a scan found the file below its root). The directory
  is then present if another file of it is there whose record has no identity.
- A file is gone if its directory is present, and the opened directory lacks it.
- A scan of a directory that is not empty states that files missing in it are gone. It states nothing about a directory
  below it that is missing, or that is another one by now (`scan.tree.changed`).
- Nothing is written to a directory that is not present. A directory gets an identity if a launch announces that it
  saves there, or if a file that is there is recorded. A new identity means another directory at the same path.
"""

from __future__ import annotations

import errno
import re
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.groups import grouped
from ckptstore.core.naming import INDEX, above_save
from ckptstore.disk.files import opened_directory, readable, sync
from ckptstore.disk.name_claims import FOLDER, host_name
from ckptstore.disk.several import status_in
from ckptstore.errors import reason_of
from ckptstore.outside import Path, os, token_hex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ckptstore.core.model import Announced, Checkpoint, Source

_IDENTITY = re.compile(r"identity-([0-9a-f]{16})")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

_NOT_THERE = "is not there: perhaps it is not mounted"
EMPTY = f"is empty: perhaps it is not mounted; if all its files are gone for good, make {FOLDER} in it, and scan it"
NO_FOLDER = f"has no {FOLDER} any more: perhaps it is not mounted"
_ANOTHER = "is not the directory that was recorded: perhaps its disk is not mounted"
_UNPROVEN = "has none of its recorded files any more: perhaps it is not mounted; if they are gone for good: scan it"
_LINK = "is a link: no link is followed"
_CAME_BACK = "was unmounted while gc looked at it"


class Home(NamedTuple):
    """The records of a directory: its identities, and files of it (paths below it) whose record has none."""

    identities: set[str]
    places: set[str]


@contextmanager
def records_in(opened: int) -> Iterator[int]:
    """The `.ckptstore` of an opened directory. Raises `OSError`, for a link too: its files are of another directory."""
    try:
        folder = os.open(FOLDER, _FOLDER, dir_fd=opened)
    except NotADirectoryError:
        raise NotADirectoryError(errno.ENOTDIR, f"{FOLDER} is a link") from None
    try:
        yield folder
    finally:
        os.close(folder)


def directory_of(path: str) -> str:
    """The directory whose presence counts for a file.

    For a TTP save or an iteration, it is the one above the directory of the save, which comes and goes with its files.
    """
    return above_save(path) or path.rpartition("/")[0] or "/"


def below(directory: str, path: str) -> str:
    """The path of a file below a directory."""
    return path[len(directory.rstrip("/")) + 1 :]


def home_of(file: Checkpoint) -> Home:
    """The facts about a file's directory in the record of the file."""
    if file.directory_id:
        return Home({file.directory_id}, set())
    return Home(set(), {below(directory_of(file.path), file.path)})


def absence(directory: str, home: Home) -> str:
    """Why a directory is not present; empty if it is."""
    try:
        with _opened(directory, home):
            return ""
    except OSError as error:
        return _why(error)


def absence_beside(file: Checkpoint) -> str:
    """Why the file at the path of a record is not in the directory that was recorded; empty if it is."""
    return absence(directory_of(file.path), home_of(file))


def enter(directory: str, home: Home) -> tuple[int, str]:
    """Open a present directory to write in it. Return it with its identity, which is made if it has none.

    Raises `OSError` with the reason if it is not present.
    """
    with _opened(directory, home) as (opened, known):
        identity = known or next(iter(_identities(opened)), "")
        if not identity:
            identity = _make_identity(opened, directory)
        return os.dup(opened), identity


def enter_announced(directory: str) -> int:
    """Open a directory that is announced: any directory at the path counts."""
    return enter(directory, Home(set(), {"."}))[0]


def identify(directory: str, home: Home) -> str:
    """The identity of a directory in which a recorded file is, or that is announced; empty if it cannot be made."""
    try:
        opened, identity = enter(directory, home)
    except OSError:
        return ""
    os.close(opened)
    return identity


def identity_of(directory: str) -> str:
    """The identity of a directory; empty if it has none that can be seen. None is made."""
    with suppress(OSError), opened_directory(directory) as opened:
        return next(iter(_identities(opened)), "")
    return ""


def unidentified(recorded: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """The recorded paths without an identity of their directory, as paths below each directory."""
    places: dict[str, set[str]] = {}
    for path in (path for path, identity in recorded if not identity):
        places.setdefault(directory_of(path), set()).add(below(directory_of(path), path))
    return places


def lost(files: Iterable[Checkpoint], places: Mapping[str, set[str]]) -> dict[str, str]:
    """Why files that were not seen may be there all the same, by path; empty for each that is gone.

    Each directory is opened once, and all its files are looked up in the opened directory: between two looks at a path,
    a disk may be unmounted and mounted again. `places` are those of the `unidentified` files of the run.
    """
    of_home = grouped(((directory_of(file.path), file.directory_id), file.path) for file in files)
    found: dict[str, str] = {}
    for (directory, identity), paths in of_home.items():
        home = Home({identity}, set()) if identity else Home(set(), places.get(directory, set()))
        try:
            with _opened(directory, home) as (opened, _):
                for path in paths:
                    found[path] = _CAME_BACK if _is_at(below(directory, path), opened) else ""
        except OSError as error:
            found |= dict.fromkeys(paths, _why(error))
    return found


def gone(files: Iterable[Checkpoint], places: Mapping[str, set[str]]) -> list[Checkpoint]:
    """Of files that were not seen, those that are gone; `places` as `lost` takes them."""
    asked = list(files)
    reasons = lost(asked, places)
    return [file for file in asked if not reasons[file.path]]


def of_other_machines(sources: Iterable[Source | Announced]) -> set[tuple[str, str]]:
    """The directories, with their identities, in which other machines alone have saved, by their host names.

    This machine may have another directory at the same path: nodes may swap their ranks at a restart.
    """
    hosts = grouped(((source.directory, source.directory_id), source.host) for source in sources)
    return {home for home, some in hosts.items() if home[1] and not {None, host_name()}.intersection(some)}


def is_used_as(directory: str, identity: str) -> bool:
    """Whether a directory has that identity.

    A directory without any identity counts if it has a `.ckptstore`: a user may make one. Other files do not show that
    its disk is mounted: they may have been saved below the mount point.
    """
    with suppress(OSError), opened_directory(directory) as opened:
        known = _identities(opened)
        return identity in known if known else _is_at(FOLDER, opened)
    return False


@contextmanager
def _opened(directory: str, home: Home) -> Iterator[tuple[int, str]]:
    """Open a present directory; with its identity, if that is recorded. Raises `OSError` with the reason."""
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(opened_directory(directory))
        except FileNotFoundError:
            raise OSError(errno.ENODEV, _NOT_THERE) from None
        except NotADirectoryError:
            raise OSError(errno.ENODEV, _LINK) from None
        known = _known(opened, home.identities)
        if not known and not any(_is_at(place, opened) for place in home.places):
            raise OSError(errno.ENODEV, _why_absent(opened, home))
        yield opened, known


def _why(error: OSError) -> str:
    """The reason why a directory is not present, after its path."""
    why = reason_of(error)
    return why if error.errno == errno.ENODEV else f"cannot be looked at: {why}"


def _why_absent(opened: int, home: Home) -> str:
    with readable(opened) as folder:
        names = os.listdir(folder)
    if not names:
        return EMPTY
    if not home.identities:
        return _UNPROVEN
    return _ANOTHER if FOLDER in names else NO_FOLDER


def _is_at(place: str, opened: int) -> bool:
    """Whether a checkpoint is there: of a prefix of TensorFlow, the index counts."""
    return status_in(opened, place) is not None or status_in(opened, f"{place}{INDEX}") is not None


def _known(opened: int, identities: set[str]) -> str:
    """Which of these identities an opened directory has; empty: none. Not listed: there may be very many journals."""
    asked = [each for each in sorted(identities) if _IDENTITY.fullmatch(f"identity-{each}")]
    if not asked:
        return ""
    with suppress(FileNotFoundError, NotADirectoryError), records_in(opened) as folder:
        return next((each for each in asked if _is_at(_identity_name(each), folder)), "")
    return ""


def identity_path(directory: str, identity: str) -> str:
    """The empty file that gives a directory an identity."""
    return f"{directory}/{FOLDER}/{_identity_name(identity)}"


def _identity_name(identity: str) -> str:
    return f"identity-{identity}"


def _identities(opened: int) -> list[str]:
    """The identities of an opened directory: two, where two processes gave it one at the same moment."""
    with suppress(FileNotFoundError, NotADirectoryError), records_in(opened) as folder:
        return sorted(found[1] for name in os.listdir(folder) if (found := _IDENTITY.fullmatch(name)))
    return []


def sync_above(directory: str) -> None:
    """Sync the directories above, on the same file system, to the disk: their maker may not have done that.

    Without that, a power failure may take a directory with the journal in it (fsync(2)). Raises `OSError`.
    """
    device = os.stat(directory).st_dev
    for above in Path(directory).parents:
        if os.stat(above).st_dev != device:
            return
        try:
            sync(str(above))
        except PermissionError:  # a server may refuse once, as for a ticket that has just ended
            with suppress(PermissionError):  # one that may not be read was not made for this directory
                sync(str(above))


def _make_identity(opened: int, directory: str) -> str:
    """Give an opened directory an identity, and sync it to the disk.

    The identity comes last: where there is one, the directories above have been synced.
    """
    with suppress(FileExistsError):
        os.mkdir(FOLDER, dir_fd=opened)  # never the directory: if it was removed, that was on purpose
    with readable(opened) as above:
        os.fsync(above)
    sync_above(directory)
    identity = token_hex(8)
    with records_in(opened) as folder:
        os.close(os.open(_identity_name(identity), _NEW, 0o644, dir_fd=folder))
        os.fsync(folder)
    return identity
