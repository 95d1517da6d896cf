"""Notices before the first step if another state was loaded over the one of `resume`, and names the loader."""

from __future__ import annotations

import hashlib
import inspect
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from mindspore import Parameter
from mindspore.train import ModelCheckpoint
from mindspore.train.callback import BackupAndRestore, LambdaCallback

from ckptstore.errors import RefusedError
from ckptstore.formats.header import OPTIMIZER_STEP
from ckptstore.mindspore.state import RATE, first_names, is_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

Digests: TypeAlias = "dict[str, tuple[tuple[int, ...], bytes]]"
"""Values of some parameters by name, with their shapes: parallel modes may cut a parameter before the first step."""

_MAX_PARAMETERS = 32
_MAX_BYTES = 1 << 20

STEP_ENDS = ("step_end", "on_train_step_end")
"""The hooks of a callback for the end of a step: MindSpore's older name, and the present one."""

_OWN = ("mindspore.", "ckptstore.")
_SETTERS = frozenset(
    {
        "add_",
        "assign",
        "assign_add",
        "assign_sub",
        "assign_value",
        "copy_",
        "div_",
        "fill_",
        "load_checkpoint",
        "load_param_into_net",
        "mul_",
        "set_data",
        "sub_",
        "zero_",
    }
)

_HALF_LOADED: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Parameters in which a load failed halfway, by id. For the whole process, since a later launch may train them."""


class LoadGuard:
    """Checks, by a sample of parameters, that the train network has the right state when its first step begins.

    After a restore that is the restored state. Else, and in later trainings, it is the state when `Model.train` is
    called: a script may have loaded pretrained weights before.
    """

    def __init__(self) -> None:
        self._looked_at: Sequence[Any] = ()
        self._is_restored = False
        self._before: Digests = {}

    def begin_loading(self, network: Any) -> None:
        """Note that `resume` is about to change this train network: no launch may train it until a restore succeeds."""
        _HALF_LOADED.update((id(item), item) for item in network.get_parameters())

    @contextmanager
    def loading(self, parameters: Any) -> Iterator[None]:
        """Wrap a change of all these parameters: if it fails, no launch may train them."""
        self.begin_loading(parameters)
        yield
        for item in parameters.get_parameters():
            _HALF_LOADED.pop(id(item), None)

    def resumed(self, network: Any, *, restored: bool) -> None:
        """Note the state that `resume` chose for this train network."""
        self._looked_at, self._is_restored = sample(network), restored
        for item in network.get_parameters() if restored else ():
            _HALF_LOADED.pop(id(item), None)
        self._before = _digests(self._looked_at)

    def begin(self) -> None:
        """Note a call of `Model.train`, before any callback runs."""
        if not self._is_restored:
            self._before = _digests(self._looked_at)

    def check(self, parameters: Mapping[str, Any], callbacks: Sequence[Any], step: int) -> None:
        """Raise `RefusedError` if another state was loaded before this first step; `step` is the last one done.

        `parameters` are those of the network that is trained, by name. After a restore they are compared by name with
        the restored ones; a later training may be of another network.
        """
        if _HALF_LOADED and any(_HALF_LOADED.get(id(item)) is item for item in parameters.values()):
            raise RefusedError("resume failed while it loaded a state: a part of it is in the network", "start again")
        if not self._before:
            return
        was, self._before = self._before, {}
        trained = (parameters[name] for name in was if name in parameters)
        now = _digests(trained if self._is_restored else self._looked_at)
        changed = [name for name, (shape, digest) in now.items() if was[name][0] == shape and was[name][1] != digest]
        if changed:
            self._before = was
            raise _refusal(changed, callbacks, step, restored=self._is_restored)
        self._is_restored = False


def sample(network: Any) -> list[Any]:
    """The optimizer's counter and a few small parameters, spread from the first to the last, 1 MiB at most in all.

    Learning rates and single numbers, except the counter, are left out: a script may set them on purpose.
    """
    parameters = list(network.get_parameters())
    arrays = [item for item in parameters if item.size > 1]
    smallest = next((item.nbytes for item in sorted(arrays, key=lambda item: item.nbytes) if _is_weight(item)), 0)
    limit = max(_MAX_BYTES // _MAX_PARAMETERS, smallest)
    small = [item for item in arrays if item.nbytes <= limit]
    count = min(_MAX_BYTES // limit, len(small))
    spread = [small[place * (len(small) - 1) // max(1, count - 1)] for place in range(count)]
    counter = [item for item in parameters if item.size == 1 and item.name == OPTIMIZER_STEP]
    return counter + [item for item in spread if _is_weight(item)]  # last, since reading names takes long


def _is_weight(parameter: Any) -> bool:
    return is_state(parameter) and not parameter.name.startswith(RATE)


def _digests(parameters: Iterable[Any]) -> Digests:
    return {
        item.name: (tuple(item.shape), hashlib.blake2b(item.get_bytes(), digest_size=16).digest())
        for item in parameters
        if not item.has_init
    }


def set_after_save(callbacks: Iterable[Any]) -> dict[str, str]:
    """The callbacks that set parameters at the end of a step, after a ModelCheckpoint has saved; each with its call."""
    found, has_saved = {}, False
    for callback in callbacks:
        has_saved = has_saved or isinstance(callback, ModelCheckpoint)
        if has_saved and (called := _setters_of(callback, STEP_ENDS)):
            found[type(callback).__name__] = min(called)
    return found


def sets_parameters(callback: object, at: Iterable[str] = STEP_ENDS) -> bool:
    """Whether a callback sets parameters in one of these hooks, by their code."""
    return bool(_setters_of(callback, at))


def _setters_of(callback: object, hooks: Iterable[str]) -> set[str]:
    """The calls that set parameters: in hooks, in the user's methods that they call, in functions of their module."""
    hooks = tuple(hooks)
    called: set[str] = set()
    functions = [getattr(callback, name, None) for name in hooks]
    for each in functions:
        function: Any = inspect.unwrap(each)  # type: ignore[arg-type]
        codes = [code] if (code := getattr(function, "__code__", None)) else []
        for inner in codes:
            codes += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
        names = {name for code in codes for name in code.co_names} - called
        called |= names
        functions += _methods(callback, names, hooks)
        beside = (getattr(function, "__globals__", {}).get(name) for name in names)
        functions += [other for other in beside if isinstance(other, FunctionType) and _are_beside(other, function)]
    setters = called & _SETTERS
    return set() if setters == {"set_data"} and _draws(callback) else setters


