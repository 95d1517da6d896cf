"""Trees of MindFormers 1.0: meta.json is advice, and the weights beside the states are no states."""

import json
import shutil
import time
from pathlib import Path

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Content
from ckptstore.errors import NothingRestorableError, RefusedError
from ckptstore.resume import dicts
from tests import ckpt_bytes
from tests.scan.builders import LENGTH, stamp
from tests.scan.builders import save_by_mindformers as save

pytestmark = pytest.mark.of_files


def note(output: Path, text: str, ranks: int = 2) -> None:
    for rank in range(ranks):
        (output / "checkpoint" / f"rank_{rank}" / "meta.json").write_text(text)


def stale(step: int) -> str:
    epoch, place = (step - 1) // LENGTH + 1, (step - 1) % LENGTH + 1
    return json.dumps({"last_epoch": epoch, "last_step": place, "last_ckpt_file": f"llama_rank_0-{epoch}_{place}.ckpt"})


@pytest.mark.parametrize("meta", [None, stale(9), stale(3), stale(99), "", "{", "[]", '{"last_epoch": "x"}'])
def test_meta_json_rolls_nothing_back_and_stops_nothing(catalog: Catalog, tmp_path: Path, meta: str | None) -> None:
    output = tmp_path / "job"
    save(output, 3, 6, 9)
    if meta is not None:
        note(output, meta)
    done = catalog.scan(output, world_size=2)
    assert {file.global_step for file in done.adopted if file.content is Content.FULL} == {3, 6, 9}
    plan = catalog.resolve("job").plan
    assert [(plan.global_step, Path(item.source.path).name) for item in plan.ranks] == [
        (9, "llama_rank_0-2_4.ckpt"),
        (9, "llama_rank_1-2_4.ckpt"),
    ]


def test_a_file_in_the_directory_of_another_rank_is_no_file_of_that_rank(catalog: Catalog, tmp_path: Path) -> None:
    output = tmp_path / "job"
    save(output, 3, 6)
    of_ranks = [output / "checkpoint" / f"rank_{rank}" / f"llama_rank_{rank}-2_1.ckpt" for rank in (0, 1)]
    of_ranks[1].unlink()
    copy = of_ranks[1].with_name(of_ranks[0].name)
    shutil.copy2(of_ranks[0], copy)
    done = catalog.scan(output, world_size=2)
    reasons = {each.path: each.reason for each in done.uncertain}
    assert reasons[str(copy)] == "its directory is of rank 1, its name of rank 0"
    resolution = catalog.resolve("job")
    assert resolution.plan.global_step == 3
    assert [each["place_with"] for each in dicts.resolution(resolution)["unplaced"]] == [None], "no scan places it"
    with pytest.raises(RefusedError, match=r"its name of rank 0; move it to the directory of its rank and scan that"):
        catalog.join("job", rank=0, world_size=2, launch_id="L1").resolve()
    copy.unlink()
    assert catalog.join("job", rank=0, world_size=2, launch_id="L1").resolve().global_step == 3


@pytest.mark.parametrize("number", [1, 2, 8])
def test_a_number_that_the_names_of_all_ranks_share_is_no_rank(catalog: Catalog, tmp_path: Path, number: int) -> None:
    output = tmp_path / "job"
    for rank in range(3):
        for step in (3, 6):
            name = f"lora_rank_{number}-{(step - 1) // LENGTH + 1}_{(step - 1) % LENGTH + 1}.ckpt"
            stamp(ckpt_bytes.write(output / f"rank_{rank}" / name, step), step)
    assert catalog.scan(output, world_size=3).uncertain == ()
    assert catalog.resolve("job").plan.global_step == 6


def test_files_that_were_moved_to_directories_of_other_ranks_are_of_no_certain_rank(
    catalog: Catalog, tmp_path: Path
) -> None:
    output = tmp_path / "job"
    for rank in range(2):
        stamp(ckpt_bytes.write(output / f"rank_{rank}" / f"llama_rank_{rank + 8}-1_3.ckpt", 3), 3)
    done = catalog.scan(output, world_size=2)
    assert {each.reason for each in done.uncertain} == {
        f"its directory is of rank {rank}, its name of rank {rank + 8}" for rank in range(2)
    }


def test_a_copy_beside_registered_files_is_of_no_other_rank(catalog: Catalog, tmp_path: Path) -> None:
    output = tmp_path / "job"
    save(output, 3)
    homes = [output / "checkpoint" / f"rank_{rank}" for rank in (0, 1)]
    catalog.join("job", rank=0, world_size=2, launch_id="one").register(
        homes[0] / "llama_rank_0-1_3.ckpt", kind="periodic", global_step=3
    )
    catalog.join("job", rank=1, world_size=2, launch_id="one").register(
        homes[1] / "llama_rank_1-1_3.ckpt", kind="periodic", global_step=3
    )
    shutil.copy2(ckpt_bytes.write(tmp_path / "llama_rank_1-2_1.ckpt", 6), homes[0])
    done = catalog.scan(output / "checkpoint", run="job")
    assert [each.reason for each in done.uncertain] == ["its directory is of rank 0, its name of rank 1"]


