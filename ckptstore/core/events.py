"""What happened, as frozen values: one type for each kind of event, to a line of a journal and from it.

Paths in a line are relative to the journal's directory, so that a copied tree is read where it is; no URL is in any of
them. Every fact has one sortable version: of two events about one thing the one with the greater version counts,
whatever their order.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ckptstore.core import limits
from ckptstore.core.limits import HIGHEST, count, finite, integer, moment, name, optional, ranks, text, whole
from ckptstore.core.model import (
    Checkpoint,
    Content,
    FileState,
    Grade,
    Kind,
    Launch,
    Lengths,
    LoadResult,
    Location,
    PassedOver,
    Rule,
    Source,
    Timing,
    Unplaced,
    launch_key,
)
from ckptstore.core.naming import FOREIGN, ONE_FILE
from ckptstore.core.replicas import data_parallel, from_groups, from_json
from ckptstore.errors import CkptstoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ckptstore.core.model import LaunchKey
    from ckptstore.core.replicas import Layout

    Line = dict[str, Any]


@dataclass(frozen=True)
class LaunchStarted:
    """A launch, and where it starts: `at` is None while it has not asked, `origin` None where it starts afresh.

    `plan` has (rank, file) for each rank, and `passed` the newer states that were passed over, in the journal of the
    rank that says it for all. `data_at` is when the steps of the launch in its data were told (None: not known).
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
        return replace(self, source=self.source._replace(directory_id=identity))


@dataclass(frozen=True)
class FileRecorded:
    """What is known of a file: that it was written, or what a look at the disk found."""

    file: Checkpoint


@dataclass(frozen=True)
class FileUnplaced:
    """A scan found a file whose step or rank nothing told (docs/scanning.md)."""

    run: str
    file: Unplaced
    at: datetime


@dataclass(frozen=True)
class TrainingEnded:
    """How training ended on a rank: the step, and what was wrong with the state at it (empty: nothing)."""

    run: str
    launch: str
    rank: int
    global_step: int
    optimizer_step: int | None
    error: str | None
    quarantine: str
    at: datetime


@dataclass(frozen=True)
class LoadOutcome:
    """What came of a launch's plan on a rank; `file` is the one that it could not load, `detail` says why."""

    run: str
    launch: str
    rank: int
    outcome: LoadResult
    at: datetime
    file: Checkpoint | None = None
    detail: str | None = None


@dataclass(frozen=True)
class LayoutFileKept:
    """A strategy or group info file that a rank wrote: its BLAKE3, and its content, compressed by zlib.

    `content` is None where it was too much for a journal: then the file itself has it, until it is overwritten.
    """

    run: str
    launch: str
    rank: int
    path: str
    digest: str
    kind: str
    content: bytes | None


@dataclass(frozen=True)
class StepPinned:
    """A step of a run was pinned, or unpinned."""

    run: str
    global_step: int
    pinned: bool
    at: datetime


@dataclass(frozen=True)
class StepTagged:
    """A step of a run got a name, or the name was taken away (`global_step` None)."""

    run: str
    name: str
    global_step: int | None
    at: datetime


@dataclass(frozen=True)
class PolicySet:
    """What gc keeps of a run was stored, as `retention.policy` writes it down, or forgotten (None)."""

    run: str
    rules: Mapping[str, Any] | None
    at: datetime


@dataclass(frozen=True)
class RunRenamed:
    """A run got another name. `run` stays the name that its events and ids are made of, and goes on leading to it."""

    run: str
    name: str
    at: datetime


@dataclass(frozen=True)
class RunForgotten:
    """A run was hidden from every command, or brought back; what is known of it stays."""

    run: str
    forgotten: bool
    at: datetime


@dataclass(frozen=True)
class RemovedFile:
    """A file that retention gave up: `place` is its path below the directory, size in bytes, time in nanoseconds.

    `checkpoint` is the id of its record and `of_version` the `generation` of that then; empty where there is none.
    """

    place: str
    size: int
    mtime_ns: int
    checkpoint: str = ""
    of_version: str = ""


@dataclass(frozen=True)
class FilesRemoved:
    """Where retention wants files of one directory from now on, or `settled` where they are."""

    run: str
    collection: str
    directory: str
    wanted: Location
    settled: bool
    at: datetime
    files: tuple[RemovedFile, ...]


