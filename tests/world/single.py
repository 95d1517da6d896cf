"""Tries each fault at each call of each operation: `python -m tests.world.single [OPERATION …]`.

Each history runs one operation on a small run, with one fault at one of the operation's calls to the outside. Every
call gets its turn. Each history then continues to its end, and all promises are checked.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count

from tests.world.history import History, Step, run
from tests.world.machine import ERRORS, SQL_ERRORS, Fault

_SETTINGS = {"size": 2, "replicas": False, "disks": "each", "nodes": 1, "late": False}
_RUN = (Step("start"), Step("save", {"steps": 2}), Step("save", {"steps": 2}), Step("save", {"steps": 2}))
_TRASHED = (*_RUN, Step("gc", {"keep_last": 1, "floor": 1}))
_DUE = (*_TRASHED, Step("wait", {"seconds": 100_000}))
_ONE_STAYS = {"keep_last": 1, "floor": 1}
_COPIED = (Step("declare"), *_RUN, Step("replicate"))
_COPIES_GIVEN_UP = (*_COPIED, Step("tier_gc", _ONE_STAYS))

OPERATIONS: dict[str, tuple[tuple[Step, ...], Step]] = {
    "first start": ((), Step("start")),
    "start": (_RUN, Step("start")),
    "start of the other rank": (_RUN, Step("start", {"kill_rank": 1})),
    "start that goes back": (_RUN, Step("start", {"step": 0})),
    "start of a script's own": (_RUN, Step("start", {"plain": True})),
    "save": (_RUN, Step("save")),
    "end": (_RUN, Step("end", {"gracefully": True})),
    "gc": (_RUN, Step("gc", {"keep_last": 1, "floor": 1})),
    "gc --now": (_RUN, Step("gc", {"keep_last": 1, "floor": 1, "now": True})),
    "gc of the second catalog": (_RUN, Step("gc", {"keep_last": 1, "floor": 1, "catalog": 1})),
    "execute": ((*_RUN, Step("plan", {"keep_last": 1, "floor": 1})), Step("execute")),
    "undo": (_TRASHED, Step("undo")),
    "purge": (_DUE, Step("purge")),
    "purge --now": (_TRASHED, Step("purge", {"now": True})),
    "branch": (_RUN, Step("branch", {"step": 0})),
    "pin": (_RUN, Step("pin", {"step": 0})),
    "unpin": ((*_RUN, Step("pin", {"step": 0})), Step("pin", {"step": 0, "undo": True})),
    "tag": (_RUN, Step("tag", {"step": 0, "name": 0})),
    "untag": ((*_RUN, Step("tag", {"step": 0, "name": 0})), Step("tag", {"step": 0, "name": 0, "undo": True})),
    "policy": (_RUN, Step("policy")),
    "forget": (_RUN, Step("forget")),
    "quarantine": (_RUN, Step("quarantine")),
    "replicate": ((Step("declare"), *_RUN), Step("replicate")),
    "gc --tier": (_COPIED, Step("tier_gc", _ONE_STAYS)),
    "undo --tier": (_COPIES_GIVEN_UP, Step("tier_undo")),
    "purge --tier": ((*_COPIES_GIVEN_UP, Step("wait", {"seconds": 100_000})), Step("tier_purge")),
    "gc of nodes with a tier": (_COPIED, Step("free_nodes", _ONE_STAYS)),
    "resolve": (_RUN, Step("resolve")),
    "scan": (_RUN, Step("scan")),
    "scan into the second catalog": (_RUN, Step("scan", {"catalog": 1})),
    "verify": (_RUN, Step("verify", {"digest": True})),
    "sync": (_RUN, Step("sync")),
    "rename": (_RUN, Step("rename")),
}

_AFTER: dict[str, tuple[Step, ...]] = {
    "": (),
    "power loss": (Step("power_loss"),),
    "catalog lost": (Step("lose_catalog", {"to_yesterday": False}), Step("sync")),
}
_GOES_ON = (Step("start"), Step("save"), Step("gc", {"keep_last": 2, "floor": 2}))


def faults() -> Iterator[tuple[str, str, str, str]]:
    """All faults: what happens at the call, its error, the kind of call, and the event after it (see `_AFTER`)."""
    for what in ("kill", "kill_after"):
        for after in _AFTER:
            yield what, "", "any", after
    for where, errors in (("file", ERRORS), ("sql", SQL_ERRORS)):
        for error in errors:
            yield "error", error, where, ""
        yield "error_after", errors[0], where, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world.single", description=__doc__)
    parser.add_argument("operations", nargs="*", metavar="OPERATION")
    parser.add_argument("--every", type=int, default=1, help="try each N-th call only")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.execve(  # noqa: S606
            sys.executable,
            [sys.executable, "-m", "tests.world.single", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    names = asked.operations or list(OPERATIONS)
    jobs = [(name, fault, asked.every) for name in names for fault in faults()]
    tried: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    left = Counter(name for name, *_ in jobs)
    print("| operation | histories | broken |\n| --- | ---: | ---: |", flush=True)
    with multiprocessing.get_context("fork").Pool(asked.processes) as pool:
        for name, many, found in pool.imap(_all_of, jobs):
            tried[name] += many
            for line in found:
                broken[name] += 1
                print(f"{name}: {line}", file=sys.stderr, flush=True)
            left[name] -= 1
            if not left[name]:
                print(f"| {name} | {tried[name]} | {broken[name]} |", flush=True)
    print(f"| **all** | {sum(tried.values())} | {sum(broken.values())} |")
    return 1 if sum(broken.values()) else 0


def history(name: str, fault: Fault, after: str) -> tuple[History, int]:
    """The history of one fault, and the number of the step with the fault."""
    before, step = OPERATIONS[name]
    steps = (*before, Step(step.name, step.arguments, fault), *_AFTER[after], *_GOES_ON)
    return History(0, {**_SETTINGS, "tier": Step("declare") in before}, steps), len(before)


def _all_of(job: tuple[str, tuple[str, str, str, str], int]) -> tuple[str, int, list[str]]:
    name, (what, error, where, after), every = job
    found = []
    for at in count(0, every):
        fault = Fault(at, what, error, where)
        tried, number = history(name, fault, after)
        outcome = run(tried)
        if outcome.error is not None:
            found.append(f"{fault}, then {after or 'nothing'}: {type(outcome.error).__name__}: {outcome.error}")
        if not any(each.startswith(f"{what} ") for each in outcome.drawn):
            return name, at // every, found
    raise AssertionError(number)


if __name__ == "__main__":
    raise SystemExit(main())
