"""Jobs that choose their own names: whatever is left of several starts, no state has files of two of them."""

from collections import Counter, defaultdict

import pytest

from ckptstore.evidence.reconstruct import Reconstruction, reconstruct
from tests.scan.simulated_names import PLACES, OwnNames


def mixed(job: OwnNames, history: Reconstruction) -> list[tuple[str, int]]:
    """The states with files of several ranks that are of several starts."""
    starts: dict[tuple[str, int], set[int]] = defaultdict(set)
    ranks: dict[tuple[str, int], set[int]] = defaultdict(set)
    for launch in history.launches:
        for file in launch.files:
            written = job.disk[file.file.path]
            assert (file.rank, file.global_step) == (written.rank, written.step)
            starts[launch.key, file.global_step].add(written.start)
            ranks[launch.key, file.global_step].add(written.rank)
    return [state for state, of in starts.items() if len(of) > 1 and len(ranks[state]) > 1]


@pytest.mark.parametrize("histories", [600, pytest.param(3000, marks=pytest.mark.long)])
def test_no_state_has_files_of_two_starts(histories: int) -> None:
    whole = Counter[str]()
    for seed in range(histories):
        job = OwnNames(seed)
        history = reconstruct(job.found(), world_size=job.ranks)
        assert not mixed(job, history), (seed, job.place, mixed(job, history))
        for launch in history.launches:
            ranks = Counter(step for step, _ in {(file.global_step, file.rank) for file in launch.files})
            whole[job.place] += sum(count == job.ranks for count in ranks.values())
    assert sum(whole.values()) > histories, whole
    assert whole["one directory"] > histories // len(PLACES), whole
