"""Which launch wrote a file that nobody registered: several may save in one directory, under the same names.

They may be of several runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckptstore.core.model import Kind
from ckptstore.core.naming import is_numbered, is_ttp_file, parse_exit_name, parse_name
from ckptstore.core.steps import is_named_after
from ckptstore.ops.adoption import moment
from ckptstore.ops.lease import CLOCKS_DIFFER
from ckptstore.ops.ttp_directories import was_there

if TYPE_CHECKING:
    from ckptstore.catalog.reads import Source
    from ckptstore.core.model import Launch
    from ckptstore.formats.header import Header
    from ckptstore.ops.adopt import History, Stray
    from ckptstore.storage.files import FileFacts


def wrote(source: Source, name: str) -> bool:
    """Whether a source writes files of this name, and this one was not there before it."""
    if source.kind is Kind.TTP:
        return is_ttp_file(name)
    if name in source.names_before:
        return False
    if source.kind is Kind.GRACEFUL_EXIT:
        exit_name = parse_exit_name(name)
        return exit_name is not None and exit_name.file_name == source.prefix
    parsed = parse_name(name)
    if parsed is None:
        return False
    if parsed.is_breakpoint:
        return is_numbered(parsed.prefix, source.breakpoint_prefix)
    return source.kind is Kind.PERIODIC and parsed.prefix == source.prefix


def doubt_of(stray: Stray, header: Header, here: FileFacts, history: History, *, replaced: bool) -> str:
    """Why it is not proved that a file is of a stray's launch; empty where it is.

    A file may be seen late: a node answers again, a file system's cache was old, a process that was given up writes
    on. A newer launch that saves there knows the names that were there when it began, and no more. Of several launches
    that may have written a file it is the one's whose rank said that it ended just so; of two, the newer one's.
    """
    own = history.launches[stray.source.launch]
    if _is_older(here, own):
        return f"it was written before launch {own.id} began"
    if stray.kind is Kind.TTP:
        return _doubt_of_ttp(stray, here, history, replaced=replaced)
    if stray.kind is Kind.PERIODIC and own.parent is None and own.id not in history.heard_of:
        return f"launch {own.id} has registered nothing: another program may have written it"
    if stray.is_breakpoint and _ended_otherwise(stray.source, header, history):
        return f"the training of launch {own.id} ended with another state"
    others = [
        other
        for other in history.sources.get(stray.source.directory, ())
        if other.launch != own.id and _may_have_written(other, stray, header, here, history)
    ]
    if stray.kind is Kind.GRACEFUL_EXIT:  # MindSpore's own count is in it, and a run uses no name twice
        others = [other for other in others if history.launches[other.launch].run != own.run]
    newer = [other for other in others if _is_newer(history.launches[other.launch], own)]
    is_own = ended_with(stray.source, stray, header, history)
    if not others or (is_own and not any(ended_with(other, stray, header, history) for other in newer)):
        return ""
    return f"launch {others[0].launch} may have written it, and nothing tells that {own.id} did"


def _doubt_of_ttp(stray: Stray, here: FileFacts, history: History, *, replaced: bool) -> str:
    """Launches that fail at one step write one name: what was there when one began is not its own, unless `replaced`.

    The newer one's is what may have come since.
    """
    own = history.launches[stray.source.launch]
    if was_there(stray.source, stray.path) and not replaced:
        return f"it was there before launch {own.id} began"
    for other in history.sources.get(stray.source.directory, ()):
        launch = history.launches[other.launch]
        is_newer = (other.kind, other.rank) == (Kind.TTP, stray.source.rank) and _is_newer(launch, own)
        if is_newer and not _is_older(here, launch) and (replaced or not was_there(other, stray.path)):
            return f"launch {launch.id} may have written it, and nothing tells that {own.id} did"
    return ""


def _may_have_written(source: Source, stray: Stray, header: Header, here: FileFacts, history: History) -> bool:
    """Whether nothing speaks against it that another source wrote a stray."""
    launch, own = history.launches[source.launch], history.launches[stray.source.launch]
    if not wrote(source, Path(stray.path).name) or _is_older(here, launch):
        return False
    if not _is_newer(launch, own) and _was_over(source, own, stray, here):
        return False
    ending = history.endings.get((source.launch, source.rank))
    if ending is None or ending.optimizer_step is None or header.optimizer_step is None:
        return True
    if stray.is_breakpoint:
        return header.optimizer_step == ending.optimizer_step
    return header.optimizer_step <= ending.optimizer_step


def _was_over(source: Source, newer: Launch, stray: Stray, here: FileFacts) -> bool:
    """Whether a source wrote no more when a newer launch began: it had left its breakpoint.

    One that writes on then can be told at an exception only: what it saves as ever has its own prefix, unless it never
    had saved before; and a launch that fails before its first save is common.
    """
    if any(wrote(source, name) for name in stray.source.names_before):
        return True
    began = newer.created_at
    return not stray.is_breakpoint and began is not None and moment(here.mtime_ns) >= began


def ended_with(source: Source, stray: Stray, header: Header, history: History) -> bool:
    """Whether a source's rank said that training ended with the state of a stray."""
    ending, launch = history.endings.get((source.launch, source.rank)), history.launches[source.launch]
    if ending is None or ending.optimizer_step != header.optimizer_step:
        return False
    if header.optimizer_step is not None or stray.name is None or launch.steps_per_epoch is None:
        return header.optimizer_step is not None
    return is_named_after(stray.name, steps_per_epoch=launch.steps_per_epoch, global_step=ending.global_step)


def _ended_otherwise(source: Source, header: Header, history: History) -> bool:
    """Whether a source's rank said that training ended with another state than that of a file."""
    ending = history.endings.get((source.launch, source.rank))
    if ending is None or ending.optimizer_step is None or header.optimizer_step is None:
        return False
    return ending.optimizer_step != header.optimizer_step


def _is_newer(launch: Launch, other: Launch) -> bool:
    """Whether a launch began after another one; those of two runs are told by their clocks, if they can be."""
    if launch.run == other.run:
        return launch.order > other.order
    if launch.created_at is None or other.created_at is None:
        return True
    return launch.created_at > other.created_at


def _is_older(here: FileFacts, launch: Launch) -> bool:
    """Whether a file was written before a launch began, by whatever clock."""
    return launch.created_at is not None and moment(here.mtime_ns) < launch.created_at - CLOCKS_DIFFER
