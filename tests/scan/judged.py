"""What a reconstruction makes of a history whose truth is known: how its newest state fares, and what is wrong."""

from collections import defaultdict
from collections.abc import Collection, Set
from dataclasses import dataclass

from ckptstore.core.model import SCANNED, Grade, Launch
from ckptstore.core.replicas import stand_alone
from ckptstore.evidence.reconstruct import Reconstruction
from ckptstore.evidence.witnesses import fits
from ckptstore.resume.lineage import lineage
from tests.scan.plain_histories import History

RIGHT, OLDER, REFUSED, NOTHING = "right", "older", "refused", "nothing"


@dataclass(frozen=True)
class Judged:
    """How the newest state that is whole fares, what is placed wrong, and what is passed over in silence.

    `newest` is "right" where a start goes on from it, "older" where it goes on from an older one, "refused" where there
    is none to go on from, "nothing" where no state is whole. `stopped` are files that a start passes over, since the
    names of their launch do not fit its dataset.
    """

    newest: str
    wrong: tuple[str, ...] = ()
    silent: str = ""
    stopped: frozenset[str] = frozenset()


def judge(history: History, made: Reconstruction) -> Judged:
    """Hold a reconstruction of what is left of a history against the truth."""
    wrong, stopped = _misplaced(history, made)
    left_out = {one.path for one in made.uncertain}
    placed = [one.file.path for launch in made.launches for one in launch.files]
    if sorted([*placed, *(one.path for one in made.uncertain)]) != sorted(file.path for file in history.found):
        wrong.append("not every file is in the answer once")
    newest = history.newest
    if newest is None:
        return Judged(NOTHING, tuple(wrong), stopped=stopped)
    own = {path for path in (file.path for file in history.found) if history.state(path) == newest}
    chosen, rejected = _chosen(history, made, stopped)
    if chosen & own:
        return Judged(RIGHT, tuple(wrong), stopped=stopped)
    is_said = own & (left_out | stopped | rejected) or any(
        said in each for each in made.warnings for said in ("guess", "apart")
    )
    is_later = any(history.truth[path].order > max(history.truth[each].order for each in own) for path in chosen)
    silent = f"{sorted(own)} is newer than {sorted(chosen) or 'nothing'}, and nothing is said of it"
    # a later one is of a branch that was given up: what is left need not tell that
    silent = "" if is_said or is_later else silent
    return Judged(OLDER if chosen else REFUSED, tuple(wrong), silent, stopped)


def _misplaced(history: History, made: Reconstruction) -> tuple[list[str], frozenset[str]]:
    """What is wrong with the steps and launches of files, and the files that a start passes over.

    Where what falsifies the counter leaves no trace, a wrong step that a start passes over is none.
    """
    wrong: list[str] = []
    stopped = {
        one.file.path
        for order, launch in enumerate(made.launches, 1)
        for one in launch.files
        if one.grade is Grade.CONSISTENT
        and not fits(one.file.path, one.global_step, history.script.steps_per_epoch, order)
    }
    states: dict[tuple[str, int], set[int]] = defaultdict(set)
    for launch in made.launches:
        for one in launch.files:
            of = history.truth[one.file.path]
            states[launch.key, one.global_step].add(of.launch)
            if one.rank != of.rank:
                wrong.append(f"{one.file.path} is of rank {of.rank}, not {one.rank}")
            elif one.global_step == of.state.step:
                continue
            elif not (history.is_hidden and one.file.path in stopped):
                wrong.append(f"{one.file.path} is of step {of.state.step}, not {one.global_step} ({one.grade})")
    wrong += [f"{state} has files of launches {sorted(of)}" for state, of in states.items() if len(of) > 1]
    return wrong, frozenset(stopped)


def _chosen(history: History, made: Reconstruction, stopped: Set[str]) -> tuple[set[str], set[str]]:
    """The files of the state that a start goes on from, by the lineage of the launches; and those of newer states.

    Of these a resolution says what they lack, and a start which whole ones are of a history that was given up.
    """
    ranks = history.script.ranks
    states: dict[str, dict[int, dict[int, set[str]]]] = {}
    for launch in made.launches:
        steps = states.setdefault(f"{SCANNED}{launch.key}", {})
        for one in launch.files:
            if one.file.path not in stopped:
                steps.setdefault(one.global_step, {}).setdefault(one.rank, set()).add(one.file.path)
    launches = [
        Launch(id=f"{SCANNED}{each.key}", run="run", order=order, world_size=ranks, layout=stand_alone())
        for order, each in enumerate(made.launches)
    ]
    first = {key: min(steps) for key, steps in states.items() if steps}
    whole = [of for steps in states.values() for of in steps.values() if len(of) == ranks]
    rejected = {path for of in whole for files in of.values() for path in files}
    for segment in lineage(launches, first):
        for step, of in sorted(states[segment.launch.id].items(), reverse=True):
            files = set[str]().union(*of.values())
            if segment.has(step) and step > 0 and len(of) == ranks:
                return files, rejected
            rejected |= files if segment.has(step) else set()
    return set(), rejected


def share(judged: Collection[Judged]) -> float:
    """Of the histories with a whole state, the part whose newest one is gone on from."""
    whole = [each for each in judged if each.newest != NOTHING]
    return sum(each.newest == RIGHT for each in whole) / max(len(whole), 1)
