"""What a rejection says of who is served and what would repair it; and files that a launch could not load."""

from __future__ import annotations

from dataclasses import replace

from ckptstore.core.model import Content, FileState, Observed, Reason, Rejection, RestorePlan, Rule, State
from ckptstore.core.replicas import data_parallel, from_groups
from ckptstore.core.resolver import judge

from .builders import as_recorded, file, launch, state, whole_state


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
    assert rejection.remedies == (f"for rank 1: bring back, as it was recorded, {bad.path}",)
    assert isinstance(judge(alone, as_recorded(whole), take_quarantined=True), RestorePlan)


def test_a_rejection_says_who_is_served_and_what_would_repair_it() -> None:
    of = launch(world_size=5, layout=from_groups([(0, 1), (2, 3)], 5, "stated"))
    newer = state(of, file(of, 1), file(of, 2), file(of, 3), file(of, 4, size=None))
    seen = as_recorded(newer)
    seen[newer.files[1].path] = seen[newer.files[2].path] = Observed(None)
    rejection = rejected(newer, seen)
    assert [(each.rank, each.source.rank) for each in rejection.served] == [(0, 1), (1, 1)]
    lost = f"{newer.files[1].path}, {newer.files[2].path}"
    assert rejection.remedies == (
        f"for ranks 2,3: bring back, as it was recorded, any one of {lost}",
        f"for rank 4: wait until {newer.files[3].path} is written, if its process is alive",
    )
    scan = "was recorded; if one is on disk, ckptstore scan takes it in"
    assert rejected(state(of, file(of, 4)), {}).remedies == (
        f"for ranks 0,1: no file, a replica among 0,1, {scan}",
        f"for ranks 2,3: no file, a replica among 2,3, {scan}",
        f"for rank 4: bring back, as it was recorded, {file(of, 4).path}",
    )


def test_a_file_that_is_there_or_in_the_trash_need_not_be_brought_back() -> None:
    of = launch(world_size=2, layout=data_parallel(2))
    whole = whole_state(of, 15)
    first, second = whole.files
    seen = {first.path: Observed(None, unreadable="Permission denied"), second.path: Observed(None)}
    readable = f"make {first.path} readable: check permissions and the disk"
    assert rejected(whole, seen).remedies == (
        f"for ranks 0,1: {readable}, or bring back, as it was recorded, {second.path}",
    )
    trashed = replace(whole, files=(first, replace(second, state=FileState.TRASHED)))
    undo = f"ckptstore undo run brings back {second.path}, while it is in the trash"
    assert rejected(trashed, seen).remedies == (f"for ranks 0,1: {readable}, or {undo}",)
    shares = [replace(each, content=Content.SHARE) for each in trashed.files]
    assert rejected(state(of, *shares), seen).remedies == (f"for ranks 0,1: {readable}, and {undo}",)
    cut = replace(first, state=FileState.DAMAGED, problem=Rule.UNREADABLE)
    assert rejected(state(launch(world_size=1), cut), {}).remedies == (
        f"for rank 0: bring back, as it was recorded, {first.path}",
    )


def test_lost_shares_are_all_needed() -> None:
    of = launch(world_size=3, layout=data_parallel(3))
    shares = [replace(file(of, rank), content=Content.SHARE) for rank in range(3)]
    lost = f"{shares[1].path}, {shares[2].path}"
    rejection = rejected(state(of, *shares), {shares[0].path: Observed(100)})
    assert rejection.remedies == (f"for ranks 1,2: bring back, as it was recorded, all of {lost}",)


def test_what_is_wrong_with_a_whole_state_has_its_remedy_too() -> None:
    whole = whole_state(launch(world_size=2), 15)
    bad = replace(whole, files=tuple(replace(each, quarantine="the loss was nan") for each in whole.files))
    assert "--take-quarantined" in rejected(bad).remedies[0]
    other = judge(whole, as_recorded(whole), world_size=4)
    assert isinstance(other, Rejection)
    assert other.remedies[0].startswith("start with 2 ranks, or convert it: ")
    assert rejected(replace(whole, global_step=0)).remedies == ()


def of_four_ranks(saved: State, seen: dict[str, Observed]) -> Rejection:
    verdict = judge(saved, seen, world_size=4)
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
    alone = state(whole.launch, whole.files[0])
    assert of_four_ranks(alone, as_recorded(alone)).remedies == ("start with 2 ranks",)
    assert "mindspore.transform_checkpoints(" in of_four_ranks(whole, as_recorded(whole)).remedies[0]
    again = replace(file(whole.launch, 0), path="/ckpt/L1/again/rank_0.ckpt", size=70)
    twice = replace(whole, files=(*whole.files, again))
    assert of_four_ranks(twice, {**as_recorded(whole), again.path: Observed(60)}).remedies == ("start with 2 ranks",)


def test_a_long_list_of_lost_files_is_shortened() -> None:
    rejection = rejected(whole_state(launch(world_size=9, layout=data_parallel(9)), 15), {})
    assert rejection.remedies[0].endswith(" … (9 in all)")
