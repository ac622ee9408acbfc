"""A page's lines as text: table rows, paragraphs, vertical text, and lines that were drawn more than once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice, pairwise
from operator import itemgetter

from stages.parsers.pdf_bidi import RIGHT_TO_LEFT
from stages.parsers.pdf_order import Line, in_reading_order, same_row

BULLETS = frozenset("•◦▪■□●○‣–*")
MAX_LOOK_AHEAD = 50
MAX_WRAPPED = 5
CELL_GAP = 1.3
"""Gaps between cells are wider than this many font sizes; those between words and sentences are not."""
WORD_GAP = 0.1


def arrange(lines: list[Line], ruled: Callable[[], Sequence[float]] = tuple) -> str:
    """The text of a page, given its lines in the order in which they are drawn. A blank line parts paragraphs.

    Lines of one direction are arranged as if the page were turned to make them level. `ruled` gives the y of the page's
    horizontal rules.
    """
    shown = list(_once(line for line in lines if line.text.strip()))
    quarters = [None if line.vertical else _quarter(line) for line in shown]
    pairs = list(zip(quarters, shown, strict=True))
    # Turned words belong between the vertical ones; elsewhere they are labels, which must not part the level text.
    if None not in quarters:
        first = {quarter: i for i, quarter in reversed(list(enumerate(quarters)))}
        pairs.sort(key=lambda pair: first[pair[0]])
    runs = [(quarter, [line for _, line in run]) for quarter, run in groupby(pairs, itemgetter(0))]
    texts = []
    for quarter, run in runs:
        if quarter is None:
            texts.append("\n".join(_turned(run)))
        else:
            level = [_levelled(line, quarter) for line in run]
            texts.append(_paragraphs(_rows(in_reading_order(level, ruled if quarter == (1, 0) else tuple))))
    return "\n".join(texts)


def _quarter(line: Line) -> tuple[int, int] | None:
    """The direction of writing, where it is along an axis."""
    dx, dy = (round(d) for d in line.direction)
    along = abs(line.direction[0] - dx) < 0.01 and abs(line.direction[1] - dy) < 0.01
    return (dx, dy) if along and (dx, dy) != (0, 0) else None


def _levelled(line: Line, direction: tuple[int, int]) -> Line:
    """`line` with its box turned so that `direction` points to the right."""
    dx, dy = direction
    xs = sorted((line.x0 * dx + line.y0 * dy, line.x1 * dx + line.y1 * dy))
    ys = sorted((line.y0 * dx - line.x0 * dy, line.y1 * dx - line.x1 * dy))
    return line._replace(x0=xs[0], x1=xs[1], y0=ys[0], y1=ys[1])


def _paragraphs(rows: Iterable[list[Line]]) -> str:
    parts: list[str] = []
    above: Line | None = None
    for row in rows:
        if above is not None:
            apart = row[0].block != above.block and row[0].y0 - above.y1 > 0.4 * row[0].size
            parts.append("\n\n" if apart else "\n")
        parts.append(_row(row))
        above = row[-1]
    return "".join(parts)


def overlap(lines: list[Line]) -> bool:
    """Whether some line lies on another one, as when text is drawn more than once."""
    lines = sorted((line for line in lines if line.text.strip()), key=lambda line: line.y0)
    for i, line in enumerate(lines):
        for other in islice(lines, i + 1, i + 1 + MAX_LOOK_AHEAD):
            if other.y0 - line.y0 > 0.2 * line.size:
                break
            shared = min(line.x1, other.x1) - max(line.x0, other.x0)
            if shared > 0.5 * min(line.x1 - line.x0, other.x1 - other.x0):
                return True
    return False


def _once(lines: Iterable[Line]) -> Iterator[Line]:
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
        if run and not (
            line.vertical
            and abs(line.x0 - run[-1].x0) < 0.5 * line.size
            and -0.5 * line.size < line.y0 - run[-1].y1 < 1.5 * line.size
        ):
            yield "".join(part.text.strip() for part in run)
            run = []
        if line.vertical:
            run.append(line)
        else:
            yield line.text
    if run:
        yield "".join(part.text.strip() for part in run)


def _rows(lines: list[Line]) -> Iterator[list[Line]]:
    """Neighbours on one baseline as one row."""
    row: list[Line] = []
    for line in _whole_cells(lines):
        if row and not _beside(row, line):
            yield row
            row = []
        row.append(line)
    if row:
        yield row


def _whole_cells(lines: list[Line]) -> Iterator[Line]:
    """The lines of a cell that wraps as one line, where two or more cells of one line each stand beside it."""
    i = 0
    while i < len(lines):
        end = i + 1
        while end < len(lines) and lines[end].block == lines[i].block and lines[end].y0 > lines[end - 1].middle:
            end += 1
        stack = lines[i:end]
        if 2 <= len(stack) <= MAX_WRAPPED and _cells_beside(stack, lines[end : end + 2]):
            beside = lines[end]
            text = " ".join(line.text.strip() for line in stack)
            x0, x1 = min(line.x0 for line in stack), max(line.x1 for line in stack)
            yield stack[0]._replace(text=text, x0=x0, x1=x1, y0=beside.y0, y1=beside.y1)
            i = end
        else:
            yield lines[i]
            i += 1


def _cells_beside(stack: list[Line], following: list[Line]) -> bool:
    right = max(line.x1 for line in stack)
    return (
        len(following) == 2
        and all(
            line.block != stack[0].block and line.x0 >= right and stack[0].y0 <= line.middle <= stack[-1].y1
            for line in following
        )
        and following[0].x1 <= following[1].x0
    )


def _beside(row: list[Line], line: Line) -> bool:
    last = row[-1]
    if not same_row(last, line):
        return False
    return all(line.x0 >= cell.x1 - 0.2 * line.size or line.x1 <= cell.x0 + 0.2 * line.size for cell in row)


def _row(row: list[Line]) -> str:
    """A row's text: cells parted by ` | ` where the gap is wider than a blank."""
    row = sorted(row, key=lambda line: line.x0)
    if backwards := sum(bool(RIGHT_TO_LEFT.search(line.text)) for line in row) > len(row) / 2:
        row.reverse()
    text = row[0].text.strip()
    for left, right in pairwise(row):
        size = max(left.size, right.size)
        gap = left.x0 - right.x1 if backwards else right.x0 - left.x1
        separator = " | " if gap > CELL_GAP * size and left.text.strip() not in BULLETS else " "
        if gap < WORD_GAP * size and not left.text.endswith(" ") and not right.text.startswith(" "):
            separator = ""
        text += separator + right.text.strip()
    return text
