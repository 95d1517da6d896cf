"""What converts, filled in; that it gives the right values is shown in tests/mindspore/test_conversion.py."""

import re
from dataclasses import replace

import pytest

from ckptstore.core.model import Checkpoint, Content, State
from ckptstore.core.replicas import data_parallel
from ckptstore.resume.remedies import how_to_convert
from tests.resume.builders import file, launch, state

OF = launch(world_size=2)


def saved(*paths: str, strategies: tuple[str | None, ...] = (), content: Content = Content.FULL) -> State:
    def one(rank: int, path: str) -> Checkpoint:
        return replace(
            file(OF, rank),
            path=path,
            format=path.rpartition(".")[2],
            strategy_file=strategies[rank] if strategies else None,
            content=content,
        )

    return state(OF, *(one(rank, path) for rank, path in enumerate(paths)))


@pytest.mark.parametrize(
    ("files", "call"),
    [
        (
            saved("/d/rank_0/n-2_5.ckpt", "/d/rank_1/n-2_5.ckpt", strategies=("/s.ckpt", "/s.ckpt")),
            (
                "convert it: for N in range(NEW_RANKS): mindspore.transform_checkpoint_by_rank(N, "
                "{R: f'/d/rank_{R}/n-2_5.ckpt' for R in "
                "mindspore.rank_list_for_transform(N, '/s.ckpt', DST_STRATEGY)}, "
                "f'{DST_DIR}/converted_rank_{N}-1_15.ckpt', '/s.ckpt', DST_STRATEGY), "
                "then ckptstore scan DST_DIR --run NEW_RUN --world-size NEW_RANKS"
            ),
        ),
        (
            saved("/d/rank_0/a.ckpt", "/d/rank_1/a.ckpt", strategies=("/s/0.ckpt", "/s/1.ckpt")),
            (
                "mindspore.merge_pipeline_strategys('/s', SRC_STRATEGY), then for N in range(NEW_RANKS): "
                "mindspore.transform_checkpoint_by_rank(N, {R: f'/d/rank_{R}/a.ckpt' for R in "
                "mindspore.rank_list_for_transform(N, SRC_STRATEGY, DST_STRATEGY)}, "
            ),
        ),
        (
            saved("/d/rank_0/a.ckpt", "/d/rank_1/a.ckpt", strategies=("/s/0.ckpt", "/t/1.ckpt")),
            "mindspore.merge_pipeline_strategys(STRATEGY_DIR, SRC_STRATEGY), then for N",
        ),
        (saved("/d/0/a.ckpt", "/d/1/a.ckpt"), "{R: {0: '/d/0/a.ckpt', 1: '/d/1/a.ckpt'}[R] for R in mindspore.rank_"),
        (saved("/d/rank_0/a{}.ckpt", "/d/rank_1/a{}.ckpt"), "{R: {0: '/d/rank_0/a{}.ckpt', 1: '/d/rank_1/a{}.ckpt'}["),
        (
            saved("/d/rank_0/n_rank_0-2_5.safetensors", "/d/rank_1/n_rank_1-2_5.safetensors"),
            (
                "convert it: for R in range(2): mindspore.save_checkpoint(mindspore.load_checkpoint("
                "f'/d/rank_{R}/n_rank_{R}-2_5.safetensors', format='safetensors'), f'{DST_DIR}/src_rank_{R}.ckpt'), "
                "then for N in range(NEW_RANKS): mindspore.transform_checkpoint_by_rank(N, "
                "{R: f'{DST_DIR}/src_rank_{R}.ckpt' for R in"
            ),
        ),
        (
            saved("/d/rank_0/a.safetensors", "/d/rank_1/b.safetensors", content=Content.SHARE),
            "mindspore.unified_safetensors('/d', SRC_STRATEGY, DST_DIR, merge_with_redundancy=False)",
        ),
        (
            saved("/d/0/a.safetensors", "/d/1/a.safetensors", content=Content.SHARE),
            "convert it: with the files as SRC_DIR/rank_R/*.safetensors, mindspore.unified_safetensors(SRC_DIR,",
        ),
        (
            saved("/d/rank_0/a.ckpt", "/d/rank_1/a.ckpt", content=Content.SHARE),
            "start with 2 ranks: MindSpore converts no such files",
        ),
        (saved("/d/rank_0/a.ckpt", "/d/rank_1/a.safetensors"), "2 ranks: MindSpore converts no such files"),
        (saved("/d/rank_0/a.pt", "/d/rank_1/a.pt"), "2 ranks: MindSpore converts no such files"),
        (
            saved("/d/rank_0/n0-1_5.safetensors", "/d/rank_1/n1-1_5.safetensors", content=Content.SHARE),
            (
                "mindspore.unified_safetensors('/d', SRC_STRATEGY, DST_DIR, merge_with_redundancy=False, "
                "file_suffix='-1_5')"
            ),
        ),
        (
            saved("/rank_0/a.safetensors", "/rank_1/b.safetensors", content=Content.SHARE),
            "convert it: mindspore.unified_safetensors('/', SRC_STRATEGY",
        ),
        (
            saved("/d/rank_0/x/a.safetensors", "/d/rank_1/a.safetensors", content=Content.SHARE),
            "mindspore.unified_safetensors(SRC_DIR, SRC_STRATEGY",
        ),
        (
            saved("/d/a.ckpt"),
            "convert it: for N in range(NEW_RANKS): mindspore.transform_checkpoint_by_rank(N, {R: '/d/a",
        ),
    ],
)
def test_the_call(files: State, call: str) -> None:
    assert call in how_to_convert(files)


