"""Text under edit, and positions in it that stay true."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable

import numpy as np

Edit = tuple[int, int, str]
"""A half-open range of characters and what takes its place."""


class TrackedText:
    """A text and positions in it. An edit moves the positions that come after it.

    A position inside an edited range keeps its distance from the range's start, as far as the new text reaches.
    """

    def __init__(self, text: str, positions: Iterable[int] = ()) -> None:
        self.text = text
        self.positions = np.clip(np.fromiter(positions, np.int64), 0, len(text))

    def ranges(self) -> list[tuple[int, int]]:
        """The positions two by two."""
        return [(start, end) for start, end in self.positions.reshape(-1, 2).tolist()]

    def sub(self, pattern: re.Pattern[str], replacement: str) -> None:
        """Put `replacement`, as it stands, where `pattern` matches. It may not match the empty string."""
        if self.positions.size:
            spans = [match.span() for match in pattern.finditer(self.text)]
            if not spans:
                return
            bounds = np.array(spans, np.int64)
            self._move(bounds[:, 0], bounds[:, 1], np.full(len(spans), len(replacement)))
        self.text = pattern.sub(replacement.replace("\\", r"\\"), self.text)

    def replace(self, edits: list[Edit]) -> None:
        """Make `edits`: in the order of the text, not overlapping."""
        if not edits:
            return
        parts: list[str] = []
        done = 0
        for start, end, new in edits:
            parts += (self.text[done:start], new)
            done = end
        parts.append(self.text[done:])
        bounds = np.array([(start, end, len(new)) for start, end, new in edits], np.int64)
        self._move(bounds[:, 0], bounds[:, 1], bounds[:, 2])
        self.text = "".join(parts)

    def rewrite_lines(self, pattern: re.Pattern[str], rewrite: Callable[[str], str]) -> None:
        """Rewrite each line that `pattern` is found in; a line is cut at the tracked positions that lie in it."""
        cuts = [*np.unique(self.positions).tolist(), len(self.text)]
        edits: list[Edit] = []
        at = 0
        while match := pattern.search(self.text, at):
            found = match.start()
            cut = bisect.bisect_right(cuts, found)
            start = max(self.text.rfind("\n", at, found) + 1, at, cuts[cut - 1] if cut else 0)
            line_end = self.text.find("\n", found, cuts[cut])
            end = max(line_end if line_end >= 0 else cuts[cut], found + 1)
            line = self.text[start:end]
            if (new := rewrite(line)) != line:
                edits.append((start, end, new))
            at = end
        self.replace(edits)

    def strip(self) -> None:
        """Remove white space at both ends."""
        text = self.text
        begin = len(text) - len(text.lstrip())
        end = max(len(text.rstrip()), begin)
        self.text = text[begin:end]
        self.positions = np.clip(self.positions - begin, 0, end - begin)

    def _move(self, starts: np.ndarray, ends: np.ndarray, lengths: np.ndarray) -> None:
        if not self.positions.size:
            return
        last = np.searchsorted(starts, self.positions, side="left") - 1
        behind = last >= 0
        at, edit = self.positions[behind], last[behind]
        shift = np.cumsum(lengths - (ends - starts))
        new_start = starts + shift - lengths + (ends - starts)
        inside = new_start[edit] + np.minimum(at - starts[edit], lengths[edit])
        self.positions[behind] = np.where(at >= ends[edit], at + shift[edit], inside)
