"""Reads from a dataset how much data a step takes, and checks that training will start at the right step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mindspore import dataset as ds

from ckptstore.core.hints import Call
from ckptstore.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

_ONE_FOR_ONE = (ds.MapDataset, ds.ProjectDataset, ds.RenameDataset, ds.RepeatDataset)


class Steps(NamedTuple):
    """The number of steps of an epoch, of samples that a rank takes in a step, and of shards of the data.

    The last two are None if the dataset does not show them, or does not deal the samples out in turn.
    """

    an_epoch: int
    batch_size: int | None = None
    shards: int | None = None


def steps_of(dataset: Any, world_size: int) -> Steps:
    """The steps of a dataset of which each of `world_size` ranks has its own part."""
    an_epoch = int(dataset.get_dataset_size())
    batch_size: int | None = None
    in_turn = True
    node = dataset
    while isinstance(node, ds.Dataset) and len(node.children) == 1:
        if isinstance(node, ds.BatchDataset):
            if batch_size is not None or not isinstance(node.batch_size, int):
                return Steps(an_epoch)
            batch_size = node.batch_size
        elif not isinstance(node, _ONE_FOR_ONE):
            if batch_size is None:
                return Steps(an_epoch)
            in_turn = False
        node = node.children[0]
    shards = _shards(node, world_size) if in_turn and batch_size is not None else None
    return Steps(an_epoch, batch_size, shards)


def check_start(params: Any, first: int, earlier: Callable[[Callable[[int], bool]], int | None]) -> None:
    """Raise `RefusedError` unless MindSpore will go on after the first `first` steps, as `resume` has set the dataset.

    `params` are MindSpore's callback parameters when training begins. Another dataset was not set. And where data sinks
    to the device, MindSpore begins with a whole sink of `sink_size` steps, and rounds down (`train/dataset_helper.py`,
    `_DatasetIter`). `earlier` tells the newest saved step from which a launch starts at a step that fits; None where
    there is none.
    """
    dataset = params.train_dataset
    at = int(dataset.get_init_step())
    if at != first:
        raise RefusedError(
            f"training goes on after step {first}, but the dataset that it gets starts after step {at}",
            "give resume the dataset that model.train gets",
        )
    if not params.get("dataset_sink_mode"):
        return
    sunk = int(params.sink_size) if params.sink_size > 0 else int(dataset.get_dataset_size())
    if first % sunk:
        saved = earlier(lambda step: step % sunk == 0)
        raise RefusedError(
            f"training goes on after step {first}, but with a data sink of {sunk} steps MindSpore can only start "
            f"after step {first - first % sunk}",
            "train with dataset_sink_mode=False" + (f", or start from {Call('resume', step=saved)}" if saved else ""),
        )


def _shards(source: Any, world_size: int) -> int | None:
    """The number of parts that a source is dealt into, sample by sample in turn; None if that is not certain.

    A `DistributedSampler` of n shards puts all samples in an order that depends on the seed and the epoch only, and
    gives shard i every nth from the ith on. A `RandomSampler`, of a source that is not sharded, has another order.
    """
    sampler = getattr(source, "sampler", None)
    if sampler is None or sampler.child_sampler is not None or sampler.num_samples is not None:
        return None
    if sampler.get_shuffle_mode() not in (ds.Shuffle.GLOBAL, ds.Shuffle.FALSE):
        return None
    if type(sampler) is ds.DistributedSampler and sampler.offset == -1:
        return int(sampler.num_shards)
    is_read_as_it_is = type(sampler) is ds.SequentialSampler and sampler.start_index is None
    return 1 if is_read_as_it_is and world_size == 1 else None
