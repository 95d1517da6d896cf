"""How many histories of plain MindSpore a scan understands, by their kind, as a table.

python -m tests.scan.report [--histories N] [--write]: into docs/explanation/grades.md
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckptstore.evidence.reconstruct import NOTHING_STATED, Stated, reconstruct
from ckptstore.evidence.unregistered import Trusted
from tests.scan.judged import NOTHING, OLDER, REFUSED, RIGHT, Judged, judge
from tests.scan.plain_histories import KINDS, Kind, draw, with_some

HISTORIES = 25_000
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "grades.md"
BEGIN, END = "<!-- simulated histories: begin -->\n", "<!-- simulated histories: end -->\n"
APART = ((0.25, NOTHING_STATED), (0.5, NOTHING_STATED), (0.5, Stated(trusted=frozenset({Trusted.NUMBERS}))))
HEADER = (
    "kind of history",
    "histories",
    "newest state",
    "ranks a quarter of the interval apart",
    "half",
    "half, `--trust numbers`",
    "an older one, the newer named",
    "refused",
    "wrong",
)


@dataclass
class Tally:
    """What became of histories of one kind; `failed` says of which seeds something is wrong."""

    name: str
    judged: list[Judged] = field(default_factory=list)
    apart: tuple[list[Judged], ...] = field(default_factory=lambda: tuple([] for _ in APART))
    failed: list[str] = field(default_factory=list)

    def row(self) -> str:
        """Its row of the table."""
        right, older, refused = (_share(self.judged, each) for each in (RIGHT, OLDER, REFUSED))
        whole = sum(each.newest != NOTHING for each in self.judged)
        apart = (_share(each, RIGHT) for each in self.apart)
        return _row(self.name, f"{whole:,}", right, *apart, older, refused, str(len(self.failed)))


def _share(judged: Sequence[Judged], newest: str) -> str:
    whole = [each.newest for each in judged if each.newest != NOTHING]
    return f"{100 * whole.count(newest) / max(len(whole), 1):.1f} %"


def tallies(histories: int) -> list[Tally]:
    """As many histories of each kind, each once as it is and once with a part of its files.

    The second is only to find what is wrong: it is not among those that are counted. What is hidden by nature nothing
    could tell of a part.
    """
    return [_tally(name, kind, range(histories // len(KINDS))) for name, kind in KINDS.items()]


def _tally(name: str, kind: Kind, seeds: range) -> Tally:
    tally = Tally(name)
    for seed in seeds:
        for (spread, said), judged in zip(((0.0, NOTHING_STATED), *APART), (tally.judged, *tally.apart), strict=True):
            whole = draw(kind, seed, spread)
            for history in (whole,) if kind.is_hidden or said.trusted else (whole, with_some(whole, seed)):
                found = judge(history, reconstruct(history.found, world_size=history.world_size, stated=said))
                told = [*found.wrong, *([found.silent] if found.silent else [])]
                if told and not said.trusted:  # where a rank missed a launch, the user's word is wrong
                    part = "" if history is whole else ", a part"
                    tally.failed.append(f"{name}, seed {seed}, spread {spread}{part}: {told[0]}")
                if history is whole:
                    judged.append(found)
    return tally


def ordinary(found: list[Tally]) -> Tally:
    """Those of the kinds that hold nothing but launches as they should be."""
    those = [each for each in found if KINDS[each.name].is_ordinary]
    return Tally(
        "**ordinary launches, all of the above**",
        [judged for each in those for judged in each.judged],
        tuple([judged for each in those for judged in each.apart[place]] for place in range(len(APART))),
        [told for each in those for told in each.failed],
    )


def table(found: list[Tally]) -> Iterator[str]:
    """The lines of the table: ordinary launches first, and their sum."""
    those = [each for each in found if KINDS[each.name].is_ordinary]
    others = [each for each in found if not KINDS[each.name].is_ordinary]
    yield _row(*HEADER)
    yield _row("---", *["---:"] * (len(HEADER) - 1))
    yield from (each.row() for each in (*those, ordinary(found), *others))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table, or write it into the page, and print what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=HISTORIES)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    found = tallies(asked.histories)
    if asked.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{chr(10).join(table(found))}\n{END}{rest.partition(END)[2]}")
    else:
        print(*table(found), sep="\n")
    failed = [told for each in found for told in each.failed]
    print(*failed, sep="\n", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
