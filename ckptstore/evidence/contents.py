"""Reads the content of unregistered checkpoint files, and the notes beside them, for starts and for scans."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from ckptstore.core.iterations import COMMON, Common, Iteration
from ckptstore.core.model import Content, Skipped
from ckptstore.errors import UnreadableError, reason_of
from ckptstore.evidence.witnesses import whole_number
from ckptstore.formats.alike import AlikeReader
from ckptstore.formats.bounded_json import read_object
from ckptstore.formats.safetensors import SafetensorsHeader

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from ckptstore.formats.header import Header
    from ckptstore.outside import Path

    Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"

ABNORMAL = "MindFormers' health monitor found the state abnormal (ckpt_status in common.json)"

_ABNORMAL_STATUS = 1  # `CkptHealthStatus` in MindFormers' `checkpoint/utils.py`
_MOST_COMMON = 1 << 16  # bytes; MindFormers writes about 200
_SCHEDULE = "learning_rate"  # a table of learning rates is longer if more epochs are trained
_GATHERED = ("grad", "accu")
_OF_OPTIMIZERS = frozenset({"accum", "accum_update", "mean_grad"})


@dataclass(frozen=True)
class Network:
    """What the files of one callback and rank have in common."""

    parameters: tuple[str, ...]  # their names, in the order of the file
    shapes: Shapes  # of the parameters with several values, but no tables of learning rates: they tell it from another
    updates_every_step: bool  # no parameter is known to let a step pass without an update


@dataclass(frozen=True)
class Contents:
    """The content of a file that can be read to its end."""

    header: Header
    content: Content
    network: Network


class ContentsReader:
    """Reads the content of MindSpore checkpoints, and only a little of files that are alike. Threads may share it."""

    def __init__(self) -> None:
        self._headers = AlikeReader()
        self._networks: dict[int, tuple[Header, Network]] = {}  # ranks and steps share the tuple of entries

    def read(self, path: str, content: Content, family: Hashable = "") -> Contents | Skipped:
        """The contents of a file, or why it cannot be read. `content` is the kind that its name or its writer states.

        Only files of one `family` are taken to be alike. Only a `.safetensors` file shows that it is a share.
        """
        try:
            header = self._headers.read(path, family)
        except (OSError, UnreadableError) as error:
            return Skipped(path, reason_of(error))
        if content is Content.FULL and isinstance(header, SafetensorsHeader) and header.is_share:
            content = Content.SHARE
        known = self._networks.get(id(header.entries))
        if known is None:
            known = self._networks[id(header.entries)] = header, _network(header)
        return Contents(header, content, known[1])


def _network(header: Header) -> Network:
    shapes = {
        entry.name: entry.shape
        for entry in header.parameters
        if prod(entry.shape) != 1 and not entry.name.startswith(_SCHEDULE)
    }
    updates_every_step = not any(_may_skip(entry.name) for entry in header.entries)
    return Network(tuple(entry.name for entry in header.parameters), shapes, updates_every_step)


def _may_skip(name: str) -> bool:
    """Whether a step may pass without an update in a network with this parameter: a loss scale, or gathered gradients.

    A loss scale is `scale_sense` (MindSpore: `nn/wrap/loss_scale.py`). Gathered gradients are `accu_grads.…` and
    `grad_accumulation.…` in MindSpore, `accumulate_.…`, `inner_grads.…` and `grad_sum.…` in its tutorials; its
    optimizers have `accum.…`, `accum_update.…` and `mean_grad.…`, which are no gathered gradients.
    """
    prefix = name.partition(".")[0]
    return prefix.startswith("scale_sense") or (
        prefix not in _OF_OPTIMIZERS and any(word in prefix.lower() for word in _GATHERED)
    )


# A `.ckpt` that is cut between two parameters looks whole (mindspore.md §1): only other files show what it lacks.


def cut(header: Header, expected: Iterable[str]) -> str:
    """Why a file may be cut, by the parameters that others of its rank have; empty where it has them all."""
    lacking = min(set(expected).difference(entry.name for entry in header.entries), default=None)
    return "" if lacking is None else _lacks(lacking)


def cut_among(files: Mapping[str, tuple[Hashable, Contents]]) -> dict[str, str]:
    """Files that end where others of their callback and rank go on, and why they may be cut; by path.

    Each file is given with its callback and rank. If files of several steps end at the same parameter, none of them is
    cut: the script was changed.
    """
    of_writer: dict[Hashable, dict[tuple[str, ...], set[int | None]]] = defaultdict(lambda: defaultdict(set))
    for writer, each in files.values():
        of_writer[writer][each.network.parameters].add(each.header.optimizer_step)
    found = {}
    for path, (writer, each) in files.items():
        own, others = each.network.parameters, of_writer[writer]
        is_alone = len(others) > 1 and len(others[own]) == 1
        if is_alone and each.header.complete is not True:
            longer = (names for names in sorted(others) if names[: len(own)] == own and len(names) > len(own))
            if (names := next(longer, None)) is not None:
                found[path] = _lacks(names[len(own)])
    return found


def _lacks(name: str) -> str:
    return f"it lacks {name!r}, which other files of its rank have: it may be cut"


def read_iteration(directory: Path, step: int, counters: Mapping[str, int | None]) -> Iteration:
    """The facts of an iteration of MindFormers, from the `common.json` in its directory.

    `counters` are the optimizer's counters in its parts, by the name of the part.
    """
    common, trouble = None, ""
    try:
        said = read_object(directory / COMMON, "whole common.json", _MOST_COMMON)
        is_abnormal = said.get("ckpt_status") == _ABNORMAL_STATUS
        common = Common(whole_number(said.get("step_num")), whole_number(said.get("global_step")), is_abnormal)
    except FileNotFoundError:
        trouble = f"{COMMON}, which is written last, is not there: the save was not finished"
    except UnreadableError as error:
        trouble = str(error)
    except OSError as error:
        trouble = f"{COMMON} cannot be read ({reason_of(error)})"
    return Iteration(step, counters, common, trouble)
