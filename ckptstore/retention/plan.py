"""Plans a gc: looks at the states of a run on the disk, and judges them with the code that makes restore plans."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ckptstore.catalog import reads, removals
from ckptstore.catalog.copies import copies_of_run, ready_copies, tiers_of
from ckptstore.catalog.protection import protection_of
from ckptstore.catalog.runs import find_run
from ckptstore.core import iterations
from ckptstore.core.copies import MADE, CopyState
from ckptstore.core.groups import grouped
from ckptstore.core.hints import Command
from ckptstore.core.limits import CLOCKS_DIFFER
from ckptstore.core.metrics import mean_metrics
from ckptstore.core.model import Content, FileState, Grade, Kind, Rejection, RestorePlan, Skipped, State
from ckptstore.core.naming import FOREIGN, above_save, checkpoints_of, companion_of
from ckptstore.core.tabular import Tabular
from ckptstore.disk import files as disk
from ckptstore.disk import presence
from ckptstore.disk.presence import Home
from ckptstore.disk.trash import Trash
from ckptstore.errors import RefusedError
from ckptstore.journal.sync import sync_run, unheard_states, unread_journals, why_unheard
from ckptstore.outside import Path, utc_now
from ckptstore.resume.lineage import branches
from ckptstore.resume.position import shift
from ckptstore.resume.reconcile import reconcile
from ckptstore.resume.resolver import Loads, Query, judge
from ckptstore.resume.uncertainty import Uncertainties
from ckptstore.retention import debris, decide, path_aliases, stored_policy
from ckptstore.retention.authority import Authority
from ckptstore.retention.debris import Target
from ckptstore.retention.decide import Decision, Key, StateFacts
from ckptstore.tiers.facts import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import timedelta

    from ckptstore.catalog.engine import Connection, Database
    from ckptstore.catalog.protection import Protection
    from ckptstore.catalog.removals import Item
    from ckptstore.core.copies import Copy, Tier
    from ckptstore.core.model import Checkpoint, Observed
    from ckptstore.retention.policy import Policy

AGAIN = "make the plan again"
COPIES_CHANGED = "its copies in tiers have changed since the plan was made"
_GRAPH = ".mindir"
_UNCONFIRMED = "a scan found it, its step is consistent, and no start has confirmed that yet"
_SPREAD = "it can be restored only with files from elsewhere"
_OF_OTHERS = "MindSpore cannot load it, unlike the run's other states: its owner is unknown"


@dataclass(frozen=True)
class Copied:
    """The files of a state, and which tiers had a copy of each when the plan was made.

    If the copies change before the state goes, the state stays until the next plan.
    """

    files: tuple[Checkpoint, ...]
    copies: frozenset[tuple[str, str]]  # a file and a tier, each by its id

    @classmethod
    def of(cls, files: tuple[Checkpoint, ...], ready: Mapping[str, tuple[Copy, ...]]) -> Copied:
        """Keep the ready copies of these files, given by the file's id."""
        return cls(files, frozenset((file.id, copy.tier.id) for file in files for copy in ready.get(file.id, ())))


@dataclass(frozen=True)
class GcPlan(Tabular):
    """What gc would do with a run, and why. Nothing has been done yet."""

    run: str
    run_id: int
    policy: Policy
    decision: Decision
    targets: Mapping[Key, tuple[Target, ...]]  # the files of each state that goes, by launch and step
    floor: tuple[Target, ...]  # files of the floor, and of the newest state that counts: nothing goes if they change
    debris: tuple[Target, ...]  # is removed too
    unknown: tuple[Skipped, ...]  # files not in the catalog: only reported
    unseen: tuple[Skipped, ...]  # paths that could not be looked at: states may be there
    copied: Mapping[Key, Copied]  # of each state that goes only because of its copies, or because they are too few

    def to_dicts(self) -> list[dict[str, Any]]:
        """The verdict on each state with its reasons, newest first."""
        found = [("keep", each) for each in self.decision.keep] + [("remove", each) for each in self.decision.remove]
        found.sort(key=lambda each: each[1].state.age_order, reverse=True)
        return [
            {
                "action": action,
                "launch": verdict.state.launch,
                "global_step": verdict.state.global_step,
                "kinds": list(map(str, verdict.state.kinds)),
                "bytes": verdict.state.bytes,
                "why": "; ".join(because.detail for because in verdict.reasons),
            }
            for action, verdict in found
        ]

    @property
    def removes_nothing(self) -> bool:
        """Whether nothing goes."""
        return not self.targets and not self.debris

    @property
    def digest(self) -> str:
        """The SHA-256 of the policy and of every file that goes, in hexadecimal: the same for the same removals."""
        states = {f"{launch} {step}": some for (launch, step), some in self.targets.items()}
        going = {name: sorted((each.path, each.size, each.mtime_ns) for each in some) for name, some in states.items()}
        debris = sorted((each.path, each.size, each.mtime_ns) for each in self.debris)
        told = json.dumps([self.run, self.policy.to_json(), going, debris], sort_keys=True)
        return sha256(told.encode()).hexdigest()

    @property
    def bytes_freed(self) -> int:
        """The size on disk of all files that go, in bytes."""
        return self.decision.bytes_freed + sum(each.size for each in self.debris)


