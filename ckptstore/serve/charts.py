"""Draws charts as SVG, so that pages need no script for them. A table beside each chart has its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

_SMALL = (112, 28)
_WIDE = 720
_LINE = 160
_LABEL = 14  # the height of a line of text
_MARGIN = 3
_ROW = 24
_CELL, _GAP = 10, 2
_NAMES = 110  # the width of the names at the left of rows


class Cell(NamedTuple):
    """One cell of a grid: its CSS class, its tooltip, and the address that it links to."""

    kind: str
    title: str
    address: str


class Step(NamedTuple):
    """One row of a grid: its step, a note, one sign for each column, and the cells with their links."""

    step: int
    note: str
    signs: str
    cells: Sequence[Cell]


class Bar(NamedTuple):
    """One row of a timeline. Moments are in seconds since 1970."""

    name: str
    begin: float
    end: float
    kind: str  # "crash": a bad end; else empty
    title: str  # the tooltip
    marks: Sequence[tuple[float, str]]  # moments, each with its tooltip


def marks_of(moments: Sequence[datetime], title: str) -> Markup:
    """A tick for each moment, on one time axis. Empty without moments."""
    if not moments:
        return Markup()
    width, height = _SMALL
    ticks = Markup().join(
        Markup('<line x1="{0}" x2="{0}" y1="4" y2="{1}"/>').format(f"{x:.1f}", height - 4)
        for x in _scale([at.timestamp() for at in moments], width)
    )
    return _svg("ticks", width, height, title, ticks)


def chart_of(points: Sequence[tuple[float, float]], title: str, low: str, high: str) -> Markup:
    """A line through points, with labels for the lowest and the highest value. Empty with fewer than two points."""
    if len(points) < 2:  # noqa: PLR2004 — a line has two ends
        return Markup()
    across = _scale([x for x, _ in points], _WIDE)
    up = _scale([y for _, y in points], _LINE - 2 * _LABEL)
    places = " ".join(f"{x:.1f},{_LINE - _LABEL - y:.1f}" for x, y in zip(across, up, strict=True))
    words = Markup('<text x="0" y="{}">{}</text><text x="0" y="{}">{}</text>').format(_LABEL - 3, high, _LINE - 2, low)
    return _svg("line", _WIDE, _LINE, title, words + Markup('<polyline points="{}"/>').format(places))


def timeline_of(bars: Sequence[Bar], title: str) -> Markup:
    """A row for each bar, on one time axis, with a tick for each of its marks, and a cross at the end of a crash."""
    if not bars:
        return Markup()
    every = [moment for bar in bars for moment in (bar.begin, bar.end, *(at for at, _ in bar.marks))]
    low, high = min(every), max(every)
    room = _WIDE - _NAMES - 4 * _MARGIN

    def place(moment: float) -> float:
        return _NAMES + _MARGIN + (room * (moment - low) / (high - low) if high > low else 0)

    rows = []
    for at, bar in enumerate(bars):
        top, begin, end = at * _ROW, place(bar.begin), place(bar.end)
        rows.append(
            Markup('<g><title>{}</title><text x="0" y="{}">{}</text>').format(bar.title, top + 16, bar.name[:16])
            + Markup('<rect class="bar" x="{:.1f}" y="{}" width="{:.1f}" height="8"/>').format(
                begin, top + 8, max(end - begin, 1)
            )
            + Markup().join(
                Markup('<line x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"><title>{3}</title></line>').format(
                    place(moment), top + 4, top + 20, words
                )
                for moment, words in bar.marks
            )
            + (
                Markup('<path class="crash" d="M{0:.1f} {1}l8 12m0 -12l-8 12"/>').format(end - 4, top + 6)
                if bar.kind == "crash"
                else Markup()
            )
            + Markup("</g>")
        )
    return _svg("timeline", _WIDE, len(bars) * _ROW, title, Markup().join(rows))


def grid_of(rows: Sequence[Step], heads: Sequence[str], title: str) -> Markup:
    """A row of cells for each step. Each cell is a link; the Tab key skips it, since the table has the same links.

    The first row has the `heads` of the columns. There is room for a head over every fourth column.
    """
    if not rows:
        return Markup()
    size = _CELL + _GAP
    drawn = [
        Markup('<text class="head" x="{}" y="{}">{}</text>').format(_NAMES + i * size, _CELL - 1, head)
        for i, head in enumerate(heads)
        if head
    ]
    for at, row in enumerate(rows, 1):
        name = f"{row.step} {row.note}".strip()
        drawn.append(Markup('<text x="{}" y="{}">{}</text>').format(_NAMES - 6, at * size + _CELL - 1, name))
        drawn += [
            Markup(
                '<a href="{}" tabindex="-1" aria-label="{}"><rect class="cell-{}" x="{}" y="{}" width="{}" height="{}">'
                "<title>{}</title></rect></a>"
            ).format(cell.address, cell.title, cell.kind, _NAMES + i * size, at * size, _CELL, _CELL, cell.title)
            for i, cell in enumerate(row.cells)
        ]
    width = _NAMES + size * max(len(row.cells) for row in rows)
    frame = Markup('<svg class="grid" role="group" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">{}</svg>')
    height = (len(rows) + 1) * size
    return frame.format(title, width, height, width, height, Markup().join(drawn))


def swatch_of(kind: str) -> Markup:
    """A cell of this class, for a legend."""
    frame = Markup(
        '<svg aria-hidden="true" width="{0}" height="{0}"><rect class="cell-{1}" width="{0}" height="{0}"/></svg>'
    )
    return frame.format(_CELL, kind)


def strip_of(cells: Iterable[tuple[str, str]], title: str) -> Markup:
    """A cell for each (class, tooltip), from left to right. A cell of class `remove` is half as high as the others.

    Empty without cells.
    """
    drawn = [
        Markup('<rect class="cell-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>').format(
            kind, i * (_CELL + _GAP), *((12, _CELL, 12) if kind == "remove" else (0, _CELL, 24)), words
        )
        for i, (kind, words) in enumerate(cells)
    ]
    if not drawn:
        return Markup()
    return _svg("strip", len(drawn) * (_CELL + _GAP), 24, title, Markup().join(drawn))


def _svg(kind: str, width: int, height: int, title: str, inside: Markup) -> Markup:
    frame = Markup('<svg class="{}" role="img" viewBox="0 0 {} {}" width="{}" height="{}"><title>{}</title>{}</svg>')
    return frame.format(kind, width, height, width, height, title, inside)


def _scale(values: Sequence[float], length: int) -> list[float]:
    low, high = min(values), max(values)
    room = length - 2 * _MARGIN
    return [_MARGIN + (room * (value - low) / (high - low) if high > low else room / 2) for value in values]
