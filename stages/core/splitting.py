"""Split points for text in any script, found by langchain-text-splitters, as exact positions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

import numpy as np

MARK = "\0"
"""Stands before each token in the text that is given to the splitter; a separator may have one inside."""

_M = f"{MARK}*"
SEPARATORS = (
    # paragraphs
    rf"(?:\n[^\S\n]*{_M}){{2,}}",
    # sentences: a full stop, closing quotes, space; stops of scripts that put no space after them
    rf"[.!?…]{{1,8}}{_M}[\"'”’»)\]]{{0,4}}{_M}\s+|[。！？｡．‼⁇।॥؟۔።។៕။]+{_M}[\"'”’」』）】》〉]*\s*",
    # lines
    r"\n+",
    # clauses
    rf"[,;:—–]{_M}\s+|[，、；：､،؛፣၊]\s*",
    # words
    r"\s+|\u200b+|་+",
)

_VISIBLE = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]")
_UNMARKED = re.compile(f"[^{MARK}]")
_BREAK = re.compile(r"\s\S")
_EXTENDS = re.compile(r"[\u0300-\u036f\u200d\ufe00-\ufe0f\u20d0-\u20ff\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
MAX_CLUSTER = 32


class Ruler(Protocol):
    """Measures a text by position, in the unit that a limit is given in."""

    text: str

    def count(self, start: int, end: int) -> int:
        """The units in `start:end`."""
        ...

    def move(self, position: int, units: int) -> int:
        """The position `units` after (before, where negative) `position`, within the text."""
        ...

    def marked(self, start: int, end: int) -> str:
        """The text `start:end`, with MARKs where they are needed to measure its parts."""
        ...

    def length(self, marked: str) -> int:
        """The units in a part of a marked text; 1 at least, where it is not empty."""
        ...


class Characters:
    """Lengths in characters (code points)."""

    def __init__(self, text: str) -> None:
        self.text = text

    def count(self, start: int, end: int) -> int:
        return end - start

    def move(self, position: int, units: int) -> int:
        return min(max(position + units, 0), len(self.text))

    def marked(self, start: int, end: int) -> str:
        return self.text[start:end].replace(MARK, "\x01")

    def length(self, marked: str) -> int:
        return len(marked)


class Tokens:
    """Lengths in tokens that begin at `positions` (int64, ascending, may repeat)."""

    def __init__(self, text: str, positions: np.ndarray) -> None:
        self.text = text
        self.positions = positions

    def count(self, start: int, end: int) -> int:
        first, last = np.searchsorted(self.positions, (start, end))
        return int(last - first)

    def move(self, position: int, units: int) -> int:
        at = int(np.searchsorted(self.positions, position)) + units
        if at >= len(self.positions):
            return len(self.text)
        return int(self.positions[max(at, 0)])

    def marked(self, start: int, end: int) -> str:
        first, last = np.searchsorted(self.positions, (start, end))
        points = np.frombuffer(self.text[start:end].replace(MARK, "\x01").encode("utf-32-le"), "<u4")
        return np.insert(points, self.positions[first:last] - start, 0).tobytes().decode("utf-32-le")

    def length(self, marked: str) -> int:
        return max(marked.count(MARK), 1) if marked else 0


def split(ruler: Ruler, start: int, end: int, limit: int, overlap: int, body: int = 0) -> list[tuple[int, int, int]]:
    """Part `start:end` of a text into chunks of at most `limit` units: (start, where its own text begins, end).

    Each chunk's own text follows on the one before; up to `overlap` units of that stand ahead of it. Chunks are cut at
    the largest separator that serves, have no white space at their ends and something to see in them. What is before
    `body` (a heading) stays with what follows it, where it takes no more than half a chunk.
    """
    start, end = trim(ruler.text, start, end)
    if start == end:
        return []
    if ruler.count(start, end) <= limit:
        return [(start, start, end)]
    own = max(limit - overlap, 1)
    overlap = limit - own
    chunks: list[tuple[int, int, int]] = []
    for piece_start, piece_end in _pieces(ruler, start, end, own, body):
        begin, stop = trim(ruler.text, piece_start, piece_end)
        if begin == stop:
            continue
        if len(chunks) <= 1 and ruler.count(start, stop) <= limit:
            # The first chunk has nothing to overlap, so that it takes a whole chunk's worth.
            chunks = [(start, start, stop)]
        else:
            chunks.append((_overlapping(ruler, start, begin, overlap), begin, stop))
    return chunks


def trim(text: str, start: int, end: int) -> tuple[int, int]:
    """`start:end` without white space at its ends; an empty range where nothing in it is to be seen."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    end = start + len(part.strip())
    return (start, end) if _VISIBLE.search(text, start, end) else (start, start)


