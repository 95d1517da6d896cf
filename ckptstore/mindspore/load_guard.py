"""Notices before the first step if another state was loaded over the one of `resume`, and names the loader."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from mindspore.train.callback import BackupAndRestore, LambdaCallback

from ckptstore.core.text import count, some
from ckptstore.errors import RefusedError
from ckptstore.formats.header import OPTIMIZER_STEP
from ckptstore.mindspore.hook_code import OF_LIBRARIES
from ckptstore.mindspore.state import is_rate, is_state, named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Digests: TypeAlias = "dict[str, tuple[tuple[int, ...], bytes]]"
"""Values of some parameters by name, with their shapes: parallel modes may cut a parameter before the first step."""

_MAX_PARAMETERS = 32
_MAX_BYTES = 1 << 20

_HALF_LOADED: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Parameters in which a load failed halfway, by id. For the whole process, since a later launch may train them."""


class LoadGuard:
    """Checks, by a sample of parameters, that the train network has the right state when its first step begins.

    After a restore that is the restored state. Else, and in later trainings, it is the state when `Model.train` is
    called: a script may have loaded pretrained weights before.
    """

    def __init__(self) -> None:
        self._looked_at: Mapping[str, Any] = {}
        self._is_restored = False
        self._before: Digests = {}
        self._of_resume: WeakValueDictionary[int, Any] | None = None  # the parameters that `resume` got, by id
        self._names: set[str] = set()  # of these, at that time: a cell may wrap the network later
        self._has_right_network = False

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
        own = named(network)
        names = {id(item): name for name, item in own.items()}
        self._looked_at = {names[id(item)]: item for item in sample(network) if id(item) in names}
        self._is_restored = restored
        for item in own.values() if restored else ():
            _HALF_LOADED.pop(id(item), None)
        self._of_resume = WeakValueDictionary((id(item), item) for item in own.values())
        self._names = set(own)
        self._before = _digests(self._looked_at)

    def begin(self, *, is_later: bool = False) -> None:
        """Note a call of `Model.train`, before any callback runs. `is_later`: the network was trained before."""
        self._has_right_network, self._is_restored = False, self._is_restored and not is_later
        if not self._is_restored:
            self._before = _digests(self._looked_at)

    def check(self, parameters: Mapping[str, Any], callbacks: Sequence[Any], step: int) -> None:
        """Raise `RefusedError` if another state was loaded before this first step; `step` is the last one done.

        `parameters` are those of the network that is trained, by name. After `resume` they must all be parameters that
        it got, or have their names. After a restore they are compared by name with the restored ones.
        """
        if _HALF_LOADED and any(_HALF_LOADED.get(id(item)) is item for item in parameters.values()):
            raise RefusedError("resume failed while it loaded a state: a part of it is in the network", "start again")
        self._check_network(parameters)
        if not self._before:
            return
        was, self._before = self._before, {}
        trained = {name: parameters[name] for name in was if name in parameters}
        now = _digests(trained if self._is_restored else self._looked_at)
        changed = [name for name, (shape, digest) in now.items() if was[name][0] == shape and was[name][1] != digest]
        if changed:
            self._before = was
            raise _refusal(changed, callbacks, step, restored=self._is_restored)
        self._is_restored = False

    def _check_network(self, parameters: Mapping[str, Any]) -> None:
        """Raise `RefusedError` if a training after `resume` has parameters that `resume` did not get.

        If `resume` got the model without its optimizer, for example, the optimizer would start over. If the script
        trains a second network, the next start could not load the states of that one.
        """
        known, names = self._of_resume, self._names
        if known is None or self._has_right_network:
            return
        others = [
            name
            for name, item in parameters.items()
            if name not in names and known.get(id(item)) is not item and is_state(item)
        ]
        if others:
            raise RefusedError(
                f"resume got another model: it lacks {count(len(others), 'parameter', 'parameters')} of the network "
                f"that is trained: {some(others)}",
                "give resume the model whose train method is called, with its optimizer; a second network needs a run "
                "of its own: join under another name",
            )
        self._has_right_network = True


def sample(network: Any) -> list[Any]:
    """The optimizer's counter and a few small parameters, spread from the first to the last, 1 MiB at most in all.

    Learning rates and single numbers, except the counter, are left out: a script may set them on purpose.
    """
    parameters = list(network.get_parameters())
    arrays = [item for item in parameters if item.size > 1]
    smallest = next((item.nbytes for item in sorted(arrays, key=lambda item: item.nbytes) if _is_weight(item)), 0)
    limit = max(_MAX_BYTES // _MAX_PARAMETERS, smallest)
    small = [item for item in arrays if item.nbytes <= limit]
    taken = min(_MAX_BYTES // limit, len(small))
    spread = [small[place * (len(small) - 1) // max(1, taken - 1)] for place in range(taken)]
    counter = [item for item in parameters if item.size == 1 and item.name == OPTIMIZER_STEP]
    return counter + [item for item in spread if _is_weight(item)]  # last, since reading names takes long


def _is_weight(parameter: Any) -> bool:
    return is_state(parameter) and not is_rate(parameter.name)


def _digests(parameters: Mapping[str, Any]) -> Digests:
    return {
        name: (tuple(item.shape), hashlib.blake2b(item.get_bytes(), digest_size=16).digest())
        for name, item in parameters.items()
        if not item.has_init
    }


def _refusal(changed: Sequence[str], callbacks: Sequence[Any], step: int, *, restored: bool) -> RefusedError:
    def may_load(callback: Any) -> bool:
        return isinstance(callback, LambdaCallback) or not type(callback).__module__.startswith(OF_LIBRARIES)

    suspects = [each for each in callbacks if isinstance(each, BackupAndRestore)] or list(filter(may_load, callbacks))
    names = " or ".join(dict.fromkeys(type(each).__name__ for each in suspects))
    done = f"resume restored step {step}" if restored else f"training goes on after step {step}"
    if names:
        what = f"remove {names} from the callbacks, or have it load nothing: ckptstore restores already"
    else:
        what = "train the model that resume got, and load nothing in between: ckptstore restores already"
    return RefusedError(
        f"{done}, but before the first step another state was loaded over it: {some(changed)} changed", what
    )