def plan_gc(database: Database, run: str, policy: Policy | None = None, *, tier: Tier | None = None) -> GcPlan:
    """Plan which states of a run stay and which go.

    `policy` is the stored one if none is given. The catalog is synced with the journals and the disk first; no file is
    touched. Unfinished removals of an earlier gc are judged as present files, since `execute` undoes them first. With a
    `tier` of the nodes' own disks only states in it go, and only those of which tiers above have every file. Whether
    the plan removes too much is checked when it is carried out (`decide.check`). Raises `RefusedError` if no rule says
    what to keep, or if no state has the metric of `keep_best`; `UnknownRunError`.
    """
    run_id = find_run(database, run)
    policy = stated(database, run, policy)
    survey = Survey(database, run_id)
    states, targets = survey.judged(tier)
    decide.check_metric(run, policy, [state.metrics for state in states if state.counts])
    decision = decide.decide(states, policy, survey.now)
    authority = Authority(database, run, run_id)
    asked: dict[Key, tuple[Target, ...]] = {}
    # If a state is held, another one that would have stayed in its place may go.
    while (going := {each.state.key: targets[each.state.key] for each in decision.remove}).keys() != asked.keys():
        held = _held(database, run_id, survey, authority, going)
        if tier is not None:
            held |= {key: why for key in going.keys() - asked.keys() if (why := survey.lost_above(tier, key))}
        states = [replace(state, doubt=state.doubt or held.get(state.key, "")) for state in states]
        decision, asked = decide.decide(states, policy, survey.now), going
    if tier is not None:  # other nodes have the rest
        asked = {key: some for key, some in asked.items() if some}
        decision = replace(decision, remove=tuple(each for each in decision.remove if each.state.key in asked))
    going = {
        key: tuple(replace(target, identity=authority.seen.get(target.path)) for target in some)
        for key, some in asked.items()
    }
    left_behind, unregistered = debris.find(
        survey.sources,
        launches=survey.launches,
        known={file.path for file in survey.files},
        going={target.path for some in going.values() for target in some},
        now=survey.now,
        list_names=survey.names_in,
    )
    floor = survey.floor(decision)
    unseen = () if tier else (Skipped(path, reason) for path, reason in sorted(survey.uncertain.unseen.items()))
    return GcPlan(
        run=run,
        run_id=run_id,
        policy=policy,
        decision=decision,
        targets=going,
        floor=tuple(file for state in decision.must_stay for file in targets[state.key] if file.checkpoint in floor),
        debris=() if survey.unheard else left_behind,
        unknown=_unknown(database, survey.skipped, unregistered),
        unseen=(*survey.unread, *unseen),
        copied={
            each.state.key: survey.copied(each.state.key)
            for each in decision.remove
            if tier is not None or each.state.problem
        },
    )


def copies_changed(connection: Connection, planned: Mapping[Key, Copied]) -> set[Key]:
    """The states of which a copy was made or lost since. Call it under the lock of the run: copying takes it too."""
    now = ready_copies(connection, [file for each in planned.values() for file in each.files])
    return {key for key, each in planned.items() if each != Copied.of(each.files, now)}


