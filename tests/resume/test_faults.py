"""What keeps one file from being loaded, and replicas from standing in for each other: tables."""

from dataclasses import replace
from typing import Any

import pytest

from ckptstore.core.model import Checkpoint, Content, FileState, Grade, Kind, Observed, Reason, Rule
from ckptstore.resume.resolver import fault, unequal_sizes
from tests.resume.builders import file, launch

OF = launch(world_size=12)
DAMAGED = {"state": FileState.DAMAGED}
WEIGHTS = {"content": Content.WEIGHTS}
BEGUN = {"size": None, "digest": None}
DENIED = Observed(None, unreadable="Permission denied")
MENDED = "is damaged: bring back the original from a backup, then run: ckptstore verify run"
TRASHED = "was removed by gc: ckptstore undo run brings it back while it is in the trash"
REWRITTEN = "was written again since it was recorded: scan its directory again"
MOVED = (
    "is gone, and its directory is missing or empty: is it mounted? If it was moved to NEW: "
    "ckptstore scan NEW --run run"
)
OTHER_BYTES = "has other bytes than those recorded"


@pytest.mark.parametrize(
    ("known", "seen", "broken"),
    [
        ({}, Observed(100), None),
        ({}, Observed(100, "digest-3-15", mtime_ns=2), None),
        ({"digest": None}, Observed(100), None),
        ({"state": FileState.MISSING}, Observed(100), None),  # it is there again
        ({"content": Content.SHARE}, Observed(100), None),
        ({"quarantine": "the loss was nan"}, Observed(100), None),  # of the state, not of the file
        ({}, None, (Rule.MISSING_FILE, "is gone")),
        ({}, Observed(None), (Rule.MISSING_FILE, "is gone")),
        ({}, Observed(None, has_directory=False), (Rule.MISSING_FILE, MOVED)),
        ({}, DENIED, (Rule.UNREADABLE, "cannot be looked at: Permission denied")),
        ({}, Observed(99), (Rule.SIZE_MISMATCH, "has 99 bytes, 100 were recorded")),
        ({}, Observed(101, "digest-3-15"), (Rule.SIZE_MISMATCH, "has 101 bytes, 100 were recorded")),
        ({}, Observed(100, "other"), (Rule.DIGEST_MISMATCH, OTHER_BYTES)),
        ({}, Observed(100, "other", mtime_ns=2), (Rule.DIGEST_MISMATCH, OTHER_BYTES)),
        ({"digest": None}, Observed(100, mtime_ns=2), (Rule.DIGEST_MISMATCH, REWRITTEN)),
        (BEGUN, Observed(None), (Rule.IN_PROGRESS, "was never finished")),
        (BEGUN, Observed(50), (Rule.IN_PROGRESS, "is being written")),
        (BEGUN, DENIED, (Rule.UNREADABLE, "cannot be looked at: Permission denied")),
        ({"state": FileState.TRASHED}, Observed(100), (Rule.MISSING_FILE, TRASHED)),
        (DAMAGED, Observed(100), (Rule.QUARANTINED, MENDED)),
        (DAMAGED | {"problem": Rule.DIGEST_MISMATCH}, Observed(None), (Rule.DIGEST_MISMATCH, MENDED)),
        (WEIGHTS | DAMAGED, Observed(100), (Rule.WEIGHTS_ONLY, "holds weights without the optimizer's state")),
    ],
)
def test_a_file(known: dict[str, Any], seen: Observed | None, broken: tuple[Rule, str] | None) -> None:
    one = replace(file(OF, 3), **known)
    expected = broken and Reason(broken[0], 3, f"{one.path} {broken[1]}")
    assert fault(one, seen, {}) == fault(one, seen, {"another": "it is cut"}) == expected
    failed = Reason(Rule.QUARANTINED, 3, f"{one.path} could not be loaded: it is cut")
    assert fault(one, seen, {one.id: "it is cut"}) == failed


def sized(*sizes: int | None, kind: Kind = Kind.PERIODIC, path: str = "a", **more: Any) -> list[Checkpoint]:
    """A file of each rank from 0 on."""
    files = [file(OF, rank, kind=kind, size=size) for rank, size in enumerate(sizes)]
    return [replace(each, path=f"/{path}/{each.rank}/{kind}.ckpt", **more) for each in files]


