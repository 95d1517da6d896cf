"""Trees that plain MindSpore left are scanned into an empty catalog, and gone on from with the five lines."""

import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.cli.main import cli
from ckptstore.errors import RefusedError
from tests.mindspore.plain_trees import SCRIPTS, Script, Tree, Weights, one_more_training, weights
from tests.mindspore.trainings import two_ranks
from tests.scan import plain_mindspore
from tests.scan.plain_mindspore import Job, Saver, Start

LEFT_OUT = 7
ASKS = {
    "a loss scale, updates skipped",
    "gathered gradients",
    "an optimizer of mint",
}
"""Where the files alone do not tell: a start asks, at most so often."""
MOST = 2
LONG = {
    "a breakpoint",
    "a prefix that ends in a number",
    "restarted, and killed before it saved",
    "restarted at an epoch's end with initial_epoch=0",
    "restarted in mid-epoch with initial_epoch=0",
    "nothing but a breakpoint",
    "gathered gradients",
    "an optimizer of mint",
    "sinks on a CPU",
    "trained to its end, then for more epochs",
}
NAMES = [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in SCRIPTS]


def command(*arguments: str) -> int:
    """Run `ckptstore` in this process: how it ends."""
    return cli.main(list(arguments), prog_name="ckptstore", standalone_mode=False) or 0


def advised(refused: RefusedError, tree: Tree) -> list[str]:
    """The command that a refusal names, with what only the user knows filled in."""
    found = re.search(r"ckptstore (scan .+?) places it", f"{refused} {refused.hint}")
    assert found is not None, f"{refused} {refused.hint}"
    known = {"E": str(tree.script.length)}
    return [known.get(word, word.replace("=STEP", f"={tree.newest}")) for word in shlex.split(found[1])]


def gone_on(tree: Tree, catalog: Catalog) -> tuple[int, Weights]:
    """Start the script with the five lines added: the step after which it goes on, and its final weights."""
    script = tree.script
    launches = two_ranks(catalog) if script.ranks > 1 else [ckptstore.mindspore.join("run")]
    ready = []
    for launch in launches:
        model, dataset = script.model(), script.dataset()
        ready.append((launch, model, dataset, launch.resume(model, dataset)))
    for rank, (launch, model, dataset, start) in enumerate(ready):
        ckpt_cb = script.checkpoint(script.home(tree.directory, rank))
        with one_more_training():
            script.train(model, dataset, [ckpt_cb, launch.registrar(ckpt_cb)], start.initial_epoch)
    first, *others = [(start.global_step, weights(model)) for _, model, _, start in ready]
    assert all(each == first for each in others)
    return first


@pytest.mark.parametrize("name", NAMES)
def test_it_is_scanned_and_gone_on_from(
    name: str, plain_tree: Callable[[str], Tree], tmp_path: Path, catalog: Catalog
) -> None:
    tree = plain_tree(name).copy(tmp_path / "tree")
    assert command("scan", str(tree.directory), "--run", "run") == (LEFT_OUT if name in ASKS else 0)
    assert wrong(tree, catalog) == {}
    asked = []
    while True:
        try:
            step, end = gone_on(tree, catalog)
            break
        except RefusedError as refused:
            asked.append(advised(refused, tree))
            assert len(asked) <= MOST * (name in ASKS), asked
            assert command(*asked[-1]) in (0, LEFT_OUT)
            assert wrong(tree, catalog) == {}, asked
    assert (step, bool(asked)) == (tree.newest, name in ASKS)
    assert end == tree.final


def wrong(tree: Tree, catalog: Catalog) -> dict[str, tuple[int, int]]:
    """The files that are in the catalog with another step than theirs: both."""
    steps = {file.path: (file.global_step, tree.steps[Path(file.path)]) for file in catalog.files("run")}
    return {path: both for path, both in steps.items() if both[0] != both[1]}


@pytest.mark.parametrize("name", NAMES)
def test_the_simulator_leaves_the_same_files(name: str, plain_tree: Callable[[str], Tree]) -> None:
    tree = plain_tree(name)
    job = simulated(tree.script)
    found = {path.removeprefix("/").removeprefix("out/"): one.state.step for path, one in job.truth().items()}
    left = {str(path.relative_to(tree.directory).with_suffix(".ckpt")): step for path, step in tree.steps.items()}
    assert found == left


def simulated(script: Script) -> Job:
    """The same script and launches in the simulator of `tests/scan`."""
    job = Job(
        plain_mindspore.Script(
            script.length,
            script.ranks,
            (Saver(script.prefix, script.period, script.keep),),
            sink="cpu" if script.sink_size else "",
            sink_size=script.sink_size,
            rank_directories=script.ranks > 1,
        ),
        random.Random(1),  # noqa: S311 — a test
    )
    for launch in script.launches:
        job.launch(
            Start(
                launch.steps or (launch.epochs or script.epochs) * script.length,
                way=launch.way,
                end=launch.end if launch.steps else "finish",
                late=frozenset({1}) if launch.late else frozenset(),
            )
        )
    return job
