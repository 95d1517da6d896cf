"""Decides which events of a journal count: those about its own directory, and about the runs of its owner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from stat import S_ISLNK
from typing import TYPE_CHECKING, Any

from ckptstore.catalog import reads, user_events
from ckptstore.core.events import (
    CopyRecorded,
    FileRecorded,
    FilesRemoved,
    LaunchStarted,
    PolicySet,
    RunForgotten,
    StepPinned,
    StepTagged,
    TierDeclared,
    UserEvent,
    from_lines,
    launch_of,
    run_of,
    version_of_user_event,
)
from ckptstore.core.hints import Command, as_options
from ckptstore.core.model import SCANNED
from ckptstore.core.text import count
from ckptstore.disk.trust import ROOT, TRUST, Trust, on_behalf_of, user_name
from ckptstore.journal import jsonl
from ckptstore.journal.layouts import is_as_told
from ckptstore.outside import os

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Connection
    from ckptstore.core.events import Event
    from ckptstore.core.model import Launch, LaunchKey
    from ckptstore.journal.jsonl import Contents


MARKS = ("pin", "tag", "policy", "forget")
"""The types of lines that may remove protection."""


@dataclass(frozen=True)
class Accepted:
    """The events of a journal that count, the number of lines that do not, and why readable ones do not.

    `has_foreign`: some lines are about another user's run. They count once their writer is trusted. `others` are the
    launches whose id is another launch's, and why: their lines do not count, in the rest of the journal neither.
    """

    events: tuple[Event, ...]
    unusable: int
    refused: tuple[str, ...]
    has_foreign: bool
    others: Mapping[LaunchKey | None, str]

    @property
    def named(self) -> set[LaunchKey]:
        """The launches that its events refer to: the catalog must know them."""
        return {launch for event in self.events if (launch := launch_of(event)) is not None}

    @property
    def runs(self) -> set[str]:
        """The runs that it names."""
        return {run_of(event) for event in self.events}


def why_not(owner: int, home_owner: int, trust: Trust) -> str:
    """Why a journal of a user in a directory of another one is not believed; empty if it is."""
    if owner == home_owner or trust.is_full(owner):
        return ""
    writer = user_name(owner)
    return (
        f"it belongs to user {writer}, its directory to user {user_name(home_owner)}: to believe it, give "
        f"--trust {writer}, or name {writer} in {TRUST}"
    )


class Acceptor:
    """Decides which events count, of journals that are taken up together.

    `runs_before` are the runs that the catalog had before. For these runs, it counts for more than a journal.
    """

    def __init__(
        self, connection: Connection, trust: Trust, runs_before: AbstractSet[str], journals: Iterable[Contents]
    ) -> None:
        self._connection = connection
        self._trust = trust
        self._runs_before = runs_before
        self._claimed: dict[str, int] = {}  # owners of new runs, by their first launch in a journal
        for contents in journals:
            for line in contents.entries:
                if line.get("t") == "launch" and isinstance(line.get("run"), str):
                    is_roots = contents.owner == ROOT  # root may scan other users' directories, and pin states there
                    self._claimed.setdefault(line["run"], contents.home_owner if is_roots else contents.owner)
        self._owners = cache(self._owners_of)  # all segments of a launch ask for the same
        self._above: dict[tuple[str, int], str] = {}
        self._sizes: dict[LaunchKey, int] = {}

    def accept(self, path: str, contents: Contents, others: Mapping[LaunchKey | None, str]) -> Accepted:
        """The events that count of a journal that is believed; `others` are those of its part before this one."""
        directory, owner = jsonl.directory_of(path), contents.owner
        refused: list[str] = []
        found, unusable = from_lines(contents.entries, directory, refused.append)
        started = [event for event in found if isinstance(event, LaunchStarted) and not self._foreign(event, owner)]
        others = {**others, **self._others_of_that_id(event.launch for event in started)}
        files = [event.file for event in reversed(found) if isinstance(event, FileRecorded)]
        scanned = {file.launch_key: file.path for file in files if file.launch.startswith(SCANNED)}
        events: list[Event] = []
        has_foreign = False
        for event in found:
            foreign = self._foreign(event, owner)
            has_foreign |= bool(foreign)
            launch_key = event.launch.key if isinstance(event, LaunchStarted) else launch_of(event)
            reason = foreign or others.get(launch_key) or self._why_not(event, directory, owner)
            if reason:
                refused.append(reason)
                unusable += 1
            elif isinstance(event, LaunchStarted):
                origin = None if event.origin is None else replace(event.origin, owner=owner)
                path_of_one = scanned.get(event.launch.key)
                launch = replace(event.launch, owner=on_behalf_of(owner, path_of_one) if path_of_one else owner)
                events.append(replace(event, launch=launch, origin=origin))
            elif isinstance(event, CopyRecorded):
                events.append(replace(event, trusted=event.trusted and self._trust.is_full(owner)))
            elif is_as_told(event):
                events.append(event)
        return Accepted(tuple(events), unusable, tuple(dict.fromkeys(refused)), has_foreign, others)

    def _owners_of(self, run: str) -> set[int]:
        """The owners of a run: the users of its launches."""
        claimed = {self._claimed[run]} if run in self._claimed else set()
        return reads.owners_of(self._connection, run) or claimed

    def _foreign(self, event: Event, owner: int) -> str:
        """Why a user's lines about a run of others, or of no known user, are left out; empty if they count."""
        run = run_of(event)
        whose = self._owners(run)
        is_for_later = not whose and launch_of(event) is not None  # it is read again once its launch is known
        if owner in whose or is_for_later or self._trust.is_full(owner):
            return ""
        writer = user_name(owner)
        told_by = f"of user {user_name(min(whose))}" if whose else "of no known user"
        return (
            f"run {run!r} is {told_by}: what user {writer} tells of it is left out, except with --trust {writer}, or "
            f"if {TRUST} names {writer}"
        )

    def _others_of_that_id(self, launches: Iterable[Launch]) -> dict[LaunchKey | None, str]:
        """The launches whose id is that of another launch, and why: one launch has one number of ranks.

        Of the two, the first one that was taken up counts. Scanned launches are left out: files that are found later
        may add ranks.
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
                    f"launch {launch.id!r} of run {launch.run!r} was first recorded with "
                    f"{count(size, 'rank', 'ranks')}, and has {launch.world_size} here: that is another launch of this "
                    "id, and is left out"
                )
        return reasons

    def _why_not(self, event: Event, directory: str, owner: int) -> str:
        match event:
            case FileRecorded(file) | CopyRecorded(file=file):
                return self._not_below([file.path], directory, owner)
            case TierDeclared() if not self._trust.is_full(owner):
                return f"tier {event.tier.name!r} is for users of this catalog to declare"
            case FilesRemoved():
                return self._not_below(event.paths, directory, owner)
            case StepPinned() | StepTagged() | PolicySet() | RunForgotten():
                is_new = event.run not in self._runs_before or not takes_protection(event)
                return "" if is_new or user_events.has(self._connection, event) else _unconfirmed(event)
        return ""

    def _not_below(self, paths: list[str], directory: str, owner: int) -> str:
        """Why a journal may not describe these files: a directory on their path is a link, or another user's."""
        begin = len(directory.rstrip("/")) + 1
        for path in paths:
            at = path.find("/", begin)
            while at >= 0:
                above = path[:at], owner
                if above not in self._above:
                    self._above[above] = self._closed(*above)
                if self._above[above]:
                    return self._above[above]
                at = path.find("/", at + 1)
        return ""

    def _closed(self, directory: str, owner: int) -> str:
        try:
            status = os.lstat(directory)
        except OSError:
            return ""  # it is gone, with all its files
        if S_ISLNK(status.st_mode):
            return f"{directory} is a link: what a journal says of files behind it does not count"
        if status.st_uid == owner or self._trust.is_full(owner):
            return ""
        owned_by = f"{directory} belongs to user {user_name(status.st_uid)}"
        return f"{owned_by}: what another user's journal says of its files does not count"