@dataclass(frozen=True)
class GcEnded:
    """A gc began (`ended` False), or ended; what it moved to the trash may be purged from `purge_after` on."""

    run: str
    collection: str
    began: datetime
    purge_after: datetime
    ended: bool
    at: datetime


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
)
"""What can be used once the launch that it names is known."""

Event = LaunchStarted | AfterLaunch

Mark = StepPinned | StepTagged | PolicySet | RunRenamed | RunForgotten
"""What a person says of a run, or of a step of it."""


class OutsideError(ValueError):
    """A line tells of a file that is not below the journal's directory."""


MOST_CONTENT = 1 << 20
"""Bytes of compressed content in a line: the strategy of thousands of ranks fits, and many ranks may write one each."""


def version_of_file(file: Checkpoint) -> str:
    """The version of a file's record: by when the file was written, or by the record that a look at the disk amended.

    Of two that say the same moment the one further in the life of a file counts, then one that says that its state is
    bad, then the one that says more.
    """
    facts = (file.size, file.digest, file.optimizer_step, file.epoch, file.step_in_epoch, file.strategy_file)
    told = (*facts, file.content.value, file.problem, file.quarantine or None, *sorted(file.metrics.items()))
    told = (*told, *(file.timing or ()), file.directory_id or None)
    told += (file.grade, file.doubt) if file.grade else ()
    known = min(len(told) - told.count(None), 99)
    is_whole = int(file.state is not FileState.IN_PROGRESS)
    is_bad = int(bool(file.quarantine))
    return f"{is_whole}{file.newness + HIGHEST:020d}{_LIFE[file.state]}{is_bad}{known:02d}{_short(told)}"


def generation(version: str) -> str:
    """The part of a file's version that tells which file it is, and how often a look at the disk amended its record."""
    return version[:GENERATION]


GENERATION = 21
"""Characters of it."""

_LIFE = {state: place for place, state in enumerate(FileState)}


def version_of(at: datetime, *content: object) -> str:
    """The version of what happened at a moment; of two at one moment its content decides, the same everywhere."""
    return f"{at.astimezone(limits.UTC).isoformat(timespec='microseconds')}{_short(content)}"


def version_of_mark(event: Mark) -> str:
    """The version of what was said of a step, a name or a run."""
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


def moment_of(version: str) -> datetime:
    """The moment of a `version_of`."""
    return datetime.fromisoformat(version[:_MOMENT])


_MOMENT = len("2026-01-01T00:00:00.000000+00:00")


