"""Several experiments below one directory: never one run, and the commands that are printed make each its own."""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from zlib import crc32

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.disk.name_claims import FOLDER
from ckptstore.errors import RefusedError
from tests import ckpt_bytes, parts_bytes
from tests.cli.advice import follow
from tests.command_line import assert_one_line, ckptstore
from tests.contents import contents
from tests.scan.builders import LENGTH, save, save_by_mindformers

pytestmark = pytest.mark.of_files

Shapes = Mapping[str, tuple[int, ...]]
LENET: Shapes = {"fc.weight": (10, 8), "fc.bias": (10,), "moments.fc.weight": (10, 8), "moments.fc.bias": (10,)}
WIDER: Shapes = {name: (12, *shape[1:]) for name, shape in LENET.items()}
DEEPER: Shapes = {**LENET, "fc2.weight": (10, 10)}
WEIGHTS: Shapes = {name: shape for name, shape in LENET.items() if not name.startswith("moments")}


def net(path: Path, step: int, shapes: Shapes = LENET, *, has_counter: bool = True) -> Path:
    """A state of a network of these parameters; without a counter, its weights."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(
        ckpt_bytes.value(name, "Float32", shape, crc32(str(path.parent).encode()).to_bytes(4, "little") * prod(shape))
        for name, shape in shapes.items()
    )
    if has_counter:
        content += ckpt_bytes.value("global_step", "Int32", (1,), step.to_bytes(4, "little"))
    path.write_bytes(content)
    os.utime(path, ns=(step * 10**9, step * 10**9))
    return path


def states(home: Path, *steps: int, shapes: Shapes = LENET, prefix: str = "net") -> None:
    for step in steps:
        net(home / f"{prefix}-{(step - 1) // LENGTH + 1}_{(step - 1) % LENGTH + 1}.ckpt", step, shapes)


def commands(told: str) -> list[list[str]]:
    """The commands that a message prints for scanning each by itself."""
    return [shlex.split(each) for each in re.findall(r"ckptstore scan (.*?)(?= && |; |$)", told)]


def each_alone(catalog: Catalog, told: str) -> dict[str, int]:
    """The runs that the commands of a message make, and how many files each has."""
    for directory, *more in commands(told.partition("; if they are of one run")[0]):
        catalog.scan(directory, run=more[more.index("--run") + 1] if "--run" in more else None, world_size=1)
    return files_of_runs(catalog)


def files_of_runs(catalog: Catalog) -> dict[str, int]:
    return {each.run: len(catalog.files(each.run)) for each in catalog.runs()}


@pytest.mark.parametrize("below", [pytest.param("", marks=pytest.mark.long), "ckpt"])
@pytest.mark.parametrize(
    "shapes",
    [pytest.param((LENET,), marks=pytest.mark.long), (LENET, WIDER)],
    ids=["of one network", "of two networks"],
)
def test_ten_experiments__before_became_one_run__now_ten_by_the_printed_commands(
    sqlite_url: str, catalog: Catalog, tmp_path: Path, below: str, shapes: tuple[Shapes, ...]
) -> None:
    root = tmp_path / "all of them"
    names = [f"lr-{number}" for number in range(10)]
    for place, name in enumerate(names):
        for rank in (0, 1):
            states(root / name / below / f"rank_{rank}", 3, 6, shapes=shapes[place % len(shapes)])
        for path in (root / name).rglob("*.ckpt"):  # however long this machine took: one experiment after the other
            os.utime(path, (1000 * place + int(path.name[4]), 1000 * place + int(path.name[4])))
    before = contents(catalog)
    for more in (["--dry-run"], []):
        refused = ckptstore("--db", sqlite_url, "scan", str(root), "--world-size", "2", *more)
        assert_one_line(refused, 5, f"{root} has checkpoints of 10 experiments")
    assert contents(catalog) == before, "nothing was written"
    *alone, together = commands(refused.err)
    assert together == [str(root), "--run", "all of them", "--world-size", "2"]
    whole = connect(str(tmp_path / "whole.db"))
    if len(shapes) == 1:
        follow(str(whole.database.file), refused.err[refused.err.index("if they are of one run") :])
        assert files_of_runs(whole) == {"all of them": 40}
    assert [each[0] for each in alone] == [str(root / name) for name in names]
    for each in alone:
        done = ckptstore("--db", sqlite_url, "scan", *each)
        assert done.code == 0, done
    assert files_of_runs(catalog) == dict.fromkeys(names, 4)
    assert {run: catalog.resolve(run).plan.global_step for run in names} == dict.fromkeys(names, 6)
    assert catalog.scan(root).adopted == ()


def test_who_says_that_they_are_one_run_is_believed_unless_the_networks_differ(
    catalog: Catalog, tmp_path: Path
) -> None:
    root = tmp_path / "exps"
    states(root / "a", 3, 6)
    states(root / "b", 9, 12)
    states(root / "-c", 3, 6, shapes=WIDER)
    with pytest.raises(RefusedError, match="is of another network than .*: fc.bias is of shape") as refused:
        catalog.scan(root, run="exps", world_size=1)
    assert each_alone(catalog, str(refused.value)) == {"a": 2, "b": 2, "exps--c": 2}
    other = connect(f"sqlite:///{tmp_path / 'other.db'}")
    for gone in ("-c", f"a/{FOLDER}", f"b/{FOLDER}"):
        shutil.rmtree(root / gone)
    with pytest.raises(RefusedError) as refused:
        other.scan(root)
    told = str(refused.value)
    assert follow(str(tmp_path / "other.db"), told[told.index("if they are of one run") :]).code == 0
    assert files_of_runs(other) == {"exps": 4}


@pytest.mark.parametrize("of", ["", "rank_1"], ids=["of one rank", "of two"])
@pytest.mark.parametrize("is_copy", [False, True], ids=["new files", "copies"])
def test_a_wrong_name_adds_no_other_network_to_a_run_that_lies_elsewhere(
    catalog: Catalog, tmp_path: Path, *, of: str, is_copy: bool
) -> None:
    for home in {of, of and "rank_0"}:
        states(tmp_path / "a" / home, 3, 6)
        states(tmp_path / "b" / home, 9, 12, shapes=WIDER)
        states(tmp_path / "c" / home, 9, 12)
    size = 2 if of else 1
    catalog.scan(tmp_path / "a", run="a", world_size=size)
    for name in ("b", "c") if is_copy else ():
        shutil.copytree(tmp_path / name, tmp_path / f"{name} too")
        catalog.scan(tmp_path / f"{name} too", world_size=size)
    before = contents(catalog)
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match=f"/b/.* is of another network than {tmp_path}/a/") as refused:
            catalog.scan(tmp_path / "b", run="a", world_size=size, dry_run=dry_run)
    assert refused.value.hint == "a run has one network: give this one another name with --run"
    assert contents(catalog) == before
    assert len(catalog.scan(tmp_path / "c", run="a", world_size=size).adopted) == 2 * size
    shutil.rmtree(tmp_path / "c")  # the newest of the run; beside it are older ones
    with pytest.raises(RefusedError, match="is of another network than"):
        catalog.scan(tmp_path / "b", run="a", world_size=size)
    shutil.rmtree(tmp_path / "a")
    assert len(catalog.scan(tmp_path / "b", run="a", world_size=size).adopted) == 2 * size, "none can be read"


@pytest.mark.parametrize(
    "other", [WIDER, DEEPER, {"conv.weight": (3, 3)}], ids=["another shape", "one more", "no name in common"]
)
def test_two_networks_in_one_directory_are_never_one_run(catalog: Catalog, tmp_path: Path, other: Shapes) -> None:
    root = tmp_path / "ckpt"
    states(root, 3, 6, prefix="lenet")
    states(root, 4, 9, shapes=other, prefix="resnet")
    for run in (None, "mine"):
        with pytest.raises(RefusedError, match="is of another network than") as refused:
            catalog.scan(root, run=run, world_size=1)
    assert "move the files of each to a directory of its own" in refused.value.hint
    assert catalog.runs() == []
    for prefix in ("lenet", "resnet"):
        home = root / prefix
        home.mkdir()
        for path in root.glob(f"{prefix}-*"):
            path.rename(home / path.name)
    with pytest.raises(RefusedError) as again:
        catalog.scan(root, world_size=1)
    assert each_alone(catalog, str(again.value)) == {"lenet": 2, "resnet": 2}


def of_ranks(root: Path) -> int:
    for rank in range(4):  # two pipeline stages, and the shapes of uneven slices
        states(root / f"rank_{rank}", 3, 6, shapes={f"stage{rank // 2}.w": (8 + rank % 2, 2), "moments.w": (rank, 2)})
    return 8


def of_shares(root: Path) -> int:
    """With `remove_redundancy` each rank saves what no other one does; at a graceful exit it saves all."""
    for rank, name in enumerate(("weight", "bias")):
        own = {parameter: shape for parameter, shape in LENET.items() if parameter.endswith(name)}
        states(root / "ckpt" / f"rank_{rank}", 3, 6, shapes=own)
        net(root / "exit" / f"rank_{rank}" / "net_train-step_9.ckpt", 9)
    return 6


def of_mindformers(root: Path) -> int:
    save_by_mindformers(root, 3, 6)
    return 4


def of_mindformers_2(root: Path) -> int:
    for step in (20, 40):
        parts_bytes.save(root / "output", step)
    return 8


def of_ttp(root: Path) -> int:
    states(root / "ckpt" / "rank_0", 3, 6)
    net(root / "ckpt" / "ttp_saved_checkpoints-step_8" / "rank_0" / "ttp_rank_0-2_3.ckpt", 8)
    net(root / "exit" / "rank_0" / "net_train-step_9.ckpt", 9)
    return 4


def of_ranks_above_all(root: Path) -> int:
    for rank in (0, 1):
        states(root / f"rank_{rank}" / "checkpoint", 3, 6)
    return 4


def of_weights_too(root: Path) -> int:
    states(root, 3, 6)
    net(root / "weights" / "net-best.ckpt", 3, WEIGHTS, has_counter=False)
    net(root / "best-1_3.ckpt", 3, WEIGHTS, has_counter=False)
    return 2


def of_another_schedule(root: Path) -> int:
    states(root, 3, 6, shapes={**LENET, "learning_rate": (10,), "step_size": (1,)})
    states(root, 9, 12, shapes={**LENET, "learning_rate": (20,)}, prefix="net_1")
    return 4


@pytest.mark.parametrize(
    "build",
    [
        of_ranks,
        of_shares,
        of_mindformers,
        of_mindformers_2,
        of_ttp,
        of_ranks_above_all,
        of_weights_too,
        of_another_schedule,
    ],
)
def test_what_one_experiment_leaves_is_one_run(catalog: Catalog, root: Path, build: Callable[[Path], int]) -> None:
    expected = build(root)
    assert len(catalog.scan(root).adopted) == expected
    assert [each.run for each in catalog.runs()] == ["job"]


def test_the_printed_names_are_free_and_say_which_is_which(catalog: Catalog, tmp_path: Path) -> None:
    """A name that another run has would make one run of two."""
    states(tmp_path / "elsewhere" / "b", 3)
    catalog.scan(tmp_path / "elsewhere" / "b", world_size=1)
    root = tmp_path / "exps"
    states(root, 3)
    states(root / "a", 3, 6)
    states(root / "b", 3, 6)
    for experiment in ("x/v1", "x/v2", "y/v1", "y/v3"):
        states(root / experiment, 3, 6, 9)
    with pytest.raises(RefusedError, match="has checkpoints of 7 experiments") as refused:
        catalog.scan(root, world_size=1)
    assert each_alone(catalog, str(refused.value)) == {
        "a": 2,
        "b": 1,
        "exps": 1,
        "exps-b": 2,
        "exps-x-v1": 3,
        "exps-y-v1": 3,
        "v2": 3,
        "v3": 3,
    }


@pytest.mark.parametrize("is_trained", [True, False], ids=["trained runs below", "an experiment below"])
def test_what_lies_above_and_beside_others_is_scanned_too(
    catalog: Catalog, tmp_path: Path, *, is_trained: bool
) -> None:
    """The journals below tell of another run, and whoever gave no name would add to that one."""
    root = tmp_path / "exps"
    states(root / "x" / "new", 3, 6)
    states(root, 3, 6)
    for run in ("llama", "gpt") if is_trained else ():
        launch = catalog.join(run, launch_id="L1")
        launch.register(net(root / "x" / run / "net-2_1.ckpt", 6), global_step=6)
    with pytest.raises(RefusedError) as refused:
        catalog.scan(root, world_size=1)
    own = {"new": 2, "exps": 2, "llama": 1, "gpt": 1} if is_trained else {"x": 2, "exps": 2}
    assert each_alone(catalog, str(refused.value)) == own


def test_a_run_that_was_scanned_gets_no_experiment_that_appears_beside_it(catalog: Catalog, root: Path) -> None:
    save(root / "first", 3, 6)
    catalog.scan(root, world_size=1)
    save(root / "second", 9, 12)
    net(root / "first" / "rank_0" / "other-2_5.ckpt", 10, WIDER)
    done = catalog.scan(root, world_size=1)
    assert done.adopted == ()
    told = {str(Path(each.path).relative_to(root)): each.reason for each in done.skipped}
    beside = f"it is in no directory that run 'job' saves to: scan {root / 'second'} and name its run with --run"
    assert told["second/rank_0/net-2_4.ckpt"] == told["second/rank_0/net-3_2.ckpt"] == beside
    assert told["first/rank_0/other-2_5.ckpt"].startswith("it is of another network than ")
    assert len(catalog.scan(root / "second", run="job", world_size=1).adopted) == 2


def test_a_trained_run_gets_no_file_of_another_network(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    launch = catalog.join("job", launch_id="L1")
    launch.set_steps_per_epoch(LENGTH)
    launch.resolve()
    launch.register(net(root / "net-2_1.ckpt", 6), global_step=6)
    net(root / "old-1_3.ckpt", 3)
    net(root / "strange-1_4.ckpt", 4, WIDER)
    done = catalog.scan(root, world_size=1)
    assert [Path(file.path).name for file in done.adopted] == ["old-1_3.ckpt"]
    (told,) = done.skipped
    assert told.path == str(root / "strange-1_4.ckpt")
    assert told.reason == (
        f"it is of another network than {root / 'net-2_1.ckpt'}: fc.bias is of shape (12,), not (10,): "
        "move it to a directory of its own and scan that"
    )