def halves(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """`start:end` in two, between words where that leaves a quarter on either side; what is blank is left out."""
    middle = (start + end) // 2
    quarter = (end - start) // 4
    space = max(text.rfind(" ", start + quarter, middle), text.rfind("\n", start + quarter, middle))
    cut = space if space > start else cluster_start(text, middle, start)
    parts = (trim(text, start, cut), trim(text, cut, end))
    return [part for part in parts if part[0] < part[1]]


def overlap_start(text: str, position: int, end: int) -> int:
    """The first position from `position` where a word begins, in a script that parts words by spaces, or a character in
    one that does not; `end` where there is none before it."""
    inside = 0 < position < end and text[position - 1].isalnum() and text[position].isalnum()
    if inside and (text[position] < "\u0e00" or "\uac00" <= text[position] <= "\ud7a3"):
        found = _BREAK.search(text, position, end)
        position = found.end() - 1 if found else position
    while position < end and (text[position].isspace() or _inside_cluster(text, position)):
        position += 1
    return min(position, end)


def cluster_start(text: str, position: int, floor: int) -> int:
    """The last position up to `position` that parts no character from its accents, joiners or emoji modifiers.

    `position` itself where that would be `floor` or before it.
    """
    at = position
    while at > floor and position - at < MAX_CLUSTER and _inside_cluster(text, at):
        at -= 1
    return at if at > floor else position


def _inside_cluster(text: str, at: int) -> bool:
    return at < len(text) and (_EXTENDS.match(text, at) is not None or text[at - 1] == "\u200d")


def _pieces(ruler: Ruler, start: int, end: int, limit: int, body: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most `limit` units that follow on each other and cover `start:end`."""
    marked = ruler.marked(start, end)
    if start < body < end and ruler.count(start, body) <= limit // 2:
        body += len(ruler.text[body:end]) - len(ruler.text[body:end].lstrip())
        # Without separators in it, the heading cannot be parted from the first words below it.
        marked = _UNMARKED.sub("_", ruler.marked(start, body)) + ruler.marked(body, end)
    at = start
    for piece in _splitter(ruler, limit).split_text(marked):
        stop = at + len(piece) - piece.count(MARK)
        while ruler.count(at, stop) > limit:
            # Nothing to split at: cut between tokens, or characters where one character has more tokens than fit.
            cut = ruler.move(at, limit)
            cut = cluster_start(ruler.text, cut if at < cut < stop else at + 1, at)
            if cut >= stop:
                break
            yield at, cut
            at = cut
        if at < stop:
            yield at, stop
        at = stop
    if at != end:
        raise AssertionError(f"the pieces of a text of {end - start} characters add up to {at - start}")


def _splitter(ruler: Ruler, limit: int) -> Any:
    # Without overlap and with separators kept, pieces put together are the text again: their lengths are positions.
    return _splitter_class()(
        separators=list(SEPARATORS),
        is_separator_regex=True,
        keep_separator="end",
        strip_whitespace=False,
        chunk_size=limit,
        chunk_overlap=0,
        length_function=ruler.length,
    )


@cache
def _splitter_class() -> Any:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return RecursiveCharacterTextSplitter


def _overlapping(ruler: Ruler, floor: int, begin: int, overlap: int) -> int:
    """Where a chunk starts whose own text starts at `begin`."""
    if not overlap:
        return begin
    at = max(ruler.move(begin, -overlap), floor)
    return at if at == floor else overlap_start(ruler.text, at, begin)
