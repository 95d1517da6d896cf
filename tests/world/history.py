"""Draws histories, runs them, and shortens a history that fails."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.world.machine import ERRORS, SQL_ERRORS, Fault, simulated
from tests.world.tier import TierWorld
from tests.world.world import World

STEPS = 50
_FAULTY = 0.15

_WEIGHTS = {
    "start": 9,
    "save": 34,
    "end": 3,
    "fail": 2,
    "neighbour": 1,
    "neighbour_saves": 2,
    "share": 1,
    "neighbour_gc": 1,
    "keep": 1,
    "bare": 1,
    "scan_bare": 1,
    "gc": 8,
    "plan": 6,
    "execute": 4,
    "branch": 2,
    "tune": 3,
    "quarantine": 3,
    "undo": 4,
    "purge": 5,
    "pin": 4,
    "tag": 2,
    "resolve": 4,
    "scan": 3,
    "verify": 2,
    "sync": 2,
    "look": 1,
    "rename": 2,
    "forget": 1,
    "policy": 1,
    "cut": 2,
    "flip": 1,
    "delete": 2,
    "move": 1,
    "move_tree": 1,
    "copy": 1,
    "back_up": 2,
    "touch": 1,
    "unmount": 5,
    "mount": 5,
    "fill": 2,
    "protect": 1,
    "slow": 1,
    "spoil": 2,
    "rot": 1,
    "take_out": 2,
    "as_stranger": 1,
    "relieve": 4,
    "catalog_away": 2,
    "lock_catalog": 1,
    "lose_catalog": 2,
    "keep_catalog": 2,
    "power_loss": 1,
    "wait": 8,
    "clock": 2,
}
"""The relative frequency of each step."""

_MOODS = (0.0, 0.0, 0.3, 1.0, 1.0, 3.0, 8.0)
"""Factors of these frequencies, drawn for each history and step. With fewer kinds of steps, each is tried more."""

_FOLLOWS = {
    "plan": ("branch", "quarantine", "pin", "delete", "execute"),
    "gc": ("gc", "undo", "purge", "take_out", "wait", "pin", "start", "delete"),
    "execute": ("gc", "undo", "purge", "take_out", "wait", "pin", "start", "delete"),
    "undo": ("undo", "purge", "start", "resolve"),
    "purge": ("purge", "undo", "wait"),
    "pin": ("pin", "gc", "execute", "lose_catalog"),
    "tag": ("tag", "gc", "execute", "lose_catalog"),
    "branch": ("execute", "execute", "start", "gc"),
    "quarantine": ("gc", "execute", "execute", "end"),
    "end": ("start", "gc"),
    "fail": ("start", "wait", "slow"),
    "keep": ("keep",),
    "bare": ("bare", "scan_bare"),
    "rot": ("lose_catalog", "unmount", "scan"),
    "neighbour": ("save", "neighbour_saves"),
    "neighbour_saves": ("start", "neighbour_gc"),
    "share": ("neighbour_gc", "touch"),
    "touch": ("verify", "gc", "neighbour_gc", "start"),
    "verify": ("neighbour_gc", "gc", "start"),
    "slow": ("fail", "save", "start"),
    "start": ("save", "save", "start"),
    "save": ("save", "save", "gc"),
    "unmount": ("start", "save", "gc", "pin", "scan", "mount"),
    "spoil": ("gc", "scan", "start", "lose_catalog"),
    "fill": ("start", "save", "gc", "pin"),
    "catalog_away": ("start", "save", "pin"),
    "lose_catalog": ("scan", "start", "spoil"),
    "delete": ("gc", "start", "resolve"),
    "back_up": ("start", "gc", "scan", "lose_catalog"),
    "cut": ("gc", "start", "resolve"),
    "flip": ("start", "resolve"),
    "take_out": ("take_out", "undo", "start", "resolve"),
    "clock": ("wait", "start", "purge"),
    "wait": ("purge", "gc"),
    "power_loss": ("start", "gc"),
}
"""The steps that often follow a step, because they meet the situation that it leaves."""
_BURSTS = 0.4
_FOLLOW = 0.3
_OF_THEME = 0.45
_THEME = 6  # kinds of steps that a history does most: a walk along `_FOLLOWS` finds them
_AGAIN = 0.3  # how often a step is drawn again after a fault
_RECENT = 4

_STORY = 0.05
_BETWEEN = "branch|quarantine|pin|pin@1|delete|cut|start|save|wait|unmount|undo|spoil"
_STORIES = (
    ("save", "save", "plan", _BETWEEN, f"{_BETWEEN}|execute", "execute"),
    ("save", "save", "gc!", _BETWEEN, "gc"),
    ("gc!", "gc", "wait", "purge|gc"),
    ("gc", "clock?", "wait", "purge"),
    ("gc!", "start", "save", "save", "save", "gc"),
    ("gc", "gc", "take_out", "take_out", "delete?", "delete?", "undo?", "resolve"),
    ("scan@1", "gc|plan", "pin@1|tag", "spoil?", "purge|execute|gc"),
    ("pin@1", "spoil", "gc|start"),
    ("pin|tag", "unmount|spoil|catalog_away", "pin|save", "mount", "relieve", "gc"),
    ("slow", "save!|fail", "start!?", "wait", "relieve", "start", "fail?", "start?"),
    ("start", "save", "unmount", "start", "save!", "mount", "start"),
    ("start", "save!", "start", "resolve?"),
    ("save", "start", "start", "save", "start~again"),
    ("end|fail", "catalog_away|unmount|fill", "lose_catalog", "relieve", "mount", "spoil", "scan", "start"),
    ("share", "touch~all?", "touch~all?", "verify~beside?", "neighbour_gc", "resolve|start"),
    ("neighbour", "save", "neighbour_saves", "start"),
    ("keep", "keep!", "keep"),
    ("bare", "bare", "bare?", "scan_bare"),
    ("rename!|forget!|policy!", "start|gc|rename"),
    ("move_tree", "start?", "lose_catalog?", "gc|start|scan"),
    ("save!", "power_loss", "start|gc|undo"),
    ("gc!|undo!|purge!", "power_loss", "undo|start|gc"),
    ("save", "save", "back_up", "start|scan|sync|gc", "gc|undo|lose_catalog|save", "start|scan|gc"),
    ("flip|cut|delete|touch|copy|move", "resolve|start|gc|verify"),
)
"""Sequences of steps that make one situation; their arguments and faults are drawn. `a|b` is one of the two steps. A
step with `!` has a fault, a step with `?` may be left out, `@1` means the second catalog, `~` sets one argument. Each
sequence stands for a family of bugs, and none is the history of one bug."""
_OF_SIZES = 0.5  # the share of histories with launches of fewer ranks, of those in which all ranks are replicas
_TIERS = 0.25
_TIER_STORIES = (
    ("replicate",),
    ("replicate", "free_nodes", "wait?", "purge?", "start?"),
    ("replicate", "save?", "unmount", "free_nodes", "wait?", "purge|free_nodes", "mount?", "start?"),
    ("replicate?", "tier_gc", "tier_gc?", "tier_undo|wait|delete|lose_copy", "tier_purge?", "start|resolve|replicate"),
    ("replicate", "delete|cut", "delete", "delete?", "delete?", "start|resolve|gc|tier_gc|free_nodes"),
    ("replicate", "lose_copy", "lose_copy?", "replicate|free_nodes|tier_gc|start", "start?"),
    ("tier_away|fill_tier", "replicate|start|free_nodes|tier_gc|tier_purge", "mount", "relieve"),
    ("gc|free_nodes", "replicate", "undo|tier_gc|purge"),
    ("replicate", "lose_catalog|power_loss|move_tree", "scan?", "start|free_nodes|tier_gc"),
    ("replicate", "replace_disk", "replace_disk?", "start|tier_gc|gc|resolve", "start?", "replicate?"),
)
"""As `_STORIES`, for a history with a tier."""
_STORY_ARGUMENTS = {
    "@1": {"catalog": 1},
    "~again": {"again": 1},
    "~all": {"every": True},
    "~beside": {"beside": True, "digest": True},
}

_ENDS = ("end", "fail", "branch", "move_tree", "power_loss", "lose_catalog")
"""After these steps no rank trains."""
_TROUBLES = ("unmount", "fill", "protect", "slow", "spoil", "catalog_away", "lock_catalog")
_HEALS = 0.3

_OF_DISKS = (
    "start",
    "save",
    "gc",
    "plan",
    "execute",
    "branch",
    "tune",
    "undo",
    "purge",
    "pin",
    "tag",
    "resolve",
    "scan",
    "verify",
    "sync",
    "rename",
    "end",
    "fail",
    "keep",
    "replicate",
    "free_nodes",
    "tier_gc",
    "tier_undo",
    "tier_purge",
)
_CALLS = {"keep": 150, "start": 500, "save": 40, "gc": 500, "undo": 300, "purge": 300, "scan": 400, "verify": 200}
_CHANGES = {"start": 45, "save": 9, "gc": 50, "execute": 40, "undo": 35, "purge": 35, "scan": 30, "keep": 25}
_STOPS = (
    "gc",
    "execute",
    "undo",
    "purge",
    "scan",
    "verify",
    "resolve",
    "sync",
    "rename",
    "pin",
    "start",
    "save",
    "branch",
    "replicate",
    "free_nodes",
    "tier_gc",
    "tier_undo",
    "tier_purge",
)
_BESIDE = (
    "gc",
    "gc",
    "gc",
    "tune",
    "undo",
    "purge",
    "pin",
    "resolve",
    "scan",
    "verify",
    "unmount",
    "mount",
    "delete",
    "cut",
    "sync",
    "rename",
)


@dataclass(frozen=True)
class Step:
    """A method of the world, its arguments, and the fault that happens in it."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    fault: Fault | None = None

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        fault = f"    world.fault = {self.fault!r}\n" if self.fault else ""
        after = "    world.fault = None\n" if self.fault else ""
        return f"{fault}    world.{self.name}({given})\n{after}    world.check()"


