"""Computes the content of the charts on a page, from the rows of use cases."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from ckptstore.core.model import Rule
from ckptstore.core.picture import MEANINGS, folded, signs_by_record, signs_of
from ckptstore.core.text import count
from ckptstore.resume.liveness import ENDED, KILLED
from ckptstore.serve.charts import Bar, Cell, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptstore.core.model import Resolution
    from ckptstore.resume.history import LaunchRow
    from ckptstore.resume.overview import SaveDetails, SaveRow

_COLUMNS = 64
"""The columns of the picture. In a job of more ranks, several share a column, which shows the worst of them."""

_STEPS, _LAUNCHES, _MARKS, _LEVELS = 16, 12, 200, 8
_NAMES = ("own", "replica", "fetched", "writing", "weights", "quarantined", "none", "gone", "damaged")
KINDS = dict(zip(MEANINGS, _NAMES, strict=True))
"""The CSS class of a cell, by its sign."""

_LOST = (Rule.MISSING_FILE, Rule.SIZE_MISMATCH, Rule.DIGEST_MISMATCH)
_CHOSEN, _ABANDONED = "chosen", "abandoned"


def at_run(run: str, *further: object) -> str:
    """The address of a run's page, or of one below it."""
    return "/runs/" + "/".join(quote(str(each), safe="") for each in (run, *further))


def newest_in_tiers(saves: Sequence[SaveRow]) -> dict[str, int]:
    """For each tier, by name: the step of the newest save of which it has the files of all ranks.

    Saves of abandoned branches do not count.
    """
    found: dict[str, int] = {}
    for save in saves:  # newest first
        for tier, ranks in save.tiers.items():
            if ranks == save.launch.world_size and not save.abandoned:
                found.setdefault(tier, save.global_step)
    return found


def picture(resolution: Resolution, saves: Sequence[SaveRow], details: SaveDetails) -> list[Step]:
    """The rows of the picture, 16 at most.

    First come the states of the resolution, which were judged by the disk, then the newest others, by the catalog.
    """
    rows: list[Step] = []
    for rejected in resolution.rejections:
        if signs := signs_of(rejected, _COLUMNS):
            why = {each.rank: each.detail for each in rejected.reasons if each.rank is not None}
            rows.append(_step(resolution.run, rejected.global_step, signs, rejected.world_size, why=why))
    if plan := resolution.plan:
        signs = signs_of(plan, _COLUMNS)
        rows.append(_step(resolution.run, plan.global_step, signs, len(plan.ranks), note=_CHOSEN))
    known = {row.step for row in rows} | {rejected.global_step for rejected in resolution.rejections}
    for save in saves:
        step, world_size = save.global_step, save.launch.world_size
        if step not in known and save.tally.save_id in details.ranks:
            known.add(step)
            signs = signs_by_record(world_size, details.ranks[save.tally.save_id])
            note = _ABANDONED if save.abandoned else ""
            rows.append(_step(resolution.run, step, folded(signs, _COLUMNS), world_size, note=note))
    return rows[:_STEPS]


def lost(resolution: Resolution) -> set[tuple[str, int]]:
    """The states with missing or changed files, by launch and step. The catalog may still call them restorable."""
    return {
        (each.launch, each.global_step)
        for each in resolution.rejections
        if any(reason.rule in _LOST for reason in each.reasons)
    }


