"""Writes the results as text: RESULTS.md, and docs/explanation/figures.md."""

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
PEERS = NAMES.keys() - {CKPTSTORE, "sqlite3"}
TITLES = {
    "record": "One durable record",
    "resolve": "Resolving, with a short and a long history",
    "inspect": "Looking into a file",
    "scan": "Taking in a tree that no catalog knows",
    "verify": "Reading all that was recorded",
    "collect": "Retention",
    "training": "A step of training, with and without the registrar",
    "copying": "A step of training while files are copied to a tier",
    "loop": "A step of a functional loop",
    "save": "A save of a functional loop",
    "resume": "From the start of all ranks to the first step",
    "past": "To the first step beside a long past",
    "restore": "Loading a file into a network",
    "states": "Loading a state to evaluate it, and comparing two",
    "commands": "Process time of commands",
    "serve": "Pages of the server, and records beside it",
}
WHY = {
    "sync nothing": "syncs nothing: after a power failure what it recorded may be gone",
    "looks at names": "reads its list and looks whether the directories are there: it takes a cut file, see below",
    "looks at a row": "asks for one row, and looks at no file: it takes one that is cut or not there, see below",
    "is no catalog": "is no catalog: it looks at one directory, and checks nothing of what it finds, see below",
    "only loads": "loads what it finds: no plan of all ranks, no digest, no place in the dataset",
}
"""The reasons why a peer is quicker."""
REASONS = {
    ("save", "orbax"): WHY["sync nothing"],
    ("save", "ray"): WHY["sync nothing"],
    ("prune", "ray"): WHY["sync nothing"],
    ("list", "ray"): WHY["looks at names"],
    ("newest", "ray"): WHY["looks at names"],
    ("newest", "mlflow"): WHY["looks at a row"],
    ("save", "seeds"): WHY["is no catalog"],
    ("list", "seeds"): WHY["is no catalog"],
    ("newest", "seeds"): WHY["is no catalog"],
    ("prune", "seeds"): WHY["is no catalog"],
    ("resume", "seeds"): WHY["only loads"],
}
BEGIN, END = "<!-- written by make bench -->\n", "<!-- until here -->"
NOT_MEASURED = "Not measured yet: `make bench` writes this.\n"
PAGE = ROOT / "docs" / "explanation" / "figures.md"
SHOWN = 1000


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, with figures aligned to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def times(found: Spread) -> str:
    """A ratio with its spread."""
    spread = "" if found.low == found.high else f" ({number(found.low)}–{number(found.high)})"
    return f"{number(found.median)}×{spread}"


def number(value: float) -> str:
    """A ratio with two digits; a large one with all digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def cell(row: Row, who: str) -> str:
    """The time of a contender as a ratio to ckptstore's; for ckptstore, its time."""
    note = row.notes.get(who, "")
    if who not in row.seconds:
        return note or "–"
    if who == CKPTSTORE:
        return amount(row.spread(who).median, row.unit)
    return times(row.ratio(who, CKPTSTORE)) + (f", {note}" if note else "")


def registry(found: Results) -> str:
    """The times of all contenders by work and number of saves, and how they grow."""
    rows = found.of("registry")
    if not rows:
        return ""
    whos = [who for who in NAMES if any(who in row.seconds or who in row.notes for row in rows)]
    body = [[f"{row.what}, {row.size:,} there", *(cell(row, who) for who in whos)] for row in rows]
    kinds = dict.fromkeys(row.what for row in rows)
    growths = []
    for what in kinds:
        of_kind = [row for row in rows if row.what == what]
        if len(of_kind) > 1:
            growths.append([what, *(growth(of_kind, who) for who in whos)])
    return (
        "## Keeping the saves of a run\n\n"
        "The time of ckptstore, and how many times as long the others take (median, lowest and highest of the turns).\n"
        "`as written`: nothing syncs the file, as MindSpore, Orbax and Ray leave theirs; `synced`: the file is on the\n"
        "disk before it is recorded. What ckptstore, MLflow and sqlite3 record is on the disk in both.\n\n"
        + table(["work", *(NAMES[who] for who in whos)], body)
        + "\nHow the time grows: the b of time ~ saves^b (0: not at all, 1: in step, 2: with the square).\n\n"
        + table(["work", *(NAMES[who] for who in whos)], growths)
        + "".join(f"\n{line}\n" for line in quicker(rows))
        + "\n![seconds over saves](growth.png)\n"
    )


def growth(rows: Sequence[Row], who: str) -> str:
    """The fitted exponent, if there are at least two sizes."""
    known = [row for row in rows if who in row.seconds]
    if len(known) < 2:
        return "–"
    return f"{exponent([row.size for row in known], [row.spread(who).median for row in known]):.2f}"


