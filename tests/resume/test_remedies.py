"""What a rejection says of who is served and what would repair it; and files that a launch could not load."""

from dataclasses import replace

import pytest

from ckptstore.core.model import (
    Checkpoint,
    Content,
    FileState,
    Observed,
    Reason,
    Rejection,
    RestorePlan,
    Rule,
    State,
    Unplaced,
)
from ckptstore.core.replicas import data_parallel, from_groups
from ckptstore.resume import remedies
from ckptstore.resume.resolver import NOT_LINEAGE, Query, judge
from tests.resume.builders import as_recorded, file, launch, state, whole_state


def rejected(newer: State, seen: dict[str, Observed] | None = None) -> Rejection:
    verdict = judge(newer, as_recorded(newer) if seen is None else seen)
    assert isinstance(verdict, Rejection), verdict
    return verdict


def test_a_file_that_a_launch_could_not_load_is_left_out_and_its_replica_stands_in() -> None:
    whole = whole_state(launch(layout=data_parallel(2)), 15)
    bad = whole.files[1]
    failed = replace(whole, failed={bad.id: "it is cut (rank 1 of launch L2)"})
    plan = judge(failed, as_recorded(whole))
    assert isinstance(plan, RestorePlan)
    assert [each.source.rank for each in plan.ranks] == [0, 0]
    alone = replace(failed, launch=launch())
    rejection = rejected(alone)
    detail = f"{bad.path} could not be loaded: it is cut (rank 1 of launch L2)"
    assert rejection.reasons == (Reason(Rule.QUARANTINED, 1, detail),)
    assert rejection.remedies == (f"for rank 1: bring back the original {bad.path} from a backup",)
    assert isinstance(judge(alone, as_recorded(whole), Query(take_quarantined=True)), RestorePlan)


OF = launch(world_size=9)
DENIED, CUT = Reason(Rule.UNREADABLE, None, ""), Reason(Rule.SIZE_MISMATCH, None, "")
GONE, BEGUN = Reason(Rule.MISSING_FILE, None, ""), Reason(Rule.IN_PROGRESS, None, "")
WEIGHTS = Reason(Rule.WEIGHTS_ONLY, None, "")
TRASHED, DAMAGED = {"state": FileState.TRASHED}, {"state": FileState.DAMAGED}
SCAN = "is on a disk, record it: ckptstore scan DIRECTORY"


def faulty(reason: Reason | None, *ranks: int, **known: object) -> list[tuple[Checkpoint, Reason | None]]:
    return [(replace(file(OF, rank), path=f"/{rank}", **known), reason) for rank in ranks]


VERIFY = "ckptstore verify run"
FROM_A_BACKUP = "bring back the original /1 from a backup"


@pytest.mark.parametrize(
    ("missing", "group", "files", "in_shares", "remedy"),
    [
        ([1], [1], [], False, f"if a file of rank 1 {SCAN}"),
        ([0, 1], [0, 1], [], False, f"if a file of ranks 0,1 {SCAN}"),
        ([0, 1], [0, 1], [], True, f"if a file of ranks 0,1 {SCAN}"),
        (
            [1],
            [0, 1],
            faulty(WEIGHTS, 0, 1),
            False,
            f"if a file of rank 1, or of a replica (rank 0), {SCAN}",
        ),
        (
            [1],
            [0, 1],
            faulty(None, 0),
            False,
            f"if a file of rank 1, or of a replica (rank 0), {SCAN}",
        ),
        ([1], [1], faulty(CUT, 1), False, "for rank 1: bring back the original /1 from a backup"),
        ([1], [0, 1], faulty(CUT, 0), False, "for rank 1: bring back the original /0 from a backup"),
        (
            [0, 1],
            [0, 1],
            faulty(CUT, 0, 1),
            False,
            "for ranks 0,1: bring back any one of the originals /0, /1 from a backup",
        ),
        (
            [0, 1],
            [0, 1],
            faulty(CUT, 0, 1),
            True,
            "for ranks 0,1: bring back all of the originals /0, /1 from a backup",
        ),
        ([1], [0, 1], faulty(CUT, 0, 1), True, "for rank 1: bring back the original /1 from a backup"),
        ([1], [1], faulty(DENIED, 1), False, "for rank 1: make /1 readable: check permissions and the disk"),
        ([1], [1], faulty(DENIED, 1, **DAMAGED), False, f"for rank 1: {FROM_A_BACKUP}, then run: {VERIFY}"),
        (
            [0, 1],
            [0, 1],
            [*faulty(DENIED, 0), *faulty(CUT, 1, **DAMAGED)],
            True,
            f", and {FROM_A_BACKUP}, then run: {VERIFY}",
        ),
        ([1], [1], faulty(CUT, 1, **TRASHED), False, "for rank 1: bring back the original /1 from a backup"),
        (
            [1],
            [1],
            faulty(GONE, 1, **TRASHED, run="a run"),
            False,
            "for rank 1: ckptstore undo 'a run' brings back /1, while it is in the trash",
        ),
        (
            [0, 1, 2],
            [0, 1, 2],
            [*faulty(DENIED, 0), *faulty(GONE, 1), *faulty(BEGUN, 2)],
            False,
            f"for ranks 0,1,2: make /0 readable: check permissions and the disk, or {FROM_A_BACKUP}",
        ),
        (
            [0, 1],
            [0, 1],
            [*faulty(DENIED, 0), *faulty(GONE, 1, **TRASHED)],
            True,
            "for ranks 0,1: make /0 readable: check permissions and the disk, and ckptstore undo run brings back /1",
        ),
        ([4], [4], faulty(BEGUN, 4), False, "for rank 4: wait until /4 is written, if its process is alive"),
        (
            [4],
            [4],
            faulty(BEGUN, 0, 1, 2, 3),
            False,
            "for rank 4: wait until /0, /1, /2, /3 is written, if its process",
        ),
        ([4], [4], faulty(GONE, *range(9)), False, "bring back any one of the originals /0, /1, /2, /3 … (9 in all)"),
    ],
)
def test_what_would_give_ranks_a_file(
    missing: list[int], group: list[int], files: list[tuple[Checkpoint, Reason | None]], remedy: str, *, in_shares: bool
) -> None:
    faults = {one.id: reason for one, reason in files if reason is not None}
    found = remedies.of_ranks(missing, group, [one for one, _ in files], faults, in_shares=in_shares)
    assert remedy in found
    assert found.startswith(("for rank", "if a file of rank"))