def _short(content: object) -> str:
    return blake2b(repr(content).encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()


def launch_of(event: Event) -> LaunchKey | None:
    """The launch that must be known before an event can be used; None if it needs none."""
    match event:
        case FileRecorded(file):
            return file.launch_key
        case SourceAdded(source):
            return source.launch_key
        case TrainingEnded() | LoadOutcome() | LayoutFileKept():
            return launch_key(event.run, event.launch)
    return None


def runs_of(event: Event) -> set[str]:
    """The runs that an event names."""
    match event:
        case LaunchStarted():
            return {event.launch.run}
        case FileRecorded(file):
            return {file.run}
        case SourceAdded(source):
            return {source.run}
        case _:
            return {event.run}


def to_line(event: Event, directory: str) -> Line:  # noqa: C901, PLR0911, PLR0912 — one case for each type
    """An event as one line of the journal of a directory."""
    match event:
        case LaunchStarted():
            return _launch_line(event, directory)
        case SourceAdded(source, at):
            # The directory is the journal's own.
            return {
                "t": "source",
                "run": source.run,
                "launch": source.launch,
                "rank": source.rank,
                "kind": source.kind.value,
                "prefix": source.prefix,
                "breakpoint_prefix": source.breakpoint_prefix,
                "names_before": sorted(source.names_before),
                "host": source.host,
                "content": source.content.value if source.content else None,
                "directory_id": source.directory_id,
                "at": at.isoformat(),
            }
        case FileRecorded(file):
            return _file_line(file, directory)
        case FileUnplaced():
            told = event.file._replace(path=_relative(event.file.path, directory))
            return {"t": "unplaced", "run": event.run, **told._asdict(), "at": event.at.isoformat()}
        case TrainingEnded():
            return {"t": "end", **event.__dict__, "at": event.at.isoformat()}
        case LoadOutcome():
            return {
                "t": "outcome",
                "run": event.run,
                "launch": event.launch,
                "rank": event.rank,
                "outcome": event.outcome.value,
                "file": _named(event.file, directory) if event.file else None,
                "detail": event.detail,
                "at": event.at.isoformat(),
            }
        case LayoutFileKept():
            content = base64.b64encode(event.content or b"").decode("ascii") if has_content(event) else None
            return {"t": "layout", **event.__dict__, "path": _relative(event.path, directory), "content": content}
        case StepPinned():
            return {"t": "pin", **event.__dict__, "at": event.at.isoformat()}
        case StepTagged():
            return {"t": "tag", **event.__dict__, "at": event.at.isoformat()}
        case PolicySet():
            return {"t": "policy", **event.__dict__, "at": event.at.isoformat()}
        case RunRenamed():
            return {"t": "rename", **event.__dict__, "at": event.at.isoformat()}
        case RunForgotten():
            return {"t": "forget", **event.__dict__, "at": event.at.isoformat()}
        case FilesRemoved():
            files = [[each.place, each.size, each.mtime_ns, each.checkpoint, each.of_version] for each in event.files]
            named = {"run": event.run, "collection": event.collection}
            wanted = {"wanted": event.wanted.value, "settled": event.settled}
            return {"t": "removal", **named, **wanted, "at": event.at.isoformat(), "files": files}
        case GcEnded():
            times = {name: getattr(event, name).isoformat() for name in ("began", "purge_after", "at")}
            return {"t": "gc", **event.__dict__, **times}


def from_line(line: Line, directory: str) -> Event | None:
    """The event that a line of the journal of a directory tells; None for a type that this program does not know.

    Raises `ValueError`, `KeyError`, `TypeError`, `AttributeError` or `OverflowError` for what makes no sense, and for
    what no catalog can hold: another program may have written it.
    """
    read = _READERS.get(line["t"])
    return None if read is None else read(line, directory)


def from_lines(
    lines: Sequence[Line], directory: str, on_outside: Callable[[str], None] = lambda _: None
) -> tuple[list[Event], int]:
    """The events of the lines of a journal, in their order, and how many lines could not be used.

    `on_outside` hears of each that tells of a file that is not below the directory.
    """
    events: list[Event] = []
    for line in lines:
        try:
            event = from_line(line, directory)
        except OutsideError as error:  # noqa: PERF203 — nearly all lines raise nothing
            on_outside(str(error))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue  # it is counted
        else:
            events += [] if event is None else [event]
    return events, len(lines) - len(events)


def with_runs(line: Any, names: Mapping[str, str]) -> Any:
    """A line, or a part of one, in which these runs have other names."""
    if isinstance(line, list):
        return [with_runs(part, names) for part in line]
    if not isinstance(line, dict):
        return line
    new = {name: with_runs(part, names) for name, part in line.items()}
    if isinstance(new.get("run"), str):
        new["run"] = names.get(new["run"], new["run"])
    return new


def has_content(kept: LayoutFileKept) -> bool:
    """Whether the line of a layout file holds what is in the file."""
    return kept.content is not None and len(kept.content) <= MOST_CONTENT


def launch_to_json(launch: Launch) -> Line:
    """A launch as one rank tells it to the others."""
    return {
        "run": launch.run,
        "id": launch.id,
        "world_size": launch.world_size,
        "layout": _layout(launch.layout, launch.world_size),
        "steps_per_epoch": launch.steps_per_epoch,
        "batch_size": launch.batch_size,
        "shards": launch.shards,
        "created_at": launch.created_at.isoformat() if launch.created_at else None,
        **({"lengths": [list(each) for each in launch.lengths]} if launch.lengths else {}),
    }


def launch_from_json(told: Line) -> Launch:
    """The inverse of `launch_to_json`. Its place among the launches of its run is for a catalog to say."""
    world_size = ranks(told["world_size"])
    layout = told["layout"]
    return Launch(
        id=name(told["id"]),
        run=name(told["run"]),
        order=0,
        world_size=world_size,
        layout=data_parallel(world_size) if layout == _ALL else _checked(from_json(layout), world_size),
        steps_per_epoch=optional(count, told["steps_per_epoch"]),
        batch_size=optional(count, told["batch_size"]),
        shards=optional(count, told["shards"]),
        created_at=moment(told["created_at"]),
        lengths=tuple(map(_lengths, told.get("lengths", ()))),
    )


def _lengths(told: Sequence[Any]) -> Lengths:
    low, high, divides = told
    return Lengths(count(low), optional(whole, high), whole(divides))


_ALL = "data_parallel"


def _checked(layout: Layout, world_size: int) -> Layout:
    """A layout whose groups are of ranks of the launch. Raises `ValueError`."""
    try:
        from_groups(layout.groups, world_size, text(layout.source))
    except CkptstoreError as error:
        raise ValueError(str(error)) from None
    if layout.any_world_size and layout != data_parallel(world_size):
        raise ValueError("data parallel, and not all ranks in one group")
    return layout


def _layout(layout: Layout, world_size: int) -> object:
    """The layout; one that has all ranks in one group in a word: it is in the journal of each of them."""
    return _ALL if layout == data_parallel(world_size) else layout.to_json()


def _launch_line(event: LaunchStarted, directory: str) -> Line:
    """A plan's files are named by rank, kind and path: their launch and step are the origin's."""
    launch = event.launch
    line = {"t": "launch", **launch_to_json(launch)}
    if event.data_at is not None:
        line["data_at"] = event.data_at.isoformat()
    if event.at is not None:
        line["start"] = {
            "at": event.at.isoformat(),
            "from": launch_to_json(event.origin) if event.origin else None,
            "step": launch.parent_step,
            "start_step": launch.start_step,
            "branched": launch.branched,
            "plan": [[rank, file.rank, file.kind.value, _relative(file.path, directory)] for rank, file in event.plan],
        }
        if event.passed:
            line["start"]["passed"] = [list(each) for each in event.passed]
    return line


def _as_launch(line: Line, directory: str) -> LaunchStarted:
    launch = launch_from_json(line)
    data_at = optional(moment, line.get("data_at"))
    start = line.get("start")
    if start is None:
        return LaunchStarted(launch, data_at=data_at)
    at = moment(start["at"])
    launch = replace(launch, decided=True, branched=bool(start["branched"]))
    passed = tuple(
        PassedOver(name(of), whole(step), Rule(rule), text(detail))
        for of, step, rule, detail in start.get("passed", ())
    )
    if start["from"] is None:
        return LaunchStarted(launch, at, data_at=data_at, passed=passed)
    origin = launch_from_json(start["from"])
    if origin.run != launch.run:
        raise ValueError(f"launch {launch.id} of run {launch.run!r} cannot start from run {origin.run!r}")
    step = whole(start["step"])
    start_step = optional(whole, start["start_step"])
    launch = replace(launch, parent=origin.id, parent_step=step, start_step=start_step)
    plan = tuple(
        (
            integer(rank),
            Checkpoint(
                run=launch.run,
                launch=origin.id,
                kind=Kind(kind),
                global_step=step,
                rank=integer(source),
                path=_absolute(path, directory),
            ),
        )
        for rank, source, kind, path in start["plan"]
    )
    return LaunchStarted(launch, at, origin, plan, data_at, passed)


def _as_source(line: Line, directory: str) -> SourceAdded:
    source = Source(
        run=name(line["run"]),
        launch=name(line["launch"]),
        rank=integer(line["rank"]),
        directory=directory,
        kind=Kind(line["kind"]),
        prefix=text(line["prefix"]),
        breakpoint_prefix=text(line["breakpoint_prefix"]),
        names_before=frozenset(map(text, line["names_before"])),
        host=optional(text, line["host"]),
        content=optional(Content, line.get("content")),
        directory_id=_directory_id(line.get("directory_id", "")),
    )
    return SourceAdded(source, moment(line["at"]))


def _file_line(file: Checkpoint, directory: str) -> Line:
    """What says nothing is left out."""
    facts = vars(file)
    told = {
        "t": "file",
        **{field: facts[field] for field in _PLAIN},
        "kind": file.kind.value,
        "path": _relative(file.path, directory),
        "content": file.content.value,
        "strategy_file": _relative(file.strategy_file, directory) if file.strategy_file else None,
        "metrics": dict(file.metrics),
        "state": file.state.value,
        "problem": file.problem.value if file.problem else None,
        "grade": file.grade.value if file.grade else None,
        "timing": list(file.timing) if file.timing else None,
        "at": file.created_at.isoformat() if file.created_at else None,
    }
    return {field: value for field, value in told.items() if value or value == 0}


def _format(value: object) -> str:
    if value not in (*ONE_FILE, *FOREIGN, "unknown"):
        raise ValueError(f"{value!a} is no format")
    return text(value)


def _directory_id(value: object) -> str:
    if not _IDENTITY.fullmatch(found := text(value)):
        raise ValueError(f"{found!a} is no identity of a directory")
    return found


_IDENTITY = re.compile("([0-9a-f]{16})?")

_PLAIN: dict[str, Callable[[Any], Any]] = {
    "run": name,
    "launch": name,
    "global_step": whole,
    "rank": integer,
    "optimizer_step": whole,
    "epoch": integer,
    "step_in_epoch": integer,
    "size": whole,
    "digest": partial(text, longest=64),
    "mtime_ns": partial(whole, lowest=-HIGHEST),
    "revision": partial(whole, lowest=-HIGHEST),
    "format": _format,
    "quarantine": text,
    "doubt": text,
    "directory_id": _directory_id,
}


def _as_file(line: Line, directory: str) -> FileRecorded:
    return FileRecorded(file_from_line(line, directory))


def file_from_line(line: Line, directory: str) -> Checkpoint:
    """The record that the line of a `FileRecorded` holds."""
    strategy_file = line.get("strategy_file")
    return Checkpoint(
        **{field: check(line[field]) for field, check in _PLAIN.items() if field in line},
        kind=Kind(line["kind"]),
        path=_own_path(line["path"], directory),
        content=Content(line["content"]),
        strategy_file=_absolute(strategy_file, directory) if strategy_file else None,
        metrics={text(metric): finite(value) for metric, value in line.get("metrics", {}).items()},
        state=FileState(line["state"]),
        problem=Rule(line["problem"]) if "problem" in line else None,
        grade=Grade(line["grade"]) if "grade" in line else None,
        timing=optional(_timing, line.get("timing")),
        created_at=moment(line["at"]),
    )


def _timing(told: Any) -> Timing:
    pause, written, step = told
    return Timing(_seconds(pause), optional(_seconds, written), optional(_seconds, step))


def _seconds(value: Any) -> float:
    seconds = finite(value)
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"{seconds} s is no time that a save takes")
    return seconds


