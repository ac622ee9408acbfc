"""Markdown: the source without its front matter, which becomes metadata; headings by CommonMark's rules."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from typing import Any

from stages.parsers.document import Document, Heading, Source, described
from stages.parsers.text import decode, plain

FRONT_MATTER = re.compile(
    r"\A(?P<fence>---|\+\+\+)[ \t]*\n(?P<body>.*?)^(?:(?P=fence)|\.\.\.)[ \t]*(?:\n|\Z)", re.S | re.M
)


PAIR = re.compile(r"^([A-Za-z_][\w-]*):[ \t]*(.*?)[ \t]*$", re.M)
"""A line of front matter that is not quite YAML, as a title with a colon in it is not."""


def parse(content: bytes, source: Source) -> Document:
    text, encoding = decode(content)
    front, text = split_front_matter(plain(text))
    headings = headings_of(text)
    title = front.pop("title", None)
    first = next((heading.text for heading in headings if heading.level == 1), None)
    metadata = described(encoding=encoding, **{str(key): value for key, value in front.items()})
    return Document(text, str(title) if title else first, metadata, headings=headings)


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """YAML between `---` lines or TOML between `+++` lines at the start, and what follows. ({}, text) without any."""
    match = FRONT_MATTER.match(text)
    if match is None:
        return {}, text
    if match["fence"] == "+++":
        try:
            values: Any = tomllib.loads(match["body"])
        except tomllib.TOMLDecodeError:
            return {}, text
    else:
        import yaml

        if re.search(r"(?:^|[\s\[{,:-])\*\w", match["body"]):  # aliases can expand without bound
            return {}, text[match.end() :].lstrip("\n")
        try:
            values = yaml.safe_load(match["body"])
        except (yaml.YAMLError, ValueError):
            values = dict(PAIR.findall(match["body"])) if PAIR.match(match["body"]) else None
    if not isinstance(values, dict):
        return {}, text
    return values, text[match.end() :].lstrip("\n")


def headings_of(text: str) -> list[Heading]:
    """ATX and setext headings, by block structure alone."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table").disable("inline")
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    tokens = parser.parse(text)
    headings = []
    for opening, inline in pairwise(tokens):
        if opening.type != "heading_open" or not opening.map or not inline.content:
            continue
        first, last = opening.map
        words = [re.escape(word) for word in inline.content.split()]
        found = re.compile(r"\s+".join(words)).search(text, starts[first], min(starts[last], len(text)))
        if found:
            headings.append(Heading(int(opening.tag[1]), found.group(), found.start(), found.end()))
    return headings
