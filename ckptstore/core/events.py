"""Events as frozen values, one type for each kind, and their conversion to and from lines of a journal.

Paths in a line are relative to the journal's directory, so that a copied tree is read at its new place. No line has the
URL of a catalog. Every event has a sortable version. Of two events about one thing, the one with the greater version
wins, in whatever order they come.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import MsgspecError, Struct, convert, to_builtins

from ckptstore.core import limits
from ckptstore.core.copies import Beside, CopyState, Tier
from ckptstore.core.copy_keys import folder_of, key_of
from ckptstore.core.fields import (
    Collection,
    Id,
    Index,
    Key,
    LayoutKind,
    Moment,
    Name,
    Nanoseconds,
    Text,
    Whole,
    Word,
)
from ckptstore.core.limits import HIGHEST
from ckptstore.core.model import (
    Checkpoint,
    FileState,
    Initial,
    Kind,
    Launch,
    LoadResult,
    Location,
    PassedOver,
    Source,
    Unplaced,
    launch_key,
)
from ckptstore.core.naming import FOREIGN, ONE_FILE
from ckptstore.core.replicas import Layout, data_parallel, from_groups, stand_alone
from ckptstore.errors import CkptstoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ckptstore.core.model import LaunchKey

    Line = dict[str, Any]


@dataclass(frozen=True)
class LaunchStarted:
    """A launch, and where it starts.

    - `at` is when that was decided (None: it is undecided), `origin` the launch that it resumes from (None: none).
    - `plan` has (rank, file) for each rank: files of the origin's state, or of the state `launch.initial`.
    - `passed` are the newer states that were passed over. Only one rank records them.
    - `data_at` is when the launch's steps per epoch, batch size and shards were recorded (None: unknown).
    """

    launch: Launch
    at: datetime | None = None
    origin: Launch | None = None
    plan: tuple[tuple[int, Checkpoint], ...] = ()
    data_at: datetime | None = None
    passed: tuple[PassedOver, ...] = ()


@dataclass(frozen=True)
class SourceAdded:
    """A rank announced where it saves. The first announcement counts: later ones find files of the launch itself."""

    source: Source
    at: datetime

    def with_identity(self, identity: str) -> SourceAdded:
        """With the identity of the directory, once it is known."""
        return replace(self, source=replace(self.source, directory_id=identity))


@dataclass(frozen=True)
class FileRecorded:
    """A record of a file: it was written, or a look at the disk found something."""

    file: Checkpoint


@dataclass(frozen=True)
class FileUnplaced:
    """A scan found a file whose step or rank it could not tell (docs/explanation/grades.md)."""

    run: Name
    file: Unplaced
    at: Moment


@dataclass(frozen=True)
class TrainingEnded:
    """The end of training on a rank: the step, and the fault of its state (empty: none)."""

    run: Name
    launch: Name
    rank: Index
    global_step: Whole
    optimizer_step: Whole | None
    error: Text | None
    quarantine: Text
    at: Moment


@dataclass(frozen=True)
class LoadOutcome:
    """The outcome of a launch's plan on a rank; `file` is the file that it could not load, `detail` says why."""

    run: Name
    launch: Name
    rank: Index
    outcome: LoadResult
    at: Moment
    file: Checkpoint | None = None
    detail: Text | None = None


@dataclass(frozen=True)
class LayoutFileKept:
    """A strategy or group info file that a rank wrote: its BLAKE3, and its content, compressed by zlib."""

    run: Name
    launch: Name
    rank: Index
    path: str
    digest: Word
    kind: LayoutKind
    content: bytes


@dataclass(frozen=True)
class StepPinned:
    """A step of a run was pinned, or unpinned."""

    run: Name
    global_step: Whole
    pinned: bool
    at: Moment


@dataclass(frozen=True)
class StepTagged:
    """A step of a run got a tag, or the tag was removed (`global_step` None)."""

    run: Name
    name: Name
    global_step: Whole | None
    at: Moment


@dataclass(frozen=True)
class PolicySet:
    """The retention policy of a run was stored, in the form of `retention.policy`, or cleared (None)."""

    run: Name
    rules: Mapping[Text, Any] | None  # gc reports unknown ones
    at: Moment


@dataclass(frozen=True)
class RunRenamed:
    """A run got another name. Its events and ids keep the first name, `run`, which still finds it."""

    run: Name
    name: Name
    at: Moment


@dataclass(frozen=True)
class RunForgotten:
    """A run was hidden from every command, or brought back; its records stay."""

    run: Name
    forgotten: bool
    at: Moment


