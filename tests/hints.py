"""Checks each command and each call that a message advises, as it is made: it must be there, and take what is given."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import click

from ckptstore.cli.main import cli
from ckptstore.core.hints import Call, Command

SOURCES = Path(__file__).parents[1] / "ckptstore"
MADE: list[Command | Call] = []
"""Since the last check."""

_HOMES = {"connect": "api.py", "join": "mindspore/launch.py", "load": "mindspore/evaluation.py"}
"""Of functions; the others are methods of a launch."""


def note() -> None:
    """From now on what is made is noted."""
    for kind in (Command, Call):
        kind.__init__ = _noting(kind.__init__)


def _noting(make: Any) -> Any:
    def made(hint: Any, *arguments: Any, **named: Any) -> None:
        make(hint, *arguments, **named)
        MADE.append(hint)

    return made


def check_made() -> None:
    made = {str(hint): hint for hint in MADE}
    MADE.clear()
    for hint in made.values():
        check_command(hint) if isinstance(hint, Command) else check_call(hint)


def check_command(hint: Command) -> None:
    """Click's own parser takes it, with numbers where the reader is to put them."""
    arguments = ["7" if each in ("E", "NEW_RANKS") else each.replace("=STEP", "=7") for each in hint.arguments]
    if arguments[0] == "--db":
        del arguments[:2]
    command: Any = cli
    # Click keeps the help option that it makes first, with the names that the context has.
    parent = click.Context(cli, info_name="ckptstore", **cli.context_settings)
    while isinstance(command, click.Group):
        assert arguments, f"{hint}: of a group"
        assert arguments[0] in command.commands, f"{hint}: there is no such command"
        command = command.commands[arguments.pop(0)]
    try:
        command.make_context(command.name, arguments, parent=parent)
    except click.UsageError as error:
        raise AssertionError(f"{hint}: {error.format_message()}") from error


def check_call(hint: Call) -> None:
    """The function has these parameters; as its source has it, since MindSpore takes seconds to import."""
    name = hint.function.rpartition(".")[2]
    known = _parameters(_HOMES.get(name, "mindspore/launch.py"))
    assert name in known, f"{hint}: there is no such function"
    named = {*hint.named, *(given.partition("=")[0] for given in hint.positional if "=" in given)}
    assert named <= known[name], f"{hint}: it takes {sorted(known[name])}"


@cache
def _parameters(file: str) -> dict[str, set[str]]:
    functions = (
        each for each in ast.walk(ast.parse((SOURCES / file).read_text())) if isinstance(each, ast.FunctionDef)
    )
    return {each.name: {one.arg for one in (*each.args.args, *each.args.kwonlyargs)} for each in functions}
