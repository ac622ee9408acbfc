"""DOCX: paragraphs, headings, tables, text boxes, notes and embedded HTML, in reading order.

Walks the XML itself: python-docx does not see text boxes, content controls, tracked insertions, altChunk parts or the
strict namespaces. Elements go by their local names, which transitional and strict documents share.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from typing import Any

from stages.parsers.container import (
    OFFICE_DOCUMENT,
    core_properties,
    open_package,
    read,
    relationships,
    xml,
)
from stages.parsers.document import Document, Refusal, Source, TextBuilder, described, one_line, row

SKIPPED = frozenset(
    (
        "del",
        "moveFrom",
        "delText",
        "instrText",
        "fldData",
        "pPr",
        "rPr",
        "tblPr",
        "trPr",
        "tcPr",
        "sectPr",
        "Fallback",
        "rt",
        "rPh",
        "annotationRef",
        "footnoteRef",
        "endnoteRef",
        "txbxContent",
    )
)
"""Deleted text, field codes, properties, fall-backs that repeat a drawing, readings above characters."""

MARKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": "\t"}


def parse(content: bytes, source: Source) -> Document:
    with open_package(content, source.options) as archive:
        main = next(
            (part for kind, part in relationships(archive, "").values() if kind.endswith(OFFICE_DOCUMENT)),
            "word/document.xml",
        )
        if main not in archive.namelist():
            raise Refusal("damaged", f"the package names {main} as its document, and holds no such part")
        reader = _Reader(archive, main, source)
        reader.read()
        properties = core_properties(archive)
    title = properties.pop("title", None)
    return reader.out.document(title or reader.title, described(**properties))


class _Reader:
    def __init__(self, archive: zipfile.ZipFile, main: str, source: Source) -> None:
        self.archive = archive
        self.main = main
        self.source = source
        self.parts = relationships(archive, main)
        self.levels = _heading_levels(self._part("/styles"))
        self.out = TextBuilder()
        self.title: str | None = None

    def read(self) -> None:
        root = xml(read(self.archive, self.main))
        body = next(root.iter("{*}body"), root)
        self._blocks(body)
        for kind, tag in (("/footnotes", "footnote"), ("/endnotes", "endnote")):
            part = self._part(kind)
            for note in part.iter("{*}" + tag) if part is not None else ():
                if _value(note, "type") not in ("separator", "continuationSeparator", "continuationNotice"):
                    self._blocks(note)

    def _part(self, kind: str) -> Any | None:
        path = next((part for type_, part in self.parts.values() if type_.endswith(kind)), None)
        return xml(read(self.archive, path)) if path and path in self.archive.namelist() else None

    def _blocks(self, parent: Any) -> None:
        for element in parent.iterchildren("{*}*"):
            name = _name(element)
            if name == "p":
                self._paragraph(element)
            elif name == "tbl":
                self._table(element)
            elif name == "altChunk":
                self._embedded(element)
            elif name not in SKIPPED:  # content controls, insertions, custom XML, mc:AlternateContent
                self._blocks(element)

    def _paragraph(self, element: Any) -> None:
        text = _text(element).strip()
        style = next(element.iterfind("{*}pPr/{*}pStyle"), None)
        outline = next(element.iterfind("{*}pPr/{*}outlineLvl"), None)
        level = self.levels.get(_value(style, "val") or "") if style is not None else None
        if outline is not None:
            level = _level(_value(outline, "val")) or level
        if level == 0 and text:
            self.title = self.title or one_line(text)
        if level is not None:
            self.out.heading(max(level, 1), one_line(text))
        else:
            self.out.block(text)
        for box in _text_boxes(element):
            self._blocks(box)

    def _table(self, element: Any) -> None:
        lines = [line for line in _rows(element) if line]
        self.out.block("\n".join(lines))
        for box in _text_boxes(element):
            self._blocks(box)

    def _embedded(self, element: Any) -> None:
        """A part in another format that Word takes in when it opens the document (w:altChunk)."""
        from stages.parsers import registry, sniff

        _, part = self.parts.get(_value(element, "id") or "", ("", ""))
        if part not in self.archive.namelist():
            return
        content = read(self.archive, part)
        media_type = sniff.media_type(content, part)
        if media_type not in ("text/html", "text/plain", "application/rtf", "message/rfc822"):
            return
        whole = Source(part, media_type, _whole_page(self.source))
        inner = registry.load(registry.PARSERS[media_type])(content, whole)
        position = 0
        for heading in inner.headings:
            self.out.block(inner.text[position : heading.start].strip())
            self.out.heading(heading.level, heading.text)
            position = heading.end
        self.out.block(inner.text[position:].strip())


def _whole_page(source: Source) -> Any:
    from dataclasses import replace

    return replace(source.options, html="whole")


def _name(element: Any) -> str:
    return element.tag.rpartition("}")[2]


def _value(element: Any, name: str) -> str | None:
    """An attribute by its local name."""
    return next((value for key, value in element.items() if key.rpartition("}")[2] == name), None)


def _text(paragraph: Any) -> str:
    """The text of a paragraph without that of its text boxes."""
    parts: list[str] = []
    stack = [paragraph.iterchildren("{*}*")]
    while stack:
        element = next(stack[-1], None)
        if element is None:
            stack.pop()
            continue
        name = _name(element)
        if name == "t":  # w:t and m:t
            parts.append(element.text or "")
        elif name in MARKS:
            parts.append(MARKS[name])
        elif name not in SKIPPED:
            stack.append(element.iterchildren("{*}*"))
    return "".join(parts)


def _text_boxes(element: Any) -> Iterator[Any]:
    """The outermost text boxes in `element`, each once."""
    for box in element.iter("{*}txbxContent"):
        around = [_name(parent) for parent in box.iterancestors() if parent is not element]
        inside = around[: next((i for i, p in enumerate(box.iterancestors()) if p is element), len(around))]
        if "Fallback" not in inside and "txbxContent" not in inside and "del" not in inside:
            yield box


def _rows(table: Any) -> Iterator[str]:
    for line in _children(table, "tr"):
        yield row([_cell(cell) for cell in _children(line, "tc")])


def _cell(cell: Any) -> str:
    """A cell's paragraphs and the rows of tables inside it, on one line."""
    parts = []
    for block in _children(cell, "p", "tbl"):
        if _name(block) == "p":
            parts.append(_text(block))
        else:
            parts.append("; ".join(line for line in _rows(block) if line))
    return " ".join(part for part in parts if part.strip())


