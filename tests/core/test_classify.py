"""Every row of mindspore.md §2, classified by its path."""

from typing import Any

import pytest

from ckptstore.core.classify import What, bare_rank, classify, prefixes
from ckptstore.core.model import Kind

PERIODIC, GASP = (What.CHECKPOINT, Kind.PERIODIC), (What.CHECKPOINT, Kind.DYING_GASP)
EXIT, TTP = (What.CHECKPOINT, Kind.GRACEFUL_EXIT), (What.CHECKPOINT, Kind.TTP)


@pytest.mark.parametrize(
    ("path", "expected", "more"),
    [
        ("rank_3/net-2_5.ckpt", PERIODIC, {"rank": 3, "family": "rank_R/net", "epoch": 2, "step_in_epoch": 5}),
        ("rank_10/a-b_2-c-2_5.safetensors", PERIODIC, {"rank": 10, "format": "safetensors"}),
        ("net-10_1.ckpt", PERIODIC, {"rank": None, "epoch": 10, "family": "/net"}),
        ("rank_0/net-2_8_breakpoint.ckpt", GASP, {"rank": 0, "epoch": 2, "step_in_epoch": 8}),
        ("exits/0/rank_0/LeNet_train.ckpt", EXIT, {"rank": 0, "named_step": None, "family": "exits/0/rank_R/LeNet"}),
        ("rank_0/LeNet_train-step_18.ckpt", EXIT, {"named_step": 18, "family": "rank_R/LeNet"}),
        ("rank_0/LeNet_eval.ckpt", (What.WEIGHTS, Kind.GRACEFUL_EXIT), {}),
        ("rank_0/LeNet_train.mindir", (What.COMPANION, None), {}),
        ("rank_0/net_1-graph.meta", (What.COMPANION, None), {}),
        ("ttp/ttp_saved_checkpoints-step_37/rank_2/ttp_rank_2-2_9.ckpt", TTP, {"rank": 2, "named_step": 37}),
        ("tft_saved_checkpoints-step_37_tmp/rank_2/ttp_rank_2-2_9.ckpt", TTP, {"named_step": 37, "epoch": 2}),
        ("ttp_saved_checkpoints-2_9/rank_2/iteration-2_9.ckpt", TTP, {"named_step": None, "step_in_epoch": 9}),
        (
            "checkpoint/rank_12/llama_rank_12_3-4_20.safetensors",
            PERIODIC,
            {"rank": 12, "relaunch": 3, "family": "checkpoint/rank_R/llama_rank_R"},
        ),
        ("checkpoint/rank_1/llama_rank_1-4_20.ckpt", PERIODIC, {"rank": 1, "relaunch": 0}),
        ("checkpoint_network/rank_1/llama_rank_1-network-4_20.ckpt", (What.WEIGHTS, Kind.PERIODIC), {"rank": 1}),
        ("checkpoint_trainable/rank_1/l_rank_1-trainable_params-4_20.ckpt", (What.WEIGHTS, Kind.PERIODIC), {}),
        (
            "iteration_00000040/net-opt-0000001-0000002.safetensors",
            (What.PART, Kind.PERIODIC),
            {"named_step": 40, "format": "safetensors", "rank": 1},
        ),
        ("iteration_00000040/model-0000000-0000001.safetensors", (What.PART, Kind.PERIODIC), {"rank": 0}),
        ("iteration_00000040/common.json", (What.COMPANION, None), {}),
        ("latest_checkpointed_iteration.txt", (What.COMPANION, None), {}),
        ("checkpoint/rank_0/meta.json", (What.COMPANION, None), {}),
        ("rank_0/model_best.pth.tar", (What.OPAQUE, None), {"rank": 0, "format": "pytorch"}),
        ("rank0/model_best.pth.tar", (What.OPAQUE, None), {"rank": None}),
        ("ckpt7.index", (What.OPAQUE, None), {"rank": 7, "format": "tensorflow"}),
        ("global_step_40/__0_0.safetensors", (What.OPAQUE, None), {"rank": None, "format": "directory"}),
        ("rank_1/global_step_40/.metadata", (What.OPAQUE, None), {"rank": 1, "format": "directory"}),
        ("__0_0.safetensors", (What.STRANGER, None), {}),
        ("ckpt7.data-00000-of-00001", (What.OPAQUE, None), {"rank": 7}),
        ("strategy/src_strategy_3.ckpt", (What.STRATEGY, None), {}),
        ("ckpt_strategy_rank_3.ckpt", (What.STRATEGY, None), {}),
        ("strategy.ckpt", (What.STRATEGY, None), {}),
        ("strategy_3.json", (What.STRATEGY, None), {}),
        ("rank_0/net-2_5.tmp", (What.DEBRIS, None), {"rank": 0}),
        ("README.md", (What.STRANGER, None), {}),
        ("rank_0/net-1_٥.ckpt", (What.STRANGER, None), {}),
    ],
)
def test_every_row_of_the_table(path: str, expected: tuple[What, Kind | None], more: dict[str, Any]) -> None:
    named = classify(path.split("/"))
    assert (named.what, named.kind) == expected
    assert {name: getattr(named, name) for name in more} == more


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [
        (["net-1_5.ckpt"], ("/net", 1)),  # an earlier launch's file
        (["net-graph.meta"], ("/net", 1)),  # its files are gone, what MindSpore never prunes is there
        (["net_2-1_5.ckpt"], ("/net", 1)),  # a later launch's
        (["net_1-1_9.ckpt", "other-1_5.ckpt"], ("/net_1", 0)),  # a prefix of the user's own
        ([], ("/net_1", 0)),
    ],
)
def test_the_number_of_a_relaunch_and_a_prefix_that_ends_in_one(siblings: list[str], expected: tuple[str, int]) -> None:
    named = classify(["net_1-1_5.ckpt"], prefixes(["net_1-1_5.ckpt", *siblings]))
    assert (named.family, named.relaunch) == expected


def test_directories_of_ranks_without_an_underscore() -> None:
    assert bare_rank(["a", "rank3", "b"], "pytorch") == 3
    assert bare_rank(["rank3", "rank10"], "pytorch") == 10
    assert bare_rank(["rank_3", "rank", "ranks3"], "pytorch") is None
    assert bare_rank(["rank3", "ckpt100"], "pytorch") == 3
    assert bare_rank(["rank3", "ckpt1"], "tensorflow") == 1
    assert bare_rank(["ckpt", "ckpt-1", "ckpt1.index"], "tensorflow") is None
