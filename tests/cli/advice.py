"""The commands that messages print, to be run as they stand."""

import re
import shlex

import click
from click.testing import CliRunner

from ckptstore.cli import main
from ckptstore.cli.main import cli
from ckptstore.errors import CkptstoreError
from tests.command_line import Result

_AFTER = " and brings deletes finds for frees has says shows takes where which while "
"""How a sentence goes on after a command."""


def commands_in(message: str) -> list[list[str]]:
    """The arguments of each command that a message names; what is said of ckptstore itself looks like one too."""
    found = []
    for said in (
        said for line in message.splitlines() for said in re.split(r"(?<![\w./-])ckptstore (?=[\w-])", line)[1:]
    ):
        words: list[str] = []
        for word in re.findall(r"(?:'[^']*'|[^\s'])+", said):
            bare = word.rstrip(";,.:)")
            if word == "&&" or f" {bare} " in _AFTER:
                break
            words.append(bare)
            if bare != word:
                break
        if words:
            found.append(shlex.split(" ".join(words)))
    return found


def advised(message: str) -> list[str]:
    """The arguments of the first command that a message names."""
    return next(words for words in commands_in(message) if words[2 * (words[0] == "--db")] in cli.commands)


def run(url: str, *arguments: str) -> Result:
    """What a command prints and ends with, in this process: it costs a tenth of one of its own."""
    done = CliRunner(env={"CKPTSTORE_URL": url}).invoke(
        cli, ["--db", url, *arguments], prog_name="ckptstore", standalone_mode=False
    )
    if isinstance(done.exception, CkptstoreError):
        return Result(done.exception.exit_code, done.stdout, str(done.exception))
    if isinstance(done.exception, click.UsageError):
        return Result(done.exception.exit_code, done.stdout, main.shown(done.exception))
    if done.exception is not None:
        raise done.exception
    return Result(done.return_value or 0, done.stdout, done.stderr)


def follow(url: str, message: str, **places: str) -> Result:
    """Run the first command that a message names; `places` are what it leaves to its reader."""
    return run(url, *(places.get(word, word) for word in advised(message)))