def test_the_files_of_rank_0_are_not_those_of_all_ranks(catalog: Catalog, tmp_path: Path) -> None:
    output = tmp_path / "job"
    save(output, 3)
    homes = [output / "checkpoint" / f"rank_{rank}" for rank in range(4)]
    shutil.rmtree(homes[1])
    for home in homes[1:]:
        shutil.copytree(homes[0], home)
    assert len(catalog.scan(output / "checkpoint", run="job", world_size=4).uncertain) == 3


def test_weights_beside_the_states_are_never_taken_for_them(catalog: Catalog, tmp_path: Path) -> None:
    output = tmp_path / "job"
    save(output, 3, 6, 9)
    for rank in (0, 1):  # killed while it saved: the weights of step 9 are there, the state is not
        (output / "checkpoint" / f"rank_{rank}" / f"llama_rank_{rank}-2_4.ckpt").unlink()
    done = catalog.scan(output, world_size=2)
    resolution = catalog.resolve("job")
    assert resolution.plan.global_step == 6
    assert {Path(file.path).parts[-3] for file in catalog.files("job")} == {"checkpoint"}
    assert {(Path(each.path).parts[-3], each.reason) for each in done.uncertain} == {
        (name, "nothing in it counts its updates") for name in ("checkpoint_network", "checkpoint_trainable")
    }
    assert not resolution.unplaced, "no start waits for a step of files that it would never restore"


@pytest.mark.parametrize("below", ["", "rank_0"])
def test_a_tree_of_weights_that_is_scanned_alone_is_no_state_either(
    catalog: Catalog, tmp_path: Path, below: str
) -> None:
    output = tmp_path / "job"
    save(output, 3, 6, 9)
    done = catalog.scan(output / "checkpoint_network" / below, run="job", trust=["name"], steps_per_epoch=LENGTH)
    assert {(file.global_step, file.content) for file in done.adopted} == {
        (3, Content.WEIGHTS),
        (6, Content.WEIGHTS),
        (9, Content.WEIGHTS),
    }
    assert catalog.resolve("job").plan is None


def test_relaunches_of_ranks_have_their_numbers_behind_the_rank(catalog: Catalog, tmp_path: Path) -> None:
    output = tmp_path / "job"
    save(output, 3, 6, 9)
    save(output, 12, 15, relaunch="_1", at=100)
    note(output, stale(9))  # the relaunch was killed before MindFormers wrote it again
    catalog.scan(output, world_size=2)
    plan = catalog.resolve("job").plan
    assert (plan.global_step, Path(plan.ranks[1].source.path).name) == (15, "llama_rank_1_1-3_5.ckpt")


def test_weights_beside_the_states_divide_no_launch(catalog: Catalog, tmp_path: Path) -> None:
    """Each state was of a launch of its own, so that names behind the dataset's epochs seemed to be of a relaunch."""
    output = tmp_path / "job"
    save(output, 8, 9, 10)
    done = catalog.scan(output, world_size=2)
    assert (len({file.launch for file in done.adopted}), done.warnings) == (1, ())
    shorter = catalog.join("job", rank=0, world_size=2, launch_id="L1")
    shorter.set_steps_per_epoch(LENGTH - 2)
    with pytest.raises(NothingRestorableError, match="the dataset has 3 steps an epoch, so the name of"):
        shorter.resolve()


def test_weights_that_a_registered_launch_saved_bring_no_older_launch_behind_it(
    catalog: Catalog, tmp_path: Path
) -> None:
    """The launch before it was dated after its weights, and the next start went back to that one's last state."""
    output, now = tmp_path / "job", int(time.time())
    save(output, 3, 6, 9, at=now - 1000)
    ranks = [catalog.join("job", rank=rank, world_size=2, launch_id="one") for rank in (0, 1)]
    save(output, 12, 14, relaunch="_1", at=now)
    for launch in ranks:
        home = output / "checkpoint" / f"rank_{launch.rank}"
        for step in (12, 14):
            launch.register(
                home / f"llama_rank_{launch.rank}_1-3_{step - 10}.ckpt", global_step=step, optimizer_step=step
            )
    catalog.scan(output, run="job", world_size=2, steps_per_epoch=LENGTH, trust=["name"])
    assert {file.global_step for file in catalog.files("job") if file.content is Content.WEIGHTS} == {3, 6, 9, 12, 14}
    assert catalog.resolve("job").plan.global_step == 14