class RemovedFile(NamedTuple):
    """A file that retention gave up: `place` is its path below the directory, size in bytes, time in nanoseconds.

    `checkpoint` is the id of its record, `of_version` the record's `generation` then; both are empty without a record.
    """

    place: str
    size: Whole
    mtime_ns: Nanoseconds
    checkpoint: Id = ""
    of_version: Word = ""


@dataclass(frozen=True)
class FilesRemoved:
    """Retention wants files of one directory at a place from now on; `settled`: they are there."""

    run: Name
    collection: Collection
    directory: str
    wanted: Location
    settled: bool
    at: Moment
    files: tuple[RemovedFile, ...]

    @property
    def paths(self) -> list[str]:
        """Where the files were."""
        return [f"{self.directory.rstrip('/')}/{file.place}" for file in self.files]


@dataclass(frozen=True)
class GcEnded:
    """A gc began (`ended` False), or ended; what it moved to the trash may be purged from `purge_after` on."""

    run: Name
    collection: Collection
    began: Moment
    purge_after: Moment
    ended: bool
    at: Moment


@dataclass(frozen=True)
class TierDeclared:
    """A tier was declared, or removed; `run` is a run whose journals get the event (empty: none)."""

    run: Name
    tier: Tier
    declared: bool
    at: Moment


@dataclass(frozen=True)
class CopyRecorded:
    """A record of the copy of a file in a tier. `file` has only the identifying fields, the size and the digest.

    `trusted` is False if another user's journal has the event: nothing is copied to that tier until it is declared.
    """

    run: Name
    file: Checkpoint
    tier: Tier
    key: Key
    state: CopyState
    at: Moment
    beside: tuple[Beside, ...] = ()
    detail: Text = ""
    trusted: bool = True

    @classmethod
    def of(
        cls,
        file: Checkpoint,
        tier: Tier,
        state: CopyState,
        at: datetime,
        *,
        beside: tuple[Beside, ...] = (),
        detail: str = "",
    ) -> CopyRecorded:
        """The event for a file, made from the file's full record."""
        short = Checkpoint(
            run=file.run,
            launch=file.launch,
            kind=file.kind,
            global_step=file.global_step,
            rank=file.rank,
            path=file.path,
            size=file.size,
            digest=file.digest,
        )
        return cls(file.run, short, tier, key_of(file), state, at, beside, detail)


AfterLaunch = (
    SourceAdded
    | FileRecorded
    | FileUnplaced
    | TrainingEnded
    | LoadOutcome
    | LayoutFileKept
    | StepPinned
    | StepTagged
    | PolicySet
    | RunRenamed
    | RunForgotten
    | FilesRemoved
    | GcEnded
    | TierDeclared
    | CopyRecorded
)
"""Events that can be projected once the launch that they name is known."""

Event = LaunchStarted | AfterLaunch

UserEvent = StepPinned | StepTagged | PolicySet | RunRenamed | RunForgotten
"""Statements of users about a run, or about a step of it."""


class OutsideError(ValueError):
    """A line is about a file that is not below the journal's directory."""


def version_of_file(file: Checkpoint) -> str:
    """The version of a file's record: of two records of one file, the one with the greater version wins.

    That is, in this order:

    1. the record of a finished file, not of one in progress;
    2. the record with the greater `Checkpoint.newness`: the file's time, or the revision after a look at the disk;
    3. the record with the later state in a file's life, then the one that says that the state is bad;
    4. the record with more facts, then a registered one, not a scanned one.
    """
    facts = (file.size, file.digest, file.optimizer_step, file.epoch, file.step_in_epoch, file.strategy_file)
    told = (*facts, file.content.value, file.problem, file.quarantine or None, *sorted(file.metrics.items()))
    told = (*told, *(file.timing or ()), file.directory_id or None)
    known = min(2 * (len(told) - told.count(None)) + (file.grade is None), 99)
    told += (file.grade, file.doubt) if file.grade else ()
    is_whole = int(file.state is not FileState.IN_PROGRESS)
    is_bad = int(bool(file.quarantine))
    return f"{is_whole}{file.newness + HIGHEST:020d}{_LIFE[file.state]}{is_bad}{known:02d}{_short(told)}"


def generation(version: str) -> str:
    """The beginning of a file's version. It differs if the file was written again, or its record amended."""
    return version[:GENERATION]


GENERATION = 21
"""Characters of a `generation`."""

_LIFE = {state: place for place, state in enumerate(FileState)}


def version_of(at: datetime, *content: object) -> str:
    """The version of an event. Of two events at one moment their content decides, the same on every machine."""
    return f"{at.astimezone(timezone.utc).isoformat(timespec='microseconds')}{_short(content)}"