def protected_since(decision: Decision, key: Key, protection: Protection) -> str:
    """Why a state that was to go must stay now; empty if nothing protects it. Call it under the lock of the run."""
    if key[1] in protection.pinned or key[1] in protection.tags:
        return "pinned or tagged since the plan was made"
    if holders := protection.held.get(key):
        made = {verdict.state.launch for verdict in decision.keep if verdict.state.restorable}
        if not made.issuperset(holders):
            return "a launch has begun to start from it"
    return decide.needed_by(protection.needed[key]) if key in protection.needed else ""


def check_floor_counts(connection: Connection, run_id: int, before: Mapping[str, FileState | None]) -> None:
    """Raise `RefusedError` unless the catalog still counts the states of the floor as the plan did.

    One may have failed to load since, or the run may have gone back: then others are the floor, and the plan may remove
    them. `before` is `Survey.floor`, each file with its state when the plan was made (None: only its copy counts).
    """
    kept = reads.files_by_id(connection, list(before))
    failed = reads.failed_loads(connection, run_id)
    steps = grouped({(file.launch, file.global_step) for file in kept.values()})
    branch_of = branches(reads.launches_of(connection, run_id), reads.first_saves(connection, run_id), steps)
    for file_id, file in kept.items():
        turned = before[file_id] not in (None, file.state) or file.quarantine or file_id in failed
        if turned or branch_of.get((file.launch, file.global_step)):
            raise RefusedError(
                f"the plan keeps step {file.global_step} of launch {file.launch}, but it no longer counts: it was "
                "damaged or found to be bad, could not be loaded, or the run went back to an older state",
                AGAIN,
            )


def stated(
    database: Database, run: str, policy: Policy | None, *, floor: int | None = None, grace: timedelta | None = None
) -> Policy:
    """The policy to apply: the given or the stored one, with this floor and grace (None: its own).

    Raises `RefusedError` if no rule says what to keep, or if a journal has a newer policy than the stored one.
    """
    policy = policy or stored_policy.of_gc(database, run)
    if policy is None:
        raise RefusedError(
            "no rule says what to keep, and no policy is stored for this run",
            f"give one, as --keep-last 5, or store it with: {Command('policy', run, '--keep-last', 5)}",
        )
    decide.check_policy(policy)
    return replace(
        policy, floor=policy.floor if floor is None else floor, grace=policy.grace if grace is None else grace
    )


def _held(
    database: Database, run_id: int, survey: Survey, authority: Authority, going: Mapping[Key, Sequence[Target]]
) -> dict[Key, str]:
    """Why some states that no rule keeps may not go: because of their files' owners, or of other paths to the files."""
    with Trash("") as trash:
        held = {key: reason for key, some in going.items() if (reason := authority.refused(some, trash))}
    rest = {key: some for key, some in going.items() if key not in held}
    return {
        **held,
        **path_aliases.states_in_use(database, rest),
        **path_aliases.copied_by_others(database, run_id, rest, survey.files),
    }


def _as_it_was(file: Checkpoint, leaving: Mapping[str, Item], places: Mapping[str, set[str]]) -> Checkpoint:
    """A file as an interrupted gc left it: in the trash if the gc moved it, else as it was reported before."""
    item = leaving.get(file.id)
    if item is None or item.reported is None or file.state is not FileState.TRASHED:
        return file
    here = disk.facts_if_seen(file.path)
    is_another = here is not None and here != disk.FileFacts(item.size, item.mtime_ns)
    is_moved = is_another or (here is None and bool(presence.gone([file], places)))
    return file if is_moved else replace(file, state=item.reported)


def _unknown(database: Database, skipped: Sequence[Skipped], unregistered: Sequence[Skipped]) -> tuple[Skipped, ...]:
    """The unknown files, each once. Files of another run are known; files recorded as gone that are there are not."""
    told = {each.path for each in skipped}
    with database.read() as connection:
        recorded = reads.files_at_paths(connection, [each.path for each in unregistered])
    known = {path for path, files in recorded.items() if not all(file.state.is_gone for file in files)}
    others = [each for each in unregistered if each.path not in told and each.path not in known]
    return tuple(sorted((*skipped, *others), key=lambda each: (each.path, each.reason)))


