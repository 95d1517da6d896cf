"""Begins with the parameters of another run's state: those of a file that fit the network by name and shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import mindspore
import numpy as np
from mindspore import nn

from ckptstore.core.hints import Command
from ckptstore.core.naming import ONE_FILE
from ckptstore.core.parameter_names import renamed, states_of
from ckptstore.core.text import count, some
from ckptstore.errors import DamageError, UsageError
from ckptstore.formats.header import certainly_appended
from ckptstore.formats.inspect import read_unless_encrypted
from ckptstore.mindspore.loader import CHANGED, ChangedError, read_plain
from ckptstore.mindspore.resume import asks_mindspore, put, read, telling, unmarked
from ckptstore.mindspore.state import COUNTERS, RATE, UNCUT, Parameters, TrainState, is_rate, is_state, named
from ckptstore.outside import Path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from contextlib import AbstractContextManager

    from ckptstore.core.model import Checkpoint

    _ReadValues = Callable[[Collection[str]], Mapping[str, Any]]

_LOSS_SCALES = (nn.DynamicLossScaleUpdateCell, nn.FixedLossScaleUpdateCell)
_FLOATS = {"Float16", "BFloat16", "Float32", "Float64"}


@dataclass(frozen=True)
class Warm:
    """The script's options for the state that its run begins from: `resume(…, initial=reference, …)`."""

    reference: str | None = None
    optimizer: bool = False  # the optimizer's parameters too, except learning rates and counters
    rename: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # the file's prefix: the network's
    strict: bool = False  # nothing may be left over on either side

    def checked(self) -> Warm:
        """Return the options. Raises `UsageError` for invalid ones."""
        if self.reference is None:
            if self.optimizer or self.rename or self.strict:
                raise UsageError(
                    "no state is named to begin from", 'give initial="RUN@STEP", or remove the other initial options'
                )
            return self
        if not isinstance(self.reference, str) or not self.reference:
            raise UsageError(f"initial is {self.reference!r}", 'name a state, as initial="pretrain@best:loss"')
        words = [*self.rename, *self.rename.values()] if hasattr(self.rename, "values") else [None]
        if not all(isinstance(each, str) for each in words):
            raise UsageError(f"rename is {self.rename!r}", 'give prefixes, as rename={"backbone.": "encoder."}')
        mode = mindspore.get_auto_parallel_context("parallel_mode")
        if mode not in UNCUT:
            raise UsageError(
                f"initial is given, and the parallel mode {mode} cuts parameters over the ranks",
                "begin in data_parallel or stand_alone",
            )
        return self