@dataclass(frozen=True)
class History:
    """The settings of a world, and the steps that happen in it."""

    seed: int
    settings: dict[str, Any]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items() if name != "tier")
        lines = "\n".join(map(str, self.steps))
        module, kind = ("tier", "TierWorld") if self.settings.get("tier") else ("world", "World")
        return (
            f"from tests.world.machine import Fault, simulated\nfrom tests.world.{module} import {kind}\n\n\n"
            f"def test_history() -> None:\n    with simulated({self.seed}) as machine:\n"
            f"        world = {kind}(machine, {settings})\n        happens(world)\n\n\n"
            f"def happens(world: {kind}) -> None:\n{lines}\n    world.finish()\n"
        )


@dataclass
class Outcome:
    """The result of a history: the broken promise and its step, and the number of operations, checks and faults."""

    history: History
    error: BaseException | None = None
    at: int = -1
    done: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)
    left: dict[str, bytes] = field(default_factory=dict)


def draw(seed: int, steps: int = STEPS) -> History:
    """Draw a history; the same seed gives the same history."""
    chance = random.Random(seed)
    settings = {
        "size": chance.choice([1, 2, 2, 2, 3, 4]),
        "replicas": chance.random() < 0.4,
        "disks": chance.choice(["one", "each", "each"]),
        "nodes": chance.choice([1, 1, 2]),
        "late": chance.random() < 0.3,
        "keeps": chance.choice([0, 0, 0, 0, 1, 2, 3]),
        "coarse": chance.random() < 0.25,
    }
    moods = {name: chance.choice(_MOODS) for name in _WEIGHTS} | {"start": 1.0, "save": chance.choice((0.5, 1.0, 2.0))}
    theme = _theme(chance) if chance.random() < 0.75 else []
    moods |= {name: max(moods[name], 1.0) for name in theme}
    moods["execute"] = moods["plan"]
    weights = {name: weight * moods[name] for name, weight in _WEIGHTS.items()}
    ways = chance.choice((("kill",), ("error",), ("stop",), ("kill", "error"), ("kill", "error", "stop")))
    faulty = chance.choice([0.0, _FAULTY, _FAULTY, 2 * _FAULTY])
    drawn = [Step("start"), *[Step("save")] * chance.choice((1, 3, 5))]
    names, sizes = list(weights), list(weights.values())
    trains, in_trouble, is_planned = True, False, False
    story: list[str] = []
    while len(drawn) < steps:
        name = chance.choices(names, sizes)[0]
        last = drawn[-1]
        if not story and chance.random() < _STORY:
            story = _told(chance)
        scene = story.pop(0) if story else ""
        if scene:
            name = scene.rstrip("!").partition("@")[0].partition("~")[0]
        elif last.fault is not None and last.fault.what != "stop" and chance.random() < _AGAIN:
            name = last.name
        elif theme and chance.random() < _OF_THEME:
            name = chance.choice(theme)
        elif chance.random() < _FOLLOW:
            follows = _FOLLOWS.get(chance.choice([last, *drawn[-_RECENT:]]).name, ())
            name = chance.choice([each for each in follows if moods[each]] or [name])
        if in_trouble and not story and chance.random() < _HEALS:
            drawn += [Step("mount"), Step("relieve")]
            in_trouble = False
        if name == "execute" and not is_planned:
            name = "plan"
        if name in ("plan", "execute"):
            is_planned = name == "plan"
        if name in ("save", "quarantine") and not trains and scene:
            drawn.append(Step("start"))
        elif name in ("save", "quarantine") and (not trains or chance.random() < 0.03):
            name = "start"
        step = _drawn(chance, name, 1.0 if scene.endswith("!") else faulty, ways)
        for sign, arguments in _STORY_ARGUMENTS.items():
            step = replace(step, arguments=step.arguments | arguments) if sign in scene else step
        if name == "save" and not scene.endswith("!") and chance.random() < _BURSTS:  # states for a policy
            drawn += [Step("save")] * chance.randrange(2, 6)
        drawn.append(step)
        in_trouble |= name in _TROUBLES
        trains = name == "start" or (trains and name not in _ENDS and not _kills(step))
    history = _with_sizes(random.Random(f"sizes {seed}"), History(seed, settings, tuple(drawn)))
    of_tier = random.Random(f"tier {seed}")
    return _with_tier(of_tier, history, faulty, ways) if of_tier.random() < _TIERS else history


