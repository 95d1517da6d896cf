"""What would make a rejected state restorable: a line for the operator, for each part that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.conversion import as_many_ranks, how_to_convert
from ckptstore.core.model import Reason, Rule
from ckptstore.core.replicas import show

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptstore.core.model import Checkpoint, State

_PATHS_SHOWN = 4
_LOST = (
    Rule.MISSING_FILE,
    Rule.SIZE_MISMATCH,
    Rule.DIGEST_MISMATCH,
    Rule.UNREADABLE,
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
        file.path: faults[file.id].rule
        for file in files
        if file.id in faults and (not in_shares or file.rank in missing)
    }
    lost = [path for path, rule in broken.items() if rule in _LOST]
    being_written = [path for path, rule in broken.items() if rule is Rule.IN_PROGRESS]
    who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {show(missing)}"
    if lost:
        any_of = "" if len(lost) == 1 else "all of " if in_shares else "any one of "
        return f"for {who}: bring back, as it was recorded, {any_of}{_paths(lost)}"
    if being_written:
        return f"for {who}: wait until {_paths(being_written)} is written, if its process is alive"
    replicas = f", a replica among {show(group)}," if len(group) > 1 and not in_shares else ""
    return f"for {who}: no file{replicas} was recorded; if one is on disk, ckptstore scan takes it in"


def _paths(paths: Sequence[str]) -> str:
    shown = ", ".join(paths[:_PATHS_SHOWN])
    return shown if len(paths) <= _PATHS_SHOWN else f"{shown} … ({len(paths)} in all)"