def _children(element: Any, *names: str) -> Iterator[Any]:
    """Children by name, seen through content controls and insertions."""
    for child in element.iterchildren("{*}*"):
        name = _name(child)
        if name in names:
            yield child
        elif name in ("sdt", "sdtContent", "ins", "moveTo", "customXml", "smartTag"):
            yield from _children(child, *names)


def _heading_levels(styles: Any | None) -> dict[str, int]:
    """Style id -> heading level; 0 for the title style."""
    if styles is None:
        return {}
    found: dict[str, int] = {}
    based_on: dict[str, str] = {}
    for style in styles.iter("{*}style"):
        identity = _value(style, "styleId") or ""
        named = next(style.iterfind("{*}name"), None)
        name = (_value(named, "val") or "").lower() if named is not None else ""
        parent = next(style.iterfind("{*}basedOn"), None)
        outline = next(style.iterfind("{*}pPr/{*}outlineLvl"), None)
        if parent is not None:
            based_on[identity] = _value(parent, "val") or ""
        if match := re.fullmatch(r"heading (\d)", name):
            found[identity] = int(match[1])
        elif name == "title":
            found[identity] = 0
        elif outline is not None and (level := _level(_value(outline, "val"))):
            found[identity] = level
    for identity in based_on:
        parent_id, seen = identity, set()
        while parent_id not in found and parent_id in based_on and parent_id not in seen:
            seen.add(parent_id)
            parent_id = based_on[parent_id]
        if parent_id in found and identity not in found:
            found[identity] = found[parent_id]
    return found


def _level(value: str | None) -> int | None:
    """Word's outline level counts from 0, and 9 means body text."""
    return int(value) + 1 if value and value.isdigit() and int(value) < 9 else None