_LONGEST_SECONDS = 1e9


def _as_unplaced(line: Line, directory: str) -> FileUnplaced:
    file = Unplaced(
        path=_own_path(line["path"], directory),
        size=whole(line["size"]),
        mtime_ns=whole(line["mtime_ns"], lowest=-HIGHEST),
        best_guess=optional(whole, line["best_guess"]),
        reason=text(line["reason"]),
        remedy=_remedy(line["remedy"]),
    )
    return FileUnplaced(name(line["run"]), file, moment(line["at"]))


def _remedy(value: Any) -> str:
    """Options of `ckptstore scan` that say what only its user knows: people run what they are shown."""
    told = text(value)
    if not _REMEDIES.fullmatch(told):
        raise ValueError(f"{told!a} places no file")
    return told


_REMEDIES = re.compile(
    r"(?:(?:--trust (?:counter|name|info)|--steps-per-epoch (?:E|[0-9]{1,9})|--step FILE=STEP|--world-size 1)(?: |$))*"
)


def _as_end(line: Line, _: str) -> TrainingEnded:
    return TrainingEnded(
        run=name(line["run"]),
        launch=name(line["launch"]),
        rank=integer(line["rank"]),
        global_step=whole(line["global_step"]),
        optimizer_step=optional(whole, line["optimizer_step"]),
        error=optional(text, line["error"]),
        quarantine=text(line["quarantine"]),
        at=moment(line["at"]),
    )


