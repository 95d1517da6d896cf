"""What messages advise is a value, and each that a test has a message made with is checked (`tests.hints`)."""

import ast
import re
from collections.abc import Callable

import pytest

from ckptstore.cli.main import cli
from ckptstore.core.hints import Call, Command
from tests import hints


def test_they_are_shown_as_they_are_to_be_given() -> None:
    assert str(Command("gc", "my run", "--keep-last", 2)) == "ckptstore gc 'my run' --keep-last 2"
    assert str(Call("resume", "model", step=40, lineage="L")) == "resume(model, step=40, lineage='L')"


@pytest.mark.parametrize(
    "arguments",
    [["remove", "run"], ["db"], ["gc", "run", "--keep", 2], ["undo", "run", "more"], ["resolve", "--step", "x"]],
)
def test_a_command_that_cannot_be_given_is_noticed(arguments: list[str]) -> None:
    Command(*arguments)
    with pytest.raises(AssertionError, match=arguments[0]):
        hints.check_made()


@pytest.mark.parametrize("call", [lambda: Call("resume", steps=40), lambda: Call("launch.go_on")])
def test_a_call_that_cannot_be_made_is_noticed(call: Callable[[], Call]) -> None:
    call()
    with pytest.raises(AssertionError, match="re"):
        hints.check_made()


def test_no_message_names_a_command_by_hand() -> None:
    named = re.compile(rf"ckptstore ({'|'.join(cli.commands)}|--db)(?![\w-])")
    for path in hints.SOURCES.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {id(each.value) for each in nodes if isinstance(each, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                assert not named.search(node.value), f"{path.name}: {node.value}"
