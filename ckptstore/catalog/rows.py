"""How rows become values. A resolution of a wide job makes one for each rank: this must be quick."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ckptstore.catalog.tables import checkpoints, launches, runs, saves
from ckptstore.core.model import Checkpoint, Content, FileState, Kind, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

_FETCHED = 1000
_KINDS = {kind.value: kind for kind in Kind}
_CONTENTS = {content.value: content for content in Content}
_STATES = {state.value: state for state in FileState}
_RULES: dict[str | None, Rule | None] = {rule.value: rule for rule in Rule} | {None: None}

_FILES = checkpoints.join(saves).join(launches, launches.c.id == saves.c.launch_id).join(runs)
_COLUMNS = (
    runs.c.name,
    saves.c.launch_id,
    saves.c.kind,
    saves.c.global_step,
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
    sa.cast(checkpoints.c.metrics, sa.Text),  # most have none, which is quicker seen here
    checkpoints.c.state,
    checkpoints.c.problem,
    checkpoints.c.quarantine,
    checkpoints.c.created_at,
    checkpoints.c.amended_at,
)


_QUERY = sa.select(*_COLUMNS).select_from(_FILES)


def file_query() -> sa.Select[Any]:
    """Every file; ask for some, and read the rows with `files`."""
    return _QUERY


def files(found: sa.Result[Any]) -> Iterator[Checkpoint]:
    """The files that a `file_query` found."""
    for (
        run,
        launch,
        kind,
        global_step,
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
        amended_at,
    ) in many(found):
        file = object.__new__(Checkpoint)
        vars(file).update(  # what a frozen dataclass does for each field by itself costs more than the query
            run=run,
            launch=launch,
            kind=_KINDS[kind],
            global_step=global_step,
            rank=rank,
            path=path,
            optimizer_step=optimizer_step,
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            size=size,
            digest=digest,
            mtime_ns=mtime_ns,
            format=form,
            content=_CONTENTS[content],
            strategy_file=strategy_file,
            metrics={} if metrics == "{}" else json.loads(metrics),
            state=_STATES[state],
            problem=_RULES[problem],
            quarantine=quarantine or "",
            created_at=created_at,
            amended_at=amended_at,
        )
        yield file


def many(found: sa.Result[Any]) -> Iterator[Any]:
    """The rows of a result, fetched many at once: one at a time costs more than to find it."""
    for some in found.partitions(_FETCHED):
        yield from some