class _Kind(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"

    def is_number(self, name: str) -> bool:
        """Whether it is no weight: a number or table of the training, as `global_step` and `learning_rate` are."""
        return "." not in name and (prod(self.shape) == 1 or name.startswith(RATE))


@dataclass(frozen=True)
class Fitted:
    """How many parameters were taken from a file, and the names of those left over in the file or the network."""

    taken: int
    absent: tuple[str, ...]  # of the network, and not in the file
    misfits: tuple[str, ...]  # of another shape or type
    unused: tuple[str, ...]  # of the file, and not in the network

    def __str__(self) -> str:
        """For the log."""
        parts = [count(self.taken, "parameter", "parameters")]
        sides = (
            ("not in the file", self.absent),
            ("of another shape or type", self.misfits),
            ("not used", self.unused),
        )
        parts += [f"{what}: {len(names)} ({some(sorted(names))})" for what, names in sides if names]
        return "; ".join(parts)


def begin_from(
    target: Any,
    file: Checkpoint,
    asked: Warm,
    decryption: Mapping[str, Any],
    loading: Callable[[Parameters], AbstractContextManager[None]],
) -> Fitted:
    """Put the parameters of a file that fit into a train network, or a `TrainState`, once the file is proved.

    `loading` gets the parameters that change, and is entered while they do. Raises `UsageError` if nothing fits, or if
    something is left over and `asked.strict`; `DamageError` for a file that differs from its record, `CkptstoreError`
    for one that cannot be read.
    """
    own = asked_for(target, asked)
    try:
        entries, read_values = _opened(file, decryption, own)
        in_file = renamed(entries, asked.rename)
        fits = {name for name, item in own.items() if name in in_file and _fits(item, entries[in_file[name]])}
        passed = {in_file[name] for name in named(target) if name in in_file}  # the counter, which is not asked for
        fitted = _compared(
            own, entries, in_file, fits, passed if asked.optimizer else passed | states_of(entries).keys()
        )
        if not fits:
            hint = 'rename={"PREFIX IN THE FILE": "PREFIX IN THE NETWORK"} tells which are the same'
            raise UsageError(f"no parameter of {file.path} fits the network: {fitted}", hint)
        if asked.strict and (fitted.absent or fitted.misfits or fitted.unused):
            raise UsageError(f"{file.path} and the network do not fit: {fitted}", "give rename, or strict=False")
        read_from = read_values({in_file[name] for name in fits})
    except DamageError as error:
        raise DamageError(error.message, f"see: {Command('verify', file.run, '--digest')}") from error
    changing = Parameters({name: own[name] for name in fits})
    values = {name: _as_in(own[name], read_from[in_file[name]]) for name in fits}
    with loading(changing):
        for item in changing.named.values():
            if item.has_init:
                item.init_data()
        put(changing, values, (), by_broadcast=False, is_writable=True)
    return fitted


def asked_for(target: Any, asked: Warm) -> dict[str, Any]:
    """The parameters that may be taken, by name: weights, or with the optimizer's all but its counter and rates.

    The new run counts its steps and updates from 0, and its script sets the learning rates.
    """
    parameters = {name: item for name, item in named(target).items() if is_state(item)}
    if asked.optimizer:
        return {
            name: item
            for name, item in parameters.items()
            if name.rpartition(".")[2] not in COUNTERS and not is_rate(name)
        }
    left_out = _of_training(target)
    return {name: item for name, item in parameters.items() if id(item) not in left_out}


def _of_training(target: Any) -> set[int]:
    """The parameters of a train network that are no weights, by their ids: of the optimizer, and of a loss scale."""
    if isinstance(target, TrainState):
        weights = {id(item) for each in target.networks.values() for item in each.get_parameters()}
        return {id(item) for item in target.named.values()} - weights
    found: set[int] = set()
    for _, cell in target.cells_and_names():
        if isinstance(cell, _LOSS_SCALES):
            found |= {id(item) for item in cell.get_parameters()}
        for optimizer in cell.cells():
            if hasattr(optimizer, "parameters"):
                beside = (*optimizer.get_parameters(), *cell.get_parameters(expand=False))
                found |= {id(item) for item in beside} - {id(item) for item in optimizer.parameters}
    return found


def _opened(
    file: Checkpoint, decryption: Mapping[str, Any], own: Collection[str]
) -> tuple[dict[str, _Kind], _ReadValues]:
    """The parameters in a file, and a function that reads some and proves the file.

    Appended values are left out, unless their names are among the network's `own`.
    """
    if not asks_mindspore(decryption) and file.format in ONE_FILE:
        with telling(file, unmarked):
            header = read_unless_encrypted(Path(file.path))
        if header is not None:
            appended = certainly_appended(header) - set(own)
            entries = {each.name: _Kind(each.dtype, each.shape) for each in header.entries if each.name not in appended}
            names = frozenset(each.name for each in header.entries)
            return entries, lambda wanted: _read_some(file, names, wanted, decryption)
    values = read(file, decryption, unmarked)
    entries = {name: kind_of(value) for name, value in values.items() if hasattr(value, "dtype")}
    return entries, lambda wanted: {name: values[name] for name in wanted}


def _read_some(
    file: Checkpoint, names: frozenset[str], wanted: Collection[str], decryption: Mapping[str, Any]
) -> Mapping[str, Any]:
    with telling(file, unmarked):
        content = read_plain(file, {}, wanted)
        if content is not None and content.names != names:
            raise ChangedError(CHANGED)
    if content is not None:
        return content.others
    return read(file, decryption, unmarked)


def _compared(
    own: Mapping[str, Any],
    entries: Mapping[str, _Kind],
    in_file: Mapping[str, str],
    fits: Collection[str],
    passed: Collection[str],
) -> Fitted:
    """How many parameters fit, and the names of the others; `passed` ones of the file are not reported."""
    return Fitted(
        taken=len(fits),
        absent=tuple(name for name in own if name not in in_file),
        misfits=tuple(
            f"{name}: {entries[in_file[name]]} for {kind_of(item)}"
            for name, item in own.items()
            if name in in_file and name not in fits
        ),
        unused=tuple(name for name, kind in entries.items() if name not in passed and not kind.is_number(name)),
    )


def _fits(item: Any, kind: _Kind) -> bool:
    """Whether a parameter may have a value of the file; floating-point numbers of another width are converted."""
    own = kind_of(item)
    return own.shape == kind.shape and (own.dtype == kind.dtype or {own.dtype, kind.dtype} <= _FLOATS)


def _as_in(item: Any, value: Any) -> Any:
    if value.dtype == item.dtype:
        return value
    wide = np.float64 if item.dtype == mindspore.float64 else np.float32
    return mindspore.Tensor(value.asnumpy().astype(wide), item.dtype)


def kind_of(value: Any) -> _Kind:
    """The type and shape of a parameter or a value."""
    return _Kind(str(value.dtype), tuple(value.shape))