class Survey:
    """A run at one moment, as its journals, its catalog and the disk show it.

    Its states are judged by the code that hands out restore plans.
    """

    def __init__(self, database: Database, run_id: int, tier: Tier | None = None) -> None:
        """Sync the catalog with the journals and the disk, and read the facts that a decision needs.

        With a `tier`, states that it has copies of are included even if their files are gone.
        """
        self.now = utc_now()
        synced = sync_run(database, run_id)
        self.unheard = why_unheard(synced)  # why some journal was not read, which may protect any state
        self.unread = unread_journals(synced)
        reconciled = reconcile(database, run_id, synced=synced)
        self.skipped = [*synced.skipped, *reconciled.skipped]
        self._listings = dict(reconciled.listings)
        with database.read() as connection:
            leaving = removals.leaving(connection, run_id)
            self.launches = {launch.id: launch for launch in reads.launches_of(connection, run_id)}
            has_copies = any(launch.has_copies for launch in self.launches.values())
            self.copies = copies_of_run(connection, run_id) if has_copies else {}
            self._tiers = [each.tier for each in tiers_of(connection) if each.declared]
            copied = [] if tier is None else [file for file in self.copies if self.copy_in(tier, file) is not None]
            recorded = reads.files_to_judge(connection, run_id, sorted({*leaving, *copied}))
            first_saves = reads.first_saves(connection, run_id)
            self._failed = reads.failed_loads(connection, run_id)
            self._protection = protection_of(connection, run_id, self.now - CLOCKS_DIFFER)
            self.sources = reads.sources_of(connection, run_id)
        places = presence.unidentified((file.path, file.directory_id) for file in recorded)
        self.files = [_as_it_was(file, leaving, places) for file in recorded]
        self._seen = disk.observe(
            (file for file in self.files if file.state is not FileState.TRASHED), read_bytes=False
        )
        self._live = [file for file in self.files if file.state.is_there]
        self._lost = presence.lost((file for file in self._live if self._seen[file.path].size is None), places)
        self.uncertain = Uncertainties(self.now, self._lost)
        self._away = unheard_states(synced, self.files)
        self._by_state = grouped(((file.launch, file.global_step), file) for file in self.files)
        steps = grouped(self._by_state)
        self._branch_of = branches(list(self.launches.values()), first_saves, steps)
        self._shifts = {launch_id: shift(self.launches[launch_id], self.launches) for launch_id in steps}
        self._newest_launch = max((launch.order for launch in self.launches.values()), default=0)
        self._homes = {source.directory for source in self.sources}
        self._of_others = presence.of_other_machines(self.sources)
        self._saves_to: dict[str, dict[int, set[tuple[str, str]]]] = defaultdict(lambda: defaultdict(set))
        self._saves_ever: dict[int, set[tuple[str, str]]] = defaultdict(set)
        for source in self.sources:
            if source.directory_id:
                self._saves_to[source.launch][source.rank].add((source.directory, source.directory_id))
                self._saves_ever[source.rank].add((source.directory, source.directory_id))
        self._absence = cache(lambda directory, identity: presence.absence(directory, Home({identity}, set())))
        # A state that only one of two frameworks can load does not replace one that the other needs.
        loadable = [file for file in self.files if not self.launches[file.launch].foreign]
        self._is_mixed = len({_is_foreign(file) for file in loadable}) > 1
        self._tracked: dict[str, int | None] = {}

    def names_in(self, directory: str) -> frozenset[str]:
        """The names in a directory, listed once for a plan; none if it cannot be read."""
        if directory not in self._listings:
            self._listings[directory] = disk.listed(directory)
        found = self._listings[directory]
        return frozenset() if isinstance(found, OSError) else found

    def copy_in(self, tier: Tier, file: str) -> Copy | None:
        """The ready copy of a file, by its id, in a tier."""
        found = self.copies.get(file, ())
        return next((copy for copy in found if copy.tier.id == tier.id and copy.state is CopyState.READY), None)

    def _not_above(self, tier: Tier, key: Key) -> str:
        """Why a state must stay in a tier of the nodes' disks: files that no tier above has. Empty: they have all."""
        for file in self._training(key):
            if file.state.is_there and not tier.contains(file.path):
                return f"{file.path} is not in tier {tier.name}"
            if file.state.is_there and not self._above(tier, file):
                some = self.copies.get(file.id, ())
                made = {copy.tier for copy in some if copy.state in MADE and copy.digest == file.digest}
                if made and made.issuperset(each for each in self._tiers if each.level > tier.level):
                    return f"gc removed the copy of {file.path}, and none is made again: gc without --tier removes it"
                return f"no tier above {tier.name} has {file.path} yet"
        return ""

    def lost_above(self, tier: Tier, key: Key) -> str:
        """As `_not_above`, for the files that are seen here, but by asking the tiers above."""
        for file in self._training(key):
            is_here = file.state.is_there and self._seen[file.path].size is not None
            copies = self._above(tier, file) if is_here else ()
            if copies and all(fault_of(copy) for copy in copies):
                return f"{copies[0].tier.name} does not give {copies[0].key}"
        return ""

    def floor(self, decision: Decision) -> set[str]:
        """The files, by id, by which the states that must stay count: a replica serves for one that failed to load."""
        return {file.id for state in decision.must_stay for file in self._training(state.key)} - {*self._failed}

    def copied(self, key: Key) -> Copied:
        """The copies of a state that a start may take."""
        files = self._training(key)
        return Copied.of(tuple(files), self._ready(files))

    def _above(self, tier: Tier, file: Checkpoint) -> list[Copy]:
        some = self.copies.get(file.id, ())
        return [copy for copy in some if copy.is_of(file.digest) and copy.tier.level > tier.level]

    def judged_in(self, tier: Tier) -> tuple[list[StateFacts], dict[Key, tuple[tuple[Checkpoint, Copy], ...]]]:
        """As `judged`, for states with copies in a tier; and the copies. A state counts if the tier has it complete."""
        states, held = [], {}
        for key, files in self._by_state.items():
            copied = [(file, copy) for file in files if (copy := self.copy_in(tier, file.id)) is not None]
            if copied:
                held[key] = tuple(copied)
                states.append(self._state_in(key, held[key]))
        return self._doubted(states, self._away), held

    def _state_in(self, key: Key, copied: Sequence[tuple[Checkpoint, Copy]]) -> StateFacts:
        training = self._training(key)
        ready = {file.id: (copy,) for file, copy in copied if copy.is_of(file.digest)}
        alone = judge(self._restorable(key, ready), {})
        is_spread = isinstance(alone, Rejection) and isinstance(
            judge(self._restorable(key, self._ready(training)), self._seen), RestorePlan
        )
        return replace(
            self._state(key, ()),
            bytes=sum(copy.all_bytes for _, copy in copied),
            files=len(copied),
            problem=_in_short(alone) if isinstance(alone, Rejection) else "",
            doubt=self._failed_load(training) or (_SPREAD if is_spread else ""),
            weights_only=not training,
            by_replicas=False,
        )

    def judged(self, tier: Tier | None = None) -> tuple[list[StateFacts], dict[Key, tuple[Target, ...]]]:
        """The facts about each state with files that are, or may be, present; and those files.

        With a `tier` of the nodes' disks, a state stays unless tiers above have all its files. If they have, the copies
        stand for files on other machines.
        """
        not_above = {} if tier is None else {key: self._not_above(tier, key) for key in self._by_state}
        above = {key for key, why in not_above.items() if not why}
        found = {key: self._targets_of(key, is_above=key in above) for key in self._by_state}
        targets = {key: some for key, some in found.items() if some is not None}
        states = [self._state(key, there, is_above=key in above) for key, there in targets.items()]
        states = path_aliases.count_once(states, self._live, self._seen)
        for each in (each for some in self._away.values() for each in some):
            self.uncertain.unseen.setdefault(each.path, each.reason)
        doubted = self._doubted(states, {key: each for key, each in self._away.items() if key not in above})
        return [replace(each, doubt=not_above.get(each.key, "") or each.doubt) for each in doubted], targets

    def _doubted(self, states: Iterable[StateFacts], away: Mapping[Key, Sequence[Skipped]]) -> list[StateFacts]:
        """The states, in doubt if something about them could not be read, such as directories that are `away`."""
        reasons = {key: f"{each.path} {each.reason}" for key, (each, *_) in away.items()}
        return [replace(state, doubt=state.doubt or self.unheard or reasons.get(state.key, "")) for state in states]

    def _training(self, key: Key) -> list[Checkpoint]:
        left_out = (Content.WEIGHTS, Content.PART) if self.launches[key[0]].foreign else (Content.WEIGHTS,)
        return [file for file in self._by_state[key] if file.content not in left_out]

    def _restorable(self, key: Key, copies: Mapping[str, tuple[Copy, ...]] = MappingProxyType({})) -> State:
        """A state as the resolver judges it, with these copies of its files."""
        files = tuple(self._training(key))
        return State(launch=self.launches[key[0]], global_step=key[1], files=files, failed=self._failed, copies=copies)

    def _is_elsewhere(self, file: Checkpoint) -> bool:
        """Whether a file is not seen here, and in a directory in which other machines alone have saved."""
        home = presence.directory_of(file.path), file.directory_id
        return bool(self._lost.get(file.path)) and home in self._of_others

    def _failed_load(self, files: Iterable[Checkpoint]) -> str:
        """Why a launch could not load one of these files; empty if none failed."""
        return next((self._failed[file.id] for file in files if file.id in self._failed), "")

    def _is_written(self, key: Key) -> bool:
        is_newest = self.launches[key[0]].order == self._newest_launch
        return is_newest and any(file.state is FileState.IN_PROGRESS for file in self._by_state[key])

    def _targets_of(self, key: Key, *, is_above: bool) -> tuple[Target, ...] | None:
        """The present files of a state; None if no file is, or may be, present. `is_above`: see `_state`."""
        training = self._training(key)
        there = _targets(training, self._seen, self._homes, self.names_in)
        live = [file for file in training if file.state.is_there]
        may_be = there or not live or is_above or self._is_written(key) or self.uncertain.of(live, self._seen)
        return there if may_be else None

    def _state(self, key: Key, there: tuple[Target, ...], *, is_above: bool = False) -> StateFacts:
        """The facts about a state, with these files; `is_above`: tiers above have all its files."""
        files, training, launch = self._by_state[key], self._training(key), self.launches[key[0]]
        query = Query(loads=Loads.MINDSPORE if self._is_mixed else Loads.ALL)
        elsewhere = {file.id: file for file in training if is_above and self._is_elsewhere(file)}
        verdict = judge(self._restorable(key, self._ready(elsewhere.values())), self._seen, query)
        # A start may reject it because of its dataset: it must not replace a proven state.
        unconfirmed = _UNCONFIRMED if any(file.grade is Grade.CONSISTENT for file in training) else ""
        is_foreign = self._is_mixed and any(map(_is_foreign, training))
        looked_at = [file for file in training if file.state is not FileState.TRASHED and file.id not in elsewhere]
        of_files = self.uncertain.of(looked_at, self._seen)
        return StateFacts(
            launch=launch.id,
            launch_order=launch.order,
            global_step=key[1],
            kinds=tuple(kind for kind in Kind if any(file.kind is kind for file in files)),
            created_at=max((file.created_at for file in files if file.created_at), default=self.now),
            bytes=sum(target.size for target in there),
            files=len(there),
            problem=unconfirmed if isinstance(verdict, RestorePlan) else _in_short(verdict),
            doubt=of_files
            or self._failed_load(training)
            or self._tracked_by(training)
            or self._spread(key, verdict)
            or (_OF_OTHERS if is_foreign else unconfirmed)
            or ("" if isinstance(verdict, RestorePlan) else self._unrecorded(launch.id, training)),
            branch=self._branch_of.get(key, ""),
            metrics=mean_metrics([file.metrics for file in training]),
            pinned=key[1] in self._protection.pinned,
            tags=self._protection.tags.get(key[1], ()),
            held_by=self._protection.held.get(key, ()),
            parent_of=self._protection.parents.get(key, ()),
            needed_by=self._protection.needed.get(key, ()),
            is_written=self._is_written(key),
            weights_only=not any(file.state.is_there for file in training),
            by_replicas=isinstance(verdict, RestorePlan)
            and any(each.source.rank != each.rank for each in verdict.ranks),
            shift=self._shifts[launch.id],
        )

    def _ready(self, files: Iterable[Checkpoint]) -> dict[str, tuple[Copy, ...]]:
        """The copies of these files that a start may take, in any tier, by the file's id."""
        return {
            file.id: some
            for file in files
            if (some := tuple(each for each in self.copies.get(file.id, ()) if each.is_of(file.digest)))
        }

    def _spread(self, key: Key, verdict: RestorePlan | Rejection) -> str:
        """Why a state's files on the disks must stay: they are complete only together with copies in tiers.

        Empty if the files alone are complete, or the copies alone.
        """
        if isinstance(verdict, RestorePlan) or not (copies := self._ready(self._training(key))):
            return ""
        state = self._restorable(key, copies)
        together, without_disks = judge(state, self._seen), judge(state, {})
        return _SPREAD if isinstance(together, RestorePlan) and isinstance(without_disks, Rejection) else ""

    def _unrecorded(self, launch: str, files: Iterable[Checkpoint]) -> str:
        """Why a rank without a record may have a file: no directory that it announced is present. Empty: one is.

        If other ranks announced directories in this launch, and this rank did so in another launch only, its disk may
        have been unmounted when the catalog was made. If no rank did in this launch, those of other launches count.
        """
        recorded = {file.rank for file in files}
        own = self._saves_to[launch]
        for rank in {*own, *self._saves_ever}.intersection(range(self.launches[launch].world_size)) - recorded:
            if own and rank not in own:
                return f"rank {rank} may have a file of it: no journal of that rank in {launch} was ever read"
            places = own.get(rank) or self._saves_ever[rank]
            reasons = [(directory, self._absence(directory, identity)) for directory, identity in sorted(places)]
            if all(reason for _, reason in reasons):  # a tree that was moved is at one of its paths
                directory, reason = reasons[0]
                return f"rank {rank} may have a file of it: {directory} {reason}"
        return ""

    def _tracked_by(self, files: Iterable[Checkpoint]) -> str:
        """Says that MindFormers' tracker file names this iteration: it would name a missing one. Empty if none does."""
        for file in files:
            above = iterations.above_iteration(file.path)
            if above and above not in self._tracked:
                self._tracked[above] = disk.number_in(f"{above}/{iterations.TRACKER}")
            if above and self._tracked[above] == file.global_step:
                return f"{above}/{iterations.TRACKER} names it"
        return ""


