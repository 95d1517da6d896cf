"""How a state is named in one word."""

import pytest

from ckptstore.core.reference import Best, Reference, readings, tells_state
from ckptstore.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("digits", [Reference("digits")]),
        ("digits@1200", [Reference("digits@1200"), Reference("digits", step=1200)]),
        ("digits@final", [Reference("digits@final"), Reference("digits", tag="final")]),
        ("digits@best", [Reference("digits@best"), Reference("digits", tag="best", best=Best("loss", "min"))]),
        (
            "digits@best:val_loss",
            [Reference("digits@best:val_loss"), Reference("digits", best=Best("val_loss", "min"))],
        ),
        ("digits@best:acc:max", [Reference("digits@best:acc:max"), Reference("digits", best=Best("acc", "max"))]),
        ("digits@best:top:5:min", [Reference("digits@best:top:5:min"), Reference("digits", best=Best("top:5", "min"))]),
        ("a/b", [Reference("a/b"), Reference("a", "b")]),
        ("a/b@7", [Reference("a/b@7"), Reference("a/b", step=7), Reference("a", "b", step=7)]),
        ("me@host@7", [Reference("me@host@7"), Reference("me@host", step=7)]),
    ],
)
def test_what_a_text_may_mean(text: str, expected: list[Reference]) -> None:
    assert list(readings(text)) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"digits@{'9' * 5_000}", "not a whole number from 0 to"),
        ("digits@\udcff", "names no state; write a step, a tag or best behind the @, as digits@1200"),
        ("digits@a\0", "names no state; "),
        ("digits@", "names no state; write a step, a tag or best behind the @, as digits@1200"),
        ("digits@best:", "names no metric; write the metric behind best:, as digits@best:loss"),
        ("digits@best:acc", "does not say which is better; write digits@best:acc:max, or digits@best:acc:min"),
        ("digits@99999999999999999999", "9223372036854775807"),
    ],
)
def test_what_cannot_be_read(text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        list(readings(text))


def test_a_tag_that_could_not_be_referred_to() -> None:
    names = ("12", "best:loss", "a@b", "best", "bester", "v1", "١")
    assert [tells_state(name) for name in names] == [True, True, True, False, False, False, False]