def _with_sizes(chance: random.Random, history: History) -> History:
    """The history, perhaps with launches of fewer ranks than the first, if all ranks are replicas."""
    if not history.settings["replicas"] or chance.random() > _OF_SIZES:
        return history
    first, *others = history.steps
    for at, step in enumerate(others):
        if step.name == "start" and chance.random() < 0.6:
            ranks = {"ranks": chance.randrange(1, history.settings["size"] + 1)}
            others[at] = replace(step, arguments=step.arguments | ranks)
    return replace(history, steps=(first, *others))


def _with_tier(chance: random.Random, history: History, faulty: float, ways: Sequence[str]) -> History:
    """The history, with steps of a tier inserted between its own."""
    steps = list(history.steps)
    for _ in range(chance.choice((3, 6, 9))):
        at = chance.randrange(len(steps))
        told = [
            _drawn(chance, chance.choice(scene.removesuffix("?").split("|")), faulty, ways)
            for scene in chance.choice(_TIER_STORIES)
            if not scene.endswith("?") or chance.random() < 0.5
        ]
        steps[at:at] = told
    steps.insert(chance.randrange(3), Step("declare"))
    return replace(history, settings=history.settings | {"tier": True}, steps=tuple(steps))


def _told(chance: random.Random) -> list[str]:
    """The steps of a story as `_STORIES` writes them, after the choice at each `|` and `?`."""
    every = (chance.choice(scene.split("|")) for scene in chance.choice(_STORIES))
    scenes = (scene.removesuffix("?") for scene in every if not scene.endswith("?") or chance.random() < 0.5)
    return list(scenes)


