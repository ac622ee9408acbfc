"""Take the noise out of parsed text."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from stages.core import cleaning
from stages.core.offsets import TrackedText
from stages.core.outcome import Result, outcomes
from stages.core.running_heads import running_heads
from stages.core.stage import Stage, Worker


class Clean(Stage):
    """Mends `text`, `title` and the strings in `metadata`. `pages` and `headings` point at the same words as before,
    and a heading's text is again the text that its range holds.

    A document that has nothing left is dropped (`empty`).
    """

    requires: ClassVar[tuple[str, ...]] = ("text",)

    mojibake: bool = Field(True, description="mend UTF-8 that was decoded as something else (Ã© for é)")
    unicode: Literal["NFC", "NFD", "NFKC", "NFKD", "none"] = Field("NFC", description="the Unicode normal form")
    invisible: bool = Field(
        True, description="remove control and zero-width characters, but joiners where scripts or emoji need them"
    )
    bidi_marks: Literal["keep", "remove"] = Field("keep", description="marks and overrides of the writing direction")
    hyphenation: bool = Field(True, description="put words together that a line's end has cut (Latin script)")
    whitespace: bool = Field(True, description="one space between words, one blank line between paragraphs")
    indentation: bool = Field(True, description="leave the white space at the beginning of lines")
    headers_footers: bool = Field(False, description="remove lines that repeat at the edges of pages")

    def open(self) -> Worker:
        return partial(clean, options=self)

    @classmethod
    def code_modules(cls) -> tuple[str, ...]:
        return (cls.__module__, "stages.core.cleaning", "stages.core.offsets", "stages.core.running_heads")


def clean(rows: pa.Table, options: Clean) -> Result:
    """`rows` with their text cleaned; the columns `title`, `metadata`, `pages` and `headings` may be missing."""
    columns = {name: rows[name].to_pylist() for name in ("text", "pages", "headings") if name in rows.column_names}
    texts: list[str] = []
    pages: list[Any] = []
    headings: list[Any] = []
    for i, text in enumerate(columns["text"]):
        cleaned = clean_document(
            text or "",
            (columns["pages"][i] if "pages" in columns else None) or [],
            (columns["headings"][i] if "headings" in columns else None) or [],
            options,
        )
        for values, value in zip((texts, pages, headings), cleaned, strict=True):
            values.append(value)
    rows = _set(rows, "text", texts)
    for name, values in (("pages", pages), ("headings", headings)):
        if name in columns:
            # A document without a page map keeps its null.
            rows = _set(
                rows, name, [new if old is not None else None for new, old in zip(values, columns[name], strict=True)]
            )
    if "title" in rows.column_names:
        rows = _set(rows, "title", [title and clean_line(title, options) for title in rows["title"].to_pylist()])
    if "metadata" in rows.column_names:
        rows = _set(rows, "metadata", [clean_json(value, options) for value in rows["metadata"].to_pylist()])
    empty = pa.array([not text for text in texts], pa.bool_())
    if not empty.true_count:
        return Result(rows)
    lost = outcomes(rows.filter(empty), "dropped", "empty", "no text is left after cleaning")
    return Result(rows.filter(pa.array([bool(text) for text in texts], pa.bool_())), lost)


def clean_document(
    text: str, pages: list[dict[str, Any]], headings: list[dict[str, Any]], options: Clean
) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """The clean text, and its pages and headings as the columns hold them. A heading that is all noise goes."""
    ranges = [*pages, *headings]
    tracked = TrackedText(text, (at for span in ranges for at in (span["start"], span["end"])))
    edit(tracked, options)
    if options.headers_footers and len(pages) > 1:
        spans = tracked.ranges()
        heads = running_heads(tracked.text, spans[: len(pages)], spans[len(pages) :])
        tracked.replace([(start, end, "") for start, end in heads])
    finish(tracked, options)
    spans = tracked.ranges()
    pages = [
        {"page": page["page"], "start": start, "end": end} for page, (start, end) in zip(pages, spans, strict=False)
    ]
    kept = []
    for heading, (start, end) in zip(headings, spans[len(pages) :], strict=True):
        words = tracked.text[start:end]
        start += len(words) - len(words.lstrip())
        if words := words.strip():
            kept.append({"level": heading["level"], "text": words, "start": start, "end": start + len(words)})
    return tracked.text, pages, kept


def edit(text: TrackedText, options: Clean) -> None:
    """Mend characters: what must come before lines are compared."""
    if options.mojibake:
        cleaning.fix_mojibake(text)
    if options.invisible:
        cleaning.remove_invisible(text, bidi=options.bidi_marks == "remove")
    if options.unicode != "none":
        cleaning.normalize(text, options.unicode)


def finish(text: TrackedText, options: Clean) -> None:
    """Mend words and white space."""
    if options.hyphenation:
        cleaning.join_hyphenated(text)
    if options.invisible:
        cleaning.remove_soft_hyphens(text)
    if options.whitespace:
        cleaning.collapse_whitespace(text, options.indentation)
    text.strip()


def clean_line(text: str, options: Clean) -> str:
    """`text` cleaned, on one line."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    tracked = TrackedText(text)
    edit(tracked, options)
    finish(tracked, options)
    return " ".join(tracked.text.split())


def clean_json(text: str | None, options: Clean) -> str | None:
    """A JSON object with its strings cleaned; what is not JSON stays as it is."""
    if not text or (text.isascii() and "\\" not in text and "  " not in text):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    clean_text = partial(clean_line, options=options)
    cleaned = cleaning.clean_value(value, clean_text)
    return json.dumps(cleaned, ensure_ascii=False) if cleaned != value else text


def _set(rows: pa.Table, name: str, values: list[Any]) -> pa.Table:
    i = rows.schema.get_field_index(name)
    return rows.set_column(i, rows.schema.field(i), pa.array(values, rows.schema.field(i).type))
