"""Trees of MindFormers 2.0: each iteration is a save, told from its own files; the tracker decides nothing."""

import os
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.core.model import Content, Rule
from ckptstore.errors import NothingRestorableError
from tests import ckpt_bytes, parts_bytes

pytestmark = pytest.mark.of_files


def test_each_iteration_is_one_save(catalog: Catalog, tmp_path: Path) -> None:
    root = tmp_path / "job" / "checkpoint"
    for step in (20, 40):
        parts_bytes.save(root, step)
    done = catalog.scan(tmp_path / "job")
    assert (done.uncertain, done.skipped, done.warnings, done.world_size) == ((), (), (), 2)
    assert {(file.global_step, file.rank, file.content) for file in done.adopted} == {
        (step, rank, Content.PART) for step in (20, 40) for rank in (0, 1)
    }
    assert [
        (save.tally.global_step, save.tally.files, save.tally.ranks, save.restorable, save.abandoned)
        for save in catalog.saves("job")
    ] == [(40, 4, 2, False, False), (20, 4, 2, False, False)]
    assert len(catalog.show("job", 40)) == 4
    again = catalog.scan(tmp_path / "job")
    assert (again.adopted, again.known, again.missing, again.damaged, again.warnings) == ((), 8, (), (), ())


def test_they_are_never_handed_out_and_the_reason_is_told(catalog: Catalog, tmp_path: Path) -> None:
    parts_bytes.save(tmp_path / "job", 40)
    catalog.scan(tmp_path / "job")
    resolution = catalog.resolve("job", take_quarantined=True)
    assert resolution.plan is None
    (rejection,) = resolution.rejections
    assert [(reason.rule, reason.rank) for reason in rejection.reasons] == [(Rule.FOREIGN_FORMAT, None)]
    assert "in files of MindFormers 2.0, as " in rejection.reasons[0].detail
    launch = catalog.join("job", world_size=2, launch_id="L2")
    with pytest.raises(NothingRestorableError, match="step 40 was whole, but it is in files of MindFormers"):
        launch.resolve()  # a fresh start would hide what is there


@pytest.mark.parametrize(
    ("common", "reason"),
    [
        ({"step_num": 30, "global_step": 30}, "its directory is that of step 40, common.json says step_num 30"),
        ({"step_num": 40, "global_step": 41}, "common.json says step_num 40 and global_step 41"),
        ({"step_num": None, "global_step": None}, "common.json says step_num None and global_step None"),
        ({"step_num": True, "global_step": "40"}, "common.json says step_num None and global_step None"),
        ({"global_step": 38}, "the optimizer's counter in net-opt-0000000-0000002.safetensors is 40, where"),
    ],
)
def test_a_step_that_is_contradicted_is_uncertain(
    catalog: Catalog, root: Path, common: dict[str, Any], reason: str
) -> None:
    parts_bytes.save(root, 20)
    parts_bytes.save(root, 40, common=common)
    for _ in range(2):
        done = catalog.scan(root)
        assert {each.best_guess for each in done.uncertain} == {40}
        assert len(done.uncertain) == 4
        assert all(reason in each.reason for each in done.uncertain)
    assert {file.global_step for file in catalog.files("job")} == {20}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "common.json, which is written last, is not there: the save was not finished"),
        (b"", "is not a whole common.json"),
        (b"[1]", "is not a whole common.json: its JSON is no object"),
        (b'{"global_step": ' + b"[" * 60_000, "its JSON is nested too deeply"),
        (b" " * 70_000, "it has more than 65536 bytes"),
    ],
)
def test_notes_that_cannot_be_read(catalog: Catalog, tmp_path: Path, content: bytes | None, reason: str) -> None:
    home = parts_bytes.save(tmp_path / "job", 40)
    (home / "common.json").unlink()
    if content is not None:
        (home / "common.json").write_bytes(content)
    done = catalog.scan(tmp_path / "job")
    assert done.adopted == ()
    assert {reason in each.reason for each in done.uncertain} == {True}


def test_in_pynative_mode_another_number_is_the_step(catalog: Catalog, tmp_path: Path) -> None:
    """There `step_num` is how many steps there will be, or the step in the epoch; and updates may have been skipped."""
    parts_bytes.save(tmp_path / "job", 40, common={"step_num": 1000, "global_step": 40})
    parts_bytes.save(tmp_path / "lagging", 38).rename(tmp_path / "job" / "iteration_00000060")
    (tmp_path / "job" / "iteration_00000060" / "common.json").write_text('{"step_num": 60, "global_step": 38}')
    done = catalog.scan(tmp_path / "job")
    assert {(file.global_step, file.optimizer_step) for file in done.adopted if "-opt-" in file.path} == {
        (40, 40),
        (60, 38),
    }


