"""Puts what journals say into the catalog. It may be said again, and in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, replay, writes
from ckptstore.core.merge import merged
from ckptstore.core.model import FileState
from ckptstore.ops import lease, strategies
from ckptstore.storage.files import names_in

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from sqlalchemy import Connection

    from ckptstore.core.model import Checkpoint, Launch
    from ckptstore.ops.records import Began, Said, Verdict


def put_said(connection: Connection, everything: Said, *, look: bool) -> tuple[set[str], int]:
    """Put all of it in; the launches named that the catalog knows now, and how many records were new or changed.

    `look`: whether a file that is new to the catalog is there.
    """
    told = put_began(connection, everything.began)
    others = named_launches(everything) - told
    launches = told | {launch for launch in others if reads.launch(connection, launch) is not None}
    for source in everything.sources:
        if source.launch in launches:
            writes.add_source(
                connection,
                launch_id=source.launch,
                rank=source.rank,
                directory=source.directory,
                kind=source.kind,
                prefix=source.prefix,
                breakpoint_prefix=source.breakpoint_prefix,
                names_before=sorted(source.names_before),
                host=source.host,
                content=source.content,
            )
    for ended in everything.ended:
        if ended.launch in launches:
            row = {**ended.__dict__, "launch_id": ended.launch, "created_at": ended.at}
            row["quarantine"] = ended.quarantine or None
            del row["launch"], row["at"]
            replay.put_ending(connection, row)
    for verdict in everything.verdicts:
        if verdict.launch in launches:
            named = {"launch_id": verdict.launch, "rank": verdict.rank, "outcome": verdict.outcome.value}
            about = {"checkpoint_id": verdict.file.id if verdict.file else None, "detail": verdict.detail}
            replay.put_outcome(connection, {**named, **about, "created_at": verdict.at})
    for kept in everything.layout_files:
        if kept.launch in launches:
            strategies.put(connection, kept)
    records = [file for file in everything.files if file.launch in launches]
    known = replay.related_files(connection, records)
    changed = merged(known, records)
    if look:
        changed = _as_on_disk(changed, {file.id for file in known})
    replay.put_checkpoints(connection, changed)
    _put_words(connection, everything)
    return launches, len(changed)


def set_verdict(connection: Connection, verdict: Verdict) -> None:
    """Put in what came of a plan on a rank just now, whatever was said before."""
    writes.set_outcome(
        connection,
        launch_id=verdict.launch,
        rank=verdict.rank,
        outcome=verdict.outcome,
        checkpoint_id=verdict.file.id if verdict.file else None,
        detail=verdict.detail,
        now=verdict.at,
    )


def put_began(connection: Connection, every: Sequence[Began]) -> set[str]:
    """Put the launches in, and where they started; their ids, and those of the launches that they started from."""
    told: dict[str, Launch] = {}
    origins = [replace(began.origin, decided=False) for began in every if began.origin]
    for launch in [*origins, *(began.launch for began in every)]:
        before = told.get(launch.id)
        told[launch.id] = launch if before is None else _joined(before, launch)
    replay.put_launches(connection, told.values())
    for began in every:
        if began.at is not None:
            step = began.launch.parent_step
            parent = (began.origin.id, step) if began.origin and step is not None else None
            replay.put_resolution(
                connection,
                began.launch.id,
                parent,
                start_step=began.launch.start_step,
                branched=began.launch.branched,
                files=[(rank, file.id) for rank, file in began.plan],
                at=began.at,
            )
            if began.plan:
                replay.put_lease(connection, began.launch.id, began.at + lease.LEASE)
    return set(told)


def _joined(before: Launch, after: Launch) -> Launch:
    """What two entries say of a launch together: one may be of before its data was known."""
    return replace(
        after,
        steps_per_epoch=after.steps_per_epoch or before.steps_per_epoch,
        batch_size=after.batch_size or before.batch_size,
        shards=after.shards or before.shards,
    )


def named_launches(told: Said) -> set[str]:
    """The launches that records are of."""
    named = {file.launch for file in told.files} | {source.launch for source in told.sources}
    named |= {kept.launch for kept in told.layout_files} | {verdict.launch for verdict in told.verdicts}
    return named | {ended.launch for ended in told.ended}


def _as_on_disk(files: Sequence[Checkpoint], known: AbstractSet[str]) -> list[Checkpoint]:
    """The records, those new to the catalog as missing where their file is gone: no journal tells what gc removed."""
    names: dict[str, AbstractSet[str] | None] = {}
    seen = []
    for file in files:
        directory, _, name = file.path.rpartition("/")
        if file.id not in known and file.state is FileState.COMPLETE:
            if directory not in names:
                names[directory] = _names_in(directory)
            there = names[directory]
            is_gone = there is not None and name not in there
            seen.append(replace(file, state=FileState.MISSING) if is_gone else file)
        else:
            seen.append(file)
    return seen


def _names_in(directory: str) -> AbstractSet[str] | None:
    """The names in a directory, none where it is gone; None where it cannot be read: nothing is known of its files."""
    try:
        return names_in(directory)
    except OSError:
        return None


def _put_words(connection: Connection, everything: Said) -> None:
    """What was said of runs by whoever operates them, in the order of time."""
    for pinned in sorted(everything.pinned, key=lambda pinned: pinned.at):
        replay.put_pin(connection, pinned.run, pinned.global_step, pinned=pinned.pinned, at=pinned.at)
    for tagged in sorted(everything.tagged, key=lambda tagged: tagged.at):
        replay.put_tag(connection, tagged.run, tagged.name, tagged.global_step, at=tagged.at)
    for ruled in sorted(everything.ruled, key=lambda ruled: ruled.at):
        replay.put_policy(connection, ruled.run, ruled.rules, at=ruled.at)