def _theme(chance: random.Random) -> list[str]:
    theme = ["save", chance.choice(list(_WEIGHTS))]
    for _ in range(4 * _THEME):
        after = _FOLLOWS.get(chance.choice(theme[1:]), ())
        name = chance.choice(after) if after else chance.choice(list(_WEIGHTS))
        if name not in theme and len(theme) < _THEME:
            theme.append(name)
    return theme


def _drawn(chance: random.Random, name: str, faulty: float, ways: Sequence[str] = ()) -> Step:
    arguments = _ARGUMENTS.get(name, lambda _: {})(chance)
    if name == "as_stranger":
        other = _drawn(chance, chance.choice(("gc", "undo", "purge", "resolve", "scan", "verify", "sync", "look")), 0.0)
        arguments = {"name": other.name, "arguments": other.arguments}
    fault = None
    if chance.random() < faulty:
        way = chance.choice(ways)
        if way == "stop" and name in _STOPS:
            beside = _drawn(chance, chance.choice(_BESIDE), 0.0)
            where = chance.choice(["any", "change"])
            place = _place(chance, name, where)
            fault = Fault(place, "stop", where=where, beside=(beside.name, beside.arguments))
        elif way != "stop" and name in _OF_DISKS:
            fault = _fault(chance, name, way)
    return Step(name, arguments, fault)


