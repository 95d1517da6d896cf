"""Declares tiers, and records what becomes of the copies in them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec import MsgspecError, convert

from ckptstore.catalog import copies, reads, user_events
from ckptstore.catalog.project import project
from ckptstore.catalog.runs import find_run
from ckptstore.core.copies import ON_NODE, CopyState, Tier
from ckptstore.core.events import CopyRecorded, TierDeclared, later
from ckptstore.core.hints import Command
from ckptstore.core.limits import HIGHEST_INTEGER
from ckptstore.core.validate import number
from ckptstore.disk.files import real_directory
from ckptstore.errors import CatalogUnavailableError, RefusedError, UsageError
from ckptstore.journal.recorder import Recorder, record_of_run
from ckptstore.objects.tiers import open_tier
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.copies import Beside, Declared
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint

BUCKET_LEVEL, SHARED_LEVEL, NODE_LEVEL = 2, 1, 0


def tier_of(name: str, url: str, level: int | None = None) -> Tier:
    """A tier, its URL from the root or with its scheme, whatever way its user wrote it.

    Without a `level` that of a bucket is 2, and of a directory 1. Raises `UsageError`.
    """
    path = url.removeprefix(ON_NODE)
    if path.startswith("/") or ":" not in url.partition("/")[0]:  # of host:/directory none is made here
        url = f"{ON_NODE}{real_directory(path)}"
    is_directory = url.startswith(ON_NODE)
    default = SHARED_LEVEL if is_directory else BUCKET_LEVEL
    chosen = default if level is None else number("level", level, "0 is the node's own disk", HIGHEST_INTEGER)
    if level == NODE_LEVEL and not is_directory:
        raise UsageError("level 0 is the node's own disk, and no bucket", "give another --level")
    try:
        return convert([name, url.rstrip("/"), chosen], Tier)
    except MsgspecError as error:
        if "$[0]" in str(error):
            raise UsageError(f"{name!r} is no name of a tier", "use letters, digits and . _ -, at most 64") from None
        hint = "give a directory, or a bucket and a prefix as s3://bucket/prefix; passwords come from the environment"
        raise UsageError(f"the URL of tier {name} cannot be used", hint) from None  # it may hold a password


def add(database: Database, tier: Tier, *, keeps_level: bool = False) -> bool:
    """Declare a tier, and make its directory; whether that is new.

    One that is declared already is left as it is (`keeps_level`: whatever its level is). While its disk is not mounted,
    nothing is made in the mount point, which would count as the tier then. Raises `RefusedError` where another one has
    its name or its URL, and `StoreError` where the directory cannot be made.
    """
    with database.read() as connection:
        known = copies.tiers_of(connection)
    for each in known:
        # Of two tiers with one URL, each would delete the copies of the other.
        if each.declared and (each.tier.name == tier.name) is not (each.tier.url == tier.url):
            raise RefusedError(
                f"tier {each.tier.name} is {each.tier.url}",
                f"take that back with {Command('tier', 'remove', each.tier.name)}",
            )
    there = [each.tier for each in known if each.declared and each.tier.id == tier.id]
    if tier in there or (there and keeps_level):
        return False
    if tier.url.startswith(ON_NODE) and tier.level != NODE_LEVEL:
        open_tier(tier.url).prepare()
    _declare(database, tier, declared=True)
    return True


def remove(database: Database, name: str) -> Tier:
    """Stop using a tier: nothing is copied to it or read from it any more. Its copies stay. Raises `UsageError`."""
    tier = named(database, name)
    _declare(database, tier, declared=False)
    return tier


def named(database: Database, name: str) -> Tier:
    """The declared tier of that name. Raises `UsageError`, with those that there are."""
    there = declared(database)
    found = next((tier for tier in there if tier.name == name), None)
    if found is None:
        shown = f"the tiers are {', '.join(tier.name for tier in there)}" if there else "there is none"
        raise UsageError(f"no tier is named {name!r}: {shown}", f"see: {Command('tier', 'list')}")
    return found


def declared(database: Database) -> list[Tier]:
    """The tiers that copies are made in, nearest first."""
    with database.read() as connection:
        return [each.tier for each in copies.tiers_of(connection) if each.declared]


class Listed(NamedTuple):
    """A tier, the number of its copies by their state, and their bytes."""

    known: Declared
    ready: int
    size: int
    pending: int
    failed: int


def listed(database: Database, run: str | None = None) -> list[Listed]:
    """Every tier that is declared or has copies, nearest first, with its copies of a run or (None) of all.

    Raises `UnknownRunError`.
    """
    run_id = None if run is None else find_run(database, run)
    with database.read() as connection:
        known = copies.tiers_of(connection)
        found = {(each.tier, each.state): each for each in copies.tallies(connection, run_id)}

    def tally(tier: Tier) -> tuple[int, int, int, int]:
        ready, *others = (
            found.get((tier.id, state)) for state in (CopyState.READY, CopyState.PENDING, CopyState.FAILED)
        )
        pending, failed = (each.copies if each else 0 for each in others)
        return ready.copies if ready else 0, ready.size if ready else 0, pending, failed

    rows = [Listed(each, *tally(each.tier)) for each in known]
    return [row for row in rows if row.known.declared or any(row[1:])]


def waiting(database: Database, run: str) -> dict[Tier, copies.Backlog]:
    """What of a run waits to be copied to each declared tier beyond the nodes. Raises `UnknownRunError`."""
    run_id = find_run(database, run)
    beyond = [tier for tier in declared(database) if tier.level > NODE_LEVEL]
    with database.read() as connection:
        return {tier: copies.backlog(connection, run_id, tier) for tier in beyond}


def tiers_with(database: Database, files: Iterable[Checkpoint]) -> dict[str, tuple[str, ...]]:
    """The names of the tiers that have a ready copy, nearest first, by the file's id; of one without a copy nothing."""
    with database.read() as connection:
        found = copies.ready_copies(connection, files)
    return {file: tuple(copy.tier.name for copy in some) for file, some in found.items()}


