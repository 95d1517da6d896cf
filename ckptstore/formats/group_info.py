"""Group info files: which ranks hold the same checkpoint as the rank that wrote it (mindspore.md §8).

    message ParallelGroupMap   { repeated ParallelGroupItem parallel_group_item = 1;
                                 ParallelGroupRanks ckpt_restore_rank_list = 2; }
    message ParallelGroupItem  { string group_name = 1; ParallelGroupRanks parallel_group_ranks = 2; }
    message ParallelGroupRanks { repeated uint32 dim = 1; }   not packed as MindSpore writes it, read either way

Source: `mindspore/train/node_strategy_pb2.py`,
`mindspore.parallel._parallel_serialization._restore_group_info_list`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.formats.wire import WireReader

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Group:
    """A communication group: its name and its ranks."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class GroupInfo:
    """The groups of a rank, and the ranks whose checkpoints equal its own."""

    groups: tuple[Group, ...]
    restore_ranks: tuple[int, ...]


def read_group_info(path: Path) -> GroupInfo:
    """Read a group info file.

    Raises `UnreadableError` where the bytes are not of that format or the list of ranks, which comes last, is
    not there or empty; `OSError` where the file cannot be opened.
    """
    with path.open("rb", buffering=0) as file:
        reader = WireReader(file, path, "group info")
        found = reader.fields(reader.end, {1: _group, 2: WireReader.list_of_numbers})
        restore_ranks = found.get(2, [()])[-1]
        if not restore_ranks:  # it names at least the rank itself
            raise reader.bad("no ckpt_restore_rank_list")
    return GroupInfo(tuple(found.get(1, ())), restore_ranks)


def _group(reader: WireReader, limit: int, wire_type: int) -> Group:
    found = reader.fields(reader.message(limit, wire_type), {1: WireReader.text, 2: WireReader.list_of_numbers})
    return Group(found.get(1, [""])[-1], found.get(2, [()])[-1])
