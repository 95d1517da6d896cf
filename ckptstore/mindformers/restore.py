"""Has MindFormers load the files of a plan, and proves that it did.

MindFormers searches a directory for the files to load. For format 1.0, it gets a directory with nothing but links to
the plan's files, in the `.ckptstore` beside them. For the newer format, it gets the directory of the iteration itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptstore.core.hints import Command
from ckptstore.core.iterations import parse_part
from ckptstore.core.model import Content
from ckptstore.core.text import some
from ckptstore.disk.name_claims import FOLDER
from ckptstore.errors import CkptstoreError, RefusedError, reason_of
from ckptstore.formats.header import OPTIMIZER_STEP, Header
from ckptstore.formats.inspect import inspect
from ckptstore.mindspore.load_guard import sample
from ckptstore.mindspore.resume import prove
from ckptstore.mindspore.state import state_names
from ckptstore.outside import Path, os

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.core.model import Checkpoint, RestorePlan
    from ckptstore.formats.header import Entry
    from ckptstore.mindspore import TrainingLaunch
    from ckptstore.training.start import Start

log = logging.getLogger("ckptstore")

_LINKS = "mindformers"
_REFUSED = {
    "data_skip_steps": "the data would go on elsewhere than the state",
    "ignore_data_skip": "the data would start over",
    "auto_trans_ckpt": "MindFormers converts the files of all ranks, which no start hands out",
}
"""Settings of the YAML that are refused, and their effect after a restore."""


@dataclass(frozen=True)
class Wish:
    """The path of the state that a YAML asks MindFormers to resume from, and the setting that asks for it.

    Both are empty if the YAML does not ask for it.
    """

    path: str = ""
    setting: str = ""

    @classmethod
    def taken_from(cls, config: Any) -> Wish:
        """Take the settings for resuming out of a configuration. Settings for pretrained weights stay in it."""
        newer: Any = config.get("checkpoint") or {}
        path, setting = newer.get("load_path"), "checkpoint.load_path"
        if path is None:  # MindFormers takes the older setting then
            path, setting = config.load_checkpoint or "", "load_checkpoint"
        if path and newer.get("no_load_optim") is False:
            newer.load_path, newer.no_load_optim, config.load_checkpoint = "", True, ""
        elif config.get("resume_training"):
            path, setting = config.load_checkpoint or "", "resume_training"
            config.load_checkpoint = ""
        else:
            path, setting = "", ""
        config.resume_training = False
        return cls(str(path), setting)


def point_at(launch: TrainingLaunch, start: Start, plan: RestorePlan, config: Any) -> None:
    """Configure MindFormers to load this rank's files of the plan, and to go on after its step.

    The digests of the files are proven first. Raises `DamageError` for a file that differs from its record, and
    `RefusedError` for a YAML or a plan with which MindFormers would not go on after this step.
    """
    for name, meaning in _REFUSED.items():
        if config.get(name):
            raise RefusedError(f"the YAML has {name}: {config.get(name)}, with which {meaning}", f"leave out {name}")
    if len({source.format for _, source in plan.ranks}) > 1:
        raise RefusedError(
            f"the files of step {plan.global_step} are of different formats, and MindFormers loads one",
            f"go on from an older state: {Command('resolve', launch.name, '--explain')}",
        )
    files = _files_of(launch, start, plan)
    for file in files:
        prove(file, launch.record_load_failure)
    first = files[0]
    config.checkpoint.no_load_optim = False
    config.load_ckpt_format = first.format
    if plan.in_parts:
        config.checkpoint.load_path, config.resume_training = str(Path(first.path).parent), True
        return
    config.remove_redundancy = plan.in_shares
    link = _link(first, launch.rank, is_parallel=bool(config.use_parallel))
    # In parallel mode, MindFormers needs the directory above the rank's directory, and the name of the file in that.
    config.checkpoint.load_path = str(link.parents[1] if config.use_parallel else link)
    config.resume_training = link.name if config.use_parallel else True


def _files_of(launch: TrainingLaunch, start: Start, plan: RestorePlan) -> list[Checkpoint]:
    """The files that this rank loads: its file, or its parts, the model's part first.

    Rank 0 has the notes of an iteration too: `common.json`, and `metadata.json` if there are several ranks.
    """
    own = next(source for rank, source in plan.ranks if rank == launch.rank)
    others = [file for file in start.parts if file.rank == launch.rank and file.path != own.path]
    return [own, *sorted(others, key=lambda file: file.path)]


def _link(file: Checkpoint, rank: int, *, is_parallel: bool) -> Path:
    """Make a link to a file, alone in its directory: links of earlier starts are removed."""
    home = Path(file.path).parent / FOLDER / _LINKS / (f"rank_{rank}" if is_parallel else "single")
    link = home / f"plan_rank_{rank}-{file.epoch or 0}_{file.step_in_epoch or 0}.{file.format}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for old in home.iterdir():
            if old.is_symlink():
                old.unlink()
        link.symlink_to(file.path)
    except OSError as error:
        raise CkptstoreError(f"no link can be made in {home} ({reason_of(error)})", "check its permissions") from None
    return link


def check_restored(launch: TrainingLaunch, config: Any, params: Any) -> None:
    """Raise `RefusedError` unless the network holds the values of the plan's files, and training goes on after them."""
    start = launch.start
    if start is None or start.plan is None:
        return
    at = int(config.runner_config.initial_step)
    if at != start.global_step:
        raise RefusedError(
            f"MindFormers goes on after step {at}, and the state is of step {start.global_step}",
            "it scales steps where the batch size of all ranks changed: train with the one that saved the state",
        )
    files = [file for file in _files_of(launch, start, start.plan) if file.format == config.load_ckpt_format]
    if start.plan.in_parts and str(Path(files[0].path).parent) != config.checkpoint.load_path:
        raise RefusedError(
            f"MindFormers loaded {config.checkpoint.load_path}, and the plan is {Path(files[0].path).parent}",
            "leave out monitor_config.health_checkpoint, by which it looks for another state",
        )
    _compare(params, files, config.runner_config.get("step_scale") or 1)


