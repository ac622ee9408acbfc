"""Headers and footers: the lines that stand at the same edge of page after page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

EDGE_LINES = 3
"""Lines at the top and at the bottom of a page that may be a header or footer."""
MIN_PAGES = 3
MIN_SHARE = 0.3
"""Of all pages: headers of left and right pages differ, and chapters begin without one."""

_NUMBER = re.compile(r"\d+")


class _Line(NamedTuple):
    start: int
    end: int  # past the line break
    key: tuple[str, str, int | None]


def running_heads(
    text: str, pages: Sequence[tuple[int, int]], keep: Sequence[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """The ranges of `text` that are headers or footers, in order.

    `pages`: the range of each page, in order. A line counts when the same one, whatever numbers it has in it, stands
    near the same edge of at least MIN_PAGES pages and MIN_SHARE of all. A line without letters counts only where its
    number goes up with the pages, so that a column of figures stays. `keep`: ranges (headings) whose lines stay.
    """
    edges = [edge for i, (start, end) in enumerate(pages) for edge in _edges(text, start, end, i)]
    counts = Counter(key for edge in edges for key in {line.key for line in edge})
    least = max(MIN_PAGES, MIN_SHARE * len(pages))
    kept = {line for start, end in keep for line in (start, end - 1)}
    found = {
        (line.start, line.end)
        for edge in edges
        for line in edge
        if counts[line.key] >= least and not any(line.start <= at < line.end for at in kept)
    }
    return sorted(found)


def _edges(text: str, start: int, end: int, page: int) -> Iterator[list[_Line]]:
    """The lines at the top and at the bottom of a page; a line is in one of the two."""
    top = _lines(text, start, end, page, "top")
    yield top
    yield _lines(text, top[-1].end if top else start, end, page, "bottom")


def _lines(text: str, start: int, end: int, page: int, edge: str) -> list[_Line]:
    lines: list[_Line] = []
    while len(lines) < EDGE_LINES and start < end:
        if edge == "top":
            stop = text.find("\n", start, end)
            span = start, (end if stop < 0 else stop + 1)
            start = span[1]
        else:
            span = max(text.rfind("\n", start, end - 1) + 1, start), end
            end = span[0]
        if line := text[slice(*span)].strip():
            lines.append(_Line(*span, _key(line, page, edge)))
    return lines


def _key(line: str, page: int, edge: str) -> tuple[str, str, int | None]:
    template = " ".join(_NUMBER.sub("#", line).casefold().split())
    number = _NUMBER.search(line)
    if number is None or any(c.isalpha() for c in template):
        return edge, template, None
    return edge, template, int(number.group()[:9]) - page
