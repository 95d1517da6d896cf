"""The output of `scan` for people: a summary, then each group of files left out, with the command that places it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ckptstore.cli.terminal import first, line, moment
from ckptstore.core.classify import What
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.model import Grade, Unplaced
from ckptstore.core.text import count, size
from ckptstore.resume.remedies import how_to_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.core.model import Checkpoint, Skipped
    from ckptstore.evidence.unregistered import Uncertain
    from ckptstore.scan.plan import FoundTrash, Scanned

_WORDS = {
    What.CHECKPOINT: ("checkpoint", "checkpoints"),
    What.WEIGHTS: ("file of weights only", "files of weights only"),
    What.PART: ("part of a save", "parts of a save"),
    What.OPAQUE: ("checkpoint of another framework", "checkpoints of another framework"),
    What.STRATEGY: ("strategy file", "strategy files"),
    What.COMPANION: ("companion", "companions"),
    What.DEBRIS: ("unfinished file", "unfinished files"),
    What.STRANGER: ("other file", "other files"),
}


def show(done: Scanned, *, dry_run: bool, verbose: bool) -> None:
    """Print the files that a scan found, adopted and left out. `verbose` names every file."""
    if done.synced.records or done.synced.spoiled:
        spoiled = f"; {count(done.synced.spoiled, 'line was', 'lines were')} skipped" if done.synced.spoiled else ""
        taken = "would be taken" if dry_run else "taken"
        line(f"{count(done.synced.records, 'record', 'records')} {taken} from journals{spoiled}")
    if len(done.synced.runs) > 1:
        line(f"the journals here are of {count(len(done.synced.runs), 'run', 'runs')}: {', '.join(done.synced.runs)}")
    line(_summary(done, dry_run=dry_run))
    for grade, doubt, of in _doubts(done.adopted):
        line(f'{count(len(of), "file has", "files have")} the grade "{grade}", not "proven": {doubt}')
    if done.regraded:
        many = count(len(done.regraded), "recorded file has", "recorded files have")
        line(f'{many} the grade "{done.regraded[0].grade}" now')
    others = ", ".join(count(number, *_WORDS[What(name)]) for name, number in sorted(done.counts.items()))
    line(f"{count(sum(done.counts.values()), 'file', 'files')} seen: {others or 'none'}; {done.known} recorded already")
    _not_as_recorded(done)
    _left_out(done, verbose=verbose)
    _skipped(sorted(done.skipped, key=lambda each: each not in done.unread), verbose=verbose)
    told = {each.path for each in done.uncertain}
    for opaque in first([each for each in done.opaque if each.path not in told], "of an unknown step"):
        rank = "of no rank" if opaque.rank is None else f"rank {opaque.rank}"
        facts = f"{rank}, {size(opaque.size)}, {moment(opaque.modified)}"
        line(f"of an unknown step: {opaque.path} ({facts}): PyTorch or TensorFlow")
    for trash in done.trash:
        _trash(trash, dry_run=dry_run)
    for warning in done.warnings:
        line(f"warning: {warning}")
    for file in done.adopted if verbose else ():
        line(f"adopted: {file.path}: step {file.global_step}, rank {file.rank}, {file.kind}, {file.grade or 'proven'}")


def _summary(done: Scanned, *, dry_run: bool) -> str:
    would = "would be adopted" if dry_run else "adopted"
    states = {(file.launch, file.global_step) for file in done.adopted}
    if not states:
        return f"run {done.run}: nothing {'else ' if done.synced.records else ''}{would}"
    launches = len({file.launch for file in done.adopted})
    newest = max(step for _, step in states)
    what = f"{count(len(states), 'state', 'states')} of {count(launches, 'launch', 'launches')}"
    return f"run {done.run}: {what} {would}, newest step {newest}"


def _doubts(files: Iterable[Checkpoint]) -> list[tuple[Grade, str, list[Checkpoint]]]:
    found = grouped(((file.grade, file.doubt), file) for file in files if file.grade is not None and file.doubt)
    return [(grade, doubt, of) for (grade, doubt), of in found.items()]


def _not_as_recorded(done: Scanned) -> None:
    for word, files in (("damaged", done.damaged), ("missing", done.missing)):
        for file in first(files, word):
            line(f"{word}: {file.path} (step {file.global_step}, rank {file.rank})")


def _left_out(done: Scanned, *, verbose: bool) -> None:
    """Print a line for each group of files with the same directory and reason, and the command that places them."""

    def group(each: Uncertain) -> tuple[str, str, str]:
        return each.path.rpartition("/")[0], each.reason, each.remedy

    groups = [list(some) for _, some in groupby(sorted(done.uncertain, key=group), key=group)]
    groups = [[each] for some in groups for each in some] if verbose else groups
    for some in first(groups, "left out"):
        newest = max(some, key=lambda each: (each.best_guess or 0, len(each.path), each.path))  # net-3_7, net-3_19
        guess = "" if newest.best_guess is None else f" (perhaps step {newest.best_guess})"
        more = f" and {len(some) - 1} more beside it" if len(some) > 1 else ""
        line(f"left out: {newest.path}{guess}{more}: {newest.reason}")
        if newest.remedy:
            file = Unplaced(newest.path, 0, 0, newest.best_guess, newest.reason, newest.remedy)
            line(f"  to adopt it: {how_to_place(done.run, file, directory=done.root)}")


def _skipped(found: Sequence[Skipped], *, verbose: bool) -> None:
    groups = grouped(((each.path if verbose else each.path.rpartition("/")[0], each.reason), each) for each in found)
    for some in first(list(groups.values()), "skipped"):
        more = f" and {len(some) - 1} more beside it" if len(some) > 1 else ""
        line(f"skipped: {some[0].path}{more}: {some[0].reason}")


def _trash(found: FoundTrash, *, dry_run: bool) -> None:
    """Print the files of a trash that the catalog did not know, and the command that brings them back."""
    what = f"in the trash: {count(found.files, 'file', 'files')}, {size(found.bytes)}"
    line(f"{what}: would be recorded" if dry_run else f"{what}: {Command('undo', found.run)} brings them back")