def _is_foreign(file: Checkpoint) -> bool:
    return file.format in FOREIGN or file.content is Content.PART


def _targets(
    files: Iterable[Checkpoint],
    seen: Mapping[str, Observed],
    homes: set[str],
    names: Callable[[str], frozenset[str]],
) -> tuple[Target, ...]:
    """The present files of a state, and the files that go with them: companions, and graphs of graceful exits."""
    found: list[Target] = []
    for file in files:
        here = seen.get(file.path)
        if not file.state.is_there or here is None or here.size is None or here.mtime_ns is None:
            continue
        above = above_save(file.path)  # the directory of a save goes with its files
        directory = file.path.rpartition("/")[0] or "/"
        root = above if above in homes else directory
        place = file.path[len(root.rstrip("/")) + 1 :]
        graphs = [str(Path(place).with_suffix(_GRAPH))] if file.kind is Kind.GRACEFUL_EXIT else []
        companion = companion_of(place)
        beside, own = companion.rpartition("/")[2], place.rpartition("/")[2]
        is_shared = not names(directory).isdisjoint(checkpoints_of(beside) - {own})
        companions = [companion] if beside in names(directory) and not is_shared else []
        for other in (*graphs, *companions):  # first: after a crash they are not found without their checkpoint
            there = disk.facts_if_seen(f"{root}/{other}")
            if there is not None:
                found.append(Target(root, other, there.size, there.mtime_ns, launch=file.launch))
        record = (file.id, file.state, file.mtime_ns, file.format, file.launch)
        found.append(Target(root, place, here.size, here.mtime_ns, *record))
    return tuple(found)


def _in_short(verdict: Rejection) -> str:
    first, others = verdict.reasons[0], len(verdict.reasons) - 1
    fault = f"{first.rule}: {first.detail}"
    return f"the first of {others + 1} faults is {fault}" if others else fault
