"""Which parameters of a checkpoint are the optimizer's, by their names: told, or refused."""

import pytest

from ckptstore.errors import RefusedError
from ckptstore.formats.header import Entry
from ckptstore.handover.weights import weights_of

NETWORK = ["conv.weight", "bn.moving_mean", "bn.gamma", "fc.weight", "fc.bias"]
TRAINED = ["conv.weight", "bn.gamma", "fc.weight", "fc.bias"]


def entries(*names: str) -> list[Entry]:
    """Each of one shape, but for those that have a number alone."""
    return [Entry(name, "Float32", (2, 2) if "." in name else (), 0, 16) for name in names]


def of(*prefixes: str, trained: list[str] = TRAINED) -> list[str]:
    return [f"{prefix}.{name}" for prefix in prefixes for name in trained]


@pytest.mark.parametrize(
    "optimizer",
    [
        ["global_step", "learning_rate", "momentum", *of("moments")],
        ["global_step", "learning_rate_group_0", "learning_rate", "momentum", *of("moments")],
        ["global_step", "learning_rate", "momentum", *of("accum", "stat")],
        ["global_step", "learning_rate", *of("accum")],
        ["global_step", "learning_rate", *of("accum", "accum_update")],
        ["global_step", "learning_rate", "beta1_power", "beta2_power", *of("moment1", "moment2")],
        ["global_step", "learning_rate", "beta1_power", "beta2_power", *of("moment1", "moment2", "vhat")],
        ["global_step", "learning_rate", *of("adam_m", "adam_v")],
        ["global_step", "learning_rate", *of("lamb_m", "lamb_v")],
        ["global_step", "learning_rate", *of("mean_square", "moment")],
        ["global_step", "learning_rate", *of("mean_grad", "mean_square", "moment")],
        ["step_t", *of("prev", "step_size")],
        ["state_step", *of("exp_avg", "exp_avg_sq")],
        ["state_step", *of("exp_avg", "exp_avg_sq", "max_exp_avg_sq")],
        ["step_t", *of("exp_avg", "exp_inf")],
        ["step_t", *of("momentum_buf")],
        ["step_t", *of("ax")],
        [
            "global_step",
            "learning_rate",
            "momentum",
            *of("moments", trained=["fc.weight", "fc.bias"]),
        ],
        ["scale_sense", "global_step", "current_iterator_step", "last_overflow_iterator_step", *of("moments")],
    ],
)
def test_what_optimizers_of_mindspore_have(optimizer: list[str]) -> None:
    assert [entry.name for entry in weights_of(entries(*NETWORK, *optimizer), "f")] == NETWORK
    assert {entry.name for entry in weights_of(entries(*sorted(NETWORK + optimizer)), "f")} == set(NETWORK)


def test_a_weight_with_the_name_of_an_optimizers_number() -> None:
    """Before, it was left out."""
    network = [*NETWORK, "momentum"]
    optimizer = ["global_step", "learning_rate", *of("moment1", "moment2", trained=[*TRAINED, "momentum"])]
    of_one_shape = [entry._replace(shape=(2, 2)) for entry in entries(*network, *optimizer)]
    assert [entry.name for entry in weights_of(of_one_shape, "f")] == network


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([], "has no parameters that are known to be an optimizer's"),
        (["global_step", "learning_rate"], "has no parameters that are known to be an optimizer's"),
        (["my_m_0", "my_m_1", "0.moments.fc.weight"], "has no parameters that are known to be an optimizer's"),
        (of("slow"), "it is not certain whether slow.bn.gamma"),
        (of("moments", "slow"), "it is not certain whether"),  # a copy of the weights, or an optimizer's
        (["teacher.fc.weight", *of("moments")], "it is not certain whether"),
        (of("moment1"), "it is not certain whether moment1.bn.gamma"),
        ([*of("adam_m"), *of("adam_v", trained=TRAINED[1:])], "it is not certain whether"),
        (["linear.fc.weight", *of("moments")], "it is not certain whether"),
        (["moments.another.weight", *of("moments")], "it is not certain whether moments.another.weight"),
    ],
)
def test_what_is_not_told_is_refused(others: list[str], why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        weights_of(entries(*NETWORK, *others), "f")
