"""What a script calls: `connect`, and the methods of the `Catalog` that it returns.

A use case is imported when it is asked for: `ckptstore list` needs one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ckptstore.catalog import schema
from ckptstore.catalog.engine import open_database
from ckptstore.core.hints import Call
from ckptstore.core.tabular import Listing
from ckptstore.errors import UsageError
from ckptstore.resume import dicts, overview

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import timedelta

    from typing_extensions import Self

    from ckptstore.advise.advise import Advice
    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, Resolution, RestorePlan, Unplaced
    from ckptstore.handover.export import Exported
    from ckptstore.handover.import_ import Imported
    from ckptstore.journal.sync import Synced
    from ckptstore.outside import Path, os
    from ckptstore.resume.history import LaunchRow
    from ckptstore.retention.execute import Collected
    from ckptstore.retention.in_trash import Purged, Undone
    from ckptstore.retention.plan import GcPlan
    from ckptstore.retention.policy import Policy
    from ckptstore.scan.plan import Scanned
    from ckptstore.tensors.compare import Compared
    from ckptstore.tensors.opened import OpenState
    from ckptstore.training.rank_launch import RankLaunch
    from ckptstore.verify.verify import Verified


class Catalog:
    """A catalog of checkpoints. Made by `connect`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def __enter__(self) -> Self:
        """The catalog, closed at the end of the block."""
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close its connections. Its next use opens a new one."""
        self.database.disconnect()

    def join(
        self,
        run: str,
        *,
        rank: int = 0,
        world_size: int = 1,
        launch_id: str | None = None,
        layout: str | None = None,
    ) -> RankLaunch:
        """Make this rank part of a launch of `run`.

        The ranks of one start share `launch_id`, another at every start (None: CKPTSTORE_LAUNCH_ID, or a new one
        if there is one rank only). `layout` is "data_parallel" where every rank's file serves every rank.
        """
        from ckptstore.resume.join import join
        from ckptstore.training.rank_launch import RankLaunch

        facts = join(self.database, run, rank=rank, world_size=world_size, launch_id=launch_id, layout=layout)
        launch = RankLaunch(self.database, facts, rank)
        launch.exit_request.announce()
        return launch

    def resolve(
        self,
        run: str,
        *,
        step: int | None = None,
        lineage: str | None = None,
        every_lineage: bool = False,
        world_size: int | None = None,
        verify: Literal["size", "digest"] = "size",
        take_quarantined: bool = False,
        replicas: str | None = None,
    ) -> Resolution:
        """Choose the newest complete state of the run, and say why each newer one is not taken.

        `run` may be a reference to another one, as "digits@best:accuracy:max" (docs/reference/state-names.md).
        `step` and `lineage` ask for an older one, of the history that leads to a launch (None: to the newest);
        `every_lineage` counts the states of all launches, those that were given up too, the highest step first.
        `take_quarantined` takes a state that was found to be bad, as one whose loss was not a number. `replicas` states
        who is whose replica: "dp", "none", groups as in "0,4;1,5", or the path of a strategy, group info or JSON file.
        A file that only a tier has is not at its path: `plan.copies` names it, and a start fetches it.
        """
        from ckptstore.resume.resolve import resolve
        from ckptstore.resume.resolver import Query

        if verify not in ("size", "digest"):
            raise UsageError(f"verify is {verify!r}", "use 'size' or 'digest'")
        query = Query(
            step=step,
            lineage=lineage,
            every_lineage=every_lineage,
            world_size=world_size,
            read_bytes=verify == "digest",
            take_quarantined=take_quarantined,
            replicas=replicas,
            fetches=True,
        )
        return resolve(self.database, run, query)

    def open(self, reference: str) -> OpenState:
        """Open the state that a reference names: its facts, paths and metrics, and its tensors as NumPy arrays.

        A reference is a run, or as "run@1200", "run@TAG", "run@best:loss", "run/LAUNCH@1200". Raises
        `UnknownRunError`, `UsageError` for a reference that names nothing, and `NothingRestorableError` for a state
        that is not whole.
        """
        from ckptstore.tensors.opened import open_state

        return open_state(self.database, reference)

    def diff(
        self, first: str | Path, second: str | Path, *, progress: Callable[[int, int], None] = lambda _done, _all: None
    ) -> Compared:
        """Compare two states, by references as in `open`, or two files, as a `Path` or by the ending of their names.

        Parameters that are new, gone, or of another type or shape; of the others norms of the difference, the largest
        first. Files of the same recorded digest are not read. `progress` hears how many bytes were compared,
        and how many there are at most. Needs NumPy. Raises as `open` and a look at an `OpenState` do.
        """
        from ckptstore.tensors.compare import compare

        return compare(first, second, lambda: self.database, progress)

    def branch(self, plan: RestorePlan) -> str:
        """Let the next launch of the plan's run start from the plan's state; return the id of that decision.

        What came after the state is given up: it is no longer the newest. Nothing is deleted.
        """
        from ckptstore.resume.start import branch

        return branch(self.database, plan)

    def scan(
        self,
        directory: str | Path,
        *,
        run: str | None = None,
        world_size: int | None = None,
        steps_per_epoch: int | None = None,
        steps: Mapping[str | Path, int] | None = None,
        replicas: str | None = None,
        dry_run: bool = False,
        trust: Iterable[str] = (),
        progress: Callable[[int], None] = lambda _: None,
        into: str | Path | None = None,
    ) -> Scanned:
        """Adopt the checkpoints below a directory into a run (None: the journals' run, else the directory's name).

        `world_size` is the number of ranks, `steps_per_epoch` that of the dataset (None: by the files), `steps` the
        steps that are known to you, by the paths of files, prefixes of TensorFlow or directories that are a checkpoint,
        `replicas` as in `resolve`. `dry_run` writes nothing and tells the same. `trust` names users as in `sync`, and
        witnesses that are enough alone: "counter", "name", "info". `progress` hears how many more files were looked at.
        Where `directory` is a tier, its journals are brought back `into` a directory, which is scanned.
        """
        if into is not None or "://" in str(directory):
            from ckptstore.replicate.journals import brought_back

            directory = brought_back(str(directory), into)
        from ckptstore.disk.trust import Trust
        from ckptstore.evidence.reconstruct import Stated
        from ckptstore.evidence.unregistered import Trusted
        from ckptstore.scan.scan import scan

        witnesses = {each.value for each in Trusted}
        names = tuple(trust)
        said = Stated(
            steps_per_epoch=steps_per_epoch,
            trusted=frozenset(Trusted(name) for name in names if name in witnesses),
            steps={str(path): step for path, step in (steps or {}).items()},
            replicas=replicas,
        )

        return scan(
            self.database,
            directory,
            run=run,
            world_size=world_size,
            said=said,
            dry_run=dry_run,
            trust=Trust.of(name for name in names if name not in witnesses),
            progress=progress,
        )

    def sync(self, run_or_directory: str | Path | None = None, *, trust: Iterable[str] = ()) -> Synced:
        """Read the records of journals that the catalog lacks.

        Those of a run, of every run (None), or below a directory, given as a `Path` or with a slash in it. A journal
        counts where its owner owns its directory, asks for it, is root, or one of `trust` and CKPTSTORE_TRUST: names of
        users and groups.
        """
        from ckptstore.disk.trust import Trust
        from ckptstore.journal.sync import sync

        return sync(self.database, run_or_directory, Trust.of(trust))

    def verify(
        self,
        run: str | None = None,
        digest: bool = False,  # noqa: FBT001, FBT002
        sample: float | None = None,
        *,
        shard: tuple[int, int] | None = None,
    ) -> Verified:
        """Compare the files of a run, or of every run, with the catalog, and mark damaged and missing ones there.

        Sizes and headers; every byte with `digest`. `sample` is the part of the files that is looked at, chosen by
        chance, above 0 and up to 1 (None: all). `shard` (I, N) is the I-th of N parts of the files, I from 1: N
        processes, each with its own I, look at every file once.
        """
        from ckptstore.verify.verify import verify

        return verify(self.database, run, digest=digest, sample=sample, shard=shard)

    def export(
        self,
        reference: str,
        target: str | os.PathLike[str],
        *,
        weights_only: bool = False,
        format: Literal["safetensors"] | None = None,  # noqa: A002 — as MindSpore calls it
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> Exported:
        """Write one state, with a manifest, to a new directory, or to a new file whose name ends in `.tar`.

        Each file must have the digest that is recorded. The target gets its name once it is whole and on the disk.
        `weights_only` leaves the optimizer's parameters out and writes a `.safetensors`, `format` writes one of the
        whole state: both need a file that has the state of all ranks. `progress` hears how many bytes are done, and of
        how many. Raises `NothingRestorableError` where the state cannot be restored, `DamageError` where a file is not
        as recorded, `RefusedError` for a target that is there, and for what cannot be told or written so.
        """
        from ckptstore.handover.export import Asked, export
        from ckptstore.resume.resolve import choose_state

        if format not in (None, "safetensors"):
            raise UsageError(f"format is {format!r}", "use 'safetensors', or none")
        plan = choose_state(self.database, reference)
        asked = Asked(weights_only=weights_only, as_safetensors=format is not None)
        return export(self.database, plan, target, asked, progress)

    def import_(
        self,
        source: str | os.PathLike[str],
        directory: str | os.PathLike[str] | None = None,
        *,
        run: str | None = None,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> Imported:
        """Copy what `export` wrote to a new directory, and record it as a run that training can go on from.

        `run` is its name here (None: the one it had), `directory` where its files go (None: one of that name, in the
        working directory). Every byte is proved before anything is recorded. Run again after it was interrupted, it
        goes on. Raises `DamageError` where the export is damaged, `RefusedError` where the run or the directory is
        there already.
        """
        from ckptstore.handover.import_ import import_

        return import_(self.database, source, directory, run, progress)

    def runs(self) -> Listing[overview.RunRow]:
        """List every run, by name."""
        return Listing(overview.runs(self.database), dicts.run)

    def saves(
        self,
        run: str | None = None,
        *,
        kind: str | None = None,
        since: timedelta | None = None,
        limit: int | None = None,
    ) -> Listing[overview.SaveRow]:
        """List the saves of a run, or of all runs, newest first: those `since` that long ago, `limit` at most."""
        return Listing(overview.saves(self.database, run, kind=kind, since=since, limit=limit), dicts.save)

    def files(
        self,
        run: str | None = None,
        *,
        kind: str | None = None,
        since: timedelta | None = None,
        limit: int | None = None,
    ) -> Listing[Checkpoint]:
        """List every file ever recorded of a run, or of all runs: those `since` that long ago, `limit` at most."""
        return Listing(overview.files(self.database, run, kind=kind, since=since, limit=limit), dicts.file)

    def unplaced(self, run: str) -> Listing[Unplaced]:
        """List the files of a run that a scan could not place and that have no record since, the newest first."""
        return Listing(overview.unplaced(self.database, run), dicts.unplaced)

    def show(self, run: str, step: int) -> Listing[Checkpoint]:
        """List every file of one step of a run."""
        return Listing(overview.show(self.database, run, step), dicts.file)

    def history(self, run: str) -> Listing[LaunchRow]:
        """List every launch of a run, oldest first: where it started, why not from a newer state, how it ended."""
        from ckptstore.resume.history import history

        return Listing(history(self.database, run), dicts.launch)

    def advise(self, run: str, *, mtbf: timedelta | None = None) -> Advice:
        """Say how often a run should save, and what it loses at the present interval and at the best one.

        docs/explanation/interval.md has the formula.

        `mtbf` is the mean time between failures; else it is that of the failures that the catalog has seen.
        """
        from ckptstore.advise.advise import advise

        return advise(self.database, run, mtbf=mtbf)

    def rename(self, run: str, name: str) -> bool:
        """Give a run another name; return whether it had a different one. The first name still leads to the run."""
        from ckptstore.resume import names

        return names.rename(self.database, run, name)

    def forget(self, run: str, *, undo: bool = False) -> bool:
        """Hide a run from every command, or bring it back; return whether that changed anything. No file is touched.

        Its name stays taken: a launch that joins it is refused until it was brought back.
        """
        from ckptstore.resume import names

        return names.forget(self.database, run, forgotten=not undo)

    def pin(self, run: str, step: int) -> bool:
        """Protect a step of a run; return whether that is new."""
        from ckptstore.retention import protect as pinning

        return pinning.pin(self.database, run, step)

    def unpin(self, run: str, step: int) -> bool:
        """Remove the protection; return whether there was one."""
        from ckptstore.retention import protect as pinning

        return pinning.unpin(self.database, run, step)

    def tag(self, run: str, step: int, name: str) -> bool:
        """Give a step of a run a name, which protects it; return whether that is new."""
        from ckptstore.retention import protect as pinning

        return pinning.tag(self.database, run, step, name)

    def untag(self, run: str, name: str) -> bool:
        """Remove a name and its protection; return whether there was one."""
        from ckptstore.retention import protect as pinning

        return pinning.untag(self.database, run, name)

    def record(self, reference: str, **metrics: float) -> None:
        """Add metrics to a recorded state, such as those of an evaluation: `record("digits@1200", accuracy=0.93)`.

        The value that was recorded last counts. Raises `UsageError` if it is no metric, and
        `NothingRestorableError` for a state that is not whole.
        """
        from ckptstore.resume.measure import measure
        from ckptstore.resume.register import checked

        if "step" in metrics:
            named = f"{reference}@{metrics['step']}"
            raise UsageError("step is no metric", f"name the state: {Call('record', repr(named), '…')}")
        measure(self.database, reference, checked(metrics))

    def plan_gc(self, run: str, policy: Policy | None = None) -> GcPlan:
        """Plan which states of a run stay and which go, with all reasons; no file is touched.

        `policy` is the one stored for the run if none is given. Raises `RefusedError` where no rule says what to keep.
        """
        from ckptstore.retention.plan import plan_gc

        return plan_gc(self.database, run, policy)

    def execute(self, plan: GcPlan, *, now: bool = False, allow_mass_delete: bool = False) -> Collected:
        """Carry a plan out, after looking again at each state: what it removes goes to the trash.

        `now` deletes at once. Raises `RefusedError` for a plan that leaves nothing or, without `allow_mass_delete`,
        removes nearly all; and while another gc of the run is at work.
        """
        from ckptstore.retention.execute import execute

        return execute(self.database, plan, at_once=now, allow_mass_delete=allow_mass_delete)

    def undo(self, run: str) -> Undone:
        """Bring back what the last gc of a run moved to the trash."""
        from ckptstore.retention.in_trash import undo

        return undo(self.database, run)

    def purge(self, run: str, *, now: bool = False) -> Purged:
        """Delete files that have been in the trash of a run for longer than their grace, or all of them `now`."""
        from ckptstore.retention.in_trash import purge

        return purge(self.database, run, at_once=now)


def connect(url: str | os.PathLike[str] | None = None) -> Catalog:
    """Open the catalog that `url` names, else CKPTSTORE_URL, else the user's own SQLite file.

    An SQLite file is created and upgraded as needed, a PostgreSQL database filled if it is empty. Raises
    `CatalogUnavailableError` where it cannot be used and `SchemaError` where its schema is of another version.
    """
    database = open_database(url)
    schema.ensure(database)
    return Catalog(database)
