"""What a run is doing, in a few words, by what its newest launches said and did. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.core.text import span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

FRUITLESS = 3
"""So many launches in a row that saved nothing are a restart loop."""

TRAINING, FINISHED, EXITED, KILLED, NEVER_SAVED, SCANNED_ONLY = (
    "training",
    "finished",
    "exited on request",
    "killed",
    "never saved",
    "scanned",
)
RESTART_LOOP, ENDED, SILENT = "restart loop: ", "ended: ", "silent for "
"""How the words for these begin."""


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What is known of a run's newest launch. `errors` has one entry for each rank that said how its training ended.

    `fruitless` counts the newest launches that saved nothing, if the last of them began within a day. `is_alive` and
    `is_gone` are by signs of life: neither is known of a launch that gives none. `silent` is the time since it was last
    heard of (None: never).
    """

    has_saved: bool
    fruitless: int
    errors: Sequence[str | None]
    was_asked_to_exit: bool
    is_scanned: bool
    is_alive: bool
    is_gone: bool
    silent: timedelta | None


def status(signs: Signs) -> str:
    """What the run is doing."""
    if is_loop(signs.fruitless, signs.errors):
        return f"{RESTART_LOOP}{signs.fruitless} launches saved nothing"
    if signs.is_alive:
        return TRAINING
    if signs.errors:
        return how_ended(signs.errors, was_asked_to_exit=signs.was_asked_to_exit)
    if signs.is_gone:
        return KILLED
    if not signs.has_saved or signs.silent is None:
        return NEVER_SAVED
    return SCANNED_ONLY if signs.is_scanned else f"{SILENT}{span(signs.silent)}"


def is_loop(fruitless: int, errors: Sequence[str | None]) -> bool:
    """Whether launches that saved nothing are a loop: a finished job that starts again saves nothing, and ends well."""
    ended_well = bool(errors) and not any(errors)
    return fruitless >= FRUITLESS and not ended_well


def how_ended(errors: Sequence[str | None], *, was_asked_to_exit: bool) -> str:
    """How a launch ended, by what its ranks said: empty where none did, as after a kill."""
    named = sorted({error for error in errors if error})
    if named:
        return f"{ENDED}{', '.join(named)}"
    if not errors:
        return ""
    return EXITED if was_asked_to_exit else FINISHED