def quicker(rows: Iterable[Row]) -> list[str]:
    """A sentence for each peer that is quicker than ckptstore in a row, with the reason, or that it is unknown."""
    said: dict[tuple[str, str], str] = {}
    for row in rows:
        kind = row.what.partition(",")[0] if row.task == "registry" else row.task
        for who in row.seconds:
            if who in PEERS and row.ratio(who, CKPTSTORE).median < 1:
                reason = REASONS.get((kind, who), "does so for a reason that nobody has written down yet")
                said.setdefault((who, reason), kind)
                if kind not in said[who, reason].split(", "):
                    said[who, reason] += f", {kind}"
    return [f"{NAMES.get(who, who)} is quicker in {kinds}: it {reason}." for (who, reason), kinds in said.items()]


def floors(found: Results, task: str) -> str:
    """The table of a task, with one line for each comparison of ckptstore with another contender."""
    rows = found.of(task)
    if not rows:
        return ""
    body = []
    for row in rows:
        own = f"{amount(row.spread(CKPTSTORE).median, row.unit)}"
        others = [who for who in row.seconds if who != CKPTSTORE]
        if not others:
            body.append([f"{row.what}: {row.size:,}", own, "", ""])
        for who in others:
            other = f"{NAMES.get(who, who)} {amount(row.spread(who).median, row.unit)}"
            note = row.notes.get(CKPTSTORE, "")
            ratio = times(row.ratio(CKPTSTORE, who)) if all(row.seconds[who]) else ""
            ratio += f", {note}" if note else ""
            body.append([f"{row.what}: {row.size:,}", own, other, ratio])
    said = "".join(f"\n{line}\n" for line in quicker(rows))
    head = ["work", "ckptstore", "the other", "ckptstore takes"]
    return f"## {TITLES[task]}\n\n{table(head, body)}{said}"


def correctness(found: Results, *, details: bool) -> str:
    """The table of cases and contenders; with `details`, the explanation of each result below it."""
    if not found.verdicts:
        return ""
    whos = [who for who in (*NAMES, "dlrover") if any(each.who == who for each in found.verdicts)]
    cases = dict.fromkeys(each.case for each in found.verdicts)
    known = {(each.case, each.who): each for each in found.verdicts}
    body = []
    for case in cases:
        cells = [known[case, who].verdict if (case, who) in known else "–" for who in whos]
        body.append([case, *(f"**{each}**" if each == "wrong" else each for each in cells)])
    text = table(["after", *(NAMES.get(who, "DLRover") for who in whos)], body)
    if details:
        lines = [
            f"- {each.case}, {NAMES.get(each.who, 'DLRover')}: {each.verdict}. {each.detail}\n"
            for each in found.verdicts
        ]
        text += "\n–: not tried; `bench/cases` has the programs.\n\n" + "".join(lines)
    return text


def budgets(found: Results) -> str:
    """Each budget and its measured value, which is bold if the budget is broken."""
    rows = []
    for each in found.budgets:
        measured = f"{each.value:.3g} {each.unit}".rstrip()
        limit = f"{'≥' if each.at_least else '≤'} {each.limit:g} {each.unit}".rstrip()
        rows.append([each.name, measured if each.kept else f"**{measured}**", limit])
    return table(["what", "measured", "budget"], rows)


def conditions(found: Results) -> str:
    """The machine and the versions of the measurement."""
    known: Mapping[str, str] = found.versions
    return f"{found.machine}; {', '.join(f'{name} {known[name]}' for name in known)}.\n"


def whole(found: Results) -> str:
    """RESULTS.md."""
    kind = "`make bench-quick`, small sizes" if found.quick else "`make bench`"
    parts = [
        f"# What a catalog costs\n\nWritten by {kind}. Measured on {conditions(found)}",
        f"## Budgets\n\n{budgets(found)}",
        registry(found),
        *(floors(found, task) for task in TITLES),
        f"## What a restart gets\n\n{correctness(found, details=True)}",
    ]
    return "\n".join(part for part in parts if part)


def page(found: Results | None) -> str:
    """The generated part of the page: the cost of saves, the results of restarts, the budgets, and the machine."""
    if found is None:
        return NOT_MEASURED
    sizes = {row.size for row in found.of("registry")}
    size = SHOWN if SHOWN in sizes else max(sizes)
    rows = [row for row in found.of("registry") if row.size == size and row.what.endswith("as written")]
    whos = [who for who in NAMES if any(who in row.seconds or who in row.notes for row in rows)]
    kinds = {"save": "one more save", "list": "list all", "newest": "find the newest", "prune": "delete all but ten"}
    body = [[kinds[row.what.partition(",")[0]], *(cell(row, who) for who in whos)] for row in rows]
    return (
        f"Keeping the saves of a run, with {size:,} there: the time of ckptstore, and how many times as long others\n"
        "take (median, lowest and highest of the turns).\n\n"
        + table(["", *(NAMES[who] for who in whos)], body)
        + "".join(f"\n{line}" for line in quicker(rows))
        + "\n\nWhat a restart gets:\n\n"
        + correctness(found, details=False)
        + "\nWhat must not cost more, and in bold what does:\n\n"
        + budgets(found)
        + f"\nMeasured on {conditions(found)}"
    )


def put_into_page(found: Results) -> None:
    """Replace the generated part of the page."""
    text = PAGE.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "docs/explanation/figures.md has lost its marks"
    PAGE.write_text(before + begin + page(found) + end + after)
