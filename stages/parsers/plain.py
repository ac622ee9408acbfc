"""Plain text, and reStructuredText with its section titles."""

from __future__ import annotations

import re

from stages.parsers.document import Document, Heading, Source
from stages.parsers.text import decode, plain

ADORNMENT = re.compile(r"^(?P<char>[!-/:-@[-`{-~])(?P=char)*[ \t]*$", re.MULTILINE)


def parse(content: bytes, source: Source) -> Document:
    text, encoding = decode(content)
    return Document(plain(text), metadata={"encoding": encoding})


def parse_rst(content: bytes, source: Source) -> Document:
    """The source as it is, with its section titles as headings: levels come in the order of the adornments' first use.

    A title is underlined by a line of one punctuation character, four of them at least or as many as the title has
    characters, and may be overlined.
    """
    document = parse(content, source)
    document.headings = section_titles(document.text)
    document.title = document.headings[0].text if document.headings else None
    return document


def section_titles(text: str) -> list[Heading]:
    """The section titles of a reStructuredText source."""
    levels: dict[tuple[str, bool], int] = {}
    headings: list[Heading] = []
    consumed = -1
    for match in ADORNMENT.finditer(text):
        if match.start() <= consumed:
            continue
        above_end = match.start() - 1
        above_start = text.rfind("\n", 0, max(above_end, 0)) + 1
        title = text[above_start:above_end] if above_end > 0 else ""
        before_start = text.rfind("\n", 0, max(above_start - 1, 0)) + 1
        before = text[before_start : max(above_start - 1, 0)].rstrip()
        overlined = bool(before) and before == match.group().rstrip()
        if not _is_title(title, before, overlined, len(match.group().rstrip())):
            continue
        style = (match["char"], overlined)
        level = levels.setdefault(style, len(levels) + 1)
        start = above_start + len(title) - len(title.lstrip())
        headings.append(Heading(level, title.strip(), start, start + len(title.strip())))
        consumed = match.end()
    return headings


def _is_title(title: str, before: str, overlined: bool, width: int) -> bool:
    """Whether a line is a title, given the line before it and the width of the adornment below it."""
    if not title.strip() or ADORNMENT.fullmatch(title) or width < 2:
        return False
    if not overlined and (before or title[0] in " \t"):  # a title stands alone and at the margin
        return False
    return width >= min(len(title.strip()), 4)  # docutils warns of an underline that is too short, and takes it
