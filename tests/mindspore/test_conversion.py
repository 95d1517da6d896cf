"""The calls that are named exist in MindSpore, and take what is filled in."""

import ast
import inspect
from dataclasses import replace
from typing import Any

import mindspore
import pytest

from ckptstore.core.model import Content
from ckptstore.resume.remedies import how_to_convert
from tests.resume.builders import file, launch, state

OF = launch(world_size=2)


@pytest.mark.parametrize("format_name", ["ckpt", "safetensors"])
@pytest.mark.parametrize("strategies", [(), ("/s.ckpt", "/s.ckpt"), ("/s/0.ckpt", "/s/1.ckpt")])
@pytest.mark.parametrize("content", [Content.FULL, Content.SHARE])
def test_every_call_fits_its_signature(format_name: str, strategies: tuple[str, ...], content: Content) -> None:
    files = (
        replace(
            file(OF, rank),
            path=f"/d/rank_{rank}/net-2_5.{format_name}",
            format=format_name,
            content=content,
            strategy_file=strategies[rank] if strategies else None,
        )
        for rank in range(2)
    )
    text = how_to_convert(state(OF, *files))
    calls = [
        text[text.index(name) :] for name in ("mindspore.merge", "mindspore.unified", "mindspore.trans") if name in text
    ]
    assert bool(calls) == (format_name == "safetensors" or content is Content.FULL)
    for call in calls:
        parsed: Any = ast.parse(call[: call.index(")") + 1], mode="eval").body
        arguments = [object() for _ in parsed.args], {keyword.arg: object() for keyword in parsed.keywords}
        inspect.signature(getattr(mindspore, parsed.func.attr)).bind(*arguments[0], **arguments[1])
