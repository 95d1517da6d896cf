"""The dataset of a training: how many samples a step takes, and how it continues after a restart as if there was none.

After a restart MindSpore skips the batches that were trained. Random operations of the pipeline then start over, unless
the skipped batches are computed again (mindspore.md §11).
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from mindspore import Tensor, nn
from mindspore import dataset as ds
from mindspore.dataset import transforms
from mindspore.dataset.transforms.py_transforms_util import FuncWrapper, Implementation

from ckptstore.core.hints import Call
from ckptstore.core.text import count, some
from ckptstore.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

log = logging.getLogger("ckptstore")

Exact: TypeAlias = 'bool | Literal["auto"]'

_ONE_FOR_ONE = (ds.MapDataset, ds.ProjectDataset, ds.RenameDataset, ds.RepeatDataset)
_DEFAULT_SEED = 5489
_BY_FILES = 1  # `SourceDataset.shuffle_flag`: the order of files only

_RANDOM_SAMPLERS = (ds.RandomSampler, ds.SubsetRandomSampler, ds.WeightedRandomSampler, ds.PKSampler)
_MINDSPORES_SOURCES = (ds.NumpySlicesDataset, ds.PaddedDataset)
_RANDOM_OPERATIONS = {
    "AutoAugment", "BoundingBoxAugment", "CutMixBatch", "CutOut", "Dither", "FrequencyMasking", "GriffinLim",
    "InverseMelScale", "MaskAlongAxisIID", "MixUp", "MixUpBatch", "RandAugment", "TimeMasking", "TrivialAugmentWide",
    "UniformAugment",
}  # fmt: skip
"""Random operations of MindSpore whose names do not begin with Random."""

_FUNCTIONS = ("per_batch_map", "batch_size_func", "element_length_function", "predicate")
_COLLECTIONS = (list, tuple, dict, range, np.ndarray)
_NO_LOADERS = (*_COLLECTIONS, str, Tensor, nn.Cell)  # though they can be iterated over

_FAST_AGAIN = ExitStack()
"""Restores MindSpore's setting of the process, if it was changed."""


class Steps(NamedTuple):
    """The number of steps of an epoch, of samples that a rank takes in a step, and of shards of the data.

    The last two are None if the dataset does not show them, or does not deal the samples out in turn.
    """

    an_epoch: int
    batch_size: int | None = None
    shards: int | None = None


def check_dataset(dataset: Any, who: str, hint: str = "give it network, optimizer and dataset, in this order") -> None:
    """Raise `UsageError` unless it is a dataset: `who` names the call, and `hint` says how it is written."""
    if hasattr(dataset, "set_init_step"):
        return
    if hasattr(dataset, "__iter__") and not isinstance(dataset, _NO_LOADERS):
        hint = "give the dataset, not its iterator; make another loader a mindspore.dataset.GeneratorDataset"
    raise UsageError(f"{who} needs a dataset of mindspore.dataset, not {type(dataset).__name__}", hint)


def steps_of(dataset: Any, world_size: int) -> Steps:
    """The steps of a dataset of which each of `world_size` ranks has its own part."""
    _say_if_counted(dataset)
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


def an_epoch_of(params: Any) -> int:
    """The steps of one epoch as MindSpore counts it, by its callback parameters: with data sinks it is one sink.

    `batch_num` is the `sink_size` that was asked for, even if nothing sinks, as on CPU.
    """
    return int(params.batch_num if params.get("dataset_sink_mode") else params.train_dataset.get_dataset_size())


