"""The output for people: runs, saves, launches and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.cli.terminal import Rows, age, first, line, moment
from ckptstore.core.hints import Command
from ckptstore.core.model import FileState, Grade
from ckptstore.core.text import count, size, span
from ckptstore.resume.liveness import trouble

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ckptstore.core.model import Checkpoint, Launch, Unplaced
    from ckptstore.resume.history import LaunchRow
    from ckptstore.resume.overview import RunRow, SaveRow

_COLOURS = ("", "yellow", "red")
"""The colour of a run, by `trouble` of its status."""


def runs(rows: Sequence[RunRow]) -> None:
    """Print a line for each run."""
    shown = Rows("run", "status", ">restorable", "saved", ">launches", ">size", ">trash")
    for row in rows:
        restorable = row.newest_restorable
        shown.add_row(
            row.run,
            row.status,
            f"step {restorable.global_step}" if restorable else "none on disks" if row.only_copies else "none",
            age(restorable.created_at) if restorable else "-",
            f"{row.launches_last_day} in 24 h",
            size(row.bytes),
            size(row.trash_bytes) if row.trash_bytes else "-",
            colour=_COLOURS[trouble(row.status)],
        )
    shown.print("no runs yet")


def saves(rows: Sequence[SaveRow], nothing: str) -> None:
    """Print a line for each save; if there is none, the line `nothing`."""
    has_tags = any(row.pinned or row.tags for row in rows)
    has_loss = any("loss" in row.metrics for row in rows)
    has_begun = any(row.began for row in rows)
    has_copies = any(row.tiers for row in rows)
    columns = (">loss", has_loss), ("tags", has_tags), ("began from it", has_begun), ("copies", has_copies)
    more = [name for name, is_there in columns if is_there]
    shown = Rows(">step", ">epoch", "kind", ">ranks", ">size", "restorable", "saved", *more)
    before = None
    for row in rows:
        if before != (row.run, row.launch.id):
            before = row.run, row.launch.id
            shown.add_heading(f"run {row.run}, launch {row.launch.id}")
        tally = row.tally
        shown.add_row(
            str(tally.global_step),
            "-" if tally.epoch is None else f"{tally.epoch}_{tally.step_in_epoch}",
            tally.kind.value,
            f"{tally.ranks}/{row.launch.world_size}",
            size(tally.bytes),
            ("yes" if row.restorable else "no")
            + (", with replicas' files" if row.by_replicas else "")
            + (f", {row.grade}" if row.grade not in (None, Grade.PROVEN) else "")
            + (", abandoned" if row.abandoned else ""),
            moment(tally.created_at, seconds=False),
            *([_loss(row.metrics)] if has_loss else []),
            *([", ".join([*(["pinned"] if row.pinned else []), *row.tags])] if has_tags else []),
            *([f"run {', '.join(row.began)}" if row.began else ""] if has_begun else []),
            *([_copies(row)] if has_copies else []),
            colour="red" if tally.quarantined else "" if row.restorable else "yellow",
        )
    shown.print(nothing)
    _doubts((row.launch.id, row.grade, row.doubt) for row in rows)
    for row in first([row for row in rows if row.quarantine], "quarantined"):
        line(f"quarantined: step {row.global_step} of launch {row.launch.id}: {row.quarantine}")


def no_saves(catalog: str, run: str | None, *, is_part: bool, is_any_recorded: bool) -> str:
    """The line in place of the saves of a run, or of all runs.

    `is_part`: only saves of a kind or a time were asked for. `is_any_recorded`: there were saves.
    """
    if is_part:
        return f"no such saves in {catalog}"
    if is_any_recorded:
        files = Command("list", *([run] if run is not None else []), "--files")
        return f"no save has a file in its place; {files} shows whether each file is lost, moved, or in the trash"
    return f"no saves{'' if run is None else f' of run {run}'} yet in {catalog}"


def _copies(row: SaveRow) -> str:
    """The tiers with copies of a save. A tier that has a part of the save is shown with the number of its ranks."""
    whole = row.launch.world_size
    return ", ".join(tier if ranks == whole else f"{tier} {ranks}/{whole}" for tier, ranks in sorted(row.tiers.items()))


def _doubts(of: Iterable[tuple[str, Grade | None, str]]) -> None:
    """Print the open questions about scanned steps, once for each launch."""
    for launch, grade, doubt in dict.fromkeys(of):
        if doubt:
            line(f"steps of launch {launch} are {grade}, not proven: {doubt}")


def unplaced(run: str, found: Sequence[Unplaced]) -> None:
    """Print the number of unplaced files with an example, and the command that shows how to place the newer ones."""
    if found:
        many = count(len(found), "file has", "files have")
        line(f"{many} no certain step or rank, such as {found[0].path}; see: {Command('resolve', run, '--explain')}")


def _loss(metrics: Mapping[str, float]) -> str:
    return f"{metrics['loss']:.4g}" if "loss" in metrics else "-"


def history(rows: Sequence[LaunchRow]) -> None:
    """Print a line for each launch, and the states that each passed over."""
    shown = Rows("launch", "began", "from", ">to step", "ran", "ended", ">ranks", "host")
    for row in rows:
        told = row.launch
        shown.add_row(
            told.id,
            moment(told.created_at),
            _origin(told),
            "-" if row.last_step is None else str(row.last_step),
            "-" if row.ran is None else span(row.ran),
            row.ending or "not recorded",
            str(told.world_size),
            ", ".join(row.hosts) or "-",
        )
    shown.print("no launches yet")
    for row in rows:
        for each in row.passed:
            why = f"step {each.global_step} of launch {each.launch}: {each.rule}: {each.detail}"
            line(f"{row.launch.id} passed over {why}")


def _origin(launch: Launch) -> str:
    """The state that a launch started from. Its launch is named if the run went back to it on purpose."""
    if not launch.decided:
        return "-"
    if launch.initial is not None:
        return f"step {launch.initial.global_step} of run {launch.initial.run}"
    if launch.parent is None:
        return "the beginning"
    return f"step {launch.parent_step}" + (f" of {launch.parent}" if launch.branched else "")


def files(found: Sequence[Checkpoint], *, is_part: bool = True) -> None:
    """Print a line for each file. `is_part`: only some files of the catalog were asked for."""
    has_loss = any("loss" in file.metrics for file in found)
    has_launches = len({(file.run, file.launch) for file in found}) > len({file.run for file in found})
    columns = ("run", *(["launch"] if has_launches else []), ">step", "kind", ">rank", ">size", "state", "saved")
    shown = Rows(*columns, *([">loss"] if has_loss else []), "file")
    for file in found:
        shown.add_row(
            file.run,
            *([file.launch] if has_launches else []),
            str(file.global_step),
            file.kind.value,
            str(file.rank),
            "-" if file.size is None else size(file.size),
            file.state.value + (f" ({file.problem})" if file.problem else ""),
            moment(file.created_at),
            *([_loss(file.metrics)] if has_loss else []),
            file.path,
            colour="red" if file.quarantine or file.state is FileState.DAMAGED else "",
        )
    shown.print("no such files" if is_part else "no files yet")
    _doubts((file.launch, file.grade, file.doubt) for file in found)
    for file in found:
        if file.quarantine:
            line(f"quarantined: step {file.global_step} of rank {file.rank}: {file.quarantine}")
