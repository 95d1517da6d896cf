"""Charts as SVG, drawn here: a page needs no script for them. Their numbers stand in a table beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT, _MARGIN = 160, 32, 3


def line_of(points: Sequence[tuple[float, float]], title: str) -> Markup:
    """A small line through points, from left to right; nothing for less than two."""
    if len(points) < 2:  # noqa: PLR2004 — a line has two ends
        return Markup()
    across, up = _scale([x for x, _ in points], _WIDTH), _scale([y for _, y in points], _HEIGHT)
    places = " ".join(f"{x:.1f},{_HEIGHT - y:.1f}" for x, y in zip(across, up, strict=True))
    return Markup(
        '<svg class="line" role="img" viewBox="0 0 {} {}" width="{}" height="{}"><title>{}</title>'
        '<polyline points="{}"/></svg>'
    ).format(_WIDTH, _HEIGHT, _WIDTH, _HEIGHT, title, places)


def marks_of(moments: Sequence[float], title: str) -> Markup:
    """A tick for each moment, on one line of time."""
    if not moments:
        return Markup()
    ticks = Markup().join(
        Markup('<line x1="{0}" x2="{0}" y1="4" y2="28"/>').format(f"{x:.1f}") for x in _scale(moments, _WIDTH)
    )
    frame = Markup('<svg class="ticks" role="img" viewBox="0 0 {} {}" width="{}" height="{}"><title>{}</title>{}</svg>')
    return frame.format(_WIDTH, _HEIGHT, _WIDTH, _HEIGHT, escape(title), ticks)


def _scale(values: Sequence[float], length: int) -> list[float]:
    low, high = min(values), max(values)
    room = length - 2 * _MARGIN
    return [_MARGIN + (room * (value - low) / (high - low) if high > low else room / 2) for value in values]
