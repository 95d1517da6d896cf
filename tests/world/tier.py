"""A world with a tier: a shared directory with copies, and the promises about copies."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ckptstore.errors import CkptstoreError, NothingRestorableError
from ckptstore.replicate.replicator import SETTLED, Replicator
from ckptstore.retention import in_tier
from ckptstore.retention.plan import plan_gc
from ckptstore.retention.policy import Policy
from ckptstore.tiers import facts
from tests.world.disks import Disk
from tests.world.truth import Launch, ViolationError
from tests.world.world import ROOT, RUN, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptstore.api import Catalog
    from ckptstore.core.model import Checkpoint, RestorePlan
    from tests.world.machine import Fault, Machine

AT = "/tier"
SHARED, NODES = "shared", "nodes"
_CLOCKS_DIFFER = 600  # seconds


class TierWorld(World):
    """As `World`, with a directory that all nodes see, and that gets copies of the run's files."""

    def __init__(self, machine: Machine, **settings: Any) -> None:
        super().__init__(machine, **settings)
        self.tier = Disk(SHARED, 40)
        self.is_tier_away = False
        self._out_of_use: set[bytes] = set()
        """Contents whose copies a gc of the tier may have taken out of use. They are not copied again."""
        self._purged: dict[str, bytes] = {}
        """Copies that purge deleted, by their key: a catalog that did not hear of that may still name them."""
        self.ready: set[bytes] = set()
        """Contents that were reported as copied. No gc has taken their copies out of use, no user has changed them."""
        for node in self.nodes:
            node.mount(AT, self.tier)
        system = self.machine.system

        def make() -> None:
            with system.open_file(f"{AT}/notes.txt", "wb") as file:
                file.write(b"mine")

        machine.run(self.operator, make, "strangers")
        self.tier.sync_all()

    # Operators.

    def declare(self) -> None:
        """Declare two tiers: the shared directory, and the nodes' own disks. It must be mounted the first time."""
        is_away = self.is_tier_away

        def work(opened: Catalog) -> None:
            shared = facts.tier_of(SHARED, AT)
            if is_away and shared not in facts.declared(opened.database):
                return
            facts.add(opened.database, shared)
            facts.add(opened.database, facts.tier_of(NODES, ROOT, 0))

        self._operate("declare", work)

    def replicate(self) -> None:
        """Copy the files that the tier lacks. First the catalog takes up journals, if a second catalog is in use."""
        held, self.fault = self.fault, None
        if self.has_other:
            self.sync()
        self.fault = held
        self.machine.sleep(_CLOCKS_DIFFER + SETTLED.total_seconds())  # until every record is old enough
        fault, there = self.fault, self.there()
        task = self._operate("replicate", lambda opened: Replicator(opened.database).round(RUN))
        is_whole = task.error is None and task.is_over and not (task.result.troubles or task.result.held)
        if not is_whole or fault is not None or not self._is_sure():
            return
        there_now = self._copies()
        excepted = self._out_of_use | self._uncounted | set(self.lost.values())
        for each in self.truth.every_file():
            # A catalog that has not heard of an undo marks the state as bad, and its files as in the trash still.
            if self.has_other and each.identity.step in self.truth.launches[each.identity.launch].quarantined:
                continue
            if each.registered and there.get(each.path) == each.content and each.content not in excepted:
                if each.content not in there_now:
                    raise ViolationError(f"{each.path} was not copied, though no fault prevented it")
                self.ready.add(each.content)
        self.checked["copied"] += 1

    def tier_gc(self, keep_last: int = 2, floor: int = 2) -> None:
        """Retention of the copies in the tier."""
        policy = Policy(keep_last=max(keep_last, 1), floor=max(floor, 1), grace=timedelta(hours=24))

        def work(opened: Catalog) -> Any:
            tier = facts.named(opened.database, SHARED)
            return in_tier.execute(
                opened.database, in_tier.plan_tier(opened.database, RUN, tier, policy), allow_mass_delete=True
            )

        self._take_out_of_use("tier gc", work, policy.floor)

    def tier_undo(self) -> None:
        """Undo the last gc of the tier."""
        self._operate(
            "tier undo", lambda opened: in_tier.undo(opened.database, RUN, facts.named(opened.database, SHARED))
        )

    def tier_purge(self, now: bool = False) -> None:  # noqa: FBT001, FBT002
        """Delete the copies that a gc took out of use."""

        def work(opened: Catalog) -> Any:
            return in_tier.purge(opened.database, RUN, facts.named(opened.database, SHARED), at_once=now)

        marked, before = self._marked() & self._copies(), self.tier.everything()
        self._operate("tier purge", work)
        self._purged |= {key: content for key, content in before.items() if key not in self.tier.everything()}
        self._check_copies("tier purge", self.ready | marked)

    def free_nodes(self, keep_last: int = 2, floor: int = 2, now: bool = False) -> None:  # noqa: FBT001, FBT002
        """Remove files that have copies from the nodes' disks."""
        policy = Policy(keep_last=max(keep_last, 1), floor=max(floor, 1), grace=timedelta(hours=24))

        def plan(opened: Catalog) -> Any:
            return plan_gc(opened.database, RUN, policy, tier=facts.named(opened.database, NODES))

        # A draft whose renaming a power loss undid is a leftover.
        homes = {
            path: content
            for path, content in self.everything().items()
            if "/.ckptstore/" not in path and not path.endswith(".tmp")
        }
        is_whole, useless = self.fault is None and not self.is_tier_away, self._useless()
        self._collect("free nodes", plan, policy, 0, now=now, copied=set() if self.is_tier_away else self._copies())
        if is_whole and self._is_sure():
            after, copied = self.everything(), self._copies()
            for path, content in homes.items():
                is_of_run = content in self.truth.contents and content not in self.neighbours.values()
                if is_of_run and after.get(path) != content and content not in copied | useless:
                    raise ViolationError(f"{path} was deleted on its node, though no tier has a copy")
            self.checked["freed"] += 1

    # What happens to the tier.

    def tier_away(self) -> None:
        """Unmount the tier."""
        if not self.is_tier_away:
            self.is_tier_away = True
            for node in self.nodes:
                node.unmount(AT)

    def fill_tier(self, room: int = 0) -> None:
        """Fill the tier, except for a few bytes."""
        self.tier.capacity = self.tier.used + room

    def lose_copy(self, which: int = 0, cut: bool = False) -> None:  # noqa: FBT001, FBT002
        """A user deletes a copy in the tier, or cuts it."""
        paths = sorted(path for path, content in self.tier.everything().items() if content in self.truth.contents)
        if not paths or self.is_tier_away:
            return
        key = paths[which % len(paths)]
        path = f"{AT}/{key}"
        self.lost[key] = self.tier.everything()[key]
        self.ready.discard(self.lost[key])
        system = self.machine.system

        def work() -> None:
            with system.open_file(path, "rb") as file:
                content = file.read()
            system.unlink(path)
            if cut:
                with system.open_file(path, "wb") as file:
                    file.write(content[:-7])

        self.machine.run(self.operator, work, "lose copy")

    def replace_disk(self, which: int = 0) -> None:
        """Replace a disk by an empty one."""
        self._end_trainers()
        self._end_neighbour()
        paths = sorted(set(self.disks) - self.away)
        if not paths:
            return
        path = paths[which % len(paths)]
        self._dropped |= set(self.disks[path].everything().values())
        self.has_lost_disk = True
        self.is_shaken |= not self.is_current
        self.disks[path] = Disk(path, 50 + self.done["replace disk"])
        self.done["replace disk"] += 1
        for node in self.nodes:
            node.unmount(path)
            node.mount(path, self.disks[path])
        there = self.everything()
        self.backups = {at: content for at, content in self.backups.items() if at in there}
        self._strangers = {at: content for at, content in self._strangers.items() if at in there}
        self.neighbours = {at: content for at, content in self.neighbours.items() if at in there}
        self.in_trash = {at: promised for at, promised in self.in_trash.items() if at in there}

    def mount(self) -> None:
        super().mount()
        if self.is_tier_away:
            self.is_tier_away = False
            for node in self.nodes:
                node.mount(AT, self.tier)

    def relieve(self) -> None:
        self.tier.capacity = None
        super().relieve()

    def power_loss(self) -> None:
        super().power_loss()
        self.tier.power_loss(self.machine.chance)
        self._check_copies("power loss", self.ready)

    def lose_catalog(self, to_yesterday: bool = False) -> None:  # noqa: FBT001, FBT002
        self.is_shaken |= self.has_lost_disk  # the records of its journals are nowhere else
        if not self._is_sure():
            self.ready.clear()
        super().lose_catalog(to_yesterday)
        self.is_current &= not self.has_lost_disk
        if not self.is_current:
            self.ready.clear()

    # What must hold.

    def check(self) -> None:
        super().check()
        if self.tier.everything().get("notes.txt") != b"mine":
            raise ViolationError("a stranger's file in the tier was touched")

    def _check_nothing_hidden(self, launch: Launch) -> None:
        if not self._is_forgotten():
            super()._check_nothing_hidden(launch)

    def _start_again(self, launch: Launch, plain: bool) -> None:  # noqa: FBT001
        if not self._is_forgotten():
            super()._start_again(launch, plain)

    def _is_forgotten(self) -> bool:
        """Whether it is possible that neither a journal nor the catalog knows the run."""
        return self.has_lost_disk and (self.is_shaken or not self.is_current)

    def _copies(self) -> set[bytes]:
        """The checkpoints' contents in the tier."""
        return {content for content in self.tier.everything().values() if content in self.truth.contents}

    def _is_sure(self) -> bool:
        """Whether every file and record can be seen, and nothing makes the result uncertain."""
        return (
            self.is_quiet
            and self.is_current
            and not (
                self.is_tier_away
                or self.tier.capacity is not None
                or self.is_shaken
                or self.has_gap
                or self._is_hidden()
                or self._is_interrupted()
            )
        )

    def _useless(self) -> set[bytes]:
        """The contents that gc may remove from a node without a copy, because they belong to no complete state."""
        there = self.there()
        whole = {
            each.content
            for launch in self.truth.launches
            for step in launch.saved
            if self.truth.is_whole(launch, step, there, registered=False)
            for each in self.truth.files(launch, step)
        }
        return {each.content for each in self.truth.every_file()} - whole

    def _take_out_of_use(self, name: str, work: Callable[[Catalog], Any], floor: int) -> None:
        """Run an operation that takes copies out of use. The newest states of the tier, and marked ones, must stay."""
        copied = self._copies()
        homes = {each.path: each.content for each in self.truth.every_file() if each.content in copied}
        sure = {path: content for path, content in homes.items() if content in self.ready}
        states = set() if self._is_in_doubt() else set(self.truth.floor(sure, floor, {}, may_be=homes))
        marked = self._marked()
        keep = marked | {each.content for launch, step in states for each in self.truth.files(launch, step)}
        self._operate(name, work)
        self._out_of_use |= copied - (self.ready & keep)
        self.ready &= keep
        self._check_copies(name, self.ready | (marked & copied))

    def _is_in_doubt(self) -> bool:
        return self.truth.is_in_doubt() or self.truth.has_untold() or self.is_shaken or self._is_interrupted()

    def _marked(self) -> set[bytes]:
        """The contents of steps that are surely pinned or tagged. Their copies stay, also those out of use."""
        marks = set() if self._is_in_doubt() or self.first_missed else self.truth.marked()
        states = [(each, step) for each in self.truth.launches for step in marks & each.saved.keys()]
        return {each.content for launch, step in states for each in self.truth.files(launch, step)}

    def _check_copies(self, what: str, ready: set[bytes]) -> None:
        self.checked["copies"] += len(ready)
        for content in sorted(ready - self._copies()):
            raise ViolationError(f"{what} took the copy of {self.truth.contents[content]}")

    def _within_reach(self, there: dict[str, bytes]) -> dict[str, bytes]:
        if not self.is_quiet or self.is_tier_away or self.tier.capacity is not None:
            return there
        copied = self._copies() & self.ready
        far = {
            each.path: each.content
            for each in self.truth.every_file()
            if each.registered and each.path not in there and each.content in copied
        }
        return far | there

    def _read(self, plan: RestorePlan, file: Checkpoint, there: dict[str, bytes]) -> bytes | None:
        copies = self.tier.everything() | self.lost | (self._purged if self.has_other else {})
        fetched = (copies[copy.key] for copy in plan.copies.get(file.id, ()) if copy.key in copies)
        return next(fetched, there.get(file.path))

    def _check_refusal(self, launch: Launch, error: CkptstoreError | None, fault: Fault | None) -> None:
        if isinstance(error, NothingRestorableError) and self.lost:
            return  # this start has found that a copy is lost, and the next start goes on
        if self.is_tier_away and error is not None and "no tier gives it" in error.message:
            return  # the start waits for the tier
        super()._check_refusal(launch, error, fault)
