"""Mutation testing: makes small faults in a module. The tests of the module's folder must notice them.

    python -m bench.mutants                        every mutant; about 4 minutes
    python -m bench.mutants --sample 300 --seed 7  some of the mutants
    python -m bench.mutants resume/lineage         the mutants of one module
    python -m bench.mutants --sample 50 retention  some mutants of a folder. Here the tests and the histories of the
                                                   simulated world that reach the changed line must notice them. To
                                                   find these, all run once before: about 20 minutes

A mutant is the module with one change: another comparison, `or` for `and`, a negated condition, another arithmetic
operator, a constant changed by one, another default, `max` for `min`, another return value, or a statement left out.
Docstrings, messages, annotations and decorators stay. Each mutant runs in its own process, which is forked before any
module of ckptstore is imported. The changed module exists in memory only. Each property gets a few fixed examples. All
cores work in parallel.

Prints the mutants that no test noticed, then a table. The exit code is 1 if less than 90 % of a module's mutants were
noticed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import hypothesis
import pytest
from coverage import CoverageData

ROOT = Path(__file__).parents[1]
ENOUGH = 0.9
EXAMPLES = 40  # examples of each property; in the normal tests it has hundreds
HISTORIES = range(200)  # the seeds from which the histories of a mutant are taken
MOST_HISTORIES = 16  # the most histories for one mutant: about 10 seconds
WORLD_SECONDS = 300
MOVING = ("resume", "evidence", "retention", "journal", "scan", "disk", "catalog/project")
LEFT_OUT = ("browser", "docs", "frameworks", "golden", "mindformers", "packaging", "world")  # "world" has the histories
MOST_TESTS = 500  # the most tests for one mutant; `tests_of` has their order
TESTS = {  # the tests of each deciding module, in its folder, the quickest first: the first failure ends the run
    "core/naming": ["test_naming"],
    "core/replicas": ["test_replicas"],
    "core/strategy_layout": ["test_strategy_layout"],
    "evidence/witnesses": ["test_witnesses", "test_reconstruct"],
    "resume/lineage": ["test_lineage"],
    "resume/position": ["test_position"],
    "resume/remedies": ["test_remedies", "test_conversion"],
    "resume/resolver": ["test_faults", "test_resolver", "test_remedies", "test_resolver_property"],
    "retention/decide": ["test_decide"],
    "retention/policy": ["test_decide"],
}
EQUIVALENT = {
    (
        "core/strategy_layout",
        "number * cut.shards + holder % cut.shards -> number * cut.shards - holder % cut.shards",
    ): ("other numbers, and as many"),
    ("core/strategy_layout", "before * size + step -> before * size - step"): "the same numbers, negative",
}
"""Mutants that change no result, and the reason."""

_OTHERS = """Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is, In NotIn, NotIn In,
And Or, Or And, Add Sub, Sub Add, Mult FloorDiv, FloorDiv Mult, Div Mult, Mod FloorDiv, Pow Mult, BitOr BitAnd,
BitAnd BitOr"""
SWAPS = {
    getattr(ast, one): [getattr(ast, other) for other in others] for one, *others in map(str.split, _OTHERS.split(","))
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNTOUCHED = ("annotation", "returns", "decorator_list", "exc")
STATEMENTS = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)
TRUTHS = (ast.Compare, ast.BoolOp, ast.UnaryOp)


class Mutant(NamedTuple):
    module: str
    line: int
    change: str
    code: Any


def mutants(module: str) -> Iterator[Mutant]:
    tree = ast.parse((ROOT / f"ckptstore/{module}.py").read_text())
    for siblings, place, node, is_condition in _places(tree, Counter()):
        for after in [*_changes(node), *([ast.UnaryOp(ast.Not(), node)] if is_condition else [])]:
            change = " -> ".join(" ".join(ast.unparse(each).split()) for each in (node, after))
            siblings[place] = ast.fix_missing_locations(ast.copy_location(after, node))
            if (module, change) not in EQUIVALENT:
                yield Mutant(module, node.lineno, change, compile(tree, module, "exec"))
            siblings[place] = node


def _places(of: ast.AST, bound: Counter[str]) -> Iterator[tuple[Any, Any, Any, bool]]:
    """Each node that may be changed, as (its container, its key there, the node, whether it is a condition).

    `bound` counts how often the enclosing function binds each name. The only assignment of a name is not removed,
    because then the function could not run at all. Nor is one of a name that a function inside binds (`nonlocal`).
    """
    if isinstance(of, ast.FunctionDef):
        names = [each for each in ast.walk(of) if isinstance(each, ast.Name)]
        bound = Counter(each.id for each in names if isinstance(each.ctx, ast.Store))
        for each in ast.walk(of):
            if isinstance(each, ast.Nonlocal):
                for name in each.names:
                    bound[name] = 1
    for field, value in ast.iter_fields(of):
        held: Any = value if isinstance(value, list) else vars(of)
        for place in range(len(value)) if isinstance(value, list) else [field]:
            node = held[place]
            if field in UNTOUCHED or not isinstance(node, ast.AST) or _is_text(node):
                continue
            is_condition = field == "ifs" or (field == "test" and not isinstance(of, ast.Assert))
            targets = [each.id for each in getattr(node, "targets", ()) if isinstance(each, ast.Name)]
            if isinstance(node, ast.expr | ast.stmt) and all(bound[name] > 1 for name in targets):
                yield held, place, node, is_condition and not isinstance(node, ast.Compare | ast.UnaryOp)
            yield from _places(node, bound)


def _is_text(node: ast.AST) -> bool:
    """Whether a node is a docstring, a message, or code for type checkers only."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict")


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in SWAPS.get(type(operator), ()):
                yield _with(node, ops=[*node.ops[:place], other(), *node.ops[place + 1 :]])
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        yield from (_with(node, op=other()) for other in SWAPS.get(type(node.op), ()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from (ast.Constant(value) for value in _other_values(node.value))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        yield _with(node, func=ast.Name(CALLS[node.func.id], ast.Load()))
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        values = (True, False) if isinstance(node.value, TRUTHS) else (None,)
        yield from (ast.Return(ast.Constant(value)) for value in values)
    elif isinstance(node, STATEMENTS):
        yield ast.Pass()


def _with(node: ast.AST, **changed: Any) -> ast.AST:
    other = copy.copy(node)
    vars(other).update(changed)
    return other


def _other_values(value: object) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, str) and " " not in value:  # with spaces it is a message
        return ["" if value else "?"]
    return []


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from code in memory, and makes pytest try few examples of each property."""

    def __init__(self, name: str, code: Any) -> None:
        self.name, self.code = name, code

    def find_spec(self, fullname: str, *_: object) -> Any:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def get_source(self, _: str) -> None:
        return None

    def get_code(self, _: str) -> Any:
        return self.code

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for test in [item.obj for item in items if hasattr(item.obj, "hypothesis")]:
            own = test._hypothesis_internal_use_settings
            test._hypothesis_internal_use_settings = hypothesis.settings(
                own,
                max_examples=min(own.max_examples, EXAMPLES),
                deadline=None,
                derandomize=True,
                database=None,
                phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
            )


_COVERAGE = """
[run]
source = ckptstore
parallel = true
patch = subprocess
dynamic_context = test_function
data_file = {}/.coverage
"""


class Reach:
    """The tests and histories that run each line of ckptstore, from one run of all of them."""

    def __init__(self, kept: Path | None) -> None:
        """`kept`: a file with the result. It is read if it exists, and written otherwise."""
        with tempfile.TemporaryDirectory() as directory:
            found = kept or Path(directory) / "reach"
            if not found.exists():
                _run_all(Path(directory), found)
            data = CoverageData(str(found))
            data.read()
            self._runners = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
        self._lines = Counter(each for lines in self._runners.values() for some in lines.values() for each in some)

    def histories_of(self, module: str, line: int) -> list[int]:
        """The seeds of histories that run a line; see `tests_of`."""
        seeds = [each.removeprefix(_HISTORY) for each in self._runners_of(module, line) if each.startswith(_HISTORY)]
        return sorted(map(int, seeds))[:MOST_HISTORIES]

    def tests_of(self, module: str, line: int) -> list[str]:
        """The tests that run a line, or the first line of its statement. Tests of the module's folder come first, then
        tests that run few lines of the package. Tests of different files alternate.

        If no test is known to run the module, all tests of the folder. Last come the tests of `_FOUND`.
        """
        tests = [each for each in self._runners_of(module, line) if each.startswith("tests.")]
        own = f"tests.{module.partition('/')[0]}."
        tests.sort(key=lambda test: (not test.startswith(own), self._lines[test], test))
        of_file: dict[str, list[str]] = {}
        for test in tests:
            of_file.setdefault(test.rpartition(".")[0], []).append(test)
        in_turn = [
            test for some in zip_longest(*of_file.values()) for test in some if test
        ]  # tests of one file are similar, so files alternate
        parts = [each.rpartition(".") for each in in_turn[:MOST_TESTS]]
        found = [f"{file.replace('.', '/')}.py::{name}" for file, _, name in parts]
        return [*(found or [f"tests/{module.partition('/')[0]}"]), _FOUND]

    def _runners_of(self, module: str, line: int) -> Sequence[str]:
        """What runs a line, or the first line of its statement.

        What runs at import or in a thread is known of no test: for such a line, all that runs the module.
        """
        lines = self._runners.get(str(ROOT / f"ckptstore/{module}.py"), {})
        begin = max((each for each in lines if each <= line), default=line)
        return [each for each in lines.get(begin, ()) if each] or sorted(
            {each for some in lines.values() for each in some}
        )


_HISTORY = "history "
_FOUND = "tests/world/found"  # the shortest histories that showed bugs: they take half a minute, and reach much code


def _run_all(directory: Path, found: Path) -> None:
    """Run all tests and histories, and note the lines that each runs."""
    config = directory / "coveragerc"
    config.write_text(_COVERAGE.format(directory), encoding="utf-8")
    processes = os.cpu_count() or 1
    folders = [
        str(path.parent) for path in sorted(ROOT.glob("tests/*/__init__.py")) if path.parent.name not in LEFT_OUT
    ]
    _coverage("run", config, "-m", "pytest", "-q", "-n", str(processes), "-k", "not postgres", *folders)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.map(partial(_trace, config), [HISTORIES[at::processes] for at in range(processes)])
    _coverage("combine", config, "--quiet")
    shutil.copyfile(config.with_name(".coverage"), found)


def _coverage(command: str, config: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "coverage", command, f"--rcfile={config}", *arguments], cwd=ROOT, check=True)


def _trace(config: Path, seeds: Iterable[int]) -> None:
    """Note the lines that each history runs."""
    measured = coverage.Coverage(
        data_file=config.with_name(".coverage"), data_suffix=True, source=["ckptstore"], config_file=False
    )
    measured.start()
    for seed in seeds:
        measured.switch_context(f"{_HISTORY}{seed}")
        _breaks([seed])
    measured.stop()
    measured.save()


def survives(module: str, code: Any, seconds: int, tests: Sequence[str] = (), histories: Sequence[int] = ()) -> bool:
    """Whether the module's tests in `TESTS` pass with this code; for other modules, `histories` and `tests`.

    A mutant counts as noticed if its tests take longer than `seconds`, or its histories longer than `WORLD_SECONDS`.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    signal.alarm(WORLD_SECONDS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    instead = _Instead("ckptstore." + module.replace("/", "."), code)
    sys.meta_path.insert(0, instead)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain"]
    if module in TESTS:
        tests = [f"tests/{module.partition('/')[0]}/{test}.py" for test in TESTS[module]]
        options += ["--noconftest", "-k", "not that_are_generated"]
    elif _breaks(histories):
        os._exit(1)
    else:
        options += ["-k", "not postgres"]
    signal.alarm(seconds)
    ended = pytest.main([*options, *tests], plugins=[instead])
    os._exit(ended if ended != pytest.ExitCode.NO_TESTS_COLLECTED else 0)


def _breaks(seeds: Iterable[int]) -> bool:
    """Whether one of these histories breaks a promise."""
    from tests.world.history import draw, run  # noqa: PLC0415 — only after the changed module is in place

    return any(run(draw(seed)).error is not None for seed in seeds)


def modules_of(name: str) -> list[str]:
    """A module, or all modules of a folder."""
    folder = ROOT / "ckptstore" / name
    found = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return [f"{path.parent.name}/{path.stem}" for path in found if path.stem != "__init__"]


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "bench.mutants", *sys.argv[1:]])  # noqa: S606
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE", help="or a folder, or `moving`")
    parser.add_argument("--sample", type=int, metavar="N", help="so many mutants, of all modules together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reach", type=Path, metavar="FILE", help="which tests run which line: kept for the next time")
    given = parser.parse_args()
    names = [each for name in given.modules for each in (MOVING if name == "moving" else (name,))]
    chosen = [mutant for name in names for module in modules_of(name) for mutant in mutants(module)]
    if given.sample is not None and given.sample < len(chosen):
        chosen = sorted(random.Random(given.seed).sample(chosen, given.sample), key=lambda one: (one.module, one.line))  # noqa: S311
    reach = Reach(given.reach) if any(mutant.module not in TESTS for mutant in chosen) else None
    seconds = {module: _seconds(module) for module in sorted({mutant.module for mutant in chosen})}
    made = Counter(mutant.module for mutant in chosen)
    killed = Counter[str]()

    def lives(mutant: Mutant) -> bool:
        module, line, _, code = mutant
        if reach is None or module in TESTS:
            return survives(module, code, seconds[module])
        own = reach.tests_of(module, line), reach.histories_of(module, line)
        return survives(module, code, seconds[module], *own)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for (module, line, change, _), is_alive in zip(chosen, threads.map(lives, chosen), strict=True):
            if is_alive:
                print(f"ckptstore/{module}.py:{line}  {change}", flush=True)
            else:
                killed[module] += 1
    print("\nmodule              mutants  killed  share")
    for module, number in made.items():
        print(f"{module:20}{number:7} {killed[module]:7} {killed[module] / number:6.0%}")
    return int(any(killed[module] < ENOUGH * number for module, number in made.items()))


def _seconds(module: str) -> int:
    """The seconds that the tests of a mutant may take. Ends the program if the tests fail without a mutant."""
    if module not in TESTS:
        return 1800
    began = time.monotonic()
    source = (ROOT / f"ckptstore/{module}.py").read_text()
    if not survives(module, compile(source, module, "exec"), 600):
        sys.exit(f"the tests of {module} fail as it is")
    return int(10 + 3 * (time.monotonic() - began))


if __name__ == "__main__":
    sys.exit(main())
