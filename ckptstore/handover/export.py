"""Writes one state of a run as a directory or a tar file that another catalog can import."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING

from ckptstore.catalog import layouts, reads
from ckptstore.core import validate
from ckptstore.core.model import FileState
from ckptstore.core.naming import SEVERAL, companion_of
from ckptstore.disk.aside import named_last
from ckptstore.disk.files import absolute, facts_if_seen
from ckptstore.disk.several import members_at, status_of
from ckptstore.errors import CkptstoreError, RefusedError, UsageError, reason_of
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

    Progress = Callable[[int, int], None]  # called with the bytes done, and all bytes

log = logging.getLogger("ckptstore")

_PACKED = (".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".zip")


@dataclass(frozen=True)
class Exported:
    """The result of an export: the state, the target, the number of files and their bytes."""

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

    `weights_only` leaves out the optimizer's parameters. With it, or with `as_safetensors`, a `.ckpt` file becomes a
    `.safetensors`, and one file is exported: it must hold the whole state.
    """

    weights_only: bool = False
    as_safetensors: bool = False

    @property
    def converts(self) -> bool:
        """Whether the exported bytes differ from the saved ones."""
        return self.weights_only or self.as_safetensors


def export(
    database: Database, plan: RestorePlan, target: str | os.PathLike[str], asked: Asked, progress: Progress
) -> Exported:
    """Write the state of a plan to a new directory, or to a new file whose name ends in `.tar`.

    Each file must have its recorded digest. The target gets its name when it is whole and on the disk. Raises
    `RefusedError` for a target that exists already and for a state that cannot be exported as `asked`, `DamageError`
    for a file that is not as recorded.
    """
    path = target_of(target)
    with database.read() as connection:
        found = reads.called(connection, plan.launch.run)
        kept = {each for _, each in layouts.strategies_of(connection, plan.launch.key)}
    database.let_go()  # the export may take hours
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
        parts=tuple(Part(validate.path("a file of it", item.place), item.size, UNKNOWN) for item in items),
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
    """The absolute path of an export's target. Raises `UsageError`."""
    path = absolute(target)
    if path.endswith(_PACKED):
        raise UsageError(
            f"{path} is no directory and no .tar", "compressing makes checkpoints no smaller: give FILE.tar"
        )
    if not Path(path).parent.is_dir():
        raise UsageError(f"there is no directory {Path(path).parent}", "make it first")
    return path


def _write(path: str, draft: Manifest, items: Sequence[Item], progress: Progress) -> Manifest:
    """Write files, and the manifest with their digests; return this manifest."""
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
            manifests.read(manifests.to_text(written), path)  # raises if the manifest could not be read again
            writer.end(written)
    except OSError as error:
        raise CkptstoreError(f"cannot write {path}: {reason_of(error)}", "look at its disk") from error
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
    """The files of a plan, each once, by rank. Raises `RefusedError` for an iteration: only MindFormers can load it."""
    if plan.in_parts:
        raise RefusedError(
            f"step {plan.global_step} is a directory of an iteration, which only MindFormers can load",
            "copy the directory by hand: MindFormers itself can load the copy, but no start of ckptstore restores it",
        )
    return [
        replace(file, digest=prove(file)) if file.format in SEVERAL else file  # one digest of all its files together
        for file in sorted(plan.sources, key=attrgetter("rank"))
    ]


def _strategies(files: Iterable[Checkpoint], kept: AbstractSet[str]) -> dict[str, Item]:
    """The strategy files by their paths. Several ranks may share one.

    `kept` are the digests of the strategy files that the launch wrote, if they are known. A strategy file with another
    digest was overwritten by a later launch, and is left out.
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
    """The record of a file in the export, without the facts of this disk; and the items to write."""
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
    """The installed version of a package; None if it is not installed."""
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version(package))
    except metadata.PackageNotFoundError:
        return None
