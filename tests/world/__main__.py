"""Runs many histories on all cores: `python -m tests.world --histories N --seed S`.

Prints what was done, and under which faults; each history that breaks a promise is made short and printed as a script.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

_PORTION = 5
_WARMING = 3  # histories
_PORTIONS_OF_A_PROCESS = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first history")
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of the histories, in place of these two")
    parser.add_argument("--steps", type=int, default=0, help="of each history (0: as many as usual)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--until-found", action="store_true", help="end at the first that breaks a promise")
    parser.add_argument("--keep", type=Path, help="a directory for the scripts of those that break a promise")
    asked = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.execve(  # noqa: S606
            sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
        )
    return _campaign(asked)


def _campaign(asked: argparse.Namespace) -> int:
    done: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    drawn: Counter[str] = Counter()
    broken: list[tuple[int, str]] = []
    begin = time.monotonic()
    count = 0
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("histories", total=len(asked.only or range(asked.histories)))
        for seeds, some in _outcomes(asked):
            count += len(seeds)
            for seed, error, own_done, own_checked, own_drawn in some:
                done += own_done
                checked += own_checked
                drawn += own_drawn
                if error:
                    broken.append((seed, error))
                    print(f"history {seed}: {error}", flush=True)
            progress.advance(task, len(seeds))
            if broken and asked.until_found:
                break
    seconds = time.monotonic() - begin
    _report(count, seconds, done, checked, drawn)
    for seed, error in broken[:5] if asked.keep else ():
        _keep(asked, seed, error)
    print(f"{count - len({seed for seed, _ in broken})} passed, {len({seed for seed, _ in broken})} failed")
    return 1 if broken else 0


def _outcomes(
    asked: argparse.Namespace,
) -> Iterator[tuple[Sequence[int], list[tuple[int, str, Counter[str], Counter[str], Counter[str]]]]]:
    seeds = asked.only or range(asked.seed, asked.seed + asked.histories)
    portions = [(seeds[at : at + _PORTION], asked.steps) for at in range(0, len(seeds), _PORTION)]
    # Nothing looks for garbage in cycles: that takes a tenth of the time. A process ends before it needs much memory.
    # What is read and compiled once, as statements are, each of them has from here.
    _run((range(min(_WARMING, len(seeds))), 0))
    gc.collect()
    gc.freeze()
    with multiprocessing.get_context("fork").Pool(asked.processes, gc.disable, (), _PORTIONS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(_run, portions)


def _run(
    portion: tuple[Sequence[int], int],
) -> tuple[Sequence[int], list[tuple[int, str, Counter[str], Counter[str], Counter[str]]]]:
    from tests.world.history import STEPS, draw, run

    seeds, steps = portion
    some = []
    for seed in seeds:
        outcome = run(draw(seed, steps or STEPS))
        error = ""
        if outcome.error is not None:
            name = outcome.history.steps[outcome.at].name if outcome.at < len(outcome.history.steps) else "finish"
            error = f"step {outcome.at} ({name}): {type(outcome.error).__name__}: {outcome.error}"
        some.append((seed, error, outcome.done, outcome.checked, outcome.drawn))
    return seeds, some


def _report(count: int, seconds: float, done: Counter[str], checked: Counter[str], drawn: Counter[str]) -> None:
    operations = sum(done.values())
    print(f"{count} histories, {operations} operations in {seconds:.0f} s: {count / seconds:.1f} histories a second")
    print("checked: " + ", ".join(f"{name} {number}" for name, number in checked.most_common()))
    for kind in ("step", "beside"):
        some = sorted((name.removeprefix(f"{kind} "), at) for name, at in drawn.items() if name.startswith(f"{kind} "))
        print(f"{kind}: " + ", ".join(f"{name} {at}" for name, at in some))
    faults = sorted({name.partition(" × ")[2] for name in drawn if " × " in name})
    print(f"{'operation':12} {'done':>8}  faults drawn in it")
    for name, number in done.most_common():
        own = ", ".join(f"{fault} {drawn[f'{name} × {fault}']}" for fault in faults if drawn[f"{name} × {fault}"])
        print(f"{name:12} {number:8}  {own}")


def _keep(asked: argparse.Namespace, seed: int, error: str) -> None:
    from tests.world.history import STEPS, draw, shrunk

    asked.keep.mkdir(parents=True, exist_ok=True)
    path = asked.keep / f"test_history_{seed}.py"
    path.write_text(f'"""{error}"""\n\n{shrunk(draw(seed, asked.steps or STEPS))}')
    print(f"{path} breaks it in fewer steps")


if __name__ == "__main__":
    raise SystemExit(main())
