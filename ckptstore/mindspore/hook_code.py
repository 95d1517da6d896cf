"""Reads in the code of callbacks what their hooks do: which setters they call, and which values they use.

The code is not run. Only functions that can be followed by their names are read: the hooks, the user's methods, and
functions of the same module.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from mindspore import Parameter
from mindspore.train import ModelCheckpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

STEP_BEGINS = ("step_begin", "on_train_step_begin")
STEP_ENDS = ("step_end", "on_train_step_end")
EPOCH_BEGINS = ("epoch_begin", "on_train_epoch_begin")
EPOCH_ENDS = ("epoch_end", "on_train_epoch_end")
HOOKS = (*STEP_BEGINS, *STEP_ENDS, *EPOCH_BEGINS, *EPOCH_ENDS)
"""The hooks of a callback: MindSpore's older name, and the present one."""

OF_LIBRARIES = ("mindspore.", "ckptstore.")
"""How the names of modules begin that are not the user's."""

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


def set_after_save(callbacks: Iterable[Any]) -> dict[str, str]:
    """The callbacks that set parameters at the end of a step, after a ModelCheckpoint has saved; each with its call."""
    found, has_saved = {}, False
    for callback in callbacks:
        has_saved = has_saved or isinstance(callback, ModelCheckpoint)
        if has_saved and (called := _setters_of(callback, STEP_ENDS)):
            found[type(callback).__name__] = min(called)
    return found


def sets_parameters(callback: object, at: Iterable[str] = STEP_ENDS) -> bool:
    """Whether a callback sets parameters in one of these hooks."""
    return bool(_setters_of(callback, at))


def values_used(callback: object, hooks: Iterable[str]) -> Iterator[Any]:
    """The values of the global names that hooks use, and of the variables of enclosing functions."""
    for function, names in _functions_of(callback, hooks):
        for cell in getattr(function, "__closure__", None) or ():
            with suppress(ValueError):  # it has no value yet
                yield cell.cell_contents
        yield from (_globals_of(function).get(name) for name in names)


def _setters_of(callback: object, hooks: Iterable[str]) -> set[str]:
    """The calls in hooks that set parameters."""
    called = {name for _, names in _functions_of(callback, hooks) for name in names}
    setters = called & _SETTERS
    return set() if setters == {"set_data"} and _draws(callback) else setters


def _functions_of(callback: object, hooks: Iterable[str]) -> Iterator[tuple[Any, set[str]]]:
    """The functions that hooks run, each with the names in its code."""
    hooks = tuple(hooks)
    functions = [getattr(callback, name, None) for name in hooks]
    read: set[CodeType] = set()
    for each in functions:
        function: Any = inspect.unwrap(each)  # type: ignore[arg-type]
        code = getattr(function, "__code__", None)
        if code is None or code in read:
            continue
        read.add(code)
        names = {name for inner in _with_inner(code) for name in inner.co_names}
        yield function, names
        functions += _methods(callback, names, hooks)
        beside = (_globals_of(function).get(name) for name in names)
        functions += [other for other in beside if isinstance(other, FunctionType) and _are_beside(other, function)]


def _with_inner(code: CodeType) -> list[CodeType]:
    """A code, and those of the lambdas and comprehensions in it."""
    codes = [code]
    for each in codes:
        codes += [constant for constant in each.co_consts if isinstance(constant, CodeType)]
    return codes


def _globals_of(function: Any) -> dict[str, Any]:
    return getattr(function, "__globals__", {})


def _methods(callback: object, names: Collection[str], hooks: Collection[str]) -> list[Any]:
    """The user's methods by name, of base classes too. Hooks may also be MindSpore's, which `super` calls."""
    found = [(name, vars(each)[name]) for each in type(callback).__mro__ for name in names if name in vars(each)]
    return [
        method
        for name, method in found
        if name in hooks or not str(getattr(method, "__module__", OF_LIBRARIES[0])).startswith(OF_LIBRARIES)
    ]


def _are_beside(one: Any, other: Any) -> bool:
    return bool(one.__module__ == other.__module__) and not str(one.__module__).startswith(OF_LIBRARIES)


def _draws(callback: object) -> bool:
    """Whether a callback has something with `set_data` that is no parameter, as the lines of a plot are."""
    return any(hasattr(each, "set_data") and not isinstance(each, Parameter) for each in vars(callback).values())
