"""Reads replica groups from files: strategy, group info, or a user's JSON `{"groups": [[0, 4], [1, 5]]}`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckptstore.core.replicas import from_group_info, from_json_groups
from ckptstore.core.strategy_layout import from_strategies
from ckptstore.errors import UnreadableError, UsageError
from ckptstore.formats.bounded_json import MOST_JSON, parse_object
from ckptstore.formats.header import Header
from ckptstore.formats.inspect import inspect
from ckptstore.formats.strategy import GroupInfo, Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.core.replicas import Layout
    from ckptstore.outside import Path

_HEAD = 64  # bytes
STRATEGY = "strategy"
GROUP_INFO = "group_info"


def read_layout(paths: Iterable[Path], world_size: int) -> Layout:
    """The layout of a launch from its strategy files, its group info files, or the JSON file that a user wrote.

    Give one merged strategy file, one for each pipeline stage, or one for each rank. A stage or a rank that no file
    describes has no replicas. Raises `UsageError` if the files contradict each other or `world_size`, or are not all of
    one of these kinds; `UnreadableError` and `OSError` as `inspect` does.
    """
    files = {path: _read(path) for path in paths}
    strategies = [file for file in files.values() if isinstance(file, Strategy)]
    said = {str(path): file.restore_ranks for path, file in files.items() if isinstance(file, GroupInfo)}
    stated = [file for file in files.values() if isinstance(file, dict)]
    if len(strategies) == len(files) > 0:
        return from_strategies((parameter for file in strategies for parameter in file.parameters), world_size)
    if len(said) == len(files) > 0:
        return from_group_info(said, world_size)
    if len(stated) == len(files) == 1:
        return from_json_groups(stated[0]["groups"], world_size)
    raise UsageError(
        f"{', '.join(map(str, files)) or 'no file'} cannot tell who is whose replica",
        "give strategy files, or group info files, or one JSON file with groups",
    )


def names_no_parameter_of(path: Path, checkpoint: Path) -> bool:
    """Whether a strategy file names no parameter of a checkpoint. Then it belongs to another training.

    False if one of them cannot be read, or is of another kind. Raises `OSError` as `inspect` does.
    """
    try:
        strategy, header = _read(path), inspect(checkpoint)
    except UnreadableError:
        return False
    if not isinstance(strategy, Strategy) or not isinstance(header, Header) or not header.parameters:
        return False
    return {each.name for each in header.parameters}.isdisjoint(each.name for each in strategy.parameters)


def layout_kind(path: Path) -> str:
    """The kind of layout file that MindSpore wrote there: `STRATEGY` or `GROUP_INFO`.

    Raises `UsageError` for any other file; `UnreadableError` and `OSError` as `inspect` does.
    """
    match inspect(path):
        case Strategy():
            return STRATEGY
        case GroupInfo():
            return GROUP_INFO
    raise UsageError(f"{path} is no strategy or group info file", "it cannot tell who is whose replica")


def _read(path: Path) -> Strategy | GroupInfo | Header | dict[str, Any]:
    """Read a file that MindSpore wrote, or a JSON object with groups that a user wrote."""
    with path.open("rb") as file:
        raw = file.read(_HEAD)
        if raw.lstrip()[:1] == b"{":
            raw += file.read(MOST_JSON - _HEAD)
            if b'"groups"' in raw and "groups" in (content := parse_object(raw, path, "whole file of replica groups")):
                return content
    return inspect(path)
