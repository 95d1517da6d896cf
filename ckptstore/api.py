"""The calls for scripts: `connect`, and the methods of the `Catalog` that it returns.

Each method imports its use case when it is called: `ckptstore list` does not wait for the imports of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ckptstore.catalog import schema
from ckptstore.catalog.engine import open_database
from ckptstore.core import validate
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
        """Close the catalog."""
        self.close()

    def close(self) -> None:
        """Close the connections to the database. The next use of the catalog opens a new one."""
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

        All ranks of one start give the same `launch_id`; the next start needs a new one. None: the value of
        CKPTSTORE_LAUNCH_ID; without it, a single rank makes an id itself. `layout` is "data_parallel" if every rank can
        load the file of every other rank.
        """
        from ckptstore.training.start import begin_in_catalog

        launch = begin_in_catalog(
            self.database, run, rank=rank, world_size=world_size, launch_id=launch_id, layout=layout
        )
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

        `run` is the name of a run, or a reference to one of its states, such as "digits@best:accuracy:max"
        (docs/reference/state-names.md).

        - `step`: only states of this step.
        - `lineage`: the id of a launch. Only states of the lineage of this launch (None: of the newest launch).
        - `every_lineage`: states of all launches, also those of abandoned branches. The highest step comes first.
        - `world_size`: the number of ranks that will load the state (None: as many as saved it).
        - `verify`: "size" compares the sizes of the files, "digest" reads every byte.
        - `take_quarantined`: also quarantined states, for example one whose loss was not a number.
        - `replicas`: the groups of ranks that hold the same state: "dp", "none", groups such as "0,4;1,5", or the path
          of a strategy, group info or JSON file.

        A file that only a tier has is not at its path. It is then in `plan.copies`, and a start fetches it.
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

        A reference is the name of a run, or "run@1200", "run@TAG", "run@best:loss" or "run/LAUNCH@1200". Raises
        `UnknownRunError`, `UsageError` for a reference that names nothing, and `NothingRestorableError` for a state
        that is not complete here, also if only a tier has some of its files.
        """
        from ckptstore.tensors.opened import open_state

        return open_state(self.database, reference)

    def diff(
        self, first: str | Path, second: str | Path, *, progress: Callable[[int, int], None] = lambda _done, _all: None
    ) -> Compared:
        """Compare two states or two files.

        A state is given by a reference, as in `open`. A file is a `Path`, or a name that ends in .ckpt or .safetensors.
        The result lists the parameters that are new, gone, or of another type or shape. For each parameter with other
        values it has the norms of the difference: parameters with NaN or infinity first, then by falling relative
        norm. Two files with the same recorded digest are not read. `progress` is called with the number of bytes
        compared so far, and the largest number that there can be. Needs NumPy. Raises the errors of `open`, and those
        of reading a tensor of an `OpenState`.
        """
        from ckptstore.tensors.compare import compare

        return compare(first, second, lambda: self.database, progress)

    def branch(self, plan: RestorePlan) -> str:
        """Let the next launch of the plan's run start from the plan's state; return the id of that decision.

        States after this one become an abandoned branch: starts no longer take them by default. No file is deleted.
        Raises `RefusedError` if the state was removed since the plan was made.
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
        """Adopt the checkpoints below a directory into a run.

        - `run`: the run of the files (None: the run that the journals name, if they name one; else the run with the
          directory's name).
        - `world_size`: the number of ranks (None: as the files show).
        - `steps_per_epoch`: the number of batches in an epoch (None: as the files show).
        - `steps`: the steps that you know. A key is the path of a file, a prefix of TensorFlow's files, or a directory
          that is one checkpoint.
        - `replicas`: as in `resolve`.
        - `dry_run`: write nothing, and return the same result.
        - `trust`: users and groups, as in `sync`. Also witnesses that each suffice alone for a step: "counter", "name",
          "info"; and "numbers": files with the same _N in their names are of one launch.
        - `progress`: called with the number of files looked at since the last call.
        - `into`: if `directory` is the URL of a tier, its journals are written below this directory, which is then
          scanned. No dry run can do that.
        """
        if into is not None or "://" in str(directory):
            from ckptstore.replicate.journals import brought_back

            directory = brought_back(str(directory), into, dry_run=dry_run)
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
            dry_run=validate.switch("dry_run", dry_run),
            trust=Trust.of(name for name in names if name not in witnesses),
            progress=progress,
        )

    def sync(self, run_or_directory: str | Path | None = None, *, trust: Iterable[str] = ()) -> Synced:
        """Take up journals: add their records that the catalog lacks.

        The journals are those of a run, of every run (None), or below a directory. A directory is given as a `Path`, or
        as text with a slash. A journal is believed if its owner also owns its directory, is the calling user or root,
        or is named in `trust` or CKPTSTORE_TRUST, which list users and groups.
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

        Sizes and headers are compared, with `digest` every byte. `sample` is the part of the files to verify, above 0
        and up to 1, chosen at random (None: all). The state from which the run goes on, newer files, and damaged ones
        are always verified. `shard` (I, N) is the I-th of N parts of the files, with I from 1: N processes, each with
        its own I, verify every file once.
        """
        from ckptstore.verify.verify import verify

        return verify(self.database, run, digest=validate.switch("digest", digest), sample=sample, shard=shard)

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

        Each file must have its recorded digest. The target gets its name once it is complete and on the disk.
        `weights_only` writes one `.safetensors` without the optimizer's parameters, `format` one with the whole state.
        Both need a file that holds the state of all ranks. `progress` is called with the bytes written so far, and the
        bytes in all. Raises `NothingRestorableError` if the state cannot be restored, `DamageError` if a file differs
        from its record, and `RefusedError` if the target exists, or if the state cannot be written in this form.
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
        """Copy an export to a new directory, and record it as a run that training can go on from.

        `source` is a directory or a `.tar` that `export` wrote. `run` is the name of the new run (None: the name of the
        exported run). The files are copied to `directory` (None: one with the run's name, in the working directory).
        Every byte is checked before anything is recorded. After an interruption, the same call finishes the import.
        Raises `DamageError` if the export is damaged, and `RefusedError` if the run or the directory exists, or if
        the export holds the weights only.
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
        """List the saves of a run, or of all runs, newest first: those of the last `since`, at most `limit`."""
        return Listing(overview.saves(self.database, run, kind=kind, since=since, limit=limit), dicts.save)

    def files(
        self,
        run: str | None = None,
        *,
        kind: str | None = None,
        since: timedelta | None = None,
        limit: int | None = None,
    ) -> Listing[Checkpoint]:
        """List every file ever recorded of a run, or of all runs: those of the last `since`, at most `limit`."""
        return Listing(overview.files(self.database, run, kind=kind, since=since, limit=limit), dicts.file)

    def unplaced(self, run: str) -> Listing[Unplaced]:
        """List the unplaced files of a run: a scan found no certain step or rank. The file written last comes first."""
        return Listing(overview.unplaced(self.database, run), dicts.unplaced)

    def show(self, run: str, step: int) -> Listing[Checkpoint]:
        """List every file of one step of a run."""
        return Listing(overview.show(self.database, run, step), dicts.file)

    def history(self, run: str) -> Listing[LaunchRow]:
        """List every launch of a run, oldest first: its start, the newer states that it passed over, and its end."""
        from ckptstore.resume.history import history

        return Listing(history(self.database, run), dicts.launch)

    def advise(self, run: str, *, mtbf: timedelta | None = None) -> Advice:
        """Say how often a run should save, and what it loses at the present interval and at the best one.

        `mtbf` is the mean time between failures (None: computed from the failures in the catalog).
        docs/explanation/interval.md has the formula.
        """
        from ckptstore.advise.advise import advise

        return advise(self.database, run, mtbf=mtbf)

    def rename(self, run: str, name: str) -> bool:
        """Give a run another name; return whether it had a different one. The run's first name stays valid."""
        from ckptstore.resume import names

        return names.rename(self.database, run, name)

    def forget(self, run: str, *, undo: bool = False) -> bool:
        """Hide a run from every command, or bring it back; return whether that changed anything. No file is touched.

        Its name stays taken: a launch that joins the run is refused until the run is brought back.
        """
        from ckptstore.resume import names

        return names.forget(self.database, run, forgotten=not validate.switch("undo", undo))

    def pin(self, run: str, step: int) -> bool:
        """Protect a step of a run from gc; return whether it was not pinned before."""
        from ckptstore.retention import protect as pinning

        return pinning.pin(self.database, run, step)

    def unpin(self, run: str, step: int) -> bool:
        """Remove the pin of a step; return whether there was one."""
        from ckptstore.retention import protect as pinning

        return pinning.unpin(self.database, run, step)

    def tag(self, run: str, step: int, name: str) -> bool:
        """Give a step of a run a name, which protects it from gc; return whether it did not have this name before."""
        from ckptstore.retention import protect as pinning

        return pinning.tag(self.database, run, step, name)

    def untag(self, run: str, name: str) -> bool:
        """Remove a name and its protection; return whether a step had this name."""
        from ckptstore.retention import protect as pinning

        return pinning.untag(self.database, run, name)

    def record(self, reference: str, **metrics: float) -> None:
        """Add metrics to a recorded state, such as those of an evaluation: `record("digits@1200", accuracy=0.93)`.

        Of several values for one metric, the last recorded one counts. Raises `UsageError` for a value that is not a
        finite number, and `NothingRestorableError` for a state that is not complete.
        """
        from ckptstore.resume.measure import measure
        from ckptstore.resume.register import checked

        if "step" in metrics:
            named = f"{reference}@{metrics['step']}"
            raise UsageError("step is no metric", f"name the state: {Call('record', repr(named), '…')}")
        measure(self.database, reference, checked(metrics))

    def plan_gc(self, run: str, policy: Policy | None = None) -> GcPlan:
        """Plan which states of a run stay and which go, with all reasons; no file is touched.

        Without `policy`, the policy stored for the run counts. Raises `RefusedError` if no rule says which states to
        keep, or if a journal has a newer policy than the stored one.
        """
        from ckptstore.retention.plan import plan_gc

        return plan_gc(self.database, run, policy)

    def execute(self, plan: GcPlan, *, now: bool = False, allow_mass_delete: bool = False) -> Collected:
        """Carry out a plan: move the files of the states that it removes to the trash.

        Each state is looked at again first. A state that has changed, or is protected since, stays. `now` deletes at
        once, without the trash. Raises `RefusedError` for a plan that leaves nothing; for one that removes more than
        90 % of the bytes, without `allow_mass_delete`; and while another process works on the run's files.
        """
        from ckptstore.retention.execute import execute

        at_once, allowed = validate.switch("now", now), validate.switch("allow_mass_delete", allow_mass_delete)
        return execute(self.database, plan, at_once=at_once, allow_mass_delete=allowed)

    def undo(self, run: str) -> Undone:
        """Bring back what the last gc of a run moved to the trash."""
        from ckptstore.retention.in_trash import undo

        return undo(self.database, run)

    def purge(self, run: str, *, now: bool = False) -> Purged:
        """Delete the files in the trash of a run whose grace is over; with `now`, all files in the trash."""
        from ckptstore.retention.in_trash import purge

        return purge(self.database, run, at_once=validate.switch("now", now))


def connect(url: str | os.PathLike[str] | None = None) -> Catalog:
    """Open the catalog that `url` names (None: the one in CKPTSTORE_URL; without it, the user's own SQLite file).

    An SQLite file is created and upgraded as needed. In an empty PostgreSQL database, the tables are created. Raises
    `CatalogUnavailableError` if the catalog cannot be used, and `SchemaError` if its schema has another version.
    """
    database = open_database(url)
    schema.ensure(database)
    return Catalog(database)
