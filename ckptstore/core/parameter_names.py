"""Tells by their names which parameters of a checkpoint are weights and which the optimizer's, and renames them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ckptstore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def states_of(names: Collection[str]) -> dict[str, tuple[str, str]]:
    """The optimizer's parameters among these, by name: the optimizer's word, and the weight: `moments`, `conv.bias`.

    MindSpore names them `WORD.WEIGHT` (`nn/optim/optimizer.py`). The first part of a name is such a word only if every
    name that begins with it goes on with the name of another parameter: else it may be a part of the network.
    """
    known = set(names)
    by_word: defaultdict[str, list[str]] = defaultdict(list)
    for name in known:
        word, dot, rest = name.partition(".")
        if dot:
            by_word[word].append(rest)
    words = {word for word, of in by_word.items() if known.issuperset(of)}
    return {f"{word}.{weight}": (word, weight) for word in words for weight in by_word[word]}


def renamed(names: Collection[str], rename: Mapping[str, str]) -> dict[str, str]:
    """The parameter names of a file, by the network's names for them.

    `rename` maps prefixes in the file to prefixes in the network. The longest prefix counts. The optimizer's parameters
    are renamed with their weights. Raises `UsageError` for a prefix that no name begins with, and if two names become
    the same.
    """
    states = states_of(names)
    used: set[str] = set()
    found: dict[str, str] = {}
    for name in sorted(names):
        word, weight = states.get(name, ("", name))
        prefix = max((each for each in rename if weight.startswith(each)), key=len, default=None)
        if prefix is not None:
            used.add(prefix)
            weight = rename[prefix] + weight[len(prefix) :]
        new = f"{word}.{weight}" if word else weight
        if new in found:
            raise UsageError(f"both {found[new]} and {name} of the file would be {new}", "give other names in rename")
        found[new] = name
    for prefix in rename:
        if prefix not in used:
            first = ", ".join(sorted(set(names) - states.keys())[:3])
            raise UsageError(f"rename: no parameter of the file begins with {prefix!r}", f"it has {first} …")
    return found
