"""The results as text: RESULTS.md, and the table in the README."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.measure import CKPTSTORE, Row, Spread, amount, exponent
from bench.results import Results
from bench.worker import ROOT

NAMES = {
    CKPTSTORE: "ckptstore",
    "orbax": "Orbax",
    "mlflow": "MLflow",
    "ray": "Ray Train",
    "seeds": "hand-written script",
    "sqlite3": "bare sqlite3",
}
BEGIN, END = "<!-- written by make bench -->\n", "<!-- until here -->"
NOT_MEASURED = "Not measured yet: `make bench` writes this.\n"
README = ROOT / "README.md"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; figures to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def times(found: Spread) -> str:
    """A ratio with its spread."""
    spread = "" if found.low == found.high else f" ({number(found.low)}–{number(found.high)})"
    return f"{number(found.median)}×{spread}"


def number(value: float) -> str:
    """Two digits of a ratio, all of a large one."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def cell(row: Row, who: str) -> str:
    """What one contender took, as a ratio to ckptstore; ckptstore's own is its time."""
    note = row.notes.get(who, "")
    if who not in row.seconds:
        return note or "–"
    if who == CKPTSTORE:
        return amount(row.spread(who).median, row.unit)
    return times(row.ratio(who, CKPTSTORE)) + (f", {note}" if note else "")


def registry(found: Results) -> str:
    """Peers by work and number of saves, and how each grows."""
    rows = found.of("registry")
    if not rows:
        return ""
    whos = [who for who in NAMES if any(who in row.seconds for row in rows)]
    body = [[f"{row.what}, {row.size:,} there", *(cell(row, who) for who in whos)] for row in rows]
    kinds = dict.fromkeys(row.what for row in rows)
    growths = []
    for what in kinds:
        of_kind = [row for row in rows if row.what == what]
        growths.append([what, *(growth(of_kind, who) for who in whos)])
    return (
        "## Keeping the saves of a run\n\n"
        "The time of ckptstore, and how many times as long the others take (median, lowest and highest of the turns).\n"
        "`as written`: nothing syncs the file, as MindSpore, Orbax and Ray leave theirs; `synced`: the file is on the\n"
        "disk before it is recorded. What ckptstore, MLflow and sqlite3 record is on the disk in both.\n\n"
        + table(["work", *(NAMES[who] for who in whos)], body)
        + "\nHow the time grows: the b of time ~ saves^b (0: not at all, 1: in step, 2: with the square).\n\n"
        + table(["work", *(NAMES[who] for who in whos)], growths)
        + "\n![seconds over saves](growth.png)\n"
    )


def growth(rows: Sequence[Row], who: str) -> str:
    """The fitted exponent, where there are two sizes at least."""
    known = [row for row in rows if who in row.seconds]
    if len(known) < 2:
        return "–"
    return f"{exponent([row.size for row in known], [row.spread(who).median for row in known]):.2f}"


def budgets(found: Results) -> str:
    """Each budget, and what was measured."""
    rows = [
        [each.name, f"{each.value:.3g} {each.unit}", f"{'≥' if each.at_least else '≤'} {each.limit:g} {each.unit}"]
        for each in found.budgets
    ]
    return table(["what", "measured", "budget"], rows)


def conditions(found: Results) -> str:
    """Where it was measured, and with what."""
    known: Mapping[str, str] = found.versions
    return f"{found.machine}; {', '.join(f'{name} {known[name]}' for name in known)}.\n"


def whole(found: Results) -> str:
    """RESULTS.md."""
    kind = "`make bench-quick`, small sizes" if found.quick else "`make bench`"
    parts = [
        f"# What a catalog costs\n\nWritten by {kind}. Measured on {conditions(found)}",
        f"## Budgets\n\n{budgets(found)}",
        registry(found),
    ]
    return "\n".join(part for part in parts if part)


def readme(found: Results | None) -> str:
    """The README's part: one line a piece of work, the budgets, and where it was measured."""
    if found is None:
        return NOT_MEASURED
    return budgets(found) + f"\nMeasured on {conditions(found)}"


def put_into_readme(found: Results) -> None:
    """Write the README's part anew."""
    text = README.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "the README has lost its marks"
    README.write_text(before + begin + readme(found) + end + after)
