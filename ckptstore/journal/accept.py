"""What of a journal counts: it speaks for its own directory, and for the runs of the user whose file it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from stat import S_ISLNK
from typing import TYPE_CHECKING, Any

from ckptstore.catalog import marks, reads
from ckptstore.core.events import (
    FileRecorded,
    FilesRemoved,
    LaunchStarted,
    PolicySet,
    RunForgotten,
    RunRenamed,
    StepPinned,
    StepTagged,
    from_lines,
    launch_of,
    runs_of,
    with_runs,
)
from ckptstore.core.hints import Command
from ckptstore.core.limits import LONGEST_NAME
from ckptstore.core.model import SCANNED
from ckptstore.core.text import count
from ckptstore.disk.trust import TRUST, Trust, on_behalf_of, user_name
from ckptstore.journal import jsonl
from ckptstore.journal.layouts import with_content
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Connection
    from ckptstore.core.events import Event, Mark
    from ckptstore.core.model import Launch, LaunchKey
    from ckptstore.journal.jsonl import Contents


_RESERVED = re.compile(r"@\d+$")
"""How a run is named that is of that user, since its name was another's: nobody else begins one."""


@dataclass(frozen=True)
class Accepted:
    """The events of a journal that count, how many lines do not, and why of those that could be read."""

    events: tuple[Event, ...]
    unusable: int
    refused: tuple[str, ...]

    @property
    def started(self) -> set[LaunchKey]:
        """The launches that it tells of."""
        return {event.launch.key for event in self.events if isinstance(event, LaunchStarted)}

    @property
    def named(self) -> set[LaunchKey]:
        """The launches that must be known."""
        return {launch for event in self.events if (launch := launch_of(event)) is not None}

    @property
    def runs(self) -> set[str]:
        """The runs that it tells of."""
        return {run for event in self.events for run in runs_of(event)}


def why_not(owner: int, home_owner: int, trust: Trust) -> str:
    """Why a journal of a user in a directory of another one is not believed; empty if it is."""
    if owner == home_owner or trust.is_full(owner):
        return ""
    writer = user_name(owner)
    return (
        f"it is of user {writer}, and the directory of {user_name(home_owner)}: it is believed with "
        f"--trust {writer}, or if {TRUST} names {writer}"
    )


class Acceptor:
    """Tells what counts, of journals that are taken up together.

    `runs_before` are those that the catalog had before: of these its own word counts for more than a journal's.
    """

    def __init__(
        self, connection: Connection, trust: Trust, runs_before: AbstractSet[str], journals: Iterable[Contents]
    ) -> None:
        self._connection = connection
        self._trust = trust
        self._runs_before = runs_before
        self._claimed: dict[str, int] = {}
        for contents in journals:  # the first that tells of a launch of a new run has it
            for run in _named([line for line in contents.entries if line.get("t") == "launch"]):
                self._claimed.setdefault(run, contents.owner)
        self._above: dict[tuple[str, int], str] = {}
        self._sizes: dict[LaunchKey, int] = {}

    def accept(self, path: str, contents: Contents) -> Accepted:
        """What counts of a journal that is believed."""
        directory = jsonl.directory_of(path)
        names = self._names(contents)
        lines = [with_runs(entry, names) for entry in contents.entries] if names else contents.entries
        refused = [f"run {run!r} is of another user: what it tells is of run {own!r}" for run, own in names.items()]
        found, unusable = from_lines(lines, directory, refused.append)
        others = self._others_of_that_id(event.launch for event in found if isinstance(event, LaunchStarted))
        files = [event.file for event in reversed(found) if isinstance(event, FileRecorded)]
        scanned = {file.launch_key: file.path for file in files if file.launch.startswith(SCANNED)}
        events: list[Event] = []
        for event in found:
            reason = others.get(_key(event)) or self._why_not(event, directory, contents.owner)
            if reason:
                refused.append(reason)
                unusable += 1
            elif isinstance(event, LaunchStarted):
                origin = None if event.origin is None else replace(event.origin, owner=contents.owner)
                path_of_one = scanned.get(event.launch.key)
                owner = on_behalf_of(contents.owner, path_of_one) if path_of_one else contents.owner
                launch = replace(event.launch, owner=owner)
                events.append(replace(event, launch=launch, origin=origin))
            elif (filled := with_content(event)) is not None:
                events.append(filled)
        return Accepted(tuple(events), unusable, tuple(dict.fromkeys(refused)))

    def _names(self, contents: Contents) -> Mapping[str, str]:
        """The runs that a journal names and that are another user's, and what its own are called then."""
        if self._trust.is_full(contents.owner):
            return {}
        named = _named(contents.entries)
        owners = reads.owners_of(self._connection, named)
        mark = f"@{contents.owner}"  # the number: another host may know the user by another name

        def is_own(run: str) -> bool:
            if run in owners:
                return contents.owner in owners[run]
            return self._claimed.get(run) == contents.owner and _RESERVED.search(run) is None

        others = sorted(run for run in named if not is_own(run) and not run.endswith(mark))
        return {run: f"{run[: LONGEST_NAME - len(mark)]}{mark}" for run in others}

    def _others_of_that_id(self, launches: Iterable[Launch]) -> dict[LaunchKey | None, str]:
        """The launches that have the id of another one, and why: one launch has one number of ranks.

        Of the two the first that was told of counts. What a scan found may grow, by files that are found later.
        """
        reasons: dict[LaunchKey | None, str] = {}
        for launch in launches:
            if launch.id.startswith(SCANNED):
                continue
            if launch.key not in self._sizes:
                known = reads.launch(self._connection, launch.key)
                self._sizes[launch.key] = launch.world_size if known is None else known.world_size
            size = self._sizes[launch.key]
            if size != launch.world_size:
                reasons[launch.key] = (
                    f"launch {launch.id!r} of run {launch.run!r} has {count(size, 'rank', 'ranks')} as it was first "
                    f"told of, and {launch.world_size} here: it is another one of that id, and left out"
                )
        return reasons

    def _why_not(self, event: Event, directory: str, owner: int) -> str:
        match event:
            case FileRecorded(file):
                return self._not_below([file.path], directory, owner)
            case FilesRemoved():
                return self._not_below(
                    [f"{directory.rstrip('/')}/{file.place}" for file in event.files], directory, owner
                )
            case StepPinned() | StepTagged() | PolicySet() | RunRenamed() | RunForgotten():
                is_new = event.run not in self._runs_before or not _takes_protection(event)
                return "" if is_new or marks.has(self._connection, event) else _unconfirmed(event)
        return ""

    def _not_below(self, paths: list[str], directory: str, owner: int) -> str:
        """Why a journal may not tell of these: a directory between is a link, or another user's."""
        begin = len(directory.rstrip("/")) + 1
        for path in paths:
            at = path.find("/", begin)
            while at >= 0:
                above = path[:at], owner
                if above not in self._above:
                    self._above[above] = self._foreign(*above)
                if self._above[above]:
                    return self._above[above]
                at = path.find("/", at + 1)
        return ""

    def _foreign(self, directory: str, owner: int) -> str:
        try:
            status = os.lstat(directory)
        except OSError:
            return ""  # it is gone, and what was in it
        if S_ISLNK(status.st_mode):
            return f"{directory} is a link: a journal tells of no file behind it"
        if status.st_uid == owner or self._trust.is_full(owner):
            return ""
        return f"{directory} is of user {user_name(status.st_uid)}: a journal of another one tells of no file in it"


