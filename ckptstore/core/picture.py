"""Draws which ranks have a file to load: a row for each state, a column for each rank or for several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.core.model import Content, FileState, RestorePlan, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.core.model import Assignment, Rejection

WIDTH = 64  # columns at most

_OWN, _REPLICA, _FETCHED, _NOT_RECORDED = "#", "+", "t", "?"
_SIGNS = {
    Rule.IN_PROGRESS: "~",
    Rule.WEIGHTS_ONLY: "w",
    Rule.QUARANTINED: "q",
    Rule.MISSING_RANK: _NOT_RECORDED,
    Rule.MISSING_FILE: "-",
    Rule.SIZE_MISMATCH: "x",
    Rule.REPLICA_SIZE_MISMATCH: "x",
    Rule.DIGEST_MISMATCH: "x",
    Rule.UNREADABLE: "x",
}
_OF_CONTENTS = {Content.WEIGHTS: "w"}
_OF_STATES = {FileState.IN_PROGRESS: "~", FileState.DAMAGED: "x"}
MEANINGS = {
    _OWN: "its own file",
    _REPLICA: "a replica's",
    _FETCHED: "from a tier",
    "~": "being written",
    "w": "weights only",
    "q": "quarantined",
    _NOT_RECORDED: "none recorded",
    "-": "gone",
    "x": "damaged",
}  # best first: a column for several ranks shows the worst sign


def picture(states: Sequence[Rejection | RestorePlan]) -> list[str]:
    """A legend and a row for each state, in their order; states rejected as a whole are left out."""
    rows = [(state, signs) for state in states if (signs := _signs(state))]
    if not rows:
        return []
    longest = max(len(signs) for _, signs in rows)
    ranks_a_column = -(-longest // WIDTH)
    used = {sign for _, signs in rows for sign in signs}
    legend = ", ".join(f"{sign} {meaning}" for sign, meaning in MEANINGS.items() if sign in used)
    of = f"each {ranks_a_column} of " if ranks_a_column > 1 else "each of "
    worst = ", that of the worst" if ranks_a_column > 1 else ""
    digits = max(len(str(state.global_step)) for state, _ in rows)
    lines = [f"one sign for {of}ranks 0 to {longest - 1}{worst}: {legend}"]
    for state, signs in rows:
        cells = _folded(signs, ranks_a_column)
        chosen = " chosen" if isinstance(state, RestorePlan) else ""
        lines.append(f"step {state.global_step:>{digits}}  {cells}{chosen}")
    return lines


def signs_of(state: Rejection | RestorePlan, width: int) -> str:
    """One sign for each rank, folded to at most `width`; empty for a state that was rejected as a whole."""
    return folded(_signs(state), width)


def signs_by_record(world_size: int, files: Iterable[tuple[int, FileState, Content]]) -> str:
    """One sign for each rank, that of its best file in the catalog; `files` has rank, state and content of each."""
    signs = [""] * world_size
    for rank, state, content in files:
        if rank < world_size:
            sign = _OF_CONTENTS.get(content, _OWN) if state is FileState.COMPLETE else _OF_STATES.get(state, "-")
            signs[rank] = min(signs[rank] or sign, sign, key=list(MEANINGS).index)
    return "".join(sign or _NOT_RECORDED for sign in signs)


def folded(signs: str, width: int) -> str:
    """The signs of all ranks, folded to at most `width`: a sign then is the worst of several ranks."""
    return _folded(signs, -(-len(signs) // width))


def _folded(signs: str, ranks: int) -> str:
    """One sign for each `ranks` ranks: the worst of them."""
    return "".join(_worst(signs[at : at + ranks]) for at in range(0, len(signs), ranks)) if signs else ""


def _signs(state: Rejection | RestorePlan) -> str:
    """One sign for each rank; empty if a state was rejected as a whole."""
    if isinstance(state, RestorePlan):
        far = state.copies.keys()
        return "".join(_FETCHED if far and each.source.id in far else _served(each) for each in state.ranks)
    if all(reason.rank is None for reason in state.reasons):
        return ""
    signs = [_NOT_RECORDED] * state.world_size
    for reason in state.reasons:
        if reason.rank is not None and reason.rank < state.world_size:
            sign = _SIGNS.get(reason.rule, _NOT_RECORDED)
            signs[reason.rank] = _worst((signs[reason.rank], sign)) if signs[reason.rank] != _NOT_RECORDED else sign
    for assignment in state.served:
        if assignment.rank < state.world_size:
            signs[assignment.rank] = _served(assignment)
    return "".join(signs)


def _served(assignment: Assignment) -> str:
    return _OWN if assignment.source.rank == assignment.rank else _REPLICA


def _worst(signs: Sequence[str]) -> str:
    return max(signs, key=list(MEANINGS).index)