P, X = Kind.PERIODIC, Kind.GRACEFUL_EXIT
CUT = {"state": FileState.DAMAGED, "problem": Rule.UNREADABLE, "digest": None}
FIRST_EIGHT = ", ".join(f"rank {rank} has {100 + rank} bytes" for rank in range(8))


@pytest.mark.parametrize(
    ("files", "differ"),
    [
        ([], ""),
        (sized(100), ""),
        (sized(100, 100, 100), ""),
        (sized(100, 101), "rank 0 has 100 bytes, rank 1 has 101 bytes"),
        (sized(100, 100, 101), "rank 0 has 100 bytes, rank 1 has 100 bytes, rank 2 has 101 bytes"),
        (sized(100, None, 100), ""),  # one that is being written has no size yet
        (sized(100, 200, content=Content.SHARE), ""),
        (sized(100, 200, content=Content.WEIGHTS), ""),
        (sized(100) + sized(200, kind=Kind.DYING_GASP), ""),
        (sized(100) + sized(None, 200, kind=Kind.DYING_GASP), ""),
        (sized(100, 100) + sized(200, 201, kind=Kind.TTP), "rank 0 has 200 bytes, rank 1 has 201 bytes"),
        (sized(100) + sized(None, 200, format="safetensors"), ""),
        (sized(100, 100) + sized(200, 200, path="b"), ""),  # of two callbacks on each rank
        (sized(300, 100) + sized(100, 300, path="b"), ""),
        (sized(300, 100) + sized(100, path="b"), "rank 0 has 100,300 bytes, rank 1 has 100 bytes"),
        (sized(100, 1124, 500, kind=X), ""),  # the second save of an exit lacks what the first appended
        (sized(100, 1125, kind=X), "rank 0 has 100 bytes, rank 1 has 1125 bytes"),
        (sized(1000, 100, 1900, kind=X), "rank 0 has 1000 bytes, rank 1 has 100 bytes, rank 2 has 1900 bytes"),
        (sized(*range(100, 112)), FIRST_EIGHT),
        (sized(100, 100) + sized(93, path="cut", **CUT), ""),  # before it was recorded: nobody knows its size
        (sized(93, **CUT) + sized(101, 102), "rank 0 has 101 bytes, rank 1 has 102 bytes"),
        (sized(100) + sized(None, 93, **CUT | {"digest": "ab"}), "rank 0 has 100 bytes, rank 1 has 93 bytes"),
        (sized(100) + sized(None, 93, **CUT, grade=Grade.PROVEN), "rank 0 has 100 bytes, rank 1 has 93 bytes"),
        (sized(100) + sized(None, 93, state=FileState.DAMAGED), "rank 0 has 100 bytes, rank 1 has 93 bytes"),
        (sized(100) + sized(None, 93, **CUT | {"problem": None}), "rank 0 has 100 bytes, rank 1 has 93 bytes"),
    ],
)
def test_replicas_of_other_sizes(files: list[Checkpoint], differ: str) -> None:
    assert unequal_sizes(files) == differ


@pytest.mark.parametrize("known", [{}, BEGUN, DAMAGED, {"state": FileState.TRASHED}])
@pytest.mark.parametrize("seen", [None, Observed(99), DENIED])
def test_a_file_that_a_tier_has_can_be_loaded_whatever_became_of_it(known: dict[str, Any], seen: Observed) -> None:
    one = replace(file(OF, 3), **known)
    assert fault(one, seen, {}, {one.id}) is None
    assert fault(one, seen, {one.id: "it is cut"}, {one.id}) == fault(one, seen, {one.id: "it is cut"})
    weights = replace(one, **WEIGHTS)
    assert fault(weights, seen, {}, {weights.id}) == fault(weights, seen, {})


def test_a_lost_file_that_no_tier_has_is_reported_as_such() -> None:
    one = file(OF, 3)
    lost, cut = fault(one, None, {}, {"another"}), fault(one, Observed(99), {}, {"another"})
    assert lost == Reason(Rule.MISSING_FILE, 3, f"{one.path} is gone, and no tier has it")
    assert cut == fault(one, Observed(99), {})
