"""What is checked when a training begins, before MindFormers builds anything."""

from types import SimpleNamespace
from typing import Any

import pytest
from mindformers.tools.register import MindFormerConfig

from ckptstore.errors import UsageError
from ckptstore.mindformers import hooks
from ckptstore.mindformers.hooks import NAME, CkptstoreRegistrar, _watched, _with_wish


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"Run": "my-llm"}, "the unknown key Run"),
        ({"run": "my-llm", "durabel": True}, "the unknown key durabel"),
        ({}, "no run"),
        ({"run": None}, "no run"),
    ],
)
def test_a_misspelt_or_missing_key_is_named_before_anything_is_built(keys: dict[str, Any], wrong: str) -> None:
    trainer = SimpleNamespace(config=MindFormerConfig(callbacks=[{"type": NAME, **keys}]))

    def train(_: Any) -> None:
        pytest.fail("a training was begun")

    with pytest.raises(UsageError, match=f"{NAME} in the YAML has {wrong}; below it, write run: NAME"):
        _with_wish(train)(trainer)


def test_a_script_that_makes_the_callback_itself_is_sent_to_the_yaml() -> None:
    with pytest.raises(UsageError, match="run 'my-llm' has no launch yet; name CkptstoreRegistrar in the callbacks of"):
        CkptstoreRegistrar(run="my-llm")


def test_a_training_without_the_callback_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch of the training before it watched its calls. If that one had nothing left, it refused this one."""
    watched: list[Any] = []
    monkeypatch.setattr(hooks, "_launch", SimpleNamespace(watch_calls=watched.append))
    trainer = SimpleNamespace(config=MindFormerConfig(callbacks=[]))
    _with_wish(lambda _: _watched(SimpleNamespace)())(trainer)
    assert watched == []