def _as_outcome(line: Line, directory: str) -> LoadOutcome:
    file = None if line["file"] is None else _as_named(line["file"], directory)
    run = name(line["run"])
    if file is not None and file.run != run:
        raise ValueError(f"a launch of run {run!r} cannot load what is of run {file.run!r}")
    return LoadOutcome(
        run=run,
        launch=name(line["launch"]),
        rank=integer(line["rank"]),
        outcome=LoadResult(line["outcome"]),
        at=moment(line["at"]),
        file=file,
        detail=optional(text, line["detail"]),
    )


def _as_layout_file(line: Line, directory: str) -> LayoutFileKept:
    content = line["content"]
    return LayoutFileKept(
        run=name(line["run"]),
        launch=name(line["launch"]),
        rank=integer(line["rank"]),
        path=_absolute(line["path"], directory),
        digest=text(line["digest"], 64),
        kind=text(line["kind"], 16),
        content=None if content is None else base64.b64decode(content, validate=True),
    )


def _as_pin(line: Line, _: str) -> StepPinned:
    return StepPinned(name(line["run"]), whole(line["global_step"]), bool(line["pinned"]), moment(line["at"]))


def _as_tag(line: Line, _: str) -> StepTagged:
    return StepTagged(name(line["run"]), name(line["name"]), optional(whole, line["global_step"]), moment(line["at"]))


