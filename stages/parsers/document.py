"""What a parser is given, what it gives back, and how it says no."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


class Page(NamedTuple):
    """A page (from 1) and the half-open range of characters of the text that stands on it."""

    page: int
    start: int
    end: int


class Heading(NamedTuple):
    """A heading (level 1 is the highest); `document.text[start:end] == text`."""

    level: int
    text: str
    start: int
    end: int


@dataclass
class Document:
    """What a parser makes of a document's bytes. Offsets count characters (code points) of `text`."""

    text: str
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    pages: list[Page] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)


@dataclass(frozen=True)
class Options:
    """The part of the configuration that parsers read."""

    html: Literal["main", "whole"] = "main"
    passwords: tuple[str, ...] = ()
    ocr: Literal["off", "auto"] = "off"
    ocr_language: str = "eng"
    max_expanded_bytes: int = 1 << 30
    max_ratio: int = 200


@dataclass(frozen=True)
class Source:
    """A document's name (its URI: a hint only) and the media type that it is parsed as."""

    name: str
    media_type: str
    options: Options


Parser = Callable[[bytes, Source], Document]


class Refusal(Exception):
    """A document that cannot or need not be parsed: `reason` is a short code, the message says what to do."""

    status: Literal["failed", "dropped"] = "failed"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Drop(Refusal):
    """A document with nothing in it: not an error."""

    status = "dropped"


class TextBuilder:
    """Puts a text together block by block and keeps the offsets of its headings and pages."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self.headings: list[Heading] = []
        self.pages: list[Page] = []

    @property
    def length(self) -> int:
        return self._length

    def block(self, text: str, separator: str = "\n\n") -> tuple[int, int]:
        """Append `text`, parted from what is there by `separator`. Returns its range; nothing is added for ''."""
        if text and self._length:
            self._append(separator)
        start = self._length
        self._append(text)
        return start, self._length

    def heading(self, level: int, text: str) -> None:
        if text:
            start, end = self.block(text)
            self.headings.append(Heading(level, text, start, end))

    def page(self, number: int, start: int) -> None:
        """Close page `number`, which began at `start`; the separator before its first block belongs to no page."""
        self.pages.append(Page(number, min(start, self._length), self._length))

    def document(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> Document:
        return Document("".join(self._parts), title, metadata or {}, self.pages, self.headings)

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)


def one_line(text: str | None) -> str:
    """`text` with every run of white space made one space."""
    return " ".join(text.split()) if text else ""


def row(cells: list[str]) -> str:
    """A table row as one line: cells in order, parted by ` | `; '' where all are empty."""
    lines = [one_line(cell) for cell in cells]
    while lines and not lines[-1]:
        lines.pop()
    return " | ".join(lines)


def described(**values: object) -> dict[str, Any]:
    """Metadata without the empty values."""
    return {key: one_line(value) if isinstance(value, str) else value for key, value in values.items() if value}
