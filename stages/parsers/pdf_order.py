"""The reading order of a page's lines, where it is not the one in which they are drawn.

Drawing order is the best guide to tables, side notes and captions, so it stands wherever the places of the lines do not
speak against it. They do when a line is drawn after one that lies below it, when lines of prose alternate between
columns, and when a table is drawn column by column. That what lies above and shares some x comes first is the first
rule of Breuel, "High performance document layout analysis" (2003).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence, Set
from heapq import heapify, heappop, heappush
from itertools import groupby, islice, pairwise
from statistics import median
from typing import NamedTuple

from stages.parsers.pdf_bidi import RIGHT_TO_LEFT

STEPS = 128
"""Places that the width of a page is divided into."""
MIN_LINES = 4
"""A column of prose has at least so many."""
FULL = 0.6
"""The share of its column that a line of prose fills, unless it ends a paragraph."""
MIN_ROWS = 3
SCATTERED = 0.3
"""Above this share of lines that do not follow the one drawn before them, drawing order says nothing."""


class Line(NamedTuple):
    """A piece of text on one baseline: its box in points (y grows downwards), font size and direction of writing."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    direction: tuple[float, ...] = (1.0, 0.0)
    vertical: bool = False
    block: int = 0
    """Number of the paragraph that the library takes the line to be part of."""

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2


def in_reading_order(lines: list[Line], ruled: Callable[[], Sequence[float]] = tuple) -> list[Line]:
    """Level lines in reading order. `ruled` gives the y of the horizontal rules on the page; it is seldom asked."""
    if all(b.y0 > a.middle for a, b in pairwise(lines)):  # one below the other
        return lines
    gutters = _gutters(lines)
    if gutters and (columns := _by_columns(lines, gutters)):
        return columns
    lines = _tables_by_row(lines, ruled)
    return _downwards(lines, _margins(lines))


def same_row(a: Line, b: Line) -> bool:
    return abs(a.middle - b.middle) <= 0.4 * min(a.y1 - a.y0, b.y1 - b.y0)


def _downwards(lines: list[Line], margins: Set[int] = frozenset()) -> list[Line]:
    """Each line after all that lie above it and share some of its x, otherwise in the order given.

    Lines that follow each other on one row stay together. `margins` share the x of all lines.
    """
    rows: list[list[Line]] = []
    for line in lines:
        if rows and same_row(rows[-1][-1], line) and all(_apart(cell, line) for cell in rows[-1]):
            rows[-1].append(line)
        else:
            rows.append([line])
    if len(rows) < 2:
        return lines
    boxes = [_around(row) for row in rows]
    if margins:
        wide = {id(lines[i]) for i in margins}
        x0, x1 = min(line.x0 for line in lines), max(line.x1 for line in lines)
        boxes = [
            box._replace(x0=x0, x1=x1) if id(row[0]) in wide else box for row, box in zip(rows, boxes, strict=True)
        ]
    order = _topmost_first(boxes)
    if sum(b != a + 1 for a, b in pairwise(order)) > SCATTERED * len(order):
        return [lines[i] for row in _rows(lines) for i in row]
    return [line for i in order for line in rows[i]]


def _topmost_first(boxes: list[Line]) -> list[int]:
    """The topological order of boxes, by who stands above whom and then by index."""
    spans = _spans(boxes)
    if not _some_climb(boxes, spans):
        return list(range(len(boxes)))
    below: list[list[int]] = [[] for _ in boxes]
    waits = [0] * len(boxes)
    lowest: list[list[int]] = [[] for _ in range(STEPS)]  # at each place, the row of boxes reached so far
    for i in sorted(range(len(boxes)), key=lambda i: boxes[i].middle):
        box, (first, last) = boxes[i], spans[i]
        middle, top = box.middle, box.y0
        before: set[int] = set()
        for place in lowest[first:last]:
            above = [j for j in place if boxes[j].y1 <= middle and boxes[j].middle <= top]
            before.update(above)
            if len(above) == len(place):
                place.clear()
            place.append(i)
        waits[i] = len(before)
        for j in before:
            below[j].append(i)
    ready = [i for i, n in enumerate(waits) if not n]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for j in below[order[-1]]:
            waits[j] -= 1
            if not waits[j]:
                heappush(ready, j)
    return order