def _methods(callback: object, names: Collection[str], hooks: Collection[str]) -> list[Any]:
    """The user's methods by name, of base classes too. Hooks may also be MindSpore's, which `super` calls."""
    found = [(name, vars(each)[name]) for each in type(callback).__mro__ for name in names if name in vars(each)]
    return [
        method
        for name, method in found
        if name in hooks or not str(getattr(method, "__module__", _OWN[0])).startswith(_OWN)
    ]


def _are_beside(one: Any, other: Any) -> bool:
    return bool(one.__module__ == other.__module__) and not str(one.__module__).startswith(_OWN)


def _draws(callback: object) -> bool:
    """Whether a callback has something with `set_data` that is no parameter, as the lines of a plot are."""
    return any(hasattr(each, "set_data") and not isinstance(each, Parameter) for each in vars(callback).values())


def _refusal(changed: Sequence[str], callbacks: Sequence[Any], step: int, *, restored: bool) -> RefusedError:
    suspects = [each for each in callbacks if isinstance(each, BackupAndRestore)] or [
        each for each in callbacks if isinstance(each, LambdaCallback) or not type(each).__module__.startswith(_OWN)
    ]
    names = " or ".join(dict.fromkeys(type(each).__name__ for each in suspects))
    done = f"resume restored step {step}" if restored else f"training goes on after step {step}"
    if names:
        what = f"remove {names} from the callbacks, or have it load nothing: ckptstore restores already"
    else:
        what = "train the model that resume got, and load nothing in between: ckptstore restores already"
    return RefusedError(
        f"{done}, but before the first step another state was loaded over it: {first_names(changed)} changed", what
    )
