"""Tells the weights in a checkpoint from the optimizer's parameters, by their names alone.

An optimizer of MindSpore has its own parameters for each parameter that it trains: `moments.fc.weight` beside
`fc.weight`, of the same shape. The prefixes of each optimizer are known (`nn/optim`, `experimental/optim`,
`mint/optim`). If they do not decide a name, the file is refused: weights that lack a parameter would fail to load
later, without a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckptstore.formats.header import Entry

_FAMILIES = frozenset(
    map(
        frozenset,
        (
            {"moments"},  # Momentum
            {"accum"},  # Adagrad, ProximalAdagrad
            {"accum", "stat"},  # SGD
            {"accum", "accum_update"},  # Adadelta
            {"moment1", "moment2"},  # Adam, LazyAdam, AdamOffload, AdaMax
            {"moment1", "moment2", "vhat"},
            {"adam_m", "adam_v"},  # AdamWeightDecay
            {"lamb_m", "lamb_v"},
            {"mean_square", "moment"},  # RMSProp
            {"mean_grad", "mean_square", "moment"},
            {"moments", "linear"},  # FTRL
            {"prev", "step_size"},  # Rprop
            {"exp_avg", "exp_avg_sq"},  # Adam, AdamW, RAdam, NAdam of the newer packages
            {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
            {"exp_avg", "exp_inf"},
            {"momentum_buf"},
            {"ax"},
        ),
    )
)
"""Each set has the prefixes of one optimizer."""

_NUMBERS = frozenset(
    {"global_step", "state_step", "step_t", "learning_rate", "momentum", "beta1_power", "beta2_power"}
    | {"scale_sense", "current_iterator_step", "last_overflow_iterator_step"}
)
"""The parameters that an optimizer or a loss scale has once."""

_RATES = "learning_rate_group_"
_WHOLE = "export the whole state, or load it into the network and save that"


def weights_of(parameters: Sequence[Entry], path: str) -> tuple[Entry, ...]:
    """The parameters of the network. Raises `RefusedError` if the names do not tell; `path` is for its message."""
    shapes = {entry.name: entry.shape for entry in parameters}
    updated: dict[str, set[str]] = {}
    for name, shape in shapes.items():
        prefix, _, rest = name.partition(".")
        if shapes.get(rest) == shape:
            updated.setdefault(prefix, set()).add(rest)
    if not updated:
        raise RefusedError(f"{path} has no parameters that are known to be an optimizer's", _WHOLE)
    if frozenset(updated) not in _FAMILIES or len({frozenset(some) for some in updated.values()}) > 1:
        prefix, some = next(iter(updated.items()))
        raise RefusedError(f"it is not certain whether {prefix}.{min(some)} of {path} belongs to the network", _WHOLE)
    own = {f"{prefix}.{rest}" for prefix, some in updated.items() for rest in some}
    trained = set().union(*updated.values())  # a network may train a `momentum` of its own
    weights = tuple(
        entry for entry in parameters if entry.name not in own and (entry.name in trained or not _is_number(entry.name))
    )
    odd = next((entry.name for entry in weights if entry.name.partition(".")[0] in updated), None)
    if odd is not None:
        raise RefusedError(f"it is not certain whether {odd} of {path} belongs to the network", _WHOLE)
    return weights


def _is_number(name: str) -> bool:
    return name in _NUMBERS or name.startswith(_RATES)