@pytest.mark.parametrize("rule", [Rule.MISSING_FILE, Rule.SIZE_MISMATCH, Rule.DIGEST_MISMATCH, Rule.QUARANTINED])
def test_what_was_lost_has_to_be_brought_back(rule: Rule) -> None:
    ((one, reason),) = faulty(Reason(rule, 1, ""), 1)
    assert reason is not None
    assert (
        remedies.of_ranks([1], [1], [one], {one.id: reason}, in_shares=False)
        == "for rank 1: bring back the original /1 from a backup"
    )


def test_what_to_do_about_a_whole_state() -> None:
    whole = whole_state(launch(), 15)
    assert remedies.of_state(Reason(Rule.UNTRAINED, None, ""), whole) == ""
    assert remedies.of_state(Reason(Rule.QUARANTINED, None, ""), whole) == (
        "to take it all the same, write resume(take_quarantined=True) in the script; "
        "ckptstore resolve run --take-quarantined shows what a start then loads"
    )
    asked = "to go back to it: ckptstore resolve run/L1@15 --branch, or in a script resume(lineage='L1', step=15)"
    assert remedies.of_state(NOT_LINEAGE, whole) == asked
    assert remedies.of_state(Reason(Rule.OTHER_EPOCHS, None, ""), whole) == (
        "if it is of this data all the same: resume(step=15)"
    )
    of_pytorch = replace(whole, files=(whole.files[0], replace(whole.files[1], format="pytorch")))
    of_another = Reason(Rule.FOREIGN_FORMAT, None, "")
    assert remedies.of_state(of_another, of_pytorch) == (
        "to pass its files to a program that can load them: ckptstore resolve run --step 15 --format paths"
    )
    assert remedies.of_state(of_another, whole) == remedies.of_state(Reason(Rule.UNTRAINED, None, ""), of_pytorch) == ""


def test_a_rejection_says_who_is_served_and_what_would_repair_it() -> None:
    of = launch(world_size=5, layout=from_groups([(0, 1), (2, 3)], 5, "stated"))
    newer = state(of, file(of, 1), file(of, 2), file(of, 3), file(of, 4, size=None))
    seen = as_recorded(newer)
    seen[newer.files[1].path] = seen[newer.files[2].path] = Observed(None)
    rejection = rejected(newer, seen)
    assert [(each.rank, each.source.rank) for each in rejection.served] == [(0, 1), (1, 1)]
    lost = f"{newer.files[1].path}, {newer.files[2].path}"
    assert rejection.remedies == (
        f"for ranks 2,3: bring back any one of the originals {lost} from a backup",
        f"for rank 4: wait until {newer.files[3].path} is written, if its process is alive",
    )
    shares = [replace(file(OF, rank), content=Content.SHARE) for rank in (0, 1)]
    rejection = rejected(state(launch(), *shares), {})
    lost = f"{shares[0].path}, {shares[1].path}"
    assert rejection.remedies == (f"for ranks 0,1: bring back all of the originals {lost} from a backup",)


def test_what_is_wrong_with_a_whole_state_has_its_remedy_too() -> None:
    whole = whole_state(launch(world_size=2), 15)
    bad = replace(whole, files=tuple(replace(each, quarantine="the loss was nan") for each in whole.files))
    assert len(rejected(bad).reasons) == 2
    assert rejected(bad).remedies == (remedies.of_state(rejected(bad).reasons[0], bad),)
    other = judge(whole, as_recorded(whole), Query(world_size=4))
    assert isinstance(other, Rejection)
    assert other.remedies[0].startswith("start with 2 ranks, or convert it: ")
    assert rejected(replace(whole, global_step=0)).remedies == ()