def check_start(params: Any, first: int, earlier: Callable[[Callable[[int], bool]], int | None]) -> None:
    """Raise `RefusedError` unless MindSpore will go on after the first `first` steps, as `resume` has set the dataset.

    `params` are MindSpore's callback parameters when training begins. MindSpore starts at another step if training gets
    another dataset. If data sinks to the device, it rounds `first` down to a multiple of the sink's `sink_size` steps
    (`train/dataset_helper.py`, `_DatasetIter`). `earlier` returns the newest saved step from which a launch starts at a
    step that fits; None if there is none.
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


def say_if_endless(dataset: Any) -> None:
    """Warn if a dataset repeats without end: it still reports the batches of one pass as an epoch."""
    node = dataset
    while isinstance(node, ds.Dataset) and len(node.children) == 1 and not isinstance(node, ds.TakeDataset):
        if isinstance(node, ds.RepeatDataset) and node.count < 0:
            log.warning(
                "the dataset repeats without end, so no epoch ends, and a restart after epochs= times its batches "
                "trains nothing: leave out .repeat(), as the loop goes through the dataset epochs= times"
            )
        node = node.children[0]


def _say_if_counted(dataset: Any) -> None:
    """Say that MindSpore counts the batches of a source without a length: that takes long, or has no end."""
    nodes = _nodes(dataset) if getattr(dataset, "dataset_size", 0) is None else []
    unknown = [each.source for each in nodes if isinstance(each, ds.GeneratorDataset) and each.source_len < 0]
    if unknown:
        log.info(
            "%s has no __len__: MindSpore reads it to its end once to count the batches of an epoch; if it has no end, "
            "let it end after an epoch",
            some(_names(unknown)),
        )


class Randomness(NamedTuple):
    """The random parts of a dataset, by the names of operations, sources and functions.

    - `shuffles`: the order of the samples depends on MindSpore's seed. `has_buffer`: by a `shuffle()`.
    - `augments`: MindSpore's own random operations, and files whose rows it shuffles. Both use MindSpore's seed.
    - `functions`: Python functions and sources that are not marked as not random.
    - `samplers`: the user's samplers that are not marked. MindSpore calls them again, whatever it skips.
    - `threads`: how many threads of this process run `functions` and `samplers`.
    """

    shuffles: bool
    has_buffer: bool
    augments: tuple[str, ...]
    functions: tuple[str, ...]
    samplers: tuple[str, ...]
    threads: int


def randomness(dataset: Any) -> Randomness:
    """Find the random parts of a dataset."""
    nodes = _nodes(dataset)
    has_buffer = any(isinstance(node, ds.ShuffleDataset) for node in nodes)
    samplers = [each for node in nodes for each in _samplers(node)]
    samples = any(isinstance(each, _RANDOM_SAMPLERS) for each in samplers)
    samplers = [each for each in samplers if not _is_mindspores(each) and _may_be_random(each)]
    files = [node for node in nodes if getattr(node, "sampler", None) is None and getattr(node, "shuffle_flag", False)]
    random = [node for node in files if node.shuffle_flag > _BY_FILES]
    random += [each for node in nodes for each in _operations(node) if _is_random_operation(each)]
    in_python = {node: found for node in nodes if (found := _in_python(node))}
    return Randomness(
        has_buffer or samples or bool(files),
        has_buffer,
        _names(random),
        _names(each for found in in_python.values() for each in found),
        _names(samplers),
        sum(map(_threads, in_python)) + len(samplers),
    )


def _nodes(dataset: Any) -> list[Any]:
    """A dataset, and all that it is made of."""
    nodes = [dataset] if isinstance(dataset, ds.Dataset) else []
    for node in nodes:
        nodes += node.children
    return nodes


def check_exact(exact: object) -> None:
    """Raise `UsageError` for a value that `go_on` does not support."""
    if exact != "auto" and not isinstance(exact, bool):
        raise UsageError(f"exact_data is {exact!r}", 'write exact_data="auto", exact_data=True or exact_data=False')


def go_on(dataset: Any, step: int, exact: Exact = "auto") -> str:
    """Let a dataset begin with the batch after the first `step`. Returns why it computes these again; empty if not.

    "auto" computes them again if something in the dataset may draw random numbers. That is a setting of MindSpore for
    the whole process, read when an iterator is made of a dataset that does not begin at step 0. `begin_anew` restores
    the setting. For a dataset with a `shuffle()` MindSpore changes it by itself.
    """
    begin_anew(dataset)
    if step == 0:
        return ""
    if ds.config.get_debug_mode():
        raise UsageError(
            "in MindSpore's debug mode of datasets every iterator begins with the first batch",
            "call mindspore.dataset.config.set_debug_mode(False)",
        )
    dataset.set_init_step(step)
    was_fast = ds.config.get_fast_recovery()
    found = randomness(dataset)
    names = list(dict.fromkeys([*(found.augments if _has_seed() else ()), *found.functions]))
    again = f"the dataset makes the first {count(step, 'batch', 'batches')} again and drops them"
    if found.has_buffer:
        _FAST_AGAIN.callback(ds.config.set_fast_recovery, was_fast)
        return f"{again}, as MindSpore does where a dataset has a shuffle()"
    if not was_fast or not (exact is True or (exact and names)):
        return ""
    _FAST_AGAIN.callback(ds.config.set_fast_recovery, was_fast)
    ds.config.set_fast_recovery(False)
    why = f", so that {some(names)} may draw the same random numbers as before" if names else ""
    return f"{again}{why}; with exact_data=False it does not make them"


def begin_anew(dataset: Any) -> None:
    """Let a dataset begin with its first batch again, and restore the setting that `go_on` changed."""
    dataset.set_init_step(0)
    _FAST_AGAIN.close()


@contextmanager
def at_their_start(given: Iterable[Any]) -> Iterator[None]:
    """Let the datasets among these values begin with their first batch inside, wherever training is to go on."""
    positions = [(each, each.get_init_step()) for each in given if hasattr(each, "set_init_step")]
    for each, _ in positions:
        each.set_init_step(0)
    try:
        yield
    finally:
        for each, step in positions:
            each.set_init_step(None)  # then it begins where the dataset does that it is made of
            if each.get_init_step() != step:
                each.set_init_step(step)


def batches_after(dataset: Any, step: int, epochs: int, exact: Exact) -> Any:
    """An iterator of the batches after the first `step`, up to the end of `epochs`. Other iterators are unaffected."""
    go_on(dataset, step, exact)
    try:
        return dataset.create_tuple_iterator(num_epochs=epochs)
    finally:
        begin_anew(dataset)


def complaints(dataset: Any, exact: Exact = "auto") -> Iterator[str]:
    """The parts of a dataset that will differ after a restart, and how to avoid that; a line each."""
    found = randomness(dataset)
    if not _has_seed() and found.shuffles:
        yield (
            "the dataset shuffles, and no seed is set: after a fault in mid-epoch some samples are trained twice, "
            "others never; mindspore.set_seed(1) before the dataset is made keeps their order"
        )
    if exact is False:
        return
    if not _has_seed() and found.augments and not found.shuffles:
        yield (
            f"the dataset draws random numbers ({some(found.augments)}), and no seed is set: after a restart they "
            "differ; call mindspore.set_seed(1) before the dataset is made to repeat them"
        )
    if found.threads > 1:
        yield (
            f"{found.threads} threads run Python functions of the dataset "
            f"({some([*found.functions, *found.samplers])}): if these draw "
            "random numbers, they differ after a restart. To repeat them, use python_multiprocessing=True, or "
            "num_parallel_workers=1 for one of them; mark functions without random numbers with "
            "mindspore.dataset.transforms.not_random"
        )


def _has_seed() -> bool:
    """Whether a seed is set.

    Without one `mindspore.dataset` takes another in each process (`minddata/dataset/util/random.h`).
    """
    return bool(ds.config.get_seed() != _DEFAULT_SEED)


def _samplers(node: Any) -> Iterator[Any]:
    """The sampler of a source, and those that it samples from."""
    sampler = getattr(node, "sampler", None)
    while sampler is not None:
        yield sampler.sampler if isinstance(sampler, ds.IterSampler) else sampler
        sampler = getattr(sampler, "child_sampler", None)


def _operations(node: Any) -> list[Any]:
    """The operations of a `map`."""
    given = getattr(node, "operations", ())
    single = [one for each in given for one in (each.transforms if isinstance(each, transforms.Compose) else [each])]
    return [each.transform if isinstance(each, FuncWrapper) else each for each in single]


def _in_python(node: Any) -> list[Any]:
    """The Python code of a node that may draw random numbers."""
    operations = _operations(node)
    found = [each for each in operations if not _is_mindspores(each)]
    found += [getattr(node, name, None) for name in _FUNCTIONS]
    if isinstance(node, ds.GeneratorDataset) and not isinstance(node, _MINDSPORES_SOURCES):
        found += [None if isinstance(node.source, _COLLECTIONS) else node.source, node.collate_fn]
    found = [each for each in found if _may_be_random(each)]
    if any(_is_mindspores(each) and each.implementation == Implementation.PY for each in operations):
        found += [each for each in operations if _is_random_operation(each)]  # then MindSpore runs these in Python too
    return found


def _threads(node: Any) -> int:
    """The number of threads of this process that run a node's Python code; 0 if it uses processes."""
    has_workers = isinstance(node, (ds.MapDataset, ds.BatchDataset, ds.FilterDataset))
    workers = int(node.num_parallel_workers or (ds.config.get_num_parallel_workers() if has_workers else 1))
    is_thread = isinstance(node, ds.GeneratorDataset) and workers == 1  # even if processes are asked for
    return 0 if getattr(node, "python_multiprocessing", False) and not is_thread else workers


def _is_mindspores(operation: object) -> bool:
    return type(operation).__module__.startswith("mindspore.dataset.")


def _is_random_operation(operation: object) -> bool:
    name = type(operation).__name__
    return _is_mindspores(operation) and (name.startswith("Random") or name in _RANDOM_OPERATIONS)


def _may_be_random(value: Any) -> bool:
    """Whether Python code of a user may draw random numbers: unless `dataset.transforms.not_random` marks it."""
    return value is not None and getattr(value, "random", None) is not False


def _names(values: Iterable[Any]) -> tuple[str, ...]:
    names = [getattr(each, "__name__", None) or type(each).__name__ for each in values]
    return tuple(dict.fromkeys("a lambda" if name == "<lambda>" else name for name in names))
