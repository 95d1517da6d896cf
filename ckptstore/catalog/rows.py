"""Turns rows into values. A resolution makes one for each rank, and jobs have many ranks: this must be quick."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ckptstore.catalog.tables import FILES, FILES_OF_RUNS, checkpoints, in_utc, launches, runs, saves
from ckptstore.core.model import Checkpoint, Content, FileState, Grade, Kind, Rule, Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptstore.core.model import Launch

_FETCHED = 1000
_KINDS = {kind.value: kind for kind in Kind}
_CONTENTS = {content.value: content for content in Content}
_STATES = {state.value: state for state in FileState}
_GRADES: dict[str | None, Grade | None] = {grade.value: grade for grade in Grade} | {None: None}
_RULES: dict[str | None, Rule | None] = {rule.value: rule for rule in Rule} | {None: None}

_OF_SAVE = (runs.c.name, launches.c.name, saves.c.global_step)
_OF_FILE = (
    saves.c.kind,
    checkpoints.c.rank,
    checkpoints.c.path,
    checkpoints.c.optimizer_step,
    checkpoints.c.epoch,
    checkpoints.c.step_in_epoch,
    checkpoints.c.size,
    checkpoints.c.digest,
    checkpoints.c.mtime_ns,
    checkpoints.c.format,
    checkpoints.c.content,
    checkpoints.c.strategy_file,
    sa.cast(checkpoints.c.metrics, sa.Text),  # as text: most are empty, and need no parsing
    checkpoints.c.state,
    checkpoints.c.problem,
    checkpoints.c.quarantine,
    sa.type_coerce(checkpoints.c.created_at, sa.types.NullType()),  # as the driver has it: a type costs a call each
    checkpoints.c.revision,
    checkpoints.c.grade,
    checkpoints.c.doubt,
    checkpoints.c.pause,
    checkpoints.c.written_after,
    checkpoints.c.step_took,
    checkpoints.c.directory_id,
)

FILE_QUERY = sa.select(*_OF_SAVE, *_OF_FILE).select_from(FILES_OF_RUNS)
"""Selects every file. Add conditions, and read the rows with `files`."""
STATE_QUERY = sa.select(*_OF_FILE).select_from(FILES)
"""The same, without the columns that all files of a state share. Add conditions for one state, and read the rows with
`files_of_state`.
"""


def files(found: sa.Result[Any]) -> Iterator[Checkpoint]:
    """The files that a `FILE_QUERY` found."""
    return (_file(run, launch, step, values) for run, launch, step, *values in many(found))


def files_of_state(found: sa.Result[Any], launch: Launch, global_step: int) -> tuple[Checkpoint, ...]:
    """The files that a `STATE_QUERY` found, of one launch and step."""
    run, launch_id = launch.run, launch.id
    rows = found.partitions(_FETCHED)
    return tuple([_file(run, launch_id, global_step, row) for some in rows for row in some])


def _file(run: str, launch: str, global_step: int, values: Any) -> Checkpoint:
    """A file of a save, by the values of `_OF_FILE`."""
    (
        kind,
        rank,
        path,
        optimizer_step,
        epoch,
        step_in_epoch,
        size,
        digest,
        mtime_ns,
        form,
        content,
        strategy_file,
        metrics,
        state,
        problem,
        quarantine,
        created_at,
        revision,
        grade,
        doubt,
        pause,
        written_after,
        step_took,
        directory_id,
    ) = values
    file = object.__new__(Checkpoint)
    fields = {
        "run": run,
        "launch": launch,
        "kind": _KINDS[kind],
        "global_step": global_step,
        "rank": rank,
        "path": path,
        "optimizer_step": optimizer_step,
        "epoch": epoch,
        "step_in_epoch": step_in_epoch,
        "size": size,
        "digest": digest,
        "mtime_ns": mtime_ns,
        "format": form,
        "content": _CONTENTS[content],
        "strategy_file": strategy_file,
        "metrics": {} if metrics == "{}" else json.loads(metrics),
        "state": _STATES[state],
        "problem": _RULES[problem],
        "quarantine": quarantine or "",
        "created_at": in_utc(created_at),
        "revision": revision,
        "grade": _GRADES[grade],
        "doubt": doubt or "",
        "timing": None if pause is None else Timing(pause, written_after, step_took),
        "directory_id": directory_id or "",
    }
    # Setting each field of a frozen dataclass in its constructor costs more than the query.
    object.__setattr__(file, "__dict__", fields)
    return file


def many(found: sa.Result[Any]) -> Iterator[Any]:
    """The rows of a result, fetched in portions: fetching one at a time costs more than finding it."""
    for some in found.partitions(_FETCHED):
        yield from some