def _compare(params: Any, files: Sequence[Checkpoint], step_scale: float = 1) -> None:
    """Compare a sample of the parameters, and all names, with the files.

    If the batch size of all ranks has changed, MindFormers multiplies the optimizer's counter by `step_scale`.
    """
    network = params.train_network
    parts = [network.network, network.optimizer] if parse_part(Path(files[0].path).name) else [network]
    entries = {name: (entry, file) for file in files for name, entry in _entries(file).items()}
    left_out = [part for each in params.list_callback for part in getattr(each, "filter_list", ())]
    is_share = files[0].content is Content.SHARE  # MindFormers gets the rest from other ranks
    names = set().union(*map(state_names, () if is_share else parts)) - entries.keys()
    lacking = sorted(name for name in names if not any(part in name for part in left_out))
    if lacking:
        raise RefusedError(
            f"{len(lacking)} parameters of the train network are in no file of the plan, and have the values that "
            f"they began with: {some(lacking)}",
            "train the model and optimizer that were saved",
        )
    compared = 0
    for item in sample(network):
        if item.name not in entries:
            continue
        entry, file = entries[item.name]
        if item.name == OPTIMIZER_STEP and file.optimizer_step is not None:
            is_same = int(item.asnumpy().reshape(-1)[0]) == int(file.optimizer_step * step_scale)
        elif (entry.shape, entry.dtype) == (tuple(item.shape), str(item.dtype)):
            is_same = _bytes(entry, file.path) == item.get_bytes()
            compared += item.name != OPTIMIZER_STEP
        else:
            continue
        if not is_same:
            raise RefusedError(
                f"{item.name} in the train network is not what {file.path} holds",
                "start again; if it says so again, something else is loaded over the state",
            )
    if not compared:
        log.warning("no parameter could be compared with what MindFormers was to load: they have other shapes")


def _entries(file: Checkpoint) -> dict[str, Entry]:
    header = inspect(Path(file.path))
    return {entry.name: entry for entry in header.entries} if isinstance(header, Header) else {}


def _bytes(entry: Entry, path: str) -> bytes:
    with Path(path).open("rb") as opened:
        return b"".join(os.pread(opened.fileno(), size, offset) for offset, size in entry.slices)
