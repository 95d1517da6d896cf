"""One rank's hold on a launch: what it registers, and where it starts."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, tallies
from ckptstore.catalog.backoff import Backoff
from ckptstore.catalog.reads import Source
from ckptstore.core.limits import HIGHEST_INTEGER
from ckptstore.core.model import FileState, Kind, Outcome, Rule
from ckptstore.errors import CatalogUnavailableError, UsageError
from ckptstore.formats.inspect import is_cut
from ckptstore.ops import adopt, exits, lease, meant, strategies
from ckptstore.ops import register as registering
from ckptstore.ops.collect import Collected, execute
from ckptstore.ops.kept import Kept
from ckptstore.ops.reconcile import Reconciled, reconcile
from ckptstore.ops.records import Began, Ended, Verdict
from ckptstore.ops.retention import plan_gc
from ckptstore.ops.settle import settle
from ckptstore.ops.worker import Trouble
from ckptstore.ops.writers import for_rank
from ckptstore.storage import claims
from ckptstore.storage.files import absolute

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.reads import Ending
    from ckptstore.core.model import Checkpoint, Content, Launch, RestorePlan
    from ckptstore.core.policy import Policy

LONGEST_PAUSE_SECONDS = 20.0
"""Between two looks at a catalog that could not be used: 30 seconds after it is back it has everything."""


class RankLaunch:
    """What one rank does in a launch. Made by `Catalog.join`.

    `facts` holds what the catalog knows of the launch: its id, order, world size and layout.
    """

    def __init__(self, database: Database, facts: Launch, rank: int) -> None:
        self.database = database
        self.facts = facts
        self.rank = index(rank)
        self._began = Began(facts)
        self.ledger = for_rank(database, rank, facts.id, lambda: self._began)
        self.kept = Kept(self.ledger)
        self._has_saved = False
        self._sources: list[Source] = []
        self._gasps: set[str] = set()
        self._backoff = Backoff(LONGEST_PAUSE_SECONDS)
        self._next_look = 0.0

    @property
    def id(self) -> str:
        """The launch's id, the same on all ranks."""
        return self.facts.id

    @property
    def run(self) -> str:
        """The run's name."""
        return self.facts.run

    @property
    def world_size(self) -> int:
        """How many ranks the launch has."""
        return self.facts.world_size

    def register(
        self,
        path: str | os.PathLike[str],
        *,
        kind: Kind | str = Kind.PERIODIC,
        global_step: int,
        optimizer_step: int | None = None,
        epoch: int | None = None,
        step_in_epoch: int | None = None,
        strategy_file: str | os.PathLike[str] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Checkpoint:
        """Record a checkpoint file that this rank has written, and return the record.

        `global_step` counts the batches consumed since the run began. The file must be there, whole; its size and
        digest are taken now. Registering the same again changes nothing. Raises `UsageError` for a file that is
        not there, empty or cut, or values that cannot be meant, `CatalogUnavailableError` where the record could not be
        kept.
        """
        described = registering.describe(
            self.facts,
            rank=self.rank,
            path=path,
            kind=kind,
            global_step=global_step,
            optimizer_step=optimizer_step,
            epoch=epoch,
            step_in_epoch=step_in_epoch,
            strategy_file=strategy_file,
            metrics=metrics,
        )
        try:
            file = registering.measured(described)
            if file is not None and is_cut(Path(file.path)):
                raise UsageError(f"{file.path} is empty or cut", "register a file once it is whole")
        except OSError as error:
            raise UsageError(f"cannot read {described.path}: {error.strerror or error}") from None
        if file is None:
            raise UsageError(f"{described.path} is not there, or is being written", "register a file once it is whole")
        self.record([file])
        self._look_at_the_catalog()
        return file

    def _look_at_the_catalog(self) -> None:
        """Give the catalog what the journals have, where it could not be used and it is time to look again."""
        if not self.ledger.behind:
            self._backoff.reset()
        elif time.monotonic() >= self._next_look:
            with suppress(CatalogUnavailableError):
                self.catch_up()
            self._next_look = time.monotonic() + self._backoff.pause()

    def record(self, files: Sequence[Checkpoint]) -> None:
        """Keep records of files: in the journals beside them, then in the catalog.

        With the first, that the launch's plan was a good one. Raises `CatalogUnavailableError` where neither took them.
        """
        proves = self.facts.parent is not None and not self._has_saved
        saved = Verdict(self.id, self.rank, Outcome.SAVED, datetime.now(timezone.utc)) if proves else None
        self.ledger.record(files, saved)
        self._has_saved = True
        self.kept.add(files)
        self._gasps.update(file.path for file in files if file.kind is Kind.DYING_GASP)

    def resolve(
        self, *, step: int | None = None, lineage: str | None = None, take_quarantined: bool = False
    ) -> RestorePlan | None:
        """Where this launch starts, the same for all its ranks; None for a fresh start.

        `step` and `lineage` ask for an older state, of the history that leads to a launch (None: to the newest): what
        came after it is given up, and `NothingRestorableError` raised if it cannot be restored. `take_quarantined`
        takes a state that was found to be bad too. The first rank's answer is the launch's.
        """
        plan = settle(self.database, self.facts, step=step, lineage_of=lineage, take_quarantined=take_quarantined)
        self.reread()
        with self.database.read() as connection:
            at = reads.decided_at(connection, self.id)
        moment = at or datetime.now(timezone.utc)
        self.started(plan, moment, start_step=self.facts.start_step, branched=self.facts.branched)
        return plan

    def started(self, plan: RestorePlan | None, at: datetime, *, start_step: int | None, branched: bool) -> None:
        """Note where this launch starts, as it was decided at that moment; rank 0 journals it for all ranks."""
        self.facts = replace(
            self.facts,
            decided=True,
            parent=plan.launch.id if plan else None,
            parent_step=plan.global_step if plan else None,
            start_step=start_step,
            branched=branched,
        )
        ranks = tuple((each.rank, each.source) for each in plan.ranks) if plan else ()
        self._began = Began(self.facts, at, plan.launch if plan else None, ranks if self.rank == 0 else ())
        own = [source for rank, source in ranks if rank == self.rank]
        self.ledger.tell(self.id, [str(Path(file.path).parents[2 if file.kind is Kind.TTP else 0]) for file in own])

    def set_steps_per_epoch(self, steps: int, *, batch_size: int | None = None, shards: int | None = None) -> None:
        """Record how many batches of one rank an epoch has, and, where it is known, what a step takes of the data.

        `batch_size` is the samples of one rank a step; `shards` into how many parts the samples are dealt, in turn.
        Raises `UsageError` for what is no number of them.
        """
        steps = _counted("steps_per_epoch", steps)
        batch_size = None if batch_size is None else _counted("batch_size", batch_size)
        shards = None if shards is None else _counted("shards", shards)
        self.facts = replace(self.facts, steps_per_epoch=steps, batch_size=batch_size, shards=shards)
        self._began = replace(self._began, launch=self.facts)
        self.ledger.steps_per_epoch(self.id, steps, batch_size=batch_size, shards=shards)

    def add_source(
        self,
        directory: str,
        *,
        kind: Kind,
        prefix: str,
        breakpoint_prefix: str,
        names_before: Sequence[str],
        content: Content | None = None,
    ) -> None:
        """Record where this rank saves files of a kind, and the names there that are of an earlier launch.

        `content` is what its periodic files hold (None: not known). Raises `UsageError` for a directory or prefix that
        is not UTF-8.
        """
        source = Source(
            launch=self.id,
            rank=self.rank,
            directory=meant.path("directory", absolute(directory)),
            kind=kind,
            prefix=meant.path("prefix", prefix),
            breakpoint_prefix=breakpoint_prefix,
            names_before=frozenset(names_before),
            host=claims.host_name(),
            content=content,
        )
        self._sources.append(source)
        self.ledger.announce(source)

    def keep_layout_file(self, path: str) -> bool:
        """Keep a strategy or group info file that MindSpore wrote in this launch, and know replicas by it.

        Whether it was kept. In a data-parallel launch, or of one rank, there is nothing that it could tell. Raises
        `UsageError` for a path that is not UTF-8.
        """
        if self.world_size == 1 or self.facts.layout.any_world_size:
            return False
        return strategies.keep(self.ledger, self.facts, self.rank, meant.path("the layout file", path))

    def set_ending(
        self, global_step: int, optimizer_step: int | None, error: str | None, *, quarantine: str = ""
    ) -> None:
        """Record the step at which training ended on this rank, and the exception's name if one ended it.

        `quarantine` says what is wrong with the state at that step (empty: nothing).
        """
        at = datetime.now(timezone.utc)
        self.ledger.end(Ended(self.id, self.rank, global_step, optimizer_step, error, quarantine, at))

    def keep_exit(self, file: Checkpoint, kept_path: str) -> None:
        """Give the file of a graceful exit, which is whole now, the name under which it is kept. Can be repeated."""
        exits.keep(self.ledger, file, kept_path)

    def moved(self, before: str, after: str) -> None:
        """Record that a directory of this launch, whoever's files are in it, was renamed.

        Only the catalog knows the files of all ranks: while it cannot be used this is left to the next start, which
        sees that they were moved.
        """
        if self.ledger.behind:
            return
        try:
            registering.moved(self.ledger, self.id, before, after)
        except CatalogUnavailableError as error:
            self.ledger.fall_behind(error)

    def mark_damaged(self, file: Checkpoint, rule: Rule) -> None:
        """Record that a file is not what it should be: no later plan takes it."""
        self.ledger.mark([file], FileState.DAMAGED, rule)

    def note(self, file: Checkpoint) -> bool:
        """Journal that a file is being recorded, waiting for nobody and nothing; whether that could be done."""
        return self.ledger.at_once(file)

    @property
    def is_behind(self) -> bool:
        """Whether the catalog lacks what the journals of this rank have."""
        return self.ledger.is_late

    def catch_up(self) -> None:
        """Take what is in the journals of this rank, and not in the catalog, into it.

        Raises `CatalogUnavailableError` where it still cannot be used.
        """
        self.ledger.catch_up()

    def load_failed(self, file: Checkpoint | None, detail: str) -> None:
        """Record that this rank could not load its file of the plan; the next launch does without it.

        None, where the file is not to blame: nothing speaks against trying again.
        """
        said = detail.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")  # it may quote any bytes
        self.ledger.judge(Verdict(self.id, self.rank, Outcome.FAILED, datetime.now(timezone.utc), file, said))

    def adopt(self) -> Reconciled:
        """Take in what this rank wrote and nobody registered, as the breakpoint after an exception."""
        with self.database.read() as connection:
            run_id = reads.run_id(connection, self.run)
        return (
            Reconciled()
            if run_id is None
            else reconcile(self.database, run_id, only=(self.id, self.rank), ledger=self.ledger)
        )

    def record_left(self, ending: Ending, expected: frozenset[str]) -> None:
        """Record the breakpoints that this rank wrote when its training ended so, and nobody registered.

        The catalog is not asked: a training that follows in the same process, and ends otherwise, must not wait for it.
        `expected` are the parameters that a whole file has. Raises as `record` does, and `OSError`.
        """
        left = adopt.left_at(ending, self.facts, self._sources, self._gasps, expected)
        if left:
            self.record(left)

    def newest_registered_by_all(self) -> int | None:
        """The newest step that every rank of this launch has registered; None if there is none yet."""
        with self.database.read() as connection:
            return tallies.newest_of_all_ranks(connection, self.id, self.world_size)

    def collect(self, policy: Policy) -> Collected:
        """Run gc on this launch's run: what the policy removes goes to the trash. Raises as `Catalog.execute` does.

        What could not be seen is among the troubles: nobody reads the plan.
        """
        plan = plan_gc(self.database, self.run, policy)
        done = execute(self.database, plan)
        return replace(done, troubles=(*done.troubles, *(Trouble(each.path, each.reason) for each in plan.unseen)))

    def renew_lease(self) -> None:
        """Tell that this launch is alive: the state that it started from is held for longer.

        While the catalog cannot be used that waits for the next time: nobody can give a state up meanwhile.
        """
        if self.ledger.behind:
            return
        try:
            lease.renew(self.database, self.id)
        except CatalogUnavailableError as error:
            self.ledger.complain(f"{error}. Training goes on.")

    def let_go(self) -> None:
        """Close the journals and the connections to the catalog; whatever needs them opens them again."""
        self.ledger.close()
        self.database.disconnect()

    def take_up(self) -> None:
        """Open the journals again that `let_go` has closed, so that `note` need not wait for that."""
        self.ledger.tell(self.id)

    def reread(self) -> None:
        """Read again what the catalog knows of this launch."""
        with self.database.read() as connection:
            found = reads.launch(connection, self.id)
        if found is not None:
            self.facts = found
            self._began = replace(self._began, launch=found)


def _counted(what: str, value: int) -> int:
    return meant.number(what, value, "it is counted from 1", HIGHEST_INTEGER, lowest=1)