def _spans(boxes: list[Line]) -> list[tuple[int, int]]:
    """The first place in x that each box covers, and the one after the last: of STEPS places in the page's width."""
    left = min(box.x0 for box in boxes)
    step = max(max(box.x1 for box in boxes) - left, 1e-6) / STEPS
    spans = []
    for box in boxes:
        shrunk = min(box.size, box.x1 - box.x0) / 4  # italics and accents stick out
        first = min(max(round((box.x0 + shrunk - left) / step), 0), STEPS - 1)
        spans.append((first, min(max(round((box.x1 - shrunk - left) / step), first + 1), STEPS)))
    return spans


def _some_climb(boxes: list[Line], spans: list[tuple[int, int]]) -> bool:
    """Whether a box comes after one that may stand below it."""
    lowest = [float("-inf")] * STEPS
    for box, (first, last) in zip(boxes, spans, strict=True):
        reached = max(lowest[first:last])
        if reached >= box.middle:
            return True
        lowest[first:last] = [max(reached, box.y0)] * (last - first)
    return False


def _around(row: list[Line]) -> Line:
    """The line that holds a row of lines."""
    if len(row) == 1:
        return row[0]
    x0, x1 = min(line.x0 for line in row), max(line.x1 for line in row)
    return row[0]._replace(x0=x0, x1=x1, y0=min(line.y0 for line in row), y1=max(line.y1 for line in row))


def _apart(a: Line, b: Line) -> bool:
    return b.x0 >= a.x1 - 0.2 * b.size or b.x1 <= a.x0 + 0.2 * b.size


def _rows(lines: list[Line]) -> list[list[int]]:
    """Indices of lines on one baseline each, from top to bottom and left to right."""
    rows: list[list[int]] = []
    for i in sorted(range(len(lines)), key=lambda i: lines[i].middle):
        if rows and same_row(lines[rows[-1][0]], lines[i]):
            rows[-1].append(i)
        else:
            rows.append([i])
    return [sorted(row, key=lambda i: lines[i].x0) for row in rows]


def _gutters(lines: list[Line]) -> list[float]:
    """The x between columns of prose, ascending; [] for other pages. Few lines cross a gutter: titles, footers."""
    if len(lines) < 2 * MIN_LINES:
        return []
    left, right = min(line.x0 for line in lines), max(line.x1 for line in lines)
    narrow = [line for line in lines if line.x1 - line.x0 < 0.6 * (right - left)]
    if len(narrow) < 2 * MIN_LINES:
        return []
    step = max(right - left, 1e-6) / STEPS
    changes = [0] * (STEPS + 2)
    for line in narrow:
        changes[int((line.x0 - left) / step)] += 1
        changes[int((line.x1 - left) / step) + 1] -= 1
    covered, cover = 0, []
    for change in changes[:-1]:
        covered += change
        cover.append(covered)
    few = len(narrow) // 15 + 1
    places = range(len(cover))
    gutters = []
    for low, run in groupby(places, key=lambda x: cover[x] <= few):
        inner = list(run)
        if low and inner[0] > 0 and inner[-1] < STEPS:
            least = min(cover[x] for x in inner)
            widest = max((list(g) for c, g in groupby(inner, key=lambda x: cover[x]) if c == least), key=len)
            if len(inner) * step >= 0.5 * narrow[0].size:
                gutters.append(left + step * (widest[0] + widest[-1] + 1) / 2)
    return gutters if gutters and _is_prose(narrow, gutters) else []


