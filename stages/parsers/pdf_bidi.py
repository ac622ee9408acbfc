"""Lines of right-to-left script, from the places of their characters to the order in which they are read."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise
from typing import NamedTuple

RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")

HEBREW = re.compile(r"[\u0590-\u05ff\ufb1d-\ufb4f]")
"""Its letters stand one by one. Arabic ones that share a glyph have no places of their own."""

LEFT_TO_RIGHT = re.compile(r"L(?:[^R]*[LE])?|E(?:[cs]?E)*|A(?:c?A)*")
"""Runs that are read from left to right inside a right-to-left line, by `_kind` (after UAX 9): words and what is
between them; numbers with single separators."""

SLACK = 0.5
"""Points by which kerning may put a letter back."""


class Character(NamedTuple):
    """A character with its left and right edge and the x of its origin, in points."""

    text: str
    left: float
    right: float
    x: float


def from_the_right(characters: list[Character]) -> str | None:
    """The text of a line that is mostly Hebrew, in logical order; None for another line, or where the order of its
    letters does not follow their places, so that these tell nothing."""
    kinds = "".join(_kind(c.text) for c in characters)
    if kinds.count("R") <= kinds.count("L"):
        return None
    clusters: list[list[int]] = []
    for i, c in enumerate(characters):
        if clusters and unicodedata.combining(c.text):
            clusters[-1].append(i)
        else:
            clusters.append([i])
    places = [(characters[cluster[0]].right, cluster) for cluster in clusters]
    letters = [place for place, cluster in places if kinds[cluster[0]] == "R"]
    if any(b > a + SLACK for a, b in pairwise(letters)):
        return None
    order = [i for _, cluster in sorted(places, key=lambda place: -place[0]) for i in cluster]
    order = [i for i in order if not characters[i].text.isspace() or _is_free(characters[i], characters)]
    read = "".join(characters[i].text for i in order)
    kinds = "".join(kinds[i] for i in order)
    for match in LEFT_TO_RIGHT.finditer(kinds):
        start, end = match.span()
        read = read[:start] + read[start:end][::-1] + read[end:]
    return read


def _is_free(blank: Character, characters: list[Character]) -> bool:
    """Whether nothing is drawn where a blank stands."""
    middle = (blank.left + blank.right) / 2
    return not any(c.left < middle < c.right and not c.text.isspace() for c in characters)


def _kind(character: str) -> str:
    """R, L, E (European digit), A (Arabic digit), c and s (separators within numbers) or a blank for the rest."""
    bidi = unicodedata.bidirectional(character)
    return {"R": "R", "AL": "R", "L": "L", "EN": "E", "AN": "A", "CS": "c", "ES": "s"}.get(bidi, " ")