def _key(event: Event) -> LaunchKey | None:
    return event.launch.key if isinstance(event, LaunchStarted) else launch_of(event)


def _named(lines: Sequence[dict[str, Any]]) -> set[str]:
    """The runs that lines name."""
    return {line["run"] for line in lines if isinstance(line.get("run"), str)}


def unconfirmed(connection: Connection, run: str, lines: Sequence[dict[str, Any]]) -> list[str]:
    """What these lines of a journal say against protection in a run, and the catalog does not: nobody confirmed it."""
    of_marks = [line for line in lines if line.get("t") in ("pin", "tag", "policy", "forget")]
    newest: dict[object, Mark] = {}
    for event in from_lines(of_marks, "/")[0]:
        match event:
            case StepPinned(run=named, global_step=step):
                newest[named, step] = event
            case StepTagged(run=named, name=tag):
                newest[named, tag] = event
            case PolicySet(run=named):
                newest[named] = event
            case RunForgotten(run=named):
                newest[named, None] = event
    told = [event for event in newest.values() if event.run == run and _takes_protection(event)]
    return [_unconfirmed(event) for event in told if not marks.has(connection, event)]


def _takes_protection(event: Event) -> bool:
    match event:
        case StepPinned(pinned=False) | StepTagged(global_step=None) | PolicySet() | RunForgotten(forgotten=True):
            return True
    return False


def _unconfirmed(event: Mark) -> str:
    run = event.run
    match event:
        case StepPinned():
            what, command = f"step {event.global_step} is not pinned any more", Command("unpin", run, event.global_step)
        case StepTagged():
            what, command = f"tag {event.name!r} was taken away", Command("untag", run, event.name)
        case PolicySet():
            what, command = f"its policy is {event.rules}", Command("policy", run, *_options(event.rules))
        case RunForgotten():
            what, command = "it was forgotten", Command("forget", run, "--apply")
        case RunRenamed():
            what, command = f"its name is {event.name!r}", Command("rename", run, event.name)
    return f"it says of run {event.run!r} that {what}, and the catalog does not: confirm it with {command}"


def _options(rules: Mapping[str, Any] | None) -> list[str]:
    """Rules as the command line takes them."""
    given = ["--clear"] if rules is None else []
    for name, value in (rules or {}).items():
        option = f"--{name.replace('_', '-')}"
        values = [f"{kind}={number}" for kind, number in value.items()] if isinstance(value, dict) else [value]
        given += [word for each in values for word in ([option] if each is True else [option, str(each)])]
    return given
