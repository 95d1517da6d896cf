"""The names that MindSpore gives to checkpoint files (mindspore.md §2)."""

import pytest

from ckptstore.core.naming import (
    CheckpointName,
    ExitName,
    TensorflowName,
    TtpDirectory,
    above_save,
    companion_of,
    exit_name,
    format_of,
    is_numbered,
    is_of_shards,
    is_ttp_file,
    lacking_seal,
    parse_exit_name,
    parse_name,
    parse_rank_directory,
    parse_shards,
    parse_tensorflow,
    parse_ttp_directory,
    step_named,
    unfinished_ttp_directory,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lenet-1_5.ckpt", CheckpointName("lenet", 1, 5, is_breakpoint=False, format="ckpt")),
        ("lenet_1-3_9.ckpt", CheckpointName("lenet_1", 3, 9, is_breakpoint=False, format="ckpt")),
        ("lenet-10_1.safetensors", CheckpointName("lenet", 10, 1, is_breakpoint=False, format="safetensors")),
        ("a-b_2-c-2_8_breakpoint.ckpt", CheckpointName("a-b_2-c", 2, 8, is_breakpoint=True, format="ckpt")),
        ("x-1_2-3_4.ckpt", CheckpointName("x-1_2", 3, 4, is_breakpoint=False, format="ckpt")),
        ("lenet-1_0_breakpoint.ckpt", CheckpointName("lenet", 1, 0, is_breakpoint=True, format="ckpt")),
    ],
)
def test_what_model_checkpoint_writes(name: str, expected: CheckpointName) -> None:
    assert parse_name(name) == expected


@pytest.mark.parametrize(
    "name",
    ["lenet-graph.meta", "lenet-1_5.tmp", "LeNet_train.ckpt", "strategy.ckpt", "-1_5.ckpt", "lenet-1_٥.ckpt", ""],
)
def test_what_it_does_not(name: str) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize(
    ("prefix", "base", "expected"),
    [
        ("lenet", "lenet", True),
        ("lenet_3", "lenet", True),
        ("lenet_12", "lenet", True),
        ("lenet_x", "lenet", False),
        ("lenet_3_4", "lenet", False),
        ("lenet2", "lenet", False),
        ("ckpt_1", "ckpt_0", False),
    ],
)
def test_numbered_prefixes(prefix: str, base: str, *, expected: bool) -> None:
    assert is_numbered(prefix, base) is expected


def test_formats() -> None:
    assert [format_of(name) for name in ("a.ckpt", "a.safetensors", "a.pth.tar", "a")] == [
        "ckpt",
        "safetensors",
        "pytorch",
        "unknown",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LeNet_train.ckpt", ExitName("LeNet", None)),
        ("a_train_train.ckpt", ExitName("a_train", None)),
        ("LeNet_train-step_18.ckpt", ExitName("LeNet", 18)),
        ("LeNet_train-step_18_2.ckpt", ExitName("LeNet", 18)),
        ("LeNet_eval.ckpt", None),
        ("LeNet_train.mindir", None),
        ("_train.ckpt", None),
        ("LeNet_train-1_5.ckpt", None),
    ],
)
def test_what_a_graceful_exit_writes(name: str, expected: ExitName | None) -> None:
    assert parse_exit_name(name) == expected
    assert parse_name(name) is None or expected is None


@pytest.mark.parametrize(
    ("again", "name"),
    [((), "LeNet_train-step_18.ckpt"), ((0,), "LeNet_train-step_18.ckpt"), ((3,), "LeNet_train-step_18_3.ckpt")],
)
def test_the_name_that_an_exit_is_kept_under_can_be_read_again(again: tuple[int, ...], name: str) -> None:
    assert exit_name("LeNet", 18, *again) == name
    assert parse_exit_name(name) == ExitName("LeNet", 18)


@pytest.mark.parametrize(("again", "kept"), [(0, "LeNet-kept"), (2, "LeNet-kept_2")])
def test_an_exit_of_an_unknown_step_is_kept_under_a_name_that_says_none(again: int, kept: str) -> None:
    name = exit_name("LeNet", None, again)
    assert parse_exit_name(name) == ExitName(kept, None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ttp_saved_checkpoints-step_1215", TtpDirectory(1215, unfinished=False)),
        ("tft_saved_checkpoints-step_7_tmp", TtpDirectory(7, unfinished=True)),
        ("ttp_saved_checkpoints-2_1215", TtpDirectory(None, unfinished=False)),
        ("ttp_saved_checkpoints-2_1215_tmp", TtpDirectory(None, unfinished=True)),
        ("ttp_saved_checkpoints-step_", None),
        ("my_ttp_saved_checkpoints-step_7", None),
        ("rank_0", None),
    ],
)
def test_what_ttp_names_its_directories(name: str, expected: TtpDirectory | None) -> None:
    assert parse_ttp_directory(name) == expected


