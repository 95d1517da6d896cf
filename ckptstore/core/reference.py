"""References: how users name a state of a run in one word, the same in commands, calls and scripts.

    RUN                    where the run goes on: its newest restorable state
    RUN@1200               the state of that step
    RUN@NAME               the state of the step that was tagged NAME
    RUN@best:loss          the restorable state with the lowest loss
    RUN@best               the same, unless a step was tagged best
    RUN@best:accuracy:max  the one with the highest accuracy
    RUN/LAUNCH@1200        of the history that leads to that launch; RUN/LAUNCH is its newest state

Names may hold `@` and `/` too: the first reading of a text whose run is in the catalog counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ckptstore.core import limits, validate
from ckptstore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

BEST = "best"
LOSS = "loss"


@dataclass(frozen=True)
class Best:
    """The metric that states are chosen by, and whether less or more of it is better."""

    metric: str = LOSS
    mode: Literal["min", "max"] = "min"

    def __str__(self) -> str:
        """As a reference names it."""
        return f"{BEST}:{self.metric}:{self.mode}"


@dataclass(frozen=True)
class Reference:
    """A state of a run, by its step, its tag, or its best metric (none: the newest). A tag counts before `best`."""

    run: str
    launch: str | None = None  # of the history that leads to it; None: to the newest
    step: int | None = None
    tag: str | None = None
    best: Best | None = None


def readings(text: str) -> Iterator[Reference]:
    """What a reference may mean, the most literal first: names of runs and launches may hold `@` and `/` too.

    Raises `UsageError` for a reading that is invalid, after it has given the readings before it.
    """
    yield Reference(text)
    of_run, has_state, state = text.rpartition("@")
    name = of_run if has_state else text
    for run, launch in _owners(name):
        if has_state:
            yield _of_state(text, run, launch, state)
        elif launch is not None:
            yield Reference(run, launch)


def tells_state(state: str) -> bool:
    """Whether the text after `@` cannot be a tag: a step, the best by a metric, or a text with another `@`."""
    return _is_number(state) or state.startswith(f"{BEST}:") or "@" in state


def _owners(name: str) -> Iterator[tuple[str, str | None]]:
    yield name, None
    at = name.rfind("/")
    while at >= 0:
        yield name[:at], name[at + 1 :]
        at = name.rfind("/", 0, at)


def _of_state(text: str, run: str, launch: str | None, state: str) -> Reference:
    if not (state and limits.is_text(state)):
        raise UsageError(f"{text!r} names no state", f"write a step, a tag or {BEST} behind the @, as {run}@1200")
    if _is_number(state):
        return Reference(run, launch, step=validate.step_in(state))
    if state.partition(":")[0] == BEST:
        if state == f"{BEST}:":
            raise UsageError(f"{text!r} names no metric", f"write the metric behind {BEST}:, as {text}{LOSS}")
        return Reference(run, launch, tag=BEST if state == BEST else None, best=_best(text, state))
    return Reference(run, launch, tag=state)


def _is_number(state: str) -> bool:
    return state.isascii() and state.isdigit()


def _best(text: str, state: str) -> Best:
    """The metric and the mode in a text. Raises `UsageError` if the mode is unclear: a guess could take the worst."""
    metric = state.partition(":")[2] or LOSS
    name, _, mode = metric.rpartition(":")
    if name and mode in ("min", "max"):
        return Best(name, "min" if mode == "min" else "max")
    if LOSS in metric.lower():
        return Best(metric)
    raise UsageError(f"{text!r} does not say which is better", f"write {text}:max, or {text}:min for the lowest")