def test_many_files_without_a_pattern_are_not_all_named() -> None:
    of = launch(world_size=5)
    files = [replace(file(of, rank), path=f"/{rank}/a.ckpt") for rank in range(5)]
    assert "{R: FILES[R] for R in" in how_to_convert(state(of, *files))
    assert "{R: {0: '/0/a.ckpt', 1: '/1/a.ckpt', 2: '/2/a.ckpt', 3:" in how_to_convert(state(of, *files[:4]))


def test_what_every_rank_had_whole_has_no_strategy() -> None:
    of = launch(world_size=2, layout=data_parallel(2))
    whole = how_to_convert(state(of, file(of, 0), file(of, 1)))
    assert whole.startswith("start with 2 ranks, or convert it: for N in range(NEW_RANKS): ")
    assert ".ckpt', None, DST_STRATEGY)" in whole
    share = replace(file(of, 0), content=Content.SHARE, format="safetensors")
    assert "MindSpore converts no such files" in how_to_convert(state(of, share))
    assert "MindSpore converts no such files" in how_to_convert(state(of, share, file(of, 1)))
    assert ".ckpt', None, DST_STRATEGY)" in how_to_convert(state(launch(world_size=1), file(launch(world_size=1), 0)))


def test_shares_beside_whole_files_are_never_converted_as_if_they_were_whole() -> None:
    share = replace(file(OF, 0), content=Content.SHARE)
    assert how_to_convert(state(OF, share, file(OF, 1))) == "start with 2 ranks: MindSpore converts no such files"


def test_of_several_files_of_a_rank_the_first_by_path_is_converted() -> None:
    files = [replace(file(OF, rank), path=f"/{name}/rank_{rank}/x.ckpt") for rank in (0, 1) for name in "bac"]
    for each in (files, files[::-1]):
        assert "{R: f'/a/rank_{R}/x.ckpt' for R in" in how_to_convert(state(OF, *each))


def test_no_pattern_is_compiled_for_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with other ranks rejects each save of a long history with this remedy."""
    compiled = []
    once = re._compiler.compile
    re.purge()
    monkeypatch.setattr(re._compiler, "compile", lambda *about: (compiled.append(about), once(*about))[1])
    of = launch(world_size=40)
    files = [replace(file(of, rank), path=f"/never/rank_{rank}/x.ckpt") for rank in range(40)]
    assert "{R: f'/never/rank_{R}/x.ckpt' for R" in how_to_convert(state(of, *files))
    assert len(compiled) < 40
