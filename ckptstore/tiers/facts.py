"""Declares tiers, and records the state of the copies in them."""

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
from ckptstore.objects.errors import MissingError, StoreError, WrongBytesError
from ckptstore.objects.tiers import open_tier
from ckptstore.outside import utc_now

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.core.copies import Beside, Copy, Declared
    from ckptstore.core.events import Event
    from ckptstore.core.model import Checkpoint
    from ckptstore.objects.store import Store

BUCKET_LEVEL, SHARED_LEVEL, NODE_LEVEL = 2, 1, 0
_URL_HINT = "give a directory, or a bucket and a prefix as s3://bucket/prefix; passwords come from the environment"


def tier_of(name: str, url: str, level: int | None = None) -> Tier:
    """A tier. A user may give its directory as a relative path: its URL becomes absolute.

    Without a `level`, a bucket has level 2, and a directory level 1. Raises `UsageError`.
    """
    url = f"s3{url[2:]}" if url.startswith("S3://") else url
    path = url.removeprefix(ON_NODE)
    if not path:  # as a path it would be the working directory
        raise UsageError(f"the URL of tier {name} cannot be used: it is empty", _URL_HINT)
    if path.startswith("/") or ":" not in url.partition("/")[0]:  # host:/directory is no path: nothing is made here
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
        raise UsageError(f"the URL of tier {name} cannot be used", _URL_HINT) from None  # it may hold a password


def add(database: Database, tier: Tier, *, keeps_level: bool = False) -> bool:
    """Declare a tier, and make its directory; return False if it is declared already.

    A declared tier stays as it is (`keeps_level`: also if it has another level), and nothing is made in its directory:
    if its disk is not mounted, the empty mount point must not become the tier. Raises `RefusedError` if another tier
    has its name or its URL, and `StoreError` if the directory cannot be made.
    """
    with database.read() as connection:
        known = copies.tiers_of(connection)
    for each in known:
        # Two tiers with one URL would delete each other's copies.
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
    """Stop using a tier: ckptstore no longer copies to it or reads from it. Its copies stay. Raises `UsageError`."""
    tier = named(database, name)
    _declare(database, tier, declared=False)
    return tier


def named(database: Database, name: str) -> Tier:
    """The declared tier of that name. Raises `UsageError`, whose message lists the declared tiers."""
    there = declared(database)
    found = next((tier for tier in there if tier.name == name), None)
    if found is None:
        shown = f"the tiers are {', '.join(tier.name for tier in there)}" if there else "there is none"
        raise UsageError(f"no tier is named {name!r}: {shown}", f"see: {Command('tier', 'list')}")
    return found


def declared(database: Database) -> list[Tier]:
    """The declared tiers, nearest first."""
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
    """The files of a run that wait to be copied, for each declared tier beyond the nodes. Raises `UnknownRunError`."""
    run_id = find_run(database, run)
    beyond = [tier for tier in declared(database) if tier.level > NODE_LEVEL]
    with database.read() as connection:
        return {tier: copies.backlog(connection, run_id, tier) for tier in beyond}


def tiers_with(database: Database, files: Iterable[Checkpoint]) -> dict[str, tuple[str, ...]]:
    """The names of the tiers with a ready copy, nearest first, by the file's id. Files without a copy are left out."""
    with database.read() as connection:
        found = copies.ready_copies(connection, files)
    return {file: tuple(copy.tier.name for copy in some) for file, some in found.items()}


def lacking(database: Database, run: str, tier: Tier, *, most: int = 1000) -> list[Checkpoint]:
    """The files of a run that wait to be copied to a tier (`catalog.copies.lacking`), files of the newest saves first.

    `run` is any of the run's names.
    """
    with database.read() as connection:
        run_id = reads.run_id(connection, run)
        return copies.lacking(connection, run_id, tier, most=most) if run_id else []


def fault_of(copy: Copy, store: Store | None = None, *, reads_bytes: bool = False) -> StoreError | None:
    """The error if a tier, when asked, does not have a copy and the files beside it as recorded; or None.

    Sizes are compared, and with `reads_bytes` every byte. Without the companion, no start takes a copy. `store` is the
    opened store of the tier.
    """
    parts = [(copy.key, copy.size or 0, copy.digest), *((each.key, each.size, each.digest) for each in copy.beside)]
    try:
        store = store or open_tier(copy.tier.url)
        for key, size, digest in parts:
            seen = store.head(key)
            if seen is None:
                return MissingError(f"{key} is not in tier {copy.tier.name}")
            if seen.size != size or (reads_bytes and store.digest_of(key, size) != digest):
                return WrongBytesError(f"{key} in tier {copy.tier.name} does not hold the recorded bytes")
    except StoreError as error:
        return error
    return None


def record_copy(
    recorder: Recorder,
    file: Checkpoint,
    tier: Tier,
    state: CopyState,
    *,
    beside: Iterable[Beside] = (),
    detail: str = "",
) -> None:
    """Record the state of a copy in the journal beside the file, and in the catalog.

    `file` is the record of the file when it was copied. `beside` are the files that were copied with it; `detail` tells
    why the copy failed. Raises `CatalogUnavailableError` if neither a journal nor the catalog took the record.
    """
    at = utc_now()
    if not recorder.is_late:
        with suppress(CatalogUnavailableError), recorder.database.read() as connection:
            known = copies.copies_of(connection, [file.id]).get(file.id, ())
            at = later(at, *(copy.at for copy in known if copy.tier.id == tier.id))
    recorder.home_beside(file)  # it needs the whole record: the file itself may be gone
    recorder.record([CopyRecorded.of(file, tier, state, at, beside=tuple(beside), detail=detail)])


def _declare(database: Database, tier: Tier, *, declared: bool) -> None:
    """Record a tier in the catalog, and, for a rebuilt catalog, in a journal of each run that has copies in it."""
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