def lacking(database: Database, run: str, tier: Tier, *, most: int = 1000) -> list[Checkpoint]:
    """The files of a run, by any of its names, of which a tier has no copy, those of the newest saves first.

    Only files that a copy is made of (`core.copy_keys.is_copied`), and whose copy retention has not removed.
    """
    with database.read() as connection:
        run_id = reads.run_id(connection, run)
        return copies.lacking(connection, run_id, tier, most=most) if run_id else []


def record_copy(
    recorder: Recorder,
    file: Checkpoint,
    tier: Tier,
    state: CopyState,
    *,
    beside: Iterable[Beside] = (),
    detail: str = "",
) -> None:
    """Record the state of the copy of a file, as it was recorded when it was copied: beside it, and in the catalog.

    `beside` are the files that were copied with it, `detail` says why it failed. Raises `CatalogUnavailableError`
    where neither a journal nor the catalog took it.
    """
    at = utc_now()
    if not recorder.is_late:
        with suppress(CatalogUnavailableError), recorder.database.read() as connection:
            known = copies.copies_of(connection, [file.id]).get(file.id, ())
            at = later(at, *(copy.at for copy in known if copy.tier.id == tier.id))
    recorder.home_beside(file)  # by the whole record: the file itself may be gone
    recorder.record([CopyRecorded.of(file, tier, state, at, beside=tuple(beside), detail=detail)])


def _declare(database: Database, tier: Tier, *, declared: bool) -> None:
    """Tell the catalog, and a journal of each run that the tier has copies of: a rebuilt catalog knows it by those."""
    with database.read() as connection:
        runs = reads.names_of_runs(connection)
        using = [runs[run] for run in copies.runs_in(connection, tier) if run in runs]
        known = [each.since for each in copies.tiers_of(connection) if each.tier.id == tier.id]
    at = later(utc_now(), *known)
    database.in_write(lambda connection: project(connection, [TierDeclared("", tier, declared, at)]))
    for run in using:

        def decide(connection: Connection, run: str = run) -> tuple[list[Event], Sequence[Checkpoint]]:
            called = reads.called(connection, run)
            if called is None:
                return [], []
            files = user_events.files_to_tell(connection, called.id)
            return [TierDeclared(called.first, tier, declared, at)], files

        record_of_run(database, decide)