def heads(world_size: int) -> list[str]:
    """The heads of the picture's columns: in every fourth column its first rank, else empty."""
    ranks = -(-world_size // _COLUMNS)
    return ["" if first // ranks % 4 else str(first) for first in range(0, world_size, ranks)]


def _step(
    run: str, step: int, signs: str, world_size: int, *, why: Mapping[int, str] | None = None, note: str = ""
) -> Step:
    ranks = -(-world_size // _COLUMNS)
    at_step = at_run(run, "saves", step)
    reasons = why or {}
    cells = []
    for column, sign in enumerate(signs):
        first, last = column * ranks, min((column + 1) * ranks, world_size) - 1
        named = f"rank {first}" if first == last else f"ranks {first} to {last}"
        reason = next((reasons[rank] for rank in range(first, last + 1) if rank in reasons), MEANINGS[sign])
        cells.append(Cell(KINDS[sign], f"step {step}, {named}: {reason}", f"{at_step}#rank-{first}"))
    return Step(step, note, signs, cells)


def timeline(launches: Sequence[LaunchRow], saves: Sequence[SaveRow], details: SaveDetails) -> list[Bar]:
    """The newest launches, the oldest of them first: the time that each ran, and its saves."""
    every = Counter(save.launch.id for save in saves)
    marks: dict[str, list[tuple[float, str]]] = {}
    for save in saves[:_MARKS]:
        took = details.seconds.get(save.tally.save_id)
        words = f"step {save.global_step}" + ("" if took is None else f", took {took:.3g} s")
        marks.setdefault(save.launch.id, []).append((save.created_at.timestamp(), words))
    bars = []
    for row in launches[-_LAUNCHES:]:
        own = marks.get(row.launch.id, [])
        begin = row.launch.created_at
        moments = [at for at, _ in own] + ([begin.timestamp()] if begin else [])
        if moments:
            end = row.heard_at.timestamp() if row.heard_at else max(moments)
            kind = "crash" if row.ending == KILLED or row.ending.startswith(ENDED) else ""
            saved = count(every[row.launch.id], "save", "saves")
            title = f"launch {row.launch.id}: {saved}, {row.ending or 'its end is not known'}"
            bars.append(Bar(row.launch.id, min(moments), max(end, *moments), kind, title, own))
    return bars


class Branch(NamedTuple):
    """A launch in the tree: its description, and the launches that continued from it."""

    words: str
    is_abandoned: bool
    children: list[Branch]


def lineage(launches: Sequence[LaunchRow], saves: Sequence[SaveRow]) -> list[Branch]:
    """The launches of a run as a tree: each launch is below the launch whose state it started from.

    The tree has eight levels at most. Launches that would be deeper are on the last level, and name their parent.
    """
    steps: dict[str, list[int]] = {}
    given_up: Counter[str] = Counter()
    for save in saves:
        steps.setdefault(save.launch.id, []).append(save.global_step)
        given_up[save.launch.id] += save.abandoned
    roots: list[Branch] = []
    places: dict[str, tuple[int, list[Branch]]] = {}  # of the launches that started from a launch
    for row in launches:
        launch, own = row.launch, steps.get(row.launch.id, [])
        level, place = places.get(launch.parent or "", (1, roots))
        words = f"launch {launch.id}"
        if launch.parent:
            words += f" from step {launch.parent_step}" + (f" of {launch.parent}" if level == _LEVELS else "")
            words += ", on purpose" if launch.branched else ""
        elif launch.initial:
            words += f" from step {launch.initial.global_step} of run {launch.initial.run}"
        words += f": {count(len(own), 'save', 'saves')}"
        words += f", steps {min(own)} to {max(own)}" if own else ""
        if lost := given_up[launch.id]:
            words += ", abandoned" if lost == len(own) else f", {lost} of them abandoned"
        branch = Branch(words, bool(own) and lost == len(own), [])
        place.append(branch)
        places[launch.id] = (level, place) if level == _LEVELS else (level + 1, branch.children)
    return roots


def stored(saves: Sequence[SaveRow]) -> list[tuple[float, float]]:
    """Moments, in seconds since 1970, and the bytes saved until then that still exist."""
    found, total = [], 0
    for save in sorted(saves, key=lambda save: save.created_at):
        total += save.bytes
        found.append((save.created_at.timestamp(), float(total)))
    return found


def strip(states: Iterable[tuple[str, Iterable[Mapping[str, Any]]]]) -> list[tuple[str, str]]:
    """The verdict of gc on each state, by step: `keep` or `remove`, and a tooltip with the reasons."""
    cells = [(state["global_step"], kind, state) for kind, some in states for state in some]
    return [
        (kind, f"{kind} step {step}: {'; '.join(reason['detail'] for reason in state['reasons'])}")
        for step, kind, state in sorted(cells, key=lambda each: each[:2])
    ]