def test_a_save_that_is_not_whole_is_told(catalog: Catalog, root: Path) -> None:
    parts_bytes.save(root, 20)
    home = parts_bytes.save(root, 40)
    (home / "net-model-0000001-0000002.safetensors").unlink()
    for _ in range(2):
        (warning,) = catalog.scan(root).warnings
        assert "net-model-0000001-0000002.safetensors is not there" in warning
    assert {file.global_step for file in catalog.files("job")} == {20, 40}


def test_a_cut_file_is_not_taken_and_its_save_is_not_whole(catalog: Catalog, tmp_path: Path) -> None:
    home = parts_bytes.save(tmp_path / "job", 40)
    cut = home / "net-model-0000001-0000002.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    done = catalog.scan(tmp_path / "job")
    assert [Path(each.path) for each in done.skipped] == [cut]
    assert [f"{cut.name} is not there or cannot be read" in warning for warning in done.warnings] == [True]
    assert len(done.adopted) == 3


def test_files_without_a_prefix_and_of_less_redundancy(catalog: Catalog, root: Path) -> None:
    """`remove_redundancy`: fewer files than ranks, and not as many of the optimizer as of weights."""
    home = parts_bytes.save(root, 40, count=3, prefix="")
    for index in range(3):
        (home / f"opt-{index:07d}-0000003.safetensors").unlink()
    (home / "opt-0000000-0000001.safetensors").write_bytes(parts_bytes.safetensors({"global_step": 40}))
    done = catalog.scan(root)
    assert (len(done.adopted), done.warnings, done.world_size) == (4, (), 3)


def test_a_state_that_mindformers_found_bad(catalog: Catalog, tmp_path: Path) -> None:
    parts_bytes.save(tmp_path / "job", 40, common={"ckpt_status": 1})
    catalog.scan(tmp_path / "job")
    rules = [reason.rule for reason in catalog.resolve("job").rejections[0].reasons]
    assert rules == [Rule.FOREIGN_FORMAT, *[Rule.QUARANTINED] * 4]


def test_other_saves_of_the_run_go_on_as_if_they_were_not_there(catalog: Catalog, root: Path) -> None:
    """MindFormers 2.0 keeps few iterations: the oldest that is left says nothing of where the history went back to."""
    for step in (3, 6, 9):
        path = ckpt_bytes.write(root / "rank_0" / f"net-{(step - 1) // 5 + 1}_{(step - 1) % 5 + 1}.ckpt", step)
        os.utime(path, ns=(step * 10**9, step * 10**9))
    parts_bytes.save(root / "checkpoint", 8)
    parts_bytes.save(root / "checkpoint", 12)
    catalog.scan(root, world_size=1)
    resolution = catalog.resolve("job")
    assert resolution.plan.global_step == 9
    assert [(each.global_step, each.reasons[0].rule) for each in resolution.rejections] == [(12, Rule.FOREIGN_FORMAT)]
    assert catalog.runs()[0].newest_restorable.tally.global_step == 9
    stated = catalog.resolve("job", replicas="dp").plan  # of one rank, as the run's own launch
    assert stated.launch.layout.any_world_size


def test_a_save_under_way_is_taken_when_it_is_done(catalog: Catalog, root: Path, tmp_path: Path) -> None:
    parts_bytes.save(root, 20)
    home = parts_bytes.save(root, 40)
    later = home / "net-opt-0000001-0000002.safetensors"
    later.rename(tmp_path / "later")
    catalog.scan(root)
    (tmp_path / "later").rename(later)
    done = catalog.scan(root)
    assert [Path(file.path) for file in done.adopted] == [later]
    assert len({file.launch for file in catalog.files("job")}) == 1
    assert done.warnings == ()


def test_what_is_gone_is_marked_and_a_part_out_of_place_is_left(catalog: Catalog, root: Path) -> None:
    home = parts_bytes.save(root, 20)
    parts_bytes.save(root, 40)
    catalog.scan(root)
    for path in home.iterdir():
        path.unlink()  # MindFormers keeps the newest five
    astray = root / "iteration_00000040" / "old" / "net-model-0000000-0000001.safetensors"
    astray.parent.mkdir()
    astray.write_bytes(parts_bytes.safetensors({"weight": 1}))
    done = catalog.scan(root)
    assert len(done.missing) == 4
    assert [(Path(each.path), each.reason) for each in done.skipped] == [
        (astray, "it is in no directory of an iteration of MindFormers")
    ]
    details = [each.reasons[0].detail for each in catalog.resolve("job").rejections]
    assert "of which those of 2 of 2 are not there" in details[1]
