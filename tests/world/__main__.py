"""Runs many simulated histories on all cores: `python -m tests.world --histories N --seed S`.

Prints how often each operation ran, and how often each fault was drawn in it. `--keep DIR` shrinks the first five
histories that break a promise to fewer steps, and writes each into DIR as a script that runs by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

_PAGE = Path(__file__).parents[2] / "docs/explanation/simulation.md"
_BEGIN, _END = "<!-- python -m tests.world: begin -->", "<!-- python -m tests.world: end -->"
_SORTS = ("kill", "error", "stop")
_PORTION = 5
_WARMING = 3  # histories
_PORTIONS_OF_A_PROCESS = 20

# Of a history: its seed, how it failed, and how often each operation was done, each check was made, each fault drawn.
_Outcome = tuple[int, str, Counter[str], Counter[str], Counter[str]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first history; a tally that was begun has its own")
    parser.add_argument("--only", type=int, nargs="+", help="run these histories, whatever --histories and --seed say")
    parser.add_argument("--steps", type=int, default=0, help="the steps of each history (0: the default)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--until-found", action="store_true", help="stop at the first history that breaks a promise")
    parser.add_argument("--keep", type=Path, help="the directory for the scripts")
    parser.add_argument("--write", action="store_true", help=f"write the table into {_PAGE.name}")
    parser.add_argument("--tally", type=Path, help="a file with the results so far: an interrupted run goes on from it")
    asked = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.execve(  # noqa: S606
            sys.executable, [sys.executable, "-m", "tests.world", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
        )
    return _campaign(asked)


@dataclasses.dataclass
class _Tally:
    """The results of the histories so far. With a file, also the results of earlier, interrupted runs."""

    file: Path | None
    first: int
    histories: int = 0
    seconds: float = 0
    done: Counter[str] = dataclasses.field(default_factory=Counter)
    checked: Counter[str] = dataclasses.field(default_factory=Counter)
    drawn: Counter[str] = dataclasses.field(default_factory=Counter)
    broken: dict[int, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, file: Path | None, first: int) -> _Tally:
        if file is None or not file.exists():
            return cls(file, first)
        told = json.loads(file.read_text())
        counters = {name: Counter(told[name]) for name in ("done", "checked", "drawn")}
        broken = {int(seed): error for seed, error in told["broken"].items()}
        return cls(file, told["first"], told["histories"], told["seconds"], **counters, broken=broken)

    def add(self, outcome: _Outcome) -> None:
        seed, error, *counters = outcome
        self.histories += 1
        for own, more in zip((self.done, self.checked, self.drawn), counters, strict=True):
            own.update(more)
        if error:
            self.broken[seed] = error
            print(f"history {seed}: {error}", flush=True)

    def write(self) -> None:
        if self.file is not None:
            new = self.file.with_name(f"{self.file.name}.new")
            new.write_text(json.dumps({**vars(self), "file": None}, indent=1))
            new.replace(self.file)

    def report(self) -> None:
        pace = self.histories / (self.seconds or 1)
        operations = sum(self.done.values())
        print(f"{self.histories} histories, {operations} operations in {self.seconds:.0f} s: {pace:.1f} a second")
        print("checked: " + ", ".join(f"{name} {number}" for name, number in self.checked.most_common()))
        for kind in ("step", "beside"):
            some = sorted(
                (name.removeprefix(f"{kind} "), at) for name, at in self.drawn.items() if name.startswith(f"{kind} ")
            )
            print(f"{kind}: " + ", ".join(f"{name} {at}" for name, at in some))
        faults = sorted({name.partition(" × ")[2] for name in self.drawn if " × " in name})
        print(f"{'operation':12} {'done':>8}  faults drawn in it")
        for name, number in self.done.most_common():
            own = [f"{fault} {self.drawn[f'{name} × {fault}']}" for fault in faults if self.drawn[f"{name} × {fault}"]]
            print(f"{name:12} {number:8}  {', '.join(own)}")

    def table(self) -> str:
        """The operations, each with how often it was done, and how often each sort of fault was drawn in it."""
        lines = ["| operation | done | kills | errors | other actions |", "| --- | ---: | ---: | ---: | ---: |"]
        for name, number in sorted(self.done.items(), key=lambda each: (-each[1], each[0])):
            faults = {
                fault: at for each, at in self.drawn.items() if (fault := each.removeprefix(f"{name} × ")) != each
            }
            sorts = [sum(at for fault, at in faults.items() if fault.startswith(sort)) for sort in _SORTS]
            lines.append(f"| {name} | {number:,} | {' | '.join(f'{at:,}' if at else '–' for at in sorts)} |")
        return "\n".join(lines)

    def write_page(self) -> None:
        before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
        page = f"{before}{_BEGIN}\n{self.table()}\n{_END}{rest.partition(_END)[2]}"
        _PAGE.write_text(page, encoding="utf-8")


def _campaign(asked: argparse.Namespace) -> int:
    tally = _Tally.of(asked.tally, asked.seed)
    seeds = asked.only or range(tally.first + tally.histories, tally.first + asked.histories)
    before = tally.seconds
    begin = time.monotonic()
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("histories", total=len(seeds))
        for outcomes in _outcomes(seeds, asked):
            for outcome in outcomes:
                tally.add(outcome)
            tally.seconds = before + time.monotonic() - begin
            tally.write()
            progress.advance(task, len(outcomes))
            if tally.broken and asked.until_found:
                break
    tally.report()
    if asked.write:
        tally.write_page()
    for seed, error in list(tally.broken.items())[:5] if asked.keep else ():
        _keep(asked, seed, error)
    print(f"{tally.histories - len(tally.broken)} passed, {len(tally.broken)} failed")
    return 1 if tally.broken else 0


def _outcomes(seeds: Sequence[int], asked: argparse.Namespace) -> Iterator[list[_Outcome]]:
    """The outcomes of one portion of histories after the other, in the order of the seeds."""
    portions = [(seeds[at : at + _PORTION], asked.steps) for at in range(0, len(seeds), _PORTION)]
    # The cyclic garbage collector is off: it takes a tenth of the time, and a process ends before it needs much memory.
    # Objects that are made once, such as compiled statements, are made here, so that each process inherits them.
    _run((range(min(_WARMING, len(seeds))), 0))
    gc.collect()
    gc.freeze()
    with multiprocessing.get_context("fork").Pool(asked.processes, gc.disable, (), _PORTIONS_OF_A_PROCESS) as pool:
        yield from pool.imap(_run, portions)


def _run(portion: tuple[Sequence[int], int]) -> list[_Outcome]:
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
    return some


def _keep(asked: argparse.Namespace, seed: int, error: str) -> None:
    from tests.world.history import STEPS, draw, shrunk

    asked.keep.mkdir(parents=True, exist_ok=True)
    path = asked.keep / f"test_history_{seed}.py"
    path.write_text(f'"""{error}"""\n\n{shrunk(draw(seed, asked.steps or STEPS))}')
    print(f"{path} breaks it in fewer steps")


if __name__ == "__main__":
    raise SystemExit(main())
