"""What gc would do with a run: its states as the disk shows them, judged by the code that hands out restore plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from ckptstore.catalog import marks as marking
from ckptstore.catalog import reads, trash
from ckptstore.catalog.runs import find_run
from ckptstore.core.hints import Command
from ckptstore.core.model import Content, FileState, Grade, Kind, RestorePlan, Skipped, State
from ckptstore.core.naming import FOREIGN, above_ttp, companion_of
from ckptstore.disk import files as disk
from ckptstore.disk import presence
from ckptstore.disk.trash import Trash
from ckptstore.errors import RefusedError
from ckptstore.journal import unread
from ckptstore.journal.sync import sync_run
from ckptstore.outside import Path, utc_now
from ckptstore.resume import lease
from ckptstore.resume.lineage import branches
from ckptstore.resume.position import shift
from ckptstore.resume.reconcile import reconcile
from ckptstore.resume.resolver import Query, judge
from ckptstore.resume.uncertainty import Uncertainties
from ckptstore.retention import debris, decide, path_aliases, stored_policy
from ckptstore.retention.authority import Authority
from ckptstore.retention.debris import Debris, Target
from ckptstore.retention.decide import Decision, StateFacts, Why

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.marks import Marks
    from ckptstore.catalog.trash import Item
    from ckptstore.core.model import Checkpoint, Launch, Observed, Rejection, Source
    from ckptstore.retention.policy import Policy

Key = tuple[str, int]
_LIVE = (FileState.COMPLETE, FileState.IN_PROGRESS, FileState.DAMAGED)
_KNOWN = (*_LIVE, FileState.TRASHED)
_GRAPH = ".mindir"
_UNCONFIRMED = "a scan found it, its step is consistent, and no start has confirmed that yet"
_OF_OTHERS = "MindSpore cannot load it, as it can the run's other states: whose it is nobody knows"


@dataclass(frozen=True)
class GcPlan:
    """What gc would do with a run, and why. Nothing has been done yet.

    `targets` are the files of each state that goes, by launch and step. `floor` are those of the states that the
    floor keeps, and of the newest that stays for whatever reason and counts, as they were seen: nothing goes unless
    they are as they were. `debris` goes too; what is `unknown` to the catalog is only told. What is `unseen` could not
    be looked at, and states may be there: whoever applies the plan should hear of it.
    """

    run: str
    run_id: int
    policy: Policy
    decision: Decision
    targets: Mapping[Key, tuple[Target, ...]]
    floor: tuple[Target, ...]
    debris: tuple[Debris, ...]
    unknown: tuple[Skipped, ...]
    unseen: tuple[Skipped, ...]

    @property
    def removes_nothing(self) -> bool:
        """Whether nothing goes."""
        return not self.targets and not self.debris

    @property
    def bytes_freed(self) -> int:
        """What all that goes takes on disk, in bytes."""
        return self.decision.bytes_freed + sum(each.bytes for each in self.debris)


@dataclass(frozen=True)
class _Facts:
    """What the catalog says of a run, read at one moment."""

    launches: Mapping[str, Launch]
    first_saves: Mapping[str, int | None]
    files: Sequence[Checkpoint]
    failed: Mapping[str, str]
    marks: Marks
    sources: Sequence[Source]


def plan_gc(
    database: Database,
    run: str,
    policy: Policy | None = None,
    *,
    floor: int | None = None,
    grace: timedelta | None = None,
) -> GcPlan:
    """Look at every state of a run and say which stay and which go.

    `policy` is the stored one if none is given, `floor` and `grace` the policy's own. The catalog is brought up to the
    journals and the disk first; no file is touched. What an earlier gc did not come to is judged as any other, since
    `execute` gives it back first. Raises `RefusedError` where no rule says what to keep, or the best are to be kept by
    a metric that no state has; `UnknownRunError`. Whether the plan removes too much is checked when it is carried out
    (`decide.check`).
    """
    run_id = find_run(database, run)
    if policy is None:
        policy = stored_policy.show(database, run)
    if policy is None:
        raise RefusedError(
            "no rule says what to keep, and no policy is stored for this run",
            f"give one, as --keep-last 5, or store it with: {Command('policy', run, '--keep-last', 5)}",
        )
    stated = {name: value for name, value in (("floor", floor), ("grace", grace)) if value is not None}
    policy = replace(policy, **stated)  # type: ignore[arg-type]
    decide.check_policy(policy)
    now = utc_now()
    synced = sync_run(database, run_id)
    unheard = unread.unheard(synced.skipped)
    skipped = [*synced.skipped, *reconcile(database, run_id).skipped]
    with database.read() as connection:
        begun = trash.begun(connection, run_id)
        facts = _Facts(
            launches={launch.id: launch for launch in reads.launches_of(connection, run_id)},
            first_saves=reads.first_saves(connection, run_id),
            files=reads.files_to_judge(connection, run_id, sorted(begun)),
            failed=reads.failed_loads(connection, run_id),
            marks=marking.marks_of(connection, run_id, now - lease.CLOCKS_DIFFER),
            sources=reads.sources_of(connection, run_id),
        )
    places = presence.unidentified((file.path, file.directory_id) for file in facts.files)
    facts = replace(facts, files=[_as_it_was(file, begun, places) for file in facts.files])
    seen = disk.observe((file for file in facts.files if file.state is not FileState.TRASHED), read_bytes=False)
    live = [file for file in facts.files if file.state in _LIVE]
    uncertain = Uncertainties(now, presence.lost((file for file in live if seen[file.path].size is None), places))
    states, targets = _judge(facts, seen, now, uncertain)
    states = path_aliases.count_once(states, live, seen)
    away = unread.unheard_states(facts.files, synced.away)
    uncertain.unseen = {**{each.path: each.reason for each in away.values()}, **uncertain.unseen}
    why = {key: f"{each.path} {each.reason}" for key, each in away.items()}
    states = [replace(state, doubt=state.doubt or unheard or why.get(state.key, "")) for state in states]
    decide.check_metric(run, policy, [state.metrics for state in states if state.counts])
    decision = decide.decide(states, policy, now)
    going = {verdict.state.key: targets[verdict.state.key] for verdict in decision.remove}
    authority = Authority(database, run, run_id)
    held = {
        **_refused(authority, going),
        **path_aliases.states_in_use(database, going),
        **path_aliases.copied_by_others(database, run_id, going, facts.files),
    }
    if held:
        states = [replace(state, doubt=state.doubt or held.get(state.key, "")) for state in states]
        decision = decide.decide(states, policy, now)
        going = {verdict.state.key: targets[verdict.state.key] for verdict in decision.remove}
    going = {
        key: tuple(replace(target, identity=authority.seen.get(target.path)) for target in some)
        for key, some in going.items()
    }
    left_behind, unregistered = debris.find(
        facts.sources,
        launches=facts.launches,
        known={file.path for file in facts.files},
        going={target.path for some in going.values() for target in some},
        now=now,
    )
    newest = [verdict for verdict in decision.keep if verdict.state.counts][:1]
    by_floor = [verdict for verdict in decision.keep if any(why.rule is Why.FLOOR for why in verdict.reasons)]
    must_stay = dict.fromkeys(verdict.state.key for verdict in (*newest, *by_floor))
    return GcPlan(
        run=run,
        run_id=run_id,
        policy=policy,
        decision=decision,
        targets=going,
        floor=tuple(target for key in must_stay for target in targets[key] if target.checkpoint),
        debris=() if unheard else left_behind,
        unknown=_unknown(database, skipped, unregistered),
        unseen=(
            *unread.unread(synced.skipped),
            *(Skipped(path, reason) for path, reason in sorted(uncertain.unseen.items())),
        ),
    )


def _as_it_was(file: Checkpoint, begun: Mapping[str, Item], places: Mapping[str, set[str]]) -> Checkpoint:
    """A file that an interrupted gc had not come to is judged as before; one that it has moved is in the trash."""
    item = begun.get(file.id)
    if item is None or item.reported is None or file.state is not FileState.TRASHED:
        return file
    here = disk.facts_if_seen(file.path)
    is_another = here is not None and here != disk.FileFacts(item.size, item.mtime_ns)
    is_moved = is_another or (here is None and bool(presence.gone([file], places)))
    return file if is_moved else replace(file, state=item.reported)


def _unknown(database: Database, skipped: Sequence[Skipped], unregistered: Sequence[Skipped]) -> tuple[Skipped, ...]:
    """What nobody knows, each once. What another run has is known; what was recorded as gone and is there is not."""
    told = {each.path for each in skipped}
    with database.read() as connection:
        recorded = reads.files_at_paths(connection, [each.path for each in unregistered])
    known = {path for path, files in recorded.items() if any(file.state in _KNOWN for file in files)}
    others = [each for each in unregistered if each.path not in told and each.path not in known]
    return tuple(sorted((*skipped, *others), key=lambda each: (each.path, each.reason)))


def _judge(
    facts: _Facts, seen: Mapping[str, Observed], now: datetime, uncertain: Uncertainties
) -> tuple[list[StateFacts], dict[Key, tuple[Target, ...]]]:
    """What retention needs to know of each state of which something is, or may be, there; and its files that are."""
    rows: dict[Key, list[Checkpoint]] = {}
    for file in facts.files:
        rows.setdefault((file.launch, file.global_step), []).append(file)
    steps: dict[str, list[int]] = {}
    for launch_id, step in rows:
        steps.setdefault(launch_id, []).append(step)
    branch_of = branches(list(facts.launches.values()), facts.first_saves, steps)
    newest_launch = max((launch.order for launch in facts.launches.values()), default=0)
    shifts = {launch_id: shift(facts.launches[launch_id], facts.launches) for launch_id in steps}
    homes = {source.directory for source in facts.sources}
    names = cache(_names_in)
    # What only one of two frameworks can load does not make up for what the other needs.
    is_mixed = len({file.format in FOREIGN for file in facts.files}) > 1
    states: list[StateFacts] = []
    targets: dict[Key, tuple[Target, ...]] = {}
    for key, files in rows.items():
        launch = facts.launches[key[0]]
        training = [file for file in files if file.content not in (Content.WEIGHTS, Content.PART)]
        there = _targets(training, seen, homes, names)
        is_written = launch.order == newest_launch and any(file.state is FileState.IN_PROGRESS for file in files)
        live = [file for file in training if file.state in _LIVE]
        weights_only = not live
        if not there and not is_written and not weights_only and not uncertain.of(live, seen):
            continue
        failed = [facts.failed[file.id] for file in training if file.id in facts.failed] if facts.failed else []
        state = State(launch=launch, global_step=key[1], files=tuple(training), failed=facts.failed)
        verdict = judge(state, seen, Query(takes_foreign=not is_mixed))
        is_foreign = is_mixed and any(file.format in FOREIGN for file in training)
        # A start may pass it over for its dataset: it does not make up for what is sure.
        unconfirmed = _UNCONFIRMED if any(file.grade is Grade.CONSISTENT for file in training) else ""
        of_files = uncertain.of([file for file in training if file.state is not FileState.TRASHED], seen)
        targets[key] = there
        states.append(
            StateFacts(
                launch=launch.id,
                launch_order=launch.order,
                global_step=key[1],
                kinds=tuple(kind for kind in Kind if any(file.kind is kind for file in files)),
                created_at=max((file.created_at for file in files if file.created_at), default=now),
                bytes=sum(target.size for target in there),
                files=len(there),
                problem=unconfirmed if isinstance(verdict, RestorePlan) else _in_short(verdict),
                doubt=of_files or "".join(failed[:1]) or (_OF_OTHERS if is_foreign else unconfirmed),
                branch=branch_of.get(key, ""),
                metrics=decide.mean_metrics([file.metrics for file in training]),
                pinned=key[1] in facts.marks.pinned,
                tags=facts.marks.tags.get(key[1], ()),
                held_by=facts.marks.held.get(key, ()),
                parent_of=facts.marks.parents.get(key, ()),
                is_written=is_written,
                weights_only=weights_only,
                shift=shifts[launch.id],
            )
        )
    # A launch that has made a state which can be restored does not need the one it started from any more.
    made = {state.launch for state in states if state.restorable}
    states = [replace(state, held_by=tuple(each for each in state.held_by if each not in made)) for state in states]
    return states, targets


def _targets(
    files: Iterable[Checkpoint],
    seen: Mapping[str, Observed],
    homes: set[str],
    names: Callable[[str], frozenset[str]],
) -> tuple[Target, ...]:
    """The files of a state that are there, and what goes with them: companions, and graphs of graceful exits."""
    found: list[Target] = []
    for file in files:
        here = seen.get(file.path)
        if file.state not in _LIVE or here is None or here.size is None or here.mtime_ns is None:
            continue
        above = above_ttp(file.path)  # a directory of TTP goes with its files
        root = above if above in homes else file.path.rpartition("/")[0] or "/"
        place = file.path[len(root.rstrip("/")) + 1 :]
        graphs = [str(Path(place).with_suffix(_GRAPH))] if file.kind is Kind.GRACEFUL_EXIT else []
        companion = companion_of(place)
        companions = [companion] if Path(companion).name in names(str(Path(file.path).parent)) else []
        for other in (*graphs, *companions):  # first: alone they would be found no more after a crash
            beside = disk.facts_if_seen(f"{root}/{other}")
            if beside is not None:
                found.append(Target(root, other, beside.size, beside.mtime_ns, launch=file.launch))
        record = (file.id, file.state, file.mtime_ns, file.format, file.launch)
        found.append(Target(root, place, here.size, here.mtime_ns, *record))
    return tuple(found)


def _names_in(directory: str) -> frozenset[str]:
    try:
        return disk.names_in(directory)
    except OSError:
        return frozenset()


def _in_short(verdict: Rejection) -> str:
    first, others = verdict.reasons[0], len(verdict.reasons) - 1
    return f"{first.rule}: {first.detail}" + (f", and {others} more" if others else "")


def _refused(authority: Authority, going: Mapping[Key, Sequence[Target]]) -> dict[Key, str]:
    """Why some of these states may not go: a file of theirs is not for this user to remove."""
    with Trash("") as trash:
        found = {key: authority.refused(targets, trash) for key, targets in going.items()}
    return {key: reason for key, reason in found.items() if reason}
