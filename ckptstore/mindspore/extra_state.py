"""Extra state, stored beside the parameters: numbers and small arrays of the user, and random states, as JSON."""

from __future__ import annotations

import base64
import json
import random
from typing import Any, TypeAlias

import mindspore
import numpy as np

RandomState: TypeAlias = "tuple[Any, Any]"

_ARRAY = "__array__"


def loaded(told: str) -> Any:
    """The plain value in a text of `json.dumps`; tuples come back as lists."""
    return json.loads(told, object_hook=_array)


def random_state() -> RandomState:
    """The states of Python's `random` and NumPy's global generator in this process."""
    return random.getstate(), np.random.get_state()


def is_same(one: RandomState, other: RandomState) -> bool:
    """Whether two random states are equal, so no number was drawn between them."""
    mine, others = one[1], other[1]
    if isinstance(mine, dict) or isinstance(others, dict):  # another generator than NumPy's first one
        return one[0] == other[0] and repr(mine) == repr(others)
    return one[0] == other[0] and mine[2:] == others[2:] and np.array_equal(mine[1], others[1])


def set_random_state(told: Any) -> None:
    """Restore a stored state of the random generators."""
    (version, internal, gauss), numpys = told
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(numpys))


def device_state() -> Any:
    """The state of MindSpore's own generator, by `mindspore.get_rng_state`; None if it has none, as on CPU."""
    state = mindspore.get_rng_state().asnumpy()
    return state if state.any() else None


def set_device_state(told: Any) -> None:
    """Restore a stored state of MindSpore's generator (None: there was none)."""
    if told is not None:
        mindspore.set_rng_state(mindspore.Tensor(told))


def plain(value: Any) -> Any:
    """A value as JSON holds it: numbers, text, None, lists, dicts by text, arrays. Raises `TypeError` for others."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    array = value.asnumpy() if hasattr(value, "asnumpy") else value
    if isinstance(array, (np.ndarray, np.generic)) and array.dtype.kind in "biufc":
        array = np.asarray(array)
        return {_ARRAY: [array.dtype.str, array.shape, base64.b64encode(array.tobytes()).decode()]}
    raise TypeError(f"it holds {type(value).__name__}")


def _array(found: dict[str, Any]) -> Any:
    if found.keys() != {_ARRAY}:
        return found
    dtype, shape, data = found[_ARRAY]
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()


def state_of(known: Any) -> dict[str, Any]:
    """The `state_dict` of an object; without one, its numbers, text, arrays and parameters."""
    if hasattr(known, "state_dict"):
        return dict(known.state_dict())
    return {name: value for name, value in vars(known).items() if not why_not(value)}


def set_state_of(known: Any, state: dict[str, Any]) -> None:
    """Restore a state of `state_of` into an object; its parameters stay the same objects."""
    if hasattr(known, "load_state_dict"):
        known.load_state_dict(state)
        return
    for name, value in state.items():
        setattr(known, name, _put(getattr(known, name, None), value))


def _put(there: Any, value: Any) -> Any:
    if isinstance(there, (list, tuple)) and isinstance(value, list) and len(there) == len(value):
        return type(there)(_put(*pair) for pair in zip(there, value, strict=True))
    if not isinstance(there, mindspore.Tensor):
        return value
    tensor = mindspore.Tensor(value, there.dtype)
    if not isinstance(there, mindspore.Parameter):
        return tensor
    mindspore.ops.assign(there, tensor)
    return there


def why_not(value: Any) -> str:
    """Why a value cannot be kept; empty if it can."""
    try:
        plain(value)
    except TypeError as error:
        return str(error)
    return ""
