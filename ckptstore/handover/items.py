"""The items of an export: unchanged files, or `.safetensors` files made from their tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.hints import Command
from ckptstore.core.model import Content
from ckptstore.core.naming import ONE_FILE
from ckptstore.disk.files import digest
from ckptstore.errors import CkptstoreError, DamageError, RefusedError, UnreadableError, UsageError, reason_of
from ckptstore.formats.header import STRING, BytesOf
from ckptstore.formats.safetensors import can_hold, head_of, parse_safetensors
from ckptstore.formats.tensor_file import TensorFile
from ckptstore.handover.archive import pieces_of
from ckptstore.handover.manifest import UNKNOWN, path_of
from ckptstore.handover.weights import weights_of
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ckptstore.core.model import Checkpoint, RestorePlan
    from ckptstore.formats.header import Entry

_PIECE = 4 << 20  # bytes
_TOLD = "mindspore_info"
"""The key in the metadata of a `.safetensors` for the texts that were appended to its `.ckpt`."""


class Item(NamedTuple):
    """A file that goes into an export: its place there, its bytes, and their digest if it is recorded."""

    place: str
    size: int
    recorded: str | None
    pieces: Callable[[], Iterator[memoryview]]
    source: str  # for messages


def copied(place: str, path: str, size: int, recorded: str | None = None) -> Item:
    """An item for an unchanged file."""

    def pieces() -> Iterator[memoryview]:
        try:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(path, error) from None
        try:
            yield from pieces_of(opened, 0, size)
            if os.pread(opened, 1, size):
                raise EOFError(f"more follows byte {size}")
        finally:
            os.close(opened)

    return Item(place, size, recorded, pieces, path)


def the_whole(plan: RestorePlan, sources: Sequence[Checkpoint]) -> Checkpoint:
    """The file of a plan that is the whole state by itself. Raises `RefusedError` if there is none."""
    groups = plan.launch.layout.partition(plan.launch.world_size)
    if plan.in_shares or len(groups) > 1:
        raise RefusedError(
            f"step {plan.global_step} has its parameters in the files of {len(sources)} ranks, and no one has them all",
            f"export it as it is; {Command('resolve', plan.launch.run, '--world-size', 1)} tells how it is converted",
        )
    if sources[0].format not in ONE_FILE:
        raise RefusedError(f"{sources[0].path} is no file of MindSpore", "export it as it is")
    return sources[0]


def converted(file: Checkpoint, record: Checkpoint, *, weights_only: bool) -> tuple[Checkpoint, Item]:
    """A `.safetensors` of the tensors of a file, and its record. `record` is the record of the unchanged file.

    Raises `UsageError` for a type that such a file cannot hold, `RefusedError` if the names do not tell the weights, or
    if the result could not be read again: for example, with more than 130,000 parameters.
    """
    opened = TensorFile(Path(file.path))
    entries = _kept(opened, is_weights=file.content is Content.WEIGHTS, weights_only=weights_only)
    for entry in entries:
        if not can_hold(entry.dtype):
            raise UsageError(f"{file.path} has {entry.name} of type {entry.dtype}, which no .safetensors can hold")
    texts = {name: value for name, value in opened.header.info.items() if isinstance(value, str) and not weights_only}
    lost = {entry.name for entry in opened.header.entries if entry.dtype == STRING} - opened.header.info.keys()
    if lost and not weights_only:
        raise RefusedError(f"{file.path} has a text of over 1,024 characters, {min(lost)!r}", "export it as it is")
    metadata = {"format": "ms", **({_TOLD: json.dumps(texts)} if texts else {})}
    head = head_of(((each.name, each.dtype, each.shape, each.nbytes) for each in entries), metadata)
    place = f"rank_{file.rank}/{Path(file.path).stem}.safetensors"
    size = len(head) + sum(entry.nbytes for entry in entries)
    try:
        parse_safetensors(BytesOf(lambda offset, count: head[offset : offset + count], size), Path(file.path))
    except UnreadableError as error:
        why = error.message.rpartition(".safetensors file: ")[2]
        hint = "export it as it is"
        raise RefusedError(f"{file.path} cannot become a .safetensors that can be read: {why}", hint) from None

    def pieces() -> Iterator[memoryview]:
        with opened.opened() as read:
            prove(file)
            yield memoryview(head)
            memory = memoryview(bytearray(_PIECE))
            for entry in entries:
                for begin in range(0, entry.nbytes, _PIECE):
                    piece = memory[: entry.nbytes - begin]
                    read(entry, begin, piece)
                    yield piece

    content = Content.WEIGHTS if weights_only else record.content
    record = replace(record, path=path_of(place), format="safetensors", content=content, size=size, digest=UNKNOWN)
    return record, Item(place, size, None, pieces, file.path)


def _kept(opened: TensorFile, *, is_weights: bool, weights_only: bool) -> list[Entry]:
    """The entries to export, without texts. If a name occurs twice, the last entry counts."""
    header = opened.header
    if not weights_only:
        found = tuple(entry for entry in header.entries if entry.dtype != STRING)
    else:
        found = tuple(opened.tensors.values())  # a value too much does less harm than a weight that is missing
        found = found if is_weights else weights_of(found, str(opened.path))
    return list({entry.name: entry for entry in found}.values())


def prove(file: Checkpoint) -> str:
    """Compute and return the digest of a checkpoint. Raises `DamageError` if it is not the recorded one."""
    found = digest_of(file.path)
    if file.digest not in (None, found):
        raise other_bytes(file.path)
    return found


def digest_of(path: str) -> str:
    """The digest of the file at a path. Raises `CkptstoreError` if it cannot be read."""
    try:
        return digest(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def other_bytes(path: str, why: str = "its bytes are not those that were recorded") -> DamageError:
    """The error for a file that is not as recorded."""
    hint = f"nothing was exported; {Command('verify', '--digest')} finds all such files"
    return DamageError(f"{path} is damaged: {why}", hint)


def _unreadable(path: str, error: OSError) -> CkptstoreError:
    return CkptstoreError(f"cannot read {path}: {reason_of(error)}", "nothing was exported")
