"""Commands and calls that messages advise, as values: the tests check that each of them works as it is printed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping


class Command:
    """A command line: `Command("undo", "my run")` is shown as `ckptstore undo 'my run'`, quoted for a shell."""

    __slots__ = ("arguments",)

    given: ClassVar[tuple[str, ...]] = ()
    """Options of this command line that an advised command needs too: `--db`, if it names the catalog."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = tuple(map(str, arguments))

    def __str__(self) -> str:
        given = () if self.arguments[:1] == self.given[:1] else self.given
        return shlex.join(("ckptstore", *given, *self.arguments))


class Call:
    """A call in a script: `Call("resume", "model", step=40)` is shown as `resume(model, step=40)`."""

    __slots__ = ("function", "named", "positional")

    def __init__(self, function: str, *positional: str, **named: Any) -> None:
        self.function, self.positional, self.named = function, positional, named

    def __str__(self) -> str:
        given = (*self.positional, *(f"{name}={value!r}" for name, value in self.named.items()))
        return f"{self.function}({', '.join(given)})"


def as_options(settings: Mapping[str, Any] | None) -> list[str]:
    """Settings by name, as a command line takes them: a flag is True, a dict an option to repeat. None: clear them."""
    words: list[str] = [] if settings is not None else ["--clear"]
    for name, value in (settings or {}).items():
        option = f"--{name.replace('_', '-')}"
        values = [f"{key}={each}" for key, each in value.items()] if isinstance(value, dict) else [value]
        words += [word for each in values for word in ([option] if each is True else [option, str(each)])]
    return words