def test_what_ttp_names_its_files() -> None:
    assert is_ttp_file("ttp_rank_10-2_1215.ckpt")
    assert is_ttp_file("iteration-2_1215.ckpt")
    assert not is_ttp_file("net-2_1215.ckpt")
    assert not is_ttp_file("ttp_rank_1-2_1215.tmp")


def test_the_rank_of_a_directory_is_a_number() -> None:
    assert [parse_rank_directory(name) for name in ("rank_1", "rank_10", "rank_", "xrank_1")] == [1, 10, None, None]


def test_a_path_under_a_directory_that_was_never_renamed() -> None:
    assert unfinished_ttp_directory("/t/ttp_saved_checkpoints-step_7_tmp/rank_0/a.ckpt").endswith("step_7_tmp")
    assert unfinished_ttp_directory("/t/ttp_saved_checkpoints-step_7/rank_0/a_tmp.ckpt") == ""


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("/d/ttp_saved_checkpoints-step_5/rank_0/ttp_rank_0-1_5.ckpt", "/d"),
        ("/d/tft_saved_checkpoints-step_5_tmp/rank_0/ttp_rank_0-1_5.ckpt", "/d"),
        ("/ttp_saved_checkpoints-step_5/rank_0/x.ckpt", "/"),
        ("/d/my_ttp_saved_checkpoints-step_5/x.ckpt", ""),
        ("/d/rank_0/ttp_saved_checkpoints-step_5", ""),
        ("/d/rank_0/net-1_5.ckpt", ""),
    ],
)
def test_where_directories_of_ttp_are(path: str, above: str) -> None:
    assert above_save(path) == above


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.ckpt-12.index", TensorflowName("model.ckpt-12", 0)),
        ("model.ckpt-12.data-00001-of-00003", TensorflowName("model.ckpt-12", 3)),
        ("a\nb.index", TensorflowName("a\nb", 0)),
        ("model.ckpt-12.meta", None),
        ("model.data-1-of-3", None),
        ("model.data-0000١-of-00003", None),
        (".index", None),
    ],
)
def test_what_tensorflow_names_its_files(name: str, expected: TensorflowName | None) -> None:
    assert parse_tensorflow(name) == expected


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("model.ckpt-12", 12),
        ("a\nb.ckpt-7", 7),
        ("global_step40", 40),
        ("global_step_8", 8),
        ("ckpt-3", None),
        ("model.ckpt-٣", None),
        ("my_global_step40", None),
        ("rank_0", None),
    ],
)
def test_the_step_that_others_name(name: str, step: int | None) -> None:
    assert step_named(name) == step
    assert parse_shards(name) == (step if name.startswith("global") else None)


def test_a_companion_is_beside_its_checkpoint() -> None:
    assert companion_of("/d/net.v2-1_5.ckpt") == "/d/net.v2-1_5.companion"
    assert companion_of("/d.v1/model") == "/d.v1/model.companion", "a script may choose a name without an ending"
    assert companion_of("model") == "model.companion"
    assert companion_of("/d/.hidden") == "/d/.hidden.companion"


@pytest.mark.parametrize(
    ("names", "lacks"),
    [
        (["__0_0.safetensors", "__1_0.safetensors", ".metadata"], ""),
        (["__0_0.distcp"], ".metadata"),
        (["_rank0_.safetensors", "_rank1_.safetensors", ".rank0_metadata", ".rank1_metadata"], ""),
        (["_rank0_.safetensors", "_rank1_.safetensors", ".rank0_metadata"], ".rank1_metadata"),
        (["mp_rank_00_model_states.pt", "optim_states.pt"], ""),
    ],
)
def test_what_is_written_last_into_a_directory_of_shards(names: list[str], lacks: str) -> None:
    assert lacking_seal(names) == lacks
    assert all(map(is_of_shards, names)) is not any(name.endswith(".pt") for name in names)