def unconfirmed(connection: Connection, run: str, lines: Sequence[dict[str, Any]]) -> list[str]:
    """Of these `MARKS` in journals, those that remove protection in a run and that no user confirmed in the catalog.

    Of several lines about one subject the newest counts.
    """
    newest: dict[object, UserEvent] = {}
    marks = [each for each in from_lines(lines, "/")[0] if isinstance(each, UserEvent)]
    for event in sorted(marks, key=version_of_user_event):
        match event:
            case StepPinned(run=named, global_step=step):
                newest[named, step] = event
            case StepTagged(run=named, name=tag):
                newest[named, tag] = event
            case PolicySet(run=named):
                newest[named] = event
            case RunForgotten(run=named):
                newest[named, None] = event
    told = [event for event in newest.values() if event.run == run and takes_protection(event)]
    return [_unconfirmed(event) for event in told if not user_events.has(connection, event)]


def takes_protection(event: Event) -> bool:
    """Whether an event may remove protection of states: a catalog that knows the run takes it from its users alone."""
    match event:
        case StepPinned(pinned=False) | StepTagged(global_step=None) | PolicySet() | RunForgotten(forgotten=True):
            return True
    return False


def _unconfirmed(event: UserEvent) -> str:
    run = event.run
    match event:
        case StepPinned():
            what, command = f"step {event.global_step} is not pinned any more", Command("unpin", run, event.global_step)
        case StepTagged():
            what, command = f"tag {event.name!r} was taken away", Command("untag", run, event.name)
        case PolicySet():
            what, command = "it has another policy", Command("policy", run, *as_options(event.rules))
        case RunForgotten():
            what, command = "it was forgotten", Command("forget", run, "--apply")
    return f"it says of run {event.run!r} that {what}, and the catalog does not say so: if it is right, give {command}"
