"""Weights and what optimizers keep of them, told apart by their names, and renamed together."""

import pytest

from ckptstore.core.parameter_names import renamed, states_of
from ckptstore.errors import UsageError

NET = ("backbone.0.weight", "backbone.0.bias", "head.weight", "temperature")
ADAM = ("moment1.backbone.0.weight", "moment1.head.weight", "moment2.head.weight")
NUMBERS = ("global_step", "learning_rate", "beta1_power")


def test_what_an_optimizer_keeps_has_the_name_of_its_weight() -> None:
    assert states_of([*NET, *ADAM, *NUMBERS]) == {
        "moment1.backbone.0.weight": ("moment1", "backbone.0.weight"),
        "moment1.head.weight": ("moment1", "head.weight"),
        "moment2.head.weight": ("moment2", "head.weight"),
    }


def test_a_part_of_the_network_with_such_a_name_is_none() -> None:
    """Not all that begins with `twin` is of a weight that is there."""
    assert states_of(["weight", "twin.weight", "twin.bias"]) == {}


def test_a_weight_takes_what_the_optimizer_keeps_of_it_along() -> None:
    found = renamed([*NET, *ADAM, *NUMBERS], {"backbone.": "encoder.", "backbone.0.b": "b"})
    assert {new: old for new, old in found.items() if new != old} == {
        "encoder.0.weight": "backbone.0.weight",
        "bias": "backbone.0.bias",
        "moment1.encoder.0.weight": "moment1.backbone.0.weight",
    }
    assert renamed(NET[:2], {"": "net."}).keys() == {"net.backbone.0.weight", "net.backbone.0.bias"}
    assert renamed(NET[:3], {"backbone.0.": "", "head.": "head."}).keys() == {"weight", "bias", "head.weight"}


@pytest.mark.parametrize(
    ("rename", "told"),
    [
        (
            {"bakcbone.": "encoder."},
            "rename: no parameter of the file begins with 'bakcbone.'; it has backbone.0.bias, ",
        ),
        ({"moment1.": "moments."}, "rename: no parameter of the file begins with 'moment1.'"),
        ({"backbone.0.": "head."}, "both backbone.0.weight and head.weight of the file would be head.weight"),
    ],
)
def test_a_prefix_that_says_nothing_is_refused(rename: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        renamed([*NET, *ADAM], rename)