def of_four_ranks(saved: State, seen: dict[str, Observed]) -> Rejection:
    verdict = judge(saved, seen, Query(world_size=4))
    assert isinstance(verdict, Rejection)
    assert verdict.reasons[0].rule is Rule.WORLD_SIZE
    return verdict


def test_no_call_converts_what_is_damaged_or_gone() -> None:
    """Conversion would make weights out of it; the state has to be whole first."""
    whole = whole_state(launch(world_size=2), 15)
    for seen in (None, 60):
        disk = {**as_recorded(whole), whole.files[1].path: Observed(seen)}
        verdict = of_four_ranks(whole, disk)
        as_saved = rejected(whole, disk)
        assert verdict.reasons[1:] == as_saved.reasons
        assert (verdict.remedies, verdict.served) == (as_saved.remedies, as_saved.served)
        assert verdict.was_whole


def test_no_call_converts_where_a_replica_stands_in() -> None:
    """The file that is cut is still where the call looks for it; as many ranks as saved it do without."""
    pair = from_groups([(0, 1)], 2, "stated")
    whole = whole_state(launch(world_size=2, layout=pair), 15)
    cut = {**as_recorded(whole), whole.files[1].path: Observed(60)}
    assert of_four_ranks(whole, cut).remedies == ("start with 2 ranks",)
    weights = replace(whole.files[1], path="/weights", content=Content.WEIGHTS)
    more = state(whole.launch, *whole.files, weights)
    assert "mindspore.transform_checkpoint_by_rank(" in of_four_ranks(more, as_recorded(more)).remedies[0]
    alone = state(whole.launch, whole.files[0])
    assert of_four_ranks(alone, as_recorded(alone)).remedies == ("start with 2 ranks",)
    assert "mindspore.transform_checkpoint_by_rank(" in of_four_ranks(whole, as_recorded(whole)).remedies[0]
    again = replace(file(whole.launch, 0), path="/ckpt/L1/again/rank_0.ckpt", size=70)
    twice = replace(whole, files=(*whole.files, again))
    assert of_four_ranks(twice, {**as_recorded(whole), again.path: Observed(60)}).remedies == ("start with 2 ranks",)


def unplaced(path: str, guess: int | None = None, remedy: str = "--step FILE=STEP") -> Unplaced:
    return Unplaced(path, size=1, mtime_ns=1, best_guess=guess, reason="nothing tells its step", remedy=remedy)


@pytest.mark.parametrize(
    ("path", "scanned"),
    [
        ("/d/a.ckpt", "/d"),
        ("/d/rank_1/a.ckpt", "/d"),
        ("/d/rank1/a.pth", "/d"),
        ("/d/ckpt1/model", "/d"),  # as scripts of TensorFlow name a rank
        ("/d/ckpt1/a.pth", "/d/ckpt1"),  # of PyTorch that may be an epoch
        ("/a.ckpt", "/"),
        ("/rank_1/a.ckpt", "/"),
    ],
)
def test_a_file_is_placed_by_a_scan_of_what_holds_all_ranks(path: str, scanned: str) -> None:
    """It is the directory of the file; if that is of one rank, the one above. A caller may name another one."""
    assert str(remedies.how_to_place("model", unplaced(path))) == (
        f"ckptstore scan {scanned} --run model --step {path}=STEP"
    )
    assert str(remedies.how_to_place("model", unplaced(path, guess=7), directory="/e")) == (
        f"ckptstore scan /e --run model --step {path}=7"
    )


def test_the_steps_of_an_epoch_are_filled_in_where_they_are_known_and_asked_for() -> None:
    by_name = unplaced("/d/a.ckpt", remedy="--trust name --steps-per-epoch E")
    asked = "ckptstore scan /d --run model --trust name --steps-per-epoch"
    assert str(remedies.how_to_place("model", by_name)) == f"{asked} E"
    assert str(remedies.how_to_place("model", by_name, steps_per_epoch=28)) == f"{asked} 28"
    by_counter = unplaced("/d/a.ckpt", remedy="--trust counter")
    placed = "ckptstore scan /d --run model --trust counter"
    assert str(remedies.how_to_place("model", by_counter, steps_per_epoch=28)) == placed


def test_of_newer_files_without_a_step_the_first_is_named_with_its_guess() -> None:
    first, *others = (unplaced(f"/d/{name}.ckpt") for name in "abc")
    what, remedy = remedies.of_unplaced("model", [replace(first, best_guess=7), *others])
    assert what == "3 newer files have no certain step or rank: /d/a.ckpt, perhaps of step 7: nothing tells its step"
    assert remedy == "ckptstore scan /d --run model --step /d/a.ckpt=7 places it"
    what, _ = remedies.of_unplaced("model", [first])
    assert what == "1 newer file has no certain step or rank: /d/a.ckpt: nothing tells its step"
