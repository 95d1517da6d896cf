"""Classifies the files below a checkpoint directory by their paths alone (mindspore.md §2). Their bytes may differ."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING

from ckptstore.core.iterations import parse_iteration, parse_part
from ckptstore.core.model import Kind
from ckptstore.core.naming import (
    COMPANION,
    DIRECTORY,
    PYTORCH,
    TENSORFLOW,
    TtpDirectory,
    format_of,
    is_of_shards,
    is_ttp_file,
    parse_exit_name,
    parse_name,
    parse_rank_directory,
    parse_shards,
    parse_tensorflow,
    parse_ttp_directory,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_MINDFORMERS_1 = re.compile(r"(?P<prefix>.+)_rank_(?P<rank>\d+)(?P<number>_\d+)?", re.ASCII | re.DOTALL)
_STRATEGY = re.compile(r"(?:.*strategy(?:_rank)?(?:_\d+)?)\.(?:ckpt|json)", re.ASCII | re.DOTALL)
_NUMBERED = re.compile(r"(?P<base>.+)_(?P<number>\d+)", re.ASCII | re.DOTALL)
_BARE_RANK_DIRECTORY = re.compile(r"(?P<word>rank|ckpt)(?P<rank>\d+)", re.ASCII)
_OWN = re.compile(r"(?:rank_?|ckpt)(?P<rank>\d+)", re.ASCII)
WEIGHTS_DIRECTORIES = ("checkpoint_network", "checkpoint_trainable")
_NOTES = ("meta.json", "common.json", "metadata.json", "latest_checkpointed_iteration.txt")
_RANK = "rank_R"
_NOTHING: Mapping[str, Collection[str]] = {}


class What(str, Enum):
    """What a file is."""

    CHECKPOINT = "checkpoint"
    WEIGHTS = "weights"
    PART = "part"
    OPAQUE = "opaque"
    STRATEGY = "strategy"
    COMPANION = "companion"
    DEBRIS = "debris"
    STRANGER = "stranger"

    __str__ = str.__str__


@dataclass(frozen=True, kw_only=True)
class Named:
    """The facts in the path of a file.

    `family` is the same for the files that one callback writes on every rank in every launch: the path without the rank
    and without the number of the relaunch. `relaunch` is that number (0: none). `rank`, `epoch`, `step_in_epoch` and
    `named_step` are None if the path does not have them. `kind` is None if the file is no checkpoint. `rank_in_name` is
    the rank that the file's own name states: a copy may lie in the directory of another rank.
    """

    what: What
    kind: Kind | None = None
    format: str = "unknown"
    family: str = ""
    relaunch: int = 0
    rank: int | None = None
    rank_in_name: int | None = None
    epoch: int | None = None
    step_in_epoch: int | None = None
    named_step: int | None = None


@dataclass(frozen=True)
class _Place:
    """The facts in the directories above a file; `home` is their path without the rank."""

    rank: int | None
    home: str
    ttp: TtpDirectory | None
    iteration: int | None
    is_of_weights: bool
    is_of_shards: bool


@lru_cache(maxsize=1024)
def _place(directories: tuple[str, ...]) -> _Place:
    ranks = [parse_rank_directory(part) for part in directories]
    home = "/".join(part if rank is None else _RANK for part, rank in zip(directories, ranks, strict=True))
    iterations = [step for part in directories if (step := parse_iteration(part)) is not None]
    return _Place(
        rank=next((rank for rank in reversed(ranks) if rank is not None), None),
        home=home,
        ttp=next((parsed for part in directories if (parsed := parse_ttp_directory(part)) is not None), None),
        iteration=iterations[-1] if iterations else None,
        is_of_weights=any(part in WEIGHTS_DIRECTORIES for part in directories),
        is_of_shards=any(parse_shards(part) is not None for part in directories),
    )


def telling(parts: Sequence[str]) -> list[str]:
    """The last of these directories whose names tell facts of their files: a rank, a save, or weights alone."""
    readers = (parse_rank_directory, parse_ttp_directory, parse_iteration)
    found = takewhile(
        lambda part: part in WEIGHTS_DIRECTORIES or any(read(part) is not None for read in readers), reversed(parts)
    )
    return [*found][::-1]


def prefixes(names: Iterable[str]) -> dict[str, set[str]]:
    """The prefixes of the files in a directory, each by itself and by its part without the number at its end."""
    found: dict[str, set[str]] = {}
    for name in names:
        parsed = parse_name(name)
        prefix = parsed.prefix if parsed is not None else name.removesuffix("-graph.meta")
        if parsed is None and prefix == name:
            continue
        numbered = _NUMBERED.fullmatch(prefix)
        found.setdefault(numbered["base"] if numbered else prefix, set()).add(prefix)
        found.setdefault(prefix, set()).add(prefix)
    return found


def classify(parts: Sequence[str], beside: Mapping[str, Collection[str]] = _NOTHING) -> Named:
    """Classify the file at these path components: the last is its name, `beside` are the `prefixes` in its directory.

    A number at the end of a prefix may be the user's, or MindSpore's, which adds one at a relaunch. It is MindSpore's
    if another file in the directory has the prefix without the number, or with another number.
    """
    *directories, name = parts
    place = _place(tuple(directories))
    plain = _by_name_alone(name)
    if plain is not None:
        return plain if place.rank is None else replace(plain, rank=place.rank)
    if place.is_of_shards and is_of_shards(name):
        return Named(what=What.OPAQUE, format=DIRECTORY, rank=place.rank)
    if place.ttp is not None and is_ttp_file(name):
        return _ttp(name, place.rank, place.ttp.step)
    part = None if place.iteration is None else parse_part(name)
    if part is not None:
        return Named(
            what=What.PART,
            kind=Kind.PERIODIC,
            format="safetensors",
            family=place.home,
            rank=part.index,
            named_step=place.iteration,
        )
    leaving = parse_exit_name(name)
    if leaving is not None:
        return Named(
            what=What.CHECKPOINT,
            kind=Kind.GRACEFUL_EXIT,
            format="ckpt",
            family=f"{place.home}/{leaving.file_name}",
            rank=place.rank,
            named_step=leaving.global_step,
        )
    return _model_checkpoint(name, place, beside)


@lru_cache(maxsize=1 << 14)  # ranks write the same names
def _by_name_alone(name: str) -> Named | None:
    """Classify a file by its name, if that needs no directory; else None."""
    if name.endswith(".tmp"):
        return Named(what=What.DEBRIS)
    if name.endswith((".mindir", "-graph.meta", COMPANION)) or name in _NOTES:
        return Named(what=What.COMPANION)
    if _STRATEGY.fullmatch(name):
        return Named(what=What.STRATEGY)
    if name.endswith("_eval.ckpt"):
        return Named(what=What.WEIGHTS, kind=Kind.GRACEFUL_EXIT, format="ckpt")
    of_tensorflow = parse_tensorflow(name)
    if of_tensorflow is not None or format_of(name) == PYTORCH:
        own = _OWN.match(name)
        form = PYTORCH if of_tensorflow is None else TENSORFLOW
        return Named(what=What.OPAQUE, format=form, rank=int(own["rank"]) if own else None)
    return None


def _ttp(name: str, rank: int | None, step: int | None) -> Named:
    parsed = parse_name(name)
    return Named(
        what=What.CHECKPOINT,
        kind=Kind.TTP,
        format=name.rpartition(".")[2],
        family="ttp",
        rank=rank,
        epoch=parsed.epoch if parsed else None,
        step_in_epoch=parsed.step_in_epoch if parsed else None,
        named_step=step,
    )


def _model_checkpoint(name: str, place: _Place, beside: Mapping[str, Collection[str]]) -> Named:
    parsed = parse_name(name)
    rank, own = place.rank, None
    if parsed is None:
        return Named(what=What.STRANGER, rank=rank)
    prefix, relaunch = parsed.prefix, 0
    of_rank = _MINDFORMERS_1.fullmatch(prefix)
    if of_rank is not None:
        prefix = f"{of_rank['prefix']}_{_RANK}"
        relaunch = int((of_rank["number"] or "_0")[1:])
        own = int(of_rank["rank"])
    else:
        numbered = _NUMBERED.fullmatch(prefix)
        if numbered is not None and any(other != prefix for other in beside.get(numbered["base"], ())):
            prefix, relaunch = numbered["base"], int(numbered["number"])
    return Named(
        what=What.WEIGHTS if place.is_of_weights else What.CHECKPOINT,
        kind=Kind.DYING_GASP if parsed.is_breakpoint else Kind.PERIODIC,
        format=parsed.format,
        family=f"{place.home}/{prefix}",
        relaunch=relaunch,
        rank=own if rank is None else rank,
        rank_in_name=own,
        epoch=parsed.epoch,
        step_in_epoch=parsed.step_in_epoch,
    )


def bare_rank(directories: Sequence[str], form: str) -> int | None:
    """The rank of the nearest directory `rank{R}`, as scripts of other frameworks name it; None if there is none.

    Scripts of TensorFlow name it `ckpt{R}` too. In other formats that number may be an epoch.
    """
    matches = (_BARE_RANK_DIRECTORY.fullmatch(part) for part in reversed(directories))
    found = (match for match in matches if match and (match["word"] == "rank" or form == TENSORFLOW))
    return next((int(match["rank"]) for match in found), None)
