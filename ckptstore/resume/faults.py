"""What keeps one file from being loaded, and a group of replicas from standing in for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.hints import Command
from ckptstore.core.model import Content, FileState, Kind, Observed, Reason, Rule
from ckptstore.core.replicas import show
from ckptstore.core.sighting import Sighting, compare

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from ckptstore.core.model import Checkpoint

_RANKS_SHOWN = 8
_APPENDED_BYTES = 1024  # more than OnRequestExit appends: five numbers with their names


def fault(
    file: Checkpoint, seen: Observed | None, failed: Mapping[str, str], copied: Container[str] = ()
) -> Reason | None:
    """What keeps one file from being loaded; None if it is there as it was recorded, or is one of those `copied`.

    `copied` has the ids of files that a tier has, with the recorded digest.
    """
    if failed and file.id in failed:  # an id is derived, which costs: only where something failed
        return Reason(Rule.QUARANTINED, file.rank, f"{file.path} could not be loaded: {failed[file.id]}")
    seen = seen or _NOT_THERE
    if file.content is Content.WEIGHTS:
        rule, what = Rule.WEIGHTS_ONLY, "holds weights without the optimizer's state"
    elif copied and file.id in copied:
        return None
    elif file.state is FileState.DAMAGED:
        rule = file.problem or Rule.QUARANTINED
        what = f"is damaged: bring back the original from a backup, then run: {Command('verify', file.run)}"
    elif file.state is FileState.TRASHED:
        undo = Command("undo", file.run)
        rule, what = Rule.MISSING_FILE, f"was removed by gc: {undo} brings it back while it is in the trash"
    elif file.size is None and not seen.unreadable:
        rule, what = Rule.IN_PROGRESS, "was never finished" if seen.size is None else "is being written"
    else:
        sighting = compare(file, seen)
        if sighting is Sighting.SAME:
            return None
        rule, what = _unlike(file, seen, sighting)
    if copied and rule is Rule.MISSING_FILE:
        what = f"{what}, and no tier has it"
    return Reason(rule, file.rank, f"{file.path} {what}")


def _unlike(file: Checkpoint, seen: Observed, sighting: Sighting) -> tuple[Rule, str]:
    """The rule that a file breaks which is not as it was recorded, and how."""
    if sighting is Sighting.CANNOT_LOOK:
        return Rule.UNREADABLE, f"cannot be looked at: {seen.unreadable}"
    if sighting is Sighting.GONE:
        return Rule.MISSING_FILE, "is gone" if seen.has_directory else _moved(file.run)
    if seen.size != file.size:
        return Rule.SIZE_MISMATCH, f"has {seen.size} bytes, {file.size} were recorded"
    if sighting is Sighting.CHANGED:
        return Rule.DIGEST_MISMATCH, "was written again since it was recorded: scan its directory again"
    return Rule.DIGEST_MISMATCH, "has other bytes than those recorded"


_NOT_THERE = Observed(None)


def _moved(run: str) -> str:
    scan = Command("scan", "NEW", "--run", run)
    return f"is gone, and its directory is missing or empty: is it mounted? If it was moved to NEW: {scan}"


def unequal_sizes(files: Iterable[Checkpoint]) -> str:
    """Replicas hold the same parameters: where their files of one kind and format differ in size, none stands in.

    Sizes are compared as they were recorded, those of lost files too: losing a file must never prove more. Only a file
    that was cut before it was recorded tells no size, as one that was never recorded.
    A rank may have several files, of several ModelCheckpoints. Empty if the ranks agree, else who has how many bytes.
    """
    sizes: dict[tuple[Kind, str], dict[int, set[int]]] = {}
    for file in files:
        if file.size is not None and file.content is Content.FULL and not _was_cut_before(file):
            sizes.setdefault((file.kind, file.format), {}).setdefault(file.rank, set()).add(file.size)
    for (kind, _), by_rank in sizes.items():
        if not _alike(kind, list(by_rank.values())):
            shown = [f"rank {rank} has {show(sorted(each))} bytes" for rank, each in by_rank.items()]
            return ", ".join(shown[:_RANKS_SHOWN])
    return ""


def _was_cut_before(file: Checkpoint) -> bool:
    """Whether a file was cut before its rank recorded it: of any other that is registered the digest is known."""
    is_unreadable = file.state is FileState.DAMAGED and file.problem is Rule.UNREADABLE
    return is_unreadable and file.digest is None and file.grade is None


def _alike(kind: Kind, sizes: Sequence[set[int]]) -> bool:
    """Whether ranks whose files have these sizes may hold the same parameters.

    A rank that was asked to exit by a signal saves again without the appended entries, which its replicas have
    (mindspore.md §3): those few bytes do not make graceful exits differ.
    """
    if all(each == sizes[0] for each in sizes):
        return True
    every = set().union(*sizes)
    return kind is Kind.GRACEFUL_EXIT and max(every) - min(every) <= _APPENDED_BYTES