def _kills(step: Step) -> bool:
    return step.name == "save" and step.fault is not None and step.fault.what.startswith("kill")


def _place(chance: random.Random, name: str, where: str) -> int:
    if where == "change":
        return chance.randrange(_CHANGES.get(name, 15))
    return int(math.exp(chance.random() * math.log(_CALLS.get(name, 60)))) - 1


def _fault(chance: random.Random, name: str, way: str) -> Fault:
    where = chance.choice(["any", "change", "change"] if way == "kill" else ["any", "file", "sql", "change"])
    what = chance.choice([way, way, f"{way}_after"])
    error = ""
    if way == "error":
        error = chance.choice(SQL_ERRORS if where == "sql" else ERRORS)
        what = "error" if error == "EINTR" else what  # an interrupted call has had no effect
    return Fault(_place(chance, name, where), what, error, where)


def _choose(**ranges: Sequence[Any]) -> Callable[[random.Random], dict[str, Any]]:
    return lambda chance: {name: chance.choice(values) for name, values in ranges.items()}


_MANY = range(24)
_ARGUMENTS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "start": lambda chance: (
        {"kill_rank": chance.randrange(4)}
        | ({"step": chance.randrange(8)} if chance.random() < 0.12 else {})
        | ({"place": 1} if chance.random() < 0.3 else {})
        | ({"plain": True} if chance.random() < 0.2 else {})
        | ({"again": chance.choice([1, 1, 2, 3])} if chance.random() < 0.08 else {})
        | ({"fresh": True} if chance.random() < 0.08 else {})
    ),
    "save": lambda chance: (
        {"steps": chance.choice([1, 1, 2, 5]), "kill_rank": chance.randrange(4)}
        | ({"ranks": 1} if chance.random() < 0.1 else {})
        | ({"behind": True} if chance.random() < 0.15 else {})
    ),
    "end": _choose(gracefully=[True, False]),
    "gc": lambda chance: (
        {"keep_last": chance.choice([1, 1, 2, 3, 6]), "floor": chance.choice([1, 2, 2, 3])}
        | ({"hours": chance.choice([1, 100])} if chance.random() < 0.3 else {})
        | ({"now": True} if chance.random() < 0.2 else {})
        | ({"catalog": 1} if chance.random() < 0.15 else {})
    ),
    "plan": lambda chance: (
        {"keep_last": chance.choice([1, 1, 2]), "floor": chance.choice([1, 2, 2])}
        | ({"catalog": 1} if chance.random() < 0.15 else {})
    ),
    "execute": lambda chance: {"now": True} if chance.random() < 0.2 else {},
    "branch": _choose(step=_MANY),
    "tune": lambda chance: {"step": chance.choice(_MANY)} | ({"saves": True} if chance.random() < 0.2 else {}),
    "quarantine": _choose(back=[1, 2]),
    "undo": lambda chance: {"catalog": 1} if chance.random() < 0.15 else {},
    "purge": lambda chance: (
        ({"now": True} if chance.random() < 0.4 else {}) | ({"catalog": 1} if chance.random() < 0.15 else {})
    ),
    "pin": lambda chance: (
        {"step": chance.choice(_MANY)}
        | ({"undo": True} if chance.random() < 0.25 else {})
        | ({"catalog": 1} if chance.random() < 0.25 else {})
    ),
    "tag": lambda chance: (
        {"step": chance.choice(_MANY), "name": chance.randrange(3)} | ({"undo": True} if chance.random() < 0.25 else {})
    ),
    "resolve": lambda chance: {"catalog": 1} if chance.random() < 0.15 else {},
    "scan": lambda chance: {"catalog": 1} if chance.random() < 0.5 else {},
    "fail": lambda chance: {
        "steps": chance.choice([1, 1, 2]),
        "rank": chance.randrange(4),
        "told": chance.random() < 0.5,
        "every": chance.random() < 0.5,
    },
    "keep": _choose(prefix=[True, False]),
    "bare": _choose(steps=[1, 2, 2, 3], ranks=[0, 0, 1], first=[0, 0, 1]),
    "rot": _choose(which=_MANY),
    "neighbour_saves": _choose(untold=[False, True]),
    "share": _choose(step=[0, 0, 1], saves=[1, 2]),
    "neighbour_gc": lambda chance: {"keep_last": 1} | ({"now": True} if chance.random() < 0.2 else {}),
    "verify": lambda chance: {"digest": chance.random() < 0.5} | ({"beside": True} if chance.random() < 0.3 else {}),
    "cut": _choose(which=_MANY),
    "flip": _choose(which=_MANY),
    "delete": _choose(which=_MANY),
    "move": _choose(which=_MANY),
    "touch": lambda chance: {"which": chance.choice(_MANY)} | ({"every": True} if chance.random() < 0.3 else {}),
    "copy": _choose(which=_MANY, times=[False, True]),
    "back_up": _choose(which=_MANY, times=[False, True]),
    "unmount": _choose(which=range(4), gone=[False, False, True]),
    "fill": _choose(which=range(4), room=[0, 50, 300, 5000]),
    "protect": _choose(which=range(4)),
    "slow": _choose(which=range(4)),
    "spoil": _choose(which=_MANY),
    "take_out": _choose(which=_MANY, times=[False, True]),
    "lose_catalog": _choose(to_yesterday=[True, True, False]),
    "wait": lambda chance: (
        {"seconds": chance.choice([-250, -100, 100, 700]), "to_grace": True}
        if chance.random() < 0.4
        else {"seconds": chance.choice([5, 30, 120, 4000, 50_000, 100_000])}
    ),
    "clock": _choose(node=[0, 1], seconds=[-290, 0, 290, 290, -100_000]),
    "policy": _choose(keep_last=[1, 3]),
    "free_nodes": _choose(keep_last=[1, 1, 2], floor=[1, 2]),
    "tier_gc": _choose(keep_last=[1, 1, 2], floor=[1, 2]),
    "tier_purge": _choose(now=[True, False]),
    "replace_disk": _choose(which=range(4)),
    "fill_tier": _choose(room=[0, 50, 300, 5000]),
    "lose_copy": _choose(which=_MANY, cut=[True, False]),
}


