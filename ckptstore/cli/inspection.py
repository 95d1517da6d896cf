"""The output of `inspect`, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ckptstore.cli.terminal import Rows, first, line, more
from ckptstore.cli.values import finite
from ckptstore.formats.safetensors import SafetensorsHeader
from ckptstore.formats.strategy import GroupInfo, Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.formats.header import Header
    from ckptstore.outside import Path

_ROWS_SHOWN = 1000
_NUMBERS_SHOWN = 64
_LETTERS_SHOWN = 200


def show(path: Path, found: Header | Strategy | GroupInfo) -> None:
    """Print the content of a file: a line for each parameter, or for each group of ranks, and its other facts."""
    match found:
        case Strategy():
            _show_strategy(path, found)
        case GroupInfo():
            _show_group_info(path, found)
        case _:
            _show_header(path, found)


def _show_header(path: Path, found: Header) -> None:
    whole = "whole" if found.complete else "every entry is whole, but nothing in it marks its end"
    line(f"{path}: {found.format}, {whole}")
    if found.optimizer_step is not None:
        line(f"optimizer step: {found.optimizer_step}")
    metadata = found.metadata if isinstance(found, SafetensorsHeader) else {}
    for name, value in first((*metadata.items(), *found.info.items()), "values", _ROWS_SHOWN):
        line(f"{name}: {_short(str(value))}")
    shown = Rows("parameter", "type", "shape")
    parameters = found.parameters
    for entry in parameters[:_ROWS_SHOWN]:
        shown.add_row(entry.name, entry.dtype, str(entry.shape))
    shown.print("no parameters")
    more(len(parameters), "parameters", _ROWS_SHOWN)


def _show_strategy(path: Path, found: Strategy) -> None:
    line(f"{path}: strategy, stages {_numbers(found.stages) or 'not told'}")
    shown = Rows("parameter", ">stage", "device matrix", "tensor map", "split shape", ">shard step", ">shard size")
    for layout in found.parameters[:_ROWS_SHOWN]:
        shown.add_row(
            layout.name,
            "-" if layout.stage is None else str(layout.stage),
            _numbers(layout.dev_matrix),
            _numbers(layout.tensor_map),
            _numbers(layout.param_split_shape),
            str(layout.opt_weight_shard_step),
            str(layout.opt_weight_shard_size),
        )
    shown.print("no parameters")
    more(len(found.parameters), "parameters", _ROWS_SHOWN)


def _show_group_info(path: Path, found: GroupInfo) -> None:
    line(f"{path}: group info")
    line(f"ranks with the same checkpoint: {_numbers(found.restore_ranks) or 'none'}")
    shown = Rows("group", "ranks")
    for group in found.groups[:_ROWS_SHOWN]:
        shown.add_row(group.name, _numbers(group.ranks))
    shown.print("no groups")
    more(len(found.groups), "groups", _ROWS_SHOWN)


def _short(text: str) -> str:
    """A value, cut so that it fits on a few lines: the state of a random generator has 11,000 letters."""
    return text if len(text) <= _LETTERS_SHOWN else f"{text[:_LETTERS_SHOWN]}… ({len(text)} letters; --json has all)"


def _numbers(numbers: Sequence[object]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_NUMBERS_SHOWN])
    return shown if len(numbers) <= _NUMBERS_SHOWN else f"{shown}, … ({len(numbers)} in all)"


def value(path: Path, found: Header | Strategy | GroupInfo) -> dict[str, Any]:
    """The content of a file as JSON. Its fields depend on `format`."""
    match found:
        case Strategy():
            content = {
                "format": "strategy",
                "parameters": [asdict(parameter) for parameter in found.parameters],
                "stages": found.stages,
            }
        case GroupInfo():
            content = {"format": "group_info", **asdict(found)}
        case _:
            content = _header(found)
    return {"path": str(path), **content}


def _header(found: Header) -> dict[str, Any]:
    parameters = [{"name": entry.name, "dtype": entry.dtype, "shape": entry.shape} for entry in found.parameters]
    return {
        "format": found.format,
        "parameters": parameters,
        "info": {name: finite(value) for name, value in found.info.items()},
        "optimizer_step": found.optimizer_step,
        "complete": found.complete,
    } | ({"metadata": found.metadata} if isinstance(found, SafetensorsHeader) else {})