def version_of_user_event(event: UserEvent) -> str:
    """The version of a statement about a step, a name or a run."""
    match event:
        case StepPinned():
            return version_of(event.at, event.pinned)
        case StepTagged():
            return version_of(event.at, event.global_step)
        case PolicySet():
            return version_of(event.at, event.rules)
        case RunRenamed():
            return version_of(event.at, event.name)
        case RunForgotten():
            return version_of(event.at, event.forgotten)


def later(now: datetime, *before: datetime | None) -> datetime:
    """The moment of an event that happens now: after earlier ones about the same thing, even if clocks differ."""
    return max([now, *(at + timedelta(microseconds=1) for at in before if at is not None)])


def moment_of(version: str) -> datetime:
    """The moment of a `version_of`."""
    return datetime.fromisoformat(version[:_MOMENT])


_MOMENT = len("2026-01-01T00:00:00.000000+00:00")


def _short(content: object) -> str:
    return blake2b(repr(content).encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()


def launch_of(event: Event) -> LaunchKey | None:
    """The launch that must be known before an event can be used; None if it needs none."""
    match event:
        case FileRecorded(file) | CopyRecorded(file=file):
            return file.launch_key
        case SourceAdded(source):
            return source.launch_key
        case TrainingEnded() | LoadOutcome() | LayoutFileKept():
            return launch_key(event.run, event.launch)
    return None


def run_of(event: Event) -> str:
    """The run that an event names."""
    match event:
        case LaunchStarted():
            return event.launch.run
        case FileRecorded(file):
            return file.run
        case SourceAdded(source):
            return source.run
        case _:
            return event.run


MOST_CONTENT = 8 << 20
"""The most bytes of compressed content in a line; no job's strategy is that long."""


def to_line(event: Event, directory: str) -> Line:
    """An event as one line of the journal of a directory. Fields with their default values are left out."""
    told = _said(event)
    match event:
        case LaunchStarted():
            told = _launch_line(event, directory)
        case SourceAdded(source):
            told |= _said(source) | {"names_before": sorted(source.names_before)}
            del told["source"], told["directory"]  # it is the journal's own
        case FileRecorded(file):
            told = _file_line(file, directory)
            told["at"] = told.pop("created_at", None)
        case FileUnplaced(_, file):
            told |= _said(file) | {"path": _relative(file.path, directory)}
            del told["file"]
        case LoadOutcome(file=Checkpoint() as file) | CopyRecorded(file=file):
            told["file"] = _file_line(file, directory)
        case LayoutFileKept():
            told["path"] = _relative(event.path, directory)
        case FilesRemoved():
            del told["directory"]
    return {"t": _TAGS[type(event)], **told}


def from_line(line: Line, directory: str) -> Event | None:
    """The event in a line of the journal of a directory; None for a type that this program does not know.

    Raises `ValueError` for an invalid line, and for values that no catalog can hold: any program may have written it.
    """
    try:
        of = _TYPES.get(line.get("t"))
        if of is None:
            return None
        event = _read(of, line, directory)
    except (MsgspecError, LookupError, TypeError, OverflowError, AttributeError) as error:
        raise ValueError(str(error)) from None
    _check(event)
    return event


def _read(of: type[Any], line: Line, directory: str) -> Event:
    event: Event
    if of is LaunchStarted:
        return _launch_started(line, directory)
    if of is SourceAdded:
        return SourceAdded(convert({**line, "directory": directory}, Source), convert(line["at"], Moment))
    if of is FileRecorded:
        return FileRecorded(file_from_line(line, directory))
    if of is FileUnplaced:
        file = convert({**line, "path": _own_path(line["path"], directory)}, Unplaced)
        return FileUnplaced(convert(line["run"], Name), file, convert(line["at"], Moment))
    if of is LoadOutcome and line.get("file") is not None:
        file = line["file"]
        line = {**line, "file": {**file, "path": _absolute(file["path"], directory), "strategy_file": None}}
    if of is CopyRecorded:
        line = {**line, "file": {**line["file"], "path": _own_path(line["file"]["path"], directory)}}
    if of is LayoutFileKept:
        line = {**line, "path": _absolute(line["path"], directory)}
    if of is FilesRemoved:
        line = {**line, "directory": directory}
    event = convert(line, of)
    return event


def _check(event: Event) -> None:
    """Check conditions that the types of fields do not express. Raises `ValueError`."""
    match event:
        case LaunchStarted():
            _check_moments(event.launch.created_at, *(each.created_at for each in (event.origin,) if each))
            _check_moments(*(at for at in (event.at, event.data_at) if at))
        case FileRecorded(file):
            _check_moments(file.created_at)
            if file.format not in _FORMATS:
                raise ValueError(f"{file.format!a} is no format")
        case GcEnded():
            _check_moments(event.began, event.purge_after, event.at)
        case FilesRemoved():
            _check_moments(event.at)
            for removed in event.files:
                _place(removed.place)
        case LoadOutcome(file=Checkpoint() as file) | CopyRecorded(file=file) if file.run != event.run:
            raise ValueError(f"an event of run {event.run!r} cannot be about a file of run {file.run!r}")
        case CopyRecorded():
            _check_copy(event)
        case LayoutFileKept():
            pass
        case _:
            _check_moments(event.at)


def _check_copy(event: CopyRecorded) -> None:
    """Raise `ValueError` for objects that are of another run, and for a trashed copy without the end of its grace.

    purge deletes the objects of trashed copies.
    """
    _check_moments(event.at)
    keys = [event.key, *(each.key for each in event.beside)]
    if not all(key.startswith(folder_of(event.run)) for key in keys):
        raise ValueError(f"run {event.run!r} cannot have a copy outside {folder_of(event.run)!a}")
    if event.state is CopyState.TRASHED:
        _check_moments(datetime.fromisoformat(event.detail))


_FORMATS = (*ONE_FILE, *FOREIGN, "unknown")


def _check_moments(*moments: datetime | None) -> None:
    for at in moments:
        if at is None or at.tzinfo is not timezone.utc or not limits.FIRST_YEAR <= at.year <= limits.LAST_YEAR:
            raise ValueError(f"{at} is no time of this age, in UTC")


def from_lines(
    lines: Sequence[Line], directory: str, on_outside: Callable[[str], None] = lambda _: None
) -> tuple[list[Event], int]:
    """The events of the lines of a journal, in their order, and how many lines could not be used.

    `on_outside` gets a message for each line about a file that is not below the directory.
    """
    events: list[Event] = []
    for line in lines:
        try:
            event = from_line(line, directory)
        except OutsideError as error:  # noqa: PERF203 — nearly all lines raise nothing
            on_outside(str(error))
        except ValueError:
            continue  # it is counted
        else:
            events += [] if event is None else [event]
    return events, len(lines) - len(events)


def _said(value: Any) -> Line:
    """The fields of a value that differ from their defaults."""
    of: Any = type(value)
    defaults = _defaults(of)
    return {name: told for name, told in to_builtins(value).items() if told != defaults.get(name, MISSING)}


@cache
def _defaults(of: Any) -> Line:
    given = {each.name: each.default for each in fields(of) if each.default is not MISSING}
    made = {each.name: each.default_factory() for each in fields(of) if each.default_factory is not MISSING}
    return {name: to_builtins(value) for name, value in (given | made).items()}


_TAGS: dict[type[Any], str] = {
    LaunchStarted: "launch",
    SourceAdded: "source",
    FileRecorded: "file",
    FileUnplaced: "unplaced",
    TrainingEnded: "end",
    LoadOutcome: "outcome",
    LayoutFileKept: "layout",
    StepPinned: "pin",
    StepTagged: "tag",
    PolicySet: "policy",
    RunRenamed: "rename",
    RunForgotten: "forget",
    FilesRemoved: "removal",
    GcEnded: "gc",
    TierDeclared: "tier",
    CopyRecorded: "copy",
}
_TYPES: dict[Any, type[Any]] = {tag: of for of, tag in _TAGS.items()}


def launch_to_json(launch: Launch) -> Line:
    """A launch as one rank sends it to the others. A layout with all ranks in one group is written as one word."""
    told = {name: value for name, value in _said(launch).items() if name in _OF_LAUNCH}
    is_word = launch.layout == data_parallel(launch.world_size)
    return told | {"layout": _ALL if is_word else launch.layout.to_json()}


def launch_from_json(told: Line) -> Launch:
    """The inverse of `launch_to_json`, with `order` 0: only a catalog can number the launches of a run."""
    own = {name: told[name] for name in _OF_LAUNCH if name in told}
    launch = convert({**own, "order": 0, "layout": to_builtins(stand_alone())}, Launch)
    return replace(launch, layout=_layout(told["layout"], launch.world_size))


_OF_LAUNCH = ("run", "id", "world_size", "steps_per_epoch", "batch_size", "shards", "created_at")
_ALL = "data_parallel"


def _layout(told: Any, world_size: int) -> Layout:
    """The layout in JSON. Raises `ValueError` for groups that are not of `world_size` ranks."""
    if told == _ALL:
        return data_parallel(world_size)
    layout = convert(told, Layout)
    if layout.source == _ALL:
        raise ValueError("data parallel, and not all ranks in one group")
    try:
        from_groups(layout.groups, world_size, limits.text(layout.source))
    except CkptstoreError as error:
        raise ValueError(str(error)) from None
    return replace(layout, any_world_size=False)


class _Start(Struct, rename={"origin": "from"}, omit_defaults=True):
    """Where a launch starts. The plan's files have a rank, kind and path here; `origin` or `initial` has the rest."""

    at: Moment
    origin: dict[str, Any] | None
    step: Whole | None
    start_step: Whole | None
    branched: bool
    plan: tuple[tuple[Index, Index, Kind, str], ...] = ()
    passed: tuple[PassedOver, ...] = ()
    initial: Initial | None = None


def _launch_line(event: LaunchStarted, directory: str) -> Line:
    launch = event.launch
    line = launch_to_json(launch)
    if event.data_at is not None:
        line["data_at"] = to_builtins(event.data_at)
    if event.at is not None:
        line["start"] = to_builtins(
            _Start(
                event.at,
                launch_to_json(event.origin) if event.origin else None,
                launch.parent_step,
                launch.start_step,
                launch.branched,
                tuple((rank, file.rank, file.kind, _relative(file.path, directory)) for rank, file in event.plan),
                event.passed,
                launch.initial,
            )
        )
    return line


def _launch_started(line: Line, directory: str) -> LaunchStarted:
    launch = launch_from_json(line)
    data_at = convert(line.get("data_at"), Moment | None)
    if line.get("start") is None:
        return LaunchStarted(launch, data_at=data_at)
    start = convert(line["start"], _Start)
    launch = replace(launch, decided=True, branched=start.branched)
    if start.origin is None:
        initial = start.initial
        plan = _plan(start, directory, initial.run, initial.launch, initial.global_step) if initial else ()
        launch = replace(launch, initial=initial)
        return LaunchStarted(launch, start.at, plan=plan, data_at=data_at, passed=start.passed)
    origin = launch_from_json(start.origin)
    if origin.run != launch.run or start.step is None or start.initial is not None:
        raise ValueError(f"launch {launch.id} of run {launch.run!r} cannot start from run {origin.run!r}")
    step = start.step
    launch = replace(launch, parent=origin.id, parent_step=step, start_step=start.start_step)
    plan = _plan(start, directory, launch.run, origin.id, step)
    return LaunchStarted(launch, start.at, origin, plan, data_at, start.passed)


def _plan(start: _Start, directory: str, run: str, launch: str, step: int) -> tuple[tuple[int, Checkpoint], ...]:
    def named(source: int, kind: Kind, path: str) -> Checkpoint:
        path = _absolute(path, directory)
        return Checkpoint(run=run, launch=launch, kind=kind, global_step=step, rank=source, path=path)

    return tuple((rank, named(source, kind, path)) for rank, source, kind, path in start.plan)


def _file_line(file: Checkpoint, directory: str) -> Line:
    told = _said(file)
    told["path"] = _relative(file.path, directory)
    if file.strategy_file:
        told["strategy_file"] = _relative(file.strategy_file, directory)
    return told


def file_from_line(line: Line, directory: str) -> Checkpoint:
    """The record that the line of a `FileRecorded` holds."""
    strategy_file = line.get("strategy_file")
    own = {
        **line,
        "path": _own_path(line["path"], directory),
        "strategy_file": _absolute(strategy_file, directory) if strategy_file else None,
        "created_at": line["at"],
    }
    return convert(own, Checkpoint)


def _relative(path: str, directory: str) -> str:
    """The path from the directory, unless they have nothing in common."""
    above = f"{directory.rstrip('/')}/"
    if path.startswith(above) and "//" not in path:
        return path[len(above) :]
    if not path.startswith("/") or posixpath.commonpath([path, directory]) == "/":
        return path
    return posixpath.relpath(path, directory)


def _absolute(path: str, directory: str) -> str:
    return limits.path(posixpath.normpath(path if path.startswith("/") else f"{directory}/{path}"))


def _own_path(path: str, directory: str) -> str:
    """The absolute path of a file below the journal's directory. Raises `ValueError` for any other path."""
    return limits.path(f"{directory.rstrip('/')}/{_place(path)}")


def _place(place: str) -> str:
    """Check a path below a directory. Raises `OutsideError` if `.`, `..` or an empty name is in it."""
    if any(part in ("", ".", "..") for part in limits.text(place).split("/")):
        raise OutsideError(f"{place!a} is no path below its directory")
    return limits.path(place)
