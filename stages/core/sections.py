"""Where in a document a range of its text stands: its section by headings, its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class Section(NamedTuple):
    """The characters `start:end` of a text, under one heading. `path`: its headings, outermost first."""

    start: int
    end: int
    path: tuple[str, ...] = ()
    body: int = 0
    """Where its headings end."""


def sections(text: str, headings: Sequence[dict[str, Any]]) -> list[Section]:
    """Part `text` before each heading. The sections follow on each other and cover it all.

    A heading with nothing below it but a deeper heading begins that one's section, since alone it says little.
    """
    parts: list[Section] = []
    above: list[tuple[int, str]] = []
    section = Section(0, len(text))
    for heading in sorted(headings, key=lambda h: h["start"]):
        level = heading["level"]
        begin = _line_begin(text, min(heading["start"], len(text)))
        bare = bool(above) and level > above[-1][0] and not text[section.body : begin].strip()
        if begin > section.start and not bare:
            parts.append(section._replace(end=begin))
            section = section._replace(start=begin)
        while above and above[-1][0] >= level:
            above.pop()
        above.append((level, " ".join((heading["text"] or "").split())))
        path = tuple(words for _, words in above if words)
        section = section._replace(path=path, body=min(max(heading["end"], section.start), len(text)))
    return [*parts, section]


def _line_begin(text: str, start: int) -> int:
    """Where the line of a heading begins, if only marks (`## `) stand before it."""
    line = text.rfind("\n", 0, start) + 1
    return start if any(c.isalnum() for c in text[line:start][:32]) or start - line > 32 else line


class PageMap:
    """Finds the pages of ranges of text: `pages` as the column holds them, by position."""

    def __init__(self, pages: Sequence[dict[str, Any]]) -> None:
        pages = sorted(pages, key=lambda page: (page["start"], page["end"]))
        self._numbers = [page["page"] for page in pages]
        self._starts = np.array([page["start"] for page in pages], np.int64)
        self._ends = np.maximum.accumulate(np.array([page["end"] for page in pages], np.int64)) if pages else None

    def range(self, start: int, end: int) -> tuple[int | None, int | None]:
        """The first and last page that hold a character of `start:end`; None where there are no pages."""
        if self._ends is None:
            return None, None
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._starts, end, side="left")) - 1
        most = len(self._numbers) - 1
        first, last = min(first, most), max(last, 0)
        return self._numbers[min(first, last)], self._numbers[last]
