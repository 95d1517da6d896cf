"""Random layers, as dropout, that draw the same numbers after a restart.

MindSpore keeps their state inside kernels, and no call gives it back (mindspore.md §11). In PyNative mode each
step can have seeds of its own instead. In graph mode seeds are compiled into the graph.
"""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import nn, ops

from ckptstore.core.text import some
from ckptstore.mindspore.compat import GLOBAL_SEED, RESET_SEEDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FUNCTIONS = {
    "bernoulli", "dropout", "gamma", "laplace", "log_uniform_candidate_sampler", "multinomial", "normal", "poisson",
    "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random_categorical", "random_gamma",
    "random_poisson", "randperm", "standard_laplace", "standard_normal", "uniform",
}  # fmt: skip
"""The functions of `mindspore.ops` that take MindSpore's seed at each call."""
_FUNCTIONS_WITHOUT_SEED = {"dropout1d", "dropout2d", "dropout3d"}


def seed_step(networks: Iterable[Any], seed: int, rank: int, step: int) -> None:
    """Let random layers draw numbers that depend on seed, rank and step alone, in the step that begins now.

    Random functions of `mindspore.ops` do so too in this step. `mindspore.set_seed` is not used, since it also seeds
    NumPy, and a dataset may draw from NumPy's state at this moment, in a thread of its own. In graph mode this does
    nothing.
    """
    if not _is_pynative():
        return
    module = sys.modules[GLOBAL_SEED.owner]
    RESET_SEEDS.of(module)()
    GLOBAL_SEED.put(module, int(np.random.SeedSequence((seed, rank, step)).generate_state(1)[0] >> 1))
    for _, cell in chain.from_iterable(each.cells_and_names() for each in networks):
        if isinstance(cell, nn.Dropout) and isinstance(cell.dropout, ops.Dropout):
            kept = cell.dropout.keep_prob
            del cell.dropout
            cell.dropout = _Dropout(1 - kept)


def seed_again(seed: int) -> None:
    """Give MindSpore the seed of the script again once a training is over: the next one of this process reads it."""
    if _is_pynative():
        GLOBAL_SEED.put(sys.modules[GLOBAL_SEED.owner], seed)


class _Dropout:
    """Replaces the operator of `nn.Dropout`: uses the present seed, not the state of the operator's own kernel."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, x: Any) -> tuple[Any, None]:
        return ops.dropout(x, self.p), None


def complaint(networks: Iterable[Any], *, repeats: bool) -> str:
    """The random layers that will draw other numbers after a restart, and the remedy; empty if there are none.

    `repeats`: `seed_step` is called before each step.
    """
    layers = list(chain.from_iterable(map(_random_layers, networks)))
    found = [name for name, has_seed in layers if not (repeats and has_seed and _is_pynative())]
    if not found:
        return ""
    said = f"random layers ({some(found)}) draw other numbers after a restart"
    if not _is_pynative():
        return f"{said}: graph mode cannot restore their state; PyNative mode with repeat_random=True can"
    helps = not repeats and any(has_seed for _, has_seed in layers)
    return f"{said}; with repeat_random=True from the first start on they draw the same" if helps else said


def _is_pynative() -> bool:
    return bool(mindspore.get_context("mode") == mindspore.PYNATIVE_MODE)


def _random_layers(network: Any) -> Iterator[tuple[str, bool]]:
    """The name of each random layer, and whether it draws the same numbers with `seed_step`."""
    for name, cell in network.cells_and_names():
        called = f"{name or 'the network'}: {type(cell).__name__}"
        names = set(type(cell).construct.__code__.co_names) if hasattr(type(cell).construct, "__code__") else set()
        if isinstance(cell, nn.Dropout):
            if cell.keep_prob != 1 and cell.p != 0:
                yield called, True
        elif isinstance(cell, (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)) or names & _FUNCTIONS_WITHOUT_SEED:
            yield called, False
        elif not type(cell).__module__.startswith("mindspore.") and names & _FUNCTIONS:
            yield called, True
