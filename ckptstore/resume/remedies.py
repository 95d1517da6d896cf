"""What would make a rejected state restorable: a line for the operator, for each part that is missing."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from ckptstore.core.model import FileState, Reason, Rule
from ckptstore.core.replicas import show
from ckptstore.resume.conversion import as_many_ranks, how_to_convert

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptstore.core.model import Checkpoint, State

_PATHS_SHOWN = 4
_LOST = (
    Rule.MISSING_FILE,
    Rule.SIZE_MISMATCH,
    Rule.DIGEST_MISMATCH,
    Rule.UNREADABLE,  # of a file that was found to be damaged
    Rule.QUARANTINED,
)


def of_state(reason: Reason, state: State) -> str:
    """What to do about a state that is rejected as a whole; empty: nothing."""
    if reason.rule is Rule.QUARANTINED:
        return "take it all the same with --take-quarantined, in a script with resume(take_quarantined=True)"
    if reason.rule is Rule.NOT_LINEAGE:
        launch = state.launch.id
        return f"choose it with --lineage {launch}, in a script with resume(lineage={launch!r})"
    return ""


def of_other_world(state: State, *, is_sound: bool) -> str:
    """What to do about a state that only as many ranks as saved it can load; `is_sound`: every file of it is whole."""
    return how_to_convert(state) if is_sound else as_many_ranks(state)


def of_ranks(
    missing: Sequence[int],
    group: Sequence[int],
    files: Iterable[Checkpoint],
    faults: Mapping[str, Reason],
    *,
    in_shares: bool = False,
) -> str:
    """What would give these ranks a file: those of their replica `group`, whose `files` have `faults`, or their own."""
    broken = {
        file.path: (file, faults[file.id].rule)
        for file in files
        if file.id in faults and (not in_shares or file.rank in missing)
    }
    unseen = [path for path, (file, rule) in broken.items() if _is_unseen(file, rule)]
    trashed = [path for path, (file, rule) in broken.items() if _is_in_trash(file, rule)]
    lost = [path for path, (_, rule) in broken.items() if rule in _LOST and path not in {*unseen, *trashed}]
    being_written = [path for path, (_, rule) in broken.items() if rule is Rule.IN_PROGRESS]
    who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {show(missing)}"
    ways = []
    if unseen:
        ways.append(f"make {_of(unseen, in_shares=in_shares)} readable: check permissions and the disk")
    if trashed:
        run = quote(broken[trashed[0]][0].run)
        ways.append(f"ckptstore undo {run} brings back {_paths(trashed)}, while it is in the trash")
    if lost:
        ways.append(f"bring back, as it was recorded, {_of(lost, in_shares=in_shares)}")
    if ways:
        return f"for {who}: {(', and ' if in_shares else ', or ').join(ways)}"
    if being_written:
        return f"for {who}: wait until {_paths(being_written)} is written, if its process is alive"
    replicas = f", a replica among {show(group)}," if len(group) > 1 and not in_shares else ""
    return f"for {who}: no file{replicas} was recorded; if one is on disk, ckptstore scan takes it in"


def _is_unseen(file: Checkpoint, rule: Rule) -> bool:
    """Whether the file may be there as it was recorded, and only cannot be looked at."""
    return rule is Rule.UNREADABLE and file.state is not FileState.DAMAGED


def _is_in_trash(file: Checkpoint, rule: Rule) -> bool:
    return rule is Rule.MISSING_FILE and file.state is FileState.TRASHED


def _of(paths: Sequence[str], *, in_shares: bool) -> str:
    """The paths of which all shares are needed, or one replica's file."""
    any_of = "" if len(paths) == 1 else "all of " if in_shares else "any one of "
    return f"{any_of}{_paths(paths)}"


def _paths(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_PATHS_SHOWN])
    return shown if len(paths) <= _PATHS_SHOWN else f"{shown} … ({len(paths)} in all)"
