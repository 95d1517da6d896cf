"""Writes one state of a run as a directory, or as a tar file, that another catalog can take in."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING

from ckptstore.catalog import layouts, reads
from ckptstore.core.model import FileState
from ckptstore.core.naming import SEVERAL, companion_of
from ckptstore.disk.aside import named_last
from ckptstore.disk.files import absolute, facts_if_seen
from ckptstore.disk.several import members_at, status_of
from ckptstore.errors import CkptstoreError, RefusedError, UsageError
from ckptstore.handover import manifest as manifests
from ckptstore.handover.archive import TAR, DirectoryWriter, TarWriter
from ckptstore.handover.items import converted, copied, digest_of, other_bytes, prove, the_whole
from ckptstore.handover.manifest import UNKNOWN, Made, Manifest, Part, path_of, place_of, with_digests
from ckptstore.outside import Path, os, utc_now
from ckptstore.training import companions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, RestorePlan
    from ckptstore.handover.archive import Writer
    from ckptstore.handover.items import Item

    Progress = Callable[[int, int], None]  # bytes done, and of how many

log = logging.getLogger("ckptstore")

_PACKED = (".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".zip")


@dataclass(frozen=True)
class Exported:
    """What an export wrote: the state, where to, its files and their bytes."""

    run: str
    launch: str
    global_step: int
    target: str
    holds: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Asked:
    """Which part of a state is exported, and in which format.

    `weights_only` leaves out the optimizer's parameters, and `.ckpt` files become `.safetensors` with it or with
    `as_safetensors`: then one file is exported, which must be the whole state.
    """

    weights_only: bool = False
    as_safetensors: bool = False

    @property
    def converts(self) -> bool:
        """Whether other bytes are exported than were saved."""
        return self.weights_only or self.as_safetensors


def export(
    database: Database, plan: RestorePlan, target: str | os.PathLike[str], asked: Asked, progress: Progress
) -> Exported:
    """Write the state of a plan to a new directory, or to a new file whose name ends in `.tar`.

    Each file must have the digest that is recorded. The target gets its name when it is whole and on the disk. Raises
    `RefusedError` for a target that is there and for what cannot be exported so, `DamageError` for a file that is not
    as recorded.
    """
    path = target_of(target)
    with database.read() as connection:
        found = reads.called(connection, plan.launch.run)
        kept = {each for _, each in layouts.strategies_of(connection, plan.launch.key)}
    database.let_go()  # what follows may take hours
    sources = _sources(plan)
    strategies = {} if asked.converts else _strategies(sources, kept)
    if asked.converts:
        sources = [the_whole(plan, sources)]
    pairs = [_exported(file, strategies, asked) for file in sources]
    items = [item for _, some in pairs for item in some]
    items += strategies.values()
    draft = Manifest(
        run=found.name if found else plan.launch.run,
        launch=plan.launch.undecided(),
        files=tuple(file for file, _ in pairs),
        parts=tuple(Part(item.place, item.size, UNKNOWN) for item in items),
        made=_made(),
    )
    written = _write(path, draft, items, progress)
    return Exported(
        run=written.run,
        launch=plan.launch.id,
        global_step=plan.global_step,
        target=path,
        holds=written.holds.value,
        files=len(written.parts),
        bytes=written.size,
    )


def target_of(target: str | os.PathLike[str]) -> str:
    """The absolute path of what an export is to write. Raises `UsageError`."""
    path = absolute(target)
    if path.endswith(_PACKED):
        raise UsageError(
            f"{path} is no directory and no .tar", "compressing makes checkpoints no smaller: give FILE.tar"
        )
    if not Path(path).parent.is_dir():
        raise UsageError(f"there is no directory {Path(path).parent}", "make it first")
    return path


def _write(path: str, draft: Manifest, items: Sequence[Item], progress: Progress) -> Manifest:
    """Write files, and the manifest with their digests; the manifest as it was written."""
    every, done = draft.size, 0
    digests = {place_of(file.path): file.digest or "" for file in draft.files}
    try:
        with named_last(path) as aside:
            writer: Writer = TarWriter(aside) if path.endswith(TAR) else DirectoryWriter(aside)
            writer.begin(draft)
            for item in items:
                progress(done, every)
                digests[item.place] = _add(writer, item)
                done += item.size
            written = with_digests(draft, digests)
            manifests.read(manifests.to_text(written), path)  # what cannot be read again gets no name
            writer.end(written)
    except OSError as error:
        raise CkptstoreError(f"cannot write {path}: {error.strerror or error}", "look at its disk") from error
    progress(every, every)
    return written


def _add(writer: Writer, item: Item) -> str:
    try:
        written = writer.add(item.place, item.pieces())
    except EOFError as error:
        raise other_bytes(item.source, str(error)) from None
    if item.recorded not in (None, written):
        raise other_bytes(item.source)
    return written


def _sources(plan: RestorePlan) -> list[Checkpoint]:
    """The files of a plan, each once, by rank. Raises `RefusedError` for what only MindFormers puts together."""
    if plan.in_parts:
        raise RefusedError(
            f"step {plan.global_step} is a directory of an iteration, which only MindFormers can load",
            "copy the directory by hand: MindFormers itself can load the copy, but no start of ckptstore restores it",
        )
    found = {assignment.source.id: assignment.source for assignment in plan.ranks}
    return [
        _proven(file) if file.format in SEVERAL else file for file in sorted(found.values(), key=attrgetter("rank"))
    ]


def _proven(file: Checkpoint) -> Checkpoint:
    """A checkpoint of several files, whose digest is one of all: it is read before they are copied."""
    return replace(file, digest=prove(file))


def _strategies(files: Iterable[Checkpoint], kept: AbstractSet[str]) -> dict[str, Item]:
    """The strategy files by their paths; ranks may have one in common.

    `kept` are the digests of those that the launch wrote, as far as it is known: a later one has written them again.
    """
    found: dict[str, Item] = {}
    for path, file in {each.strategy_file: each for each in reversed(list(files)) if each.strategy_file}.items():
        there = facts_if_seen(path)
        now = digest_of(path) if there else ""
        if there is None:
            log.warning("%s is not there any more: the export is without it", path)
        elif kept and now not in kept:
            log.warning("%s was written by another launch since: the export is without it", path)
        else:
            found[path] = copied(f"rank_{file.rank}/strategy/{Path(path).name}", path, there.size, now)
    return found


def _exported(file: Checkpoint, strategies: Mapping[str, Item], asked: Asked) -> tuple[Checkpoint, list[Item]]:
    """The record of a file in the export, without the facts of this disk; and the item to write."""
    strategy = strategies.get(file.strategy_file or "")
    record = replace(
        file,
        path=path_of(_place(file)),
        strategy_file=path_of(strategy.place) if strategy else None,
        digest=file.digest or UNKNOWN,
        state=FileState.COMPLETE,
        problem=None,
        revision=None,
        timing=None,
        directory_id="",
    )
    if file.format in SEVERAL:
        directory = f"{file.path.rpartition('/')[0]}/"
        members = members_at(file.path, status_of(file.path))
        return record, [
            copied(f"rank_{file.rank}/{each.path.removeprefix(directory)}", each.path, each.size) for each in members
        ]
    if asked.weights_only or (asked.as_safetensors and file.format != "safetensors"):
        record, item = converted(file, record, weights_only=asked.weights_only)
    else:
        item = copied(_place(file), file.path, file.size or 0, file.digest)
    return record, [item, *([] if asked.weights_only else _companion(file))]


def _place(file: Checkpoint) -> str:
    return f"rank_{file.rank}/{Path(file.path).name}"


def _companion(file: Checkpoint) -> list[Item]:
    beside, usable = companion_of(file.path), companions.read(file)
    if usable.problem:
        log.warning("%s: the export is without it", usable.problem)
    there = facts_if_seen(beside) if usable.content else None
    return [] if there is None else [copied(f"rank_{file.rank}/{Path(beside).name}", beside, there.size)]


def _made() -> Made:
    return Made(
        at=utc_now().replace(microsecond=0), ckptstore=_version("ckptstore") or "", mindspore=_version("mindspore")
    )


def _version(package: str) -> str | None:
    """The version that is installed here; None if none is."""
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version(package))
    except metadata.PackageNotFoundError:
        return None
