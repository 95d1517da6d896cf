"""Compares one file on the disk with its record in the catalog."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckptstore.core.limits import HIGHEST, TOO_LATE
from ckptstore.core.model import FileState, Observed, Rule
from ckptstore.core.naming import ONE_FILE
from ckptstore.core.sighting import Sighting, compare
from ckptstore.disk import files, presence
from ckptstore.errors import UnreadableError, reason_of
from ckptstore.formats.inspect import crc_is_right, read_unless_encrypted
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptstore.core.model import Checkpoint
    from ckptstore.disk.files import FileFacts

_NOT_IT = "the catalog has it as gone, and the file there now is another one"
_UNPROVEN = "it was written again since it was recorded, and no digest is known: scan its directory again"


@dataclass(frozen=True)
class Whole:
    """The file is as recorded, as far as it was checked. `after` is its record with new findings; `size` in bytes."""

    file: Checkpoint
    after: Checkpoint
    size: int


@dataclass(frozen=True)
class Damaged:
    """The file differs from its record. `after` is its record with that finding; `size` is that of the file, in bytes.

    `rewritten_ns` is its modification time, in nanoseconds since 1970, if that differs from the recorded one.
    """

    file: Checkpoint
    after: Checkpoint
    rule: Rule
    detail: str
    size: int = 0
    rewritten_ns: int | None = None


@dataclass(frozen=True)
class Unseen:
    """Unknown: the file cannot be read from here."""

    file: Checkpoint
    reason: str


@dataclass(frozen=True)
class Inconclusive:
    """Another file is at the path, or the file is being written: the recorded one cannot be judged."""

    file: Checkpoint
    reason: str


Examined = Whole | Damaged | Unseen | Inconclusive


def examine(
    file: Checkpoint,
    *,
    read_bytes: bool,
    places: Mapping[str, set[str]] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Examined | None:
    """Compare a file with its record: size, header, and with `read_bytes` every byte, by the digest.

    Returns None if the record says that the file is gone, and it is.

    Without `read_bytes` the bytes are still read if the file was written again, its header is broken, or its record
    says that it is damaged or gone. `progress` gets the number of bytes read. An error of the disk counts as damage. A
    file that cannot be read for another reason is `Unseen`. `places` is the result of `presence.unidentified` for the
    run.
    """
    try:
        found = files.facts(file.path)
        if found is not None:
            return _compare(file, found, read_bytes=read_bytes, progress=progress)
    except FileNotFoundError:
        pass
    except OSError as error:
        reason = reason_of(error)
        if error.errno in files.BAD_BYTES:
            return _damaged(file, Rule.UNREADABLE, f"cannot be read: {reason}")
        return Unseen(file, reason)
    if file.state is FileState.MISSING:
        return None
    if why := presence.lost([file], places or {})[file.path]:
        return Unseen(file, f"its directory {why}")
    return Damaged(file, replace(file, state=FileState.MISSING, problem=None), Rule.MISSING_FILE, "is gone")


def _damaged(file: Checkpoint, rule: Rule, detail: str, found: FileFacts | None = None) -> Examined:
    if file.state is FileState.MISSING:
        return Inconclusive(file, _NOT_IT)
    if why := presence.absence_beside(file):
        return Unseen(file, f"its directory {why}")
    after = replace(file, state=FileState.DAMAGED, problem=rule)
    if found is None:
        return Damaged(file, after, rule, detail)
    is_rewritten = file.mtime_ns not in (None, found.mtime_ns)
    return Damaged(file, after, rule, detail, found.size, found.mtime_ns if is_rewritten else None)


def _compare(file: Checkpoint, found: FileFacts, *, read_bytes: bool, progress: Callable[[int], None]) -> Examined:
    if abs(found.mtime_ns) > HIGHEST:
        return Inconclusive(file, f"{TOO_LATE}: touch it")
    sighting = compare(file, Observed(found.size, mtime_ns=found.mtime_ns))
    if found.size != file.size:
        return _damaged(file, Rule.SIZE_MISMATCH, f"has {found.size} bytes, {file.size} were recorded", found)
    header = _header_fault(file)
    is_doubted = sighting is not Sighting.SAME or header is not None or file.state is not FileState.COMPLETE
    digest = files.digest(file.path, progress) if read_bytes or is_doubted else None
    sighting = compare(file, Observed(found.size, digest, mtime_ns=found.mtime_ns))
    fault = _fault(file, header, digest, sighting)
    if files.facts(file.path) != found:
        return Inconclusive(file, "it changed while it was looked at")
    if fault is not None:
        return _damaged(file, *fault, found)
    if sighting is Sighting.CHANGED:
        return Unseen(file, _UNPROVEN)
    after = replace(
        file,
        state=FileState.COMPLETE,
        problem=None,
        digest=file.digest or digest,
        mtime_ns=file.mtime_ns if digest is None else found.mtime_ns,
    )
    return Whole(file, after, found.size)


def _fault(
    file: Checkpoint, header: tuple[Rule, str] | None, digest: str | None, sighting: Sighting
) -> tuple[Rule, str] | None:
    """The fault of a file of the recorded size: by its digest, if one was taken, else by its header."""
    if sighting in (Sighting.DAMAGED, Sighting.ANOTHER):
        return header or (Rule.DIGEST_MISMATCH, "has other bytes than those recorded")
    if file.digest is not None and digest is not None:
        is_as_registered = header is not None and header[0] is Rule.UNREADABLE  # its format is unknown here
        return None if is_as_registered else header
    if header is None and digest is not None and file.format in ONE_FILE and _crc_is_wrong(file.path):
        return Rule.DIGEST_MISMATCH, "has other bytes than MindSpore wrote: the CRC32 in it is not theirs"
    return header


def _header_fault(file: Checkpoint) -> tuple[Rule, str] | None:
    """The fault that the header shows. None for an encrypted file, and for other formats."""
    if file.format not in ONE_FILE:
        return None
    path = Path(file.path)
    try:
        header = read_unless_encrypted(path)
    except UnreadableError as error:
        return Rule.UNREADABLE, error.message.removeprefix(f"{path} ")
    if header is None:
        return None
    found, recorded = header.optimizer_step, file.optimizer_step
    if "global_step" in header.info or None in (found, recorded) or found == recorded:  # a user may append that name
        return None
    return Rule.DIGEST_MISMATCH, f"holds the state after {found} updates, {recorded} were recorded"


def _crc_is_wrong(path: str) -> bool:
    try:
        return crc_is_right(Path(path)) is False
    except UnreadableError:
        return False
