"""Makes the record of a checkpoint file, from the writer's values and from the file itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.catalog import live
from ckptstore.core import limits, validate
from ckptstore.core.model import Checkpoint, Content, FileState, Kind, Rule, epoch_and_step
from ckptstore.core.naming import ONE_FILE, format_of
from ckptstore.core.sighting import is_as_recorded
from ckptstore.disk import files, several
from ckptstore.errors import UnreadableError, UsageError
from ckptstore.evidence.contents import cut
from ckptstore.formats.header import may_be_appended
from ckptstore.formats.inspect import is_cut, read_checkpoint, read_unless_encrypted
from ckptstore.outside import Path, utc_now

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Launch, LaunchKey
    from ckptstore.outside import os


def describe(
    launch: Launch,
    *,
    rank: int,
    path: str | os.PathLike[str],
    kind: Kind | str,
    global_step: int,
    optimizer_step: int | None = None,
    epoch: int | None = None,
    step_in_epoch: int | None = None,
    strategy_file: str | os.PathLike[str] | None = None,
    metrics: Mapping[str, float] | None = None,
    content: Content = Content.FULL,
    quarantine: str = "",
    mtime_ns: int | None = None,
) -> Checkpoint:
    """The record of a file that is about to be written, or just was. The file is not read.

    `path` is absolute (`disk.files.absolute`). Steps are batches. Steps and ranks count from 0, epochs and steps in an
    epoch from 1. `mtime_ns` is given if the file is known to be whole. Raises `UsageError` for invalid values.
    """
    try:
        known_kind = Kind(kind)
    except ValueError:
        kinds = ", ".join(Kind)
        raise UsageError(f"unknown kind {str(kind)!r}", f"use one of {kinds}") from None
    step = validate.number("global_step", global_step, _STEPS)
    counted_epoch, counted_step = epoch_and_step(step, launch.steps_per_epoch)
    where = validate.path("path", path)
    return Checkpoint(
        run=launch.run,
        launch=launch.id,
        kind=known_kind,
        global_step=step,
        rank=validate.rank_of(rank, launch.world_size)[0],
        path=where,
        optimizer_step=_counted("optimizer_step", optimizer_step, limits.HIGHEST),
        epoch=_counted("epoch", counted_epoch if epoch is None else epoch, limits.HIGHEST_INTEGER),
        step_in_epoch=_counted(
            "step_in_epoch", counted_step if step_in_epoch is None else step_in_epoch, limits.HIGHEST_INTEGER
        ),
        format=format_of(where),
        content=content,
        strategy_file=files.absolute(validate.path("strategy_file", strategy_file)) if strategy_file else None,
        metrics=checked(metrics or {}),
        quarantine=quarantine,
        mtime_ns=None if mtime_ns is None else _written(where, mtime_ns),
        state=FileState.IN_PROGRESS,
    )


def checked(metrics: Mapping[str, float]) -> dict[str, float]:
    """These metrics. Raises `UsageError` for one without a name, or whose value is no finite number."""
    if not isinstance(metrics, Mapping):
        raise UsageError(f"metrics is {type(metrics).__name__}", 'give names and numbers: metrics={"loss": 0.5}')
    return dict(validate.metric(name, value) for name, value in metrics.items())


_STEPS = "steps are counted from 0"


def _counted(what: str, value: int | None, highest: int) -> int | None:
    return None if value is None else validate.number(what, value, _STEPS, highest)


def _written(path: str, mtime_ns: int) -> int:
    return validate.number(f"{path}: its modification time in ns", mtime_ns, "touch the file", lowest=-limits.HIGHEST)


def measured(
    file: Checkpoint, *, prove_step: bool = False, expected: frozenset[str] = frozenset(), digest: str | None = None
) -> Checkpoint | None:
    """The record with the size, digest and time of the file at its path; None if the file is not the recorded one.

    It is another file if its modification time is not the recorded one. A name may be used for several saves: with
    `prove_step` it is another file, too, if it is cut, lacks one of the `expected` parameters, or holds another
    optimizer counter. But a cut file with the recorded time is damaged. `digest` is given if the writer computed it.
    Raises `OSError` if the file cannot be read, and `UsageError` if the catalog cannot hold its modification time.
    """
    before = files.facts(file.path)
    if before is None or (file.mtime_ns is not None and not is_as_recorded(file, before.size, before.mtime_ns)):
        return None
    if prove_step and file.mtime_ns is not None and is_cut(Path(file.path)):
        broken = replace(file, size=before.size, state=FileState.DAMAGED, problem=Rule.UNREADABLE)
        return replace(broken, created_at=utc_now())
    if prove_step and not _is_what_was_recorded(file, expected):
        return None
    written = _written(file.path, before.mtime_ns)
    form = several.format_at(file.path)
    digest = digest or files.digest(file.path)
    after = files.facts(file.path)
    if after != before:  # written again while it was read: those bytes are not of one file
        return None
    return replace(
        file,
        size=before.size,
        mtime_ns=written,
        digest=digest,
        format=form,
        state=FileState.COMPLETE,
        created_at=utc_now(),
    )


def _is_what_was_recorded(file: Checkpoint, expected: frozenset[str]) -> bool:
    """Whether a file can be read to its end and holds the recorded step. True if it is encrypted."""
    if file.format not in ONE_FILE:
        return True
    try:
        header = read_unless_encrypted(Path(file.path))
    except UnreadableError:
        return file.mtime_ns is not None  # whole, even if this reader fails: its callback had returned
    if header is None:
        return True
    if file.content is Content.FULL and cut(header, expected):
        return False
    may_lack_counter = file.content is not Content.FULL or file.mtime_ns is not None
    if file.optimizer_step is None or (may_lack_counter and header.optimizer_step is None):
        return True
    return header.optimizer_step == file.optimizer_step


def parameters_of(
    database: Database, run_id: int, rank: int, *, but: str = "", share_of: LaunchKey | None = None
) -> frozenset[str]:
    """The parameters of the newest whole file of this rank, or of its share in launch `share_of`; empty if none.

    Another file of the rank should have the same ones: a `.ckpt` cut between two parameters looks whole (mindspore.md
    §1). Left out are those of a `.safetensors` file that may be appended values: other files need not have them.
    """
    with database.read() as connection:
        path = live.newest_whole_path(connection, run_id, rank, but=but, share_of=share_of)
    database.let_go()  # files are read now
    if path is None:
        return frozenset()
    try:
        found = read_checkpoint(Path(path))
    except (UnreadableError, OSError):
        return frozenset()
    return frozenset(each.name for each in found.parameters if found.format == "ckpt" or not may_be_appended(each))