def run(history: History, traced: Callable[[str], object] | None = None) -> Outcome:
    """Run a history. `traced` is called with a line for every call to the outside."""
    outcome = Outcome(history)
    with simulated(history.seed) as machine:
        machine.traced = traced
        settings = dict(history.settings)
        world = (TierWorld if settings.pop("tier", False) else World)(machine, **settings)
        try:
            for number, step in enumerate(history.steps):
                outcome.at = number
                machine.drawn[f"step {step.name}"] += 1
                world.fault = replace(step.fault) if step.fault else None
                getattr(world, step.name)(**step.arguments)
                world.fault = None
                world.check()
            outcome.at = len(history.steps)
            world.finish()
        except Exception as error:  # noqa: BLE001 — any exception is the result of the history
            outcome.error = error
        outcome.done, outcome.checked, outcome.drawn = world.done, world.checked, machine.drawn
        outcome.left = world.everything()
    return outcome


def shrunk(history: History, most: int = 400) -> History:
    """A shorter history that breaks the same promise, found in at most `most` runs."""
    tries = 0

    def fails(steps: Iterable[Step], settings: dict[str, Any] | None = None) -> bool:
        nonlocal tries
        tries += 1
        found = run(replace(history, steps=tuple(steps), settings=settings or history.settings))
        return tries <= most and found.error is not None and _kind(found.error) == kind

    first = run(history)
    kind = _kind(first.error)
    steps = list(history.steps[: first.at + 1])
    size = max(1, len(steps) // 2)
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if fails(fewer):
                steps = fewer
            else:
                at += size
        size //= 2
    for at, step in enumerate(steps):
        for simpler in (replace(step, fault=None), replace(step, arguments={})):
            if simpler != step and fails([*steps[:at], simpler, *steps[at + 1 :]]):
                steps[at] = simpler
    settings = history.settings
    for name, value in (
        ("nodes", 1),
        ("size", 1),
        ("size", 2),
        ("replicas", False),
        ("disks", "one"),
        ("late", False),
        ("keeps", 0),
        ("coarse", False),
    ):
        if settings[name] != value and fails(steps, {**settings, name: value}):
            settings = {**settings, name: value}
    return replace(history, steps=tuple(steps), settings=settings)


def _kind(error: BaseException | None) -> tuple[type, str]:
    """The kind of a violation: its type and message, without numbers and paths."""
    return type(error), " ".join(word for word in str(error).split() if word.isalpha())