def _is_prose(lines: list[Line], gutters: list[float]) -> bool:
    """Whether lines fill each of the columns and run on from one to the next, unlike the cells of a table."""
    held: list[list[Line]] = [[] for _ in range(len(gutters) + 1)]
    for line in lines:
        if (column := _column(line, gutters)) is not None:
            held[column].append(line)
    for column_lines in held:
        if len(column_lines) < MIN_LINES or median(_words(line.text) for line in column_lines) < 3:
            return False
        width = max(line.x1 for line in column_lines) - min(line.x0 for line in column_lines)
        if median(line.x1 - line.x0 for line in column_lines) < FULL * width:
            return False
    starts = [line.text.lstrip()[0] for line in lines]
    return sum(c.isupper() or c.isdigit() for c in starts) < 0.8 * len(starts)


def _words(text: str) -> int:
    """How many words a line has; Chinese, Japanese and Korean characters are some three to a word."""
    return max(len(text.split()), sum(c > "\u2e7f" for c in text) // 3)


def _column(line: Line, gutters: list[float]) -> int | None:
    """The number of the column that holds a line; None for one that crosses a gutter."""
    first, last = bisect(gutters, line.x0 + 1), bisect(gutters, line.x1 - 1)
    return first if first == last else None


def _by_columns(lines: list[Line], gutters: list[float]) -> list[Line] | None:
    """Lines column by column, if they were drawn across the columns or upwards; None if they were not.

    Lines that cross a gutter (titles), headers, footers and tables part the page into stretches, each of which is read
    column by column.
    """
    places = [_column(line, gutters) for line in lines]
    for i in _table_lines(lines, places) | _margins(lines):
        places[i] = None
    crossing = sorted(line.middle for line, place in zip(lines, places, strict=True) if place is None)
    backwards = sum(bool(RIGHT_TO_LEFT.search(line.text)) for line in lines) > len(lines) / 2
    keys = []
    for line, place in zip(lines, places, strict=True):
        stretch = bisect(crossing, line.middle)
        keys.append((stretch, -1 if place is None else len(gutters) - place if backwards else place))
    if _alternates([key for key in keys if key[1] >= 0], lines, keys) or _climbs(lines, keys):
        order = sorted(range(len(lines)), key=lambda i: (*keys[i], i))
        return [
            line for _, run in groupby(order, key=lambda i: keys[i]) for line in _downwards([lines[i] for i in run])
        ]
    return None


def _alternates(keys: list[tuple[int, int]], lines: list[Line], all_keys: list[tuple[int, int]]) -> bool:
    """Whether the columns of a stretch were drawn in turns, though not as the rows of a table are: with their tops on a
    line and several lines each."""
    runs = [key for key, _ in groupby(keys)]
    if len(runs) == len(set(runs)):
        return False
    starts: list[tuple[tuple[int, int], Line]] = []
    for key, line in zip(all_keys, lines, strict=True):
        if key[1] >= 0 and (not starts or starts[-1][0] != key):
            starts.append((key, line))
    steps = [(a[1], b[1]) for a, b in pairwise(starts) if a[0][0] == b[0][0] and a[0][1] < b[0][1]]
    level = sum(same_row(a, b) for a, b in steps)
    return not (len(keys) > 1.5 * len(runs) and level > 0.8 * len(steps))


def _climbs(lines: list[Line], keys: list[tuple[int, int]]) -> bool:
    """Whether a line was drawn after one that should come later: a stretch further down, or lower in its column."""
    stretch = -1
    lowest: dict[tuple[int, int], float] = {}
    for line, key in zip(lines, keys, strict=True):
        if key[0] < stretch or line.y1 < lowest.get(key, line.y1):
            return True
        stretch = key[0]
        lowest[key] = max(lowest.get(key, line.middle), line.middle)
    return False


def _table_lines(lines: list[Line], places: list[int | None]) -> set[int]:
    """The lines of two or more rows in succession whose cells do not fill the columns."""
    widths: dict[int | None, float] = {}
    for line, place in zip(lines, places, strict=True):
        widths[place] = max(widths.get(place, 0.0), line.x1 - line.x0)
    found: set[int] = set()
    rows = 0
    row: list[int] = []
    pending: list[int] = []
    for i in range(len(lines) + 1):
        if row and i < len(lines) and same_row(lines[row[0]], lines[i]):
            row.append(i)
            continue
        if len(row) > 1 and all(lines[j].x1 - lines[j].x0 < FULL * widths[places[j]] for j in row):
            rows, pending = rows + 1, pending + row
        else:
            if rows > 1:
                found.update(pending)
            rows, pending = 0, []
        row = [i]
    return found | set(pending if rows > 1 else ())


def _margins(lines: list[Line]) -> set[int]:
    """Headers and footers: up to two rows at either end of the page that a wide gap parts from the rest, or whose cells
    were drawn one after the other and leave much of the row empty."""
    rows = _rows(lines)
    if len(rows) <= 2 * MIN_LINES:
        return set()
    width = max(line.x1 for line in lines) - min(line.x0 for line in lines)
    found: set[int] = set()
    for inwards in (rows, rows[::-1]):
        for outer, inner in islice(pairwise(inwards), 2):
            a, b = lines[outer[0]], lines[inner[0]]
            parted = max(a.y0 - b.y1, b.y0 - a.y1) > 1.5 * a.size
            in_turn = len(outer) > 1 and max(outer) - min(outer) < len(outer)
            if not parted and not (in_turn and sum(lines[i].x1 - lines[i].x0 for i in outer) < FULL * width):
                break
            found.update(outer)
    return found


def _tables_by_row(lines: list[Line], ruled: Callable[[], Sequence[float]]) -> list[Line]:
    """Lines with the tables that were drawn column by column turned to row by row.

    Two lists side by side look alike: it is a table where a column holds numbers or rules part the rows.
    """
    order = list(range(len(lines)))
    run: list[list[int]] = []
    for row in [*_rows(lines), []]:
        if len(row) > 1 and (not run or _aligned(run[-1], row, lines)):
            run.append(row)
            continue
        if len(run) >= MIN_ROWS and _drawn_by_column(run) and (_numbers(run, lines) or _is_ruled(run, lines, ruled())):
            cells = [i for cells in run for i in cells]
            at, gone = order.index(min(cells)), set(cells)
            order[at:] = cells + [i for i in order[at:] if i not in gone]
        run = [row] if len(row) > 1 else []
    return [lines[i] for i in order]


def _aligned(above: list[int], below: list[int], lines: list[Line]) -> bool:
    """Whether the cells of two rows stand in the same columns."""
    return len(above) == len(below) and all(
        lines[a].x0 < lines[b].x1 and lines[b].x0 < lines[a].x1 for a, b in zip(above, below, strict=True)
    )


def _drawn_by_column(rows: list[list[int]]) -> bool:
    return all(a + 1 == b for column in zip(*rows, strict=True) for a, b in pairwise(column))


def _numbers(rows: list[list[int]], lines: list[Line]) -> bool:
    """Whether the cells of a column, its head aside, are mostly numbers."""
    return any(
        sum(any(c.isdigit() for c in t) and sum(c.isalpha() for c in t) <= len(t) / 3 for t in texts) > 0.6 * len(texts)
        for column in zip(*rows[1:], strict=True)
        if (texts := [lines[i].text.strip() for i in column])
    )


def _is_ruled(rows: list[list[int]], lines: list[Line], rules: Sequence[float]) -> bool:
    """Whether a rule lies between most rows."""
    between = [(lines[a[0]].middle, lines[b[0]].middle) for a, b in pairwise(rows)]
    return sum(any(top < y < bottom for y in rules) for top, bottom in between) > 0.6 * len(between)