def _as_policy(line: Line, _: str) -> PolicySet:
    rules = None if line["rules"] is None else dict(line["rules"])  # gc says what it does not know of them
    json.dumps(rules, allow_nan=False)
    return PolicySet(name(line["run"]), rules, moment(line["at"]))


def _as_rename(line: Line, _: str) -> RunRenamed:
    return RunRenamed(name(line["run"]), name(line["name"]), moment(line["at"]))


def _as_forget(line: Line, _: str) -> RunForgotten:
    return RunForgotten(name(line["run"]), bool(line["forgotten"]), moment(line["at"]))


def _as_removal(line: Line, directory: str) -> FilesRemoved:
    files = tuple(
        RemovedFile(_place(place), whole(size), whole(mtime, lowest=-HIGHEST), text(checkpoint, 32), text(version, 64))
        for place, size, mtime, checkpoint, version in line["files"]
    )
    wanted = Location(line["wanted"]), bool(line["settled"])
    return FilesRemoved(name(line["run"]), _collection(line), directory, *wanted, moment(line["at"]), files)


def _as_gc(line: Line, _: str) -> GcEnded:
    times = (moment(line["began"]), moment(line["purge_after"]))
    return GcEnded(name(line["run"]), _collection(line), *times, bool(line["ended"]), moment(line["at"]))


def _collection(line: Line) -> str:
    """The name of a gc, which is one of a directory in the trash too."""
    found = text(line["collection"], 32)
    if not found or "/" in found or found.startswith("."):
        raise ValueError(f"{found!a} is no gc")
    return found


_READERS: dict[str, Callable[[Line, str], Event]] = {
    "launch": _as_launch,
    "source": _as_source,
    "file": _as_file,
    "unplaced": _as_unplaced,
    "end": _as_end,
    "outcome": _as_outcome,
    "layout": _as_layout_file,
    "pin": _as_pin,
    "tag": _as_tag,
    "policy": _as_policy,
    "rename": _as_rename,
    "forget": _as_forget,
    "removal": _as_removal,
    "gc": _as_gc,
}


def _named(file: Checkpoint, directory: str) -> Line:
    """What the id of a file is made of."""
    return {
        "run": file.run,
        "launch": file.launch,
        "kind": file.kind.value,
        "global_step": file.global_step,
        "rank": file.rank,
        "path": _relative(file.path, directory),
    }


def _as_named(told: Line, directory: str) -> Checkpoint:
    return Checkpoint(
        run=name(told["run"]),
        launch=name(told["launch"]),
        kind=Kind(told["kind"]),
        global_step=whole(told["global_step"]),
        rank=integer(told["rank"]),
        path=_absolute(told["path"], directory),
    )


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
    """The path of a file below the journal's directory: it tells of no other. Raises `ValueError`."""
    return limits.path(f"{directory.rstrip('/')}/{_place(path)}")


def _place(place: str) -> str:
    """A path below a directory, of names only. Raises `OutsideError` for another."""
    if any(part in ("", ".", "..") for part in text(place).split("/")):
        raise OutsideError(f"{place!a} is no path below its directory")
    return limits.path(place)
