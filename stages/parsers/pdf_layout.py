"""The order of a page's lines: columns, table rows, vertical text, and lines that were drawn more than once."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

MIN_LINES = 4
"""A column of prose has at least so many."""


class Line(NamedTuple):
    """A piece of text on one baseline: its box in points (y grows downwards), font size and direction of writing."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    direction: tuple[float, float] = (1.0, 0.0)
    vertical: bool = False
    block: int = 0
    """Number of the paragraph that the library takes the line to be part of."""

    @property
    def level(self) -> bool:
        return self.direction[0] > 0.99 and not self.vertical

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2


def arrange(lines: list[Line]) -> str:
    """The text of a page, given its lines in the order in which they are drawn. A blank line parts paragraphs."""
    lines = list(_once(lines))
    if not all(line.level for line in lines):
        # Turned text keeps the order in which it was drawn.
        return "\n".join(_turned(lines))
    parts: list[str] = []
    above: Line | None = None
    for row in _rows(_columns(lines)):
        if above is not None:
            apart = row[0].block != above.block and row[0].y0 - above.y1 > 0.4 * row[0].size
            parts.append("\n\n" if apart else "\n")
        parts.append(_row(row))
        above = row[-1]
    return "".join(parts)


def _once(lines: list[Line]) -> Iterator[Line]:
    """Lines without those that repeat another one in (nearly) the same place, as fake bold and shadows do."""
    seen: dict[str, list[Line]] = {}
    for line in lines:
        near = 0.25 * line.size
        twins = seen.setdefault(line.text.strip(), [])
        if not any(abs(t.x0 - line.x0) < near and abs(t.y0 - line.y0) < near for t in twins):
            twins.append(line)
            yield line


def _turned(lines: list[Line]) -> Iterator[str]:
    """Vertical glyphs joined to columns; level and turned lines as they come."""
    run: list[Line] = []
    for line in lines:
        if run and not (line.vertical and abs(line.x0 - run[-1].x0) < 0.5 * line.size
                        and -0.5 * line.size < line.y0 - run[-1].y1 < 1.5 * line.size):
            yield "".join(part.text.strip() for part in run)
            run = []
        if line.vertical:
            run.append(line)
        else:
            yield line.text
    if run:
        yield "".join(part.text.strip() for part in run)


def _columns(lines: list[Line]) -> list[Line]:
    """Lines column by column, where they were drawn across columns of prose; otherwise as they come.

    Columns show as bands of x that narrow lines keep to. Lines that cross a gutter (titles) part the page into
    stretches, each of which is read column by column.
    """
    if len(lines) < 2 * MIN_LINES:
        return lines
    width = max(line.x1 for line in lines) - min(line.x0 for line in lines)
    bands = _prose_bands([line for line in lines if line.x1 - line.x0 < 0.6 * width])
    if len(bands) < 2:
        return lines
    places = [_band_of(line, bands) for line in lines]
    inside = [place for place in places if place is not None]
    changes = sum(a != b for a, b in zip(inside, inside[1:], strict=False))
    if changes < 0.3 * len(inside):  # drawn column by column already
        return lines
    crossing = sorted(line.middle for line, place in zip(lines, places, strict=True) if place is None)
    stretches = {
        i: (bisect(crossing, line.middle), -1 if place is None else place)
        for i, (line, place) in enumerate(zip(lines, places, strict=True))
    }
    return [lines[i] for i in sorted(stretches, key=lambda i: (*stretches[i], i))]


def _prose_bands(lines: list[Line]) -> list[tuple[float, float]]:
    """The bands of x between gutters, where lines fill their band as prose does and cells of a table do not."""
    if not lines:
        return []
    size = median(line.size for line in lines)
    bands: list[tuple[float, float]] = []
    for line in sorted(lines, key=lambda line: line.x0):
        if bands and line.x0 < bands[-1][1] + 0.5 * size:
            bands[-1] = (bands[-1][0], max(bands[-1][1], line.x1))
        else:
            bands.append((line.x0, line.x1))
    for band in bands:
        held = [line for line in lines if _band_of(line, [band]) == 0]
        filled = median(line.x1 - line.x0 for line in held) / max(band[1] - band[0], 1e-6)
        if len(held) < MIN_LINES or filled < 0.6 or median(len(line.text.split()) for line in held) < 3:
            return []
    return bands


def _band_of(line: Line, bands: list[tuple[float, float]]) -> int | None:
    return next((i for i, (x0, x1) in enumerate(bands) if x0 - 1 <= line.x0 and line.x1 <= x1 + 1), None)


def _rows(lines: list[Line]) -> Iterator[list[Line]]:
    """Neighbours on one baseline as one row."""
    row: list[Line] = []
    for line in lines:
        if row and not _beside(row, line):
            yield row
            row = []
        row.append(line)
    if row:
        yield row


def _beside(row: list[Line], line: Line) -> bool:
    last = row[-1]
    height = min(last.y1 - last.y0, line.y1 - line.y0)
    if abs(last.middle - line.middle) > 0.4 * height:
        return False
    return all(line.x0 >= cell.x1 - 0.2 * line.size or line.x1 <= cell.x0 + 0.2 * line.size for cell in row)


def _row(row: list[Line]) -> str:
    """A row's text: cells parted by ` | ` where the gap is wider than a blank."""
    row = sorted(row, key=lambda line: line.x0)
    text = row[0].text.strip()
    for left, right in zip(row, row[1:], strict=False):
        gap = right.x0 - left.x1
        text += (" | " if gap > 0.8 * max(left.size, right.size) else " ") + right.text.strip()
    return text
