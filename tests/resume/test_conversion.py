"""The call that converts, filled in; held against MindSpore's own signatures in tests/mindspore/test_conversion.py."""

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
                "with only the files of step 15 as /d/rank_R/*.ckpt, "
                "mindspore.transform_checkpoints('/d', DST_DIR, PREFIX, '/s.ckpt', DST_STRATEGY)"
            ),
        ),
        (
            saved("/d/rank_0/a.ckpt", "/d/rank_1/a.ckpt", strategies=("/s/0.ckpt", "/s/1.ckpt")),
            "mindspore.merge_pipeline_strategys('/s', SRC_STRATEGY), then with only",
        ),
        (
            saved("/d/rank_0/a.ckpt", "/d/rank_1/a.ckpt", strategies=("/s/0.ckpt", "/t/1.ckpt")),
            "mindspore.merge_pipeline_strategys(STRATEGY_DIR, SRC_STRATEGY), then with only",
        ),
        (
            saved("/d/0/a.ckpt", "/d/1/a.ckpt"),
            (
                "with only the files of step 15 as SRC_DIR/rank_R/*.ckpt, "
                "mindspore.transform_checkpoints(SRC_DIR, DST_DIR, PREFIX, SRC_STRATEGY, DST_STRATEGY)"
            ),
        ),
        (
            saved("/d/rank_0/n_rank_0-2_5.safetensors", "/d/rank_1/n_rank_1-2_5.safetensors"),
            "convert it: mindspore.unified_safetensors('/d', SRC_STRATEGY, DST_DIR, file_suffix='-2_5')",
        ),
        (
            saved("/d/rank_0/a.safetensors", "/d/rank_1/b.safetensors", content=Content.SHARE),
            "mindspore.unified_safetensors('/d', SRC_STRATEGY, DST_DIR, merge_with_redundancy=False)",
        ),
        (
            saved("/d/0/a.safetensors", "/d/1/a.safetensors"),
            "convert it: with the files as SRC_DIR/rank_R/*.safetensors, mindspore.unified_safetensors(SRC_DIR,",
        ),
        (
            saved("/d/rank_0/a.ckpt", "/d/rank_1/a.ckpt", content=Content.SHARE),
            "start with 2 ranks: MindSpore converts no such files",
        ),
    ],
)
def test_the_call(files: State, call: str) -> None:
    assert call in how_to_convert(files)


def test_what_every_rank_had_whole_has_no_strategy() -> None:
    of = launch(world_size=2, layout=data_parallel(2))
    assert "PREFIX, None, DST_STRATEGY)" in how_to_convert(state(of, file(of, 0), file(of, 1)))
    assert "PREFIX, None, DST_STRATEGY)" in how_to_convert(state(launch(world_size=1), file(launch(world_size=1), 0)))
