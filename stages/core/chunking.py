"""Documents to chunks: splits by estimate, then counts exactly and mends the few that are too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from stages.core.outcome import OUTCOMES, Result, outcomes
from stages.core.schema import CHUNKS, chunk_id
from stages.core.sections import PageMap, Section, sections
from stages.core.splitting import Characters, Ruler, Tokens, halves, overlap_start, split
from stages.core.tokenizer import Tokenizer

GROUP_CHARS = 4_000_000
"""Characters of documents that are chunked at once."""
SAMPLE_CHARS = 4_096
MARGIN = 1.05
"""Over what a sample says: a chunk somewhat short is better than one cut in two."""


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk to be: characters `start:end` of document `doc`, its own text beginning at `own`."""

    doc: int
    start: int
    own: int
    end: int
    path: tuple[str, ...]
    context: str | None
    n_tokens: int | None = None


class TooSmall(Exception):
    """A character that does not fit into a chunk."""

    def __init__(self, doc: int, message: str) -> None:
        super().__init__(message)
        self.doc = doc


@dataclass(frozen=True)
class Chunker:
    """The worker of the stage `chunk`; its fields are the stage's."""

    size: int
    overlap: int
    in_tokens: bool
    tokenizer: Tokenizer | None
    cross_headings: bool = False
    prefix: Literal["none", "heading_path", "title"] = "none"
    keep: tuple[str, ...] = ()

    def __call__(self, rows: pa.Table) -> Result:
        schema = self._schema(rows.schema)
        tables, lost = [schema.empty_table()], [OUTCOMES.empty_table()]
        for group in _groups(rows):
            result = self._chunk(group, schema)
            tables.append(result.rows)
            if result.outcomes is not None:
                lost.append(result.outcomes)
        return Result(pa.concat_tables(tables), pa.concat_tables(lost))

    def _schema(self, documents: pa.Schema) -> pa.Schema:
        schema = CHUNKS
        if self.prefix != "none":
            schema = schema.append(pa.field("context", pa.string()))
        for name in self.keep:
            schema = schema.append(documents.field(name))
        return schema

    def _chunk(self, rows: pa.Table, schema: pa.Schema) -> Result:
        texts = [text or "" for text in rows["text"].to_pylist()]
        spans = [span for i, text in enumerate(texts) for span in self._spans(i, text, rows)]
        failed: dict[int, str] = {}
        if self.tokenizer:
            spans = self._measured(spans, texts, failed)
        spans.sort(key=lambda span: (span.doc, span.own))
        lost = [OUTCOMES.empty_table()]
        if failed:
            spans = [span for span in spans if span.doc not in failed]
            rejected = rows.take(list(failed))
            lost.append(outcomes(rejected, "failed", "size_too_small", list(failed.values()), "ValueError"))
        if empty := sorted(set(range(len(texts))).difference(failed, (span.doc for span in spans))):
            lost.append(outcomes(rows.take(empty), "dropped", "empty", "there is no text to chunk"))
        return Result(self._table(rows, texts, spans, schema), pa.concat_tables(lost))

    def _spans(self, doc: int, text: str, rows: pa.Table) -> Iterator[Span]:
        """Where to split one document, as far as its tokens can be estimated."""
        ruler: Ruler = Characters(text)
        scale = 1.0
        if self.in_tokens and self.tokenizer:
            positions = self.tokenizer.positions(text)
            scale = _scale(self.tokenizer, text, positions)
            ruler = Tokens(text, positions)
        title = rows["title"][doc].as_py() if "title" in rows.column_names and self.prefix == "title" else None
        contexts: dict[tuple[str, ...], tuple[str | None, int]] = {}
        parts = sections(text, _cell(rows, "headings", doc) or [])
        for section in [Section(0, len(text))] if self.cross_headings else parts:
            limit = self.size - (self.tokenizer.special if self.in_tokens and self.tokenizer else 0)
            context = None
            if self.prefix != "none":
                if section.path not in contexts:
                    wanted = section.path if self.prefix == "heading_path" else ((title,) if title else ())
                    contexts[section.path] = self._context(wanted, limit)
                context, taken = contexts[section.path]
                limit -= taken
            units = max(int(limit / scale), 1)
            overlap = min(int(self.overlap / scale), units - 1)
            for start, own, end in split(ruler, section.start, section.end, units, overlap, section.body):
                path = _path_at(parts, own) if self.cross_headings else section.path
                yield Span(doc, start, own, end, path, context)

    def _context(self, words: Sequence[str], limit: int) -> tuple[str | None, int]:
        """What goes ahead of a chunk, and what it and its line break take. The innermost words stay, up to half."""
        words = list(words)
        while words:
            context = " > ".join(words)
            taken = len(context) + 1
            if self.in_tokens and self.tokenizer:
                taken = self.tokenizer.counts([context + "\n"])[0] - self.tokenizer.special
            if taken <= limit // 2:
                return context, taken
            # An only heading that is too long is cut; its beginning says most.
            words = words[1:] if len(words) > 1 else _shorter(words[0])
        return None, 0

    def _measured(self, spans: list[Span], texts: list[str], failed: dict[int, str]) -> list[Span]:
        """`spans` with their token counts; those that are too long are shortened until they are not."""
        assert self.tokenizer
        done: list[Span] = []
        while spans:
            alone = self.tokenizer.counts([texts[span.doc][span.start : span.end] for span in spans])
            whole = alone
            if self.prefix != "none" and self.in_tokens:
                whole = self.tokenizer.counts([_whole(span, texts[span.doc]) for span in spans])
            todo: list[Span] = []
            for span, n, total in zip(spans, alone, whole, strict=True):
                if not self.in_tokens or total <= self.size:
                    done.append(replace(span, n_tokens=n))
                    continue
                try:
                    todo += _shortened(span, texts[span.doc], total, self.size)
                except TooSmall as error:
                    failed[error.doc] = str(error)
            spans = todo
        return done

    def _table(self, rows: pa.Table, texts: list[str], spans: list[Span], schema: pa.Schema) -> pa.Table:
        docs = np.fromiter((span.doc for span in spans), np.int64, len(spans))
        counts = np.bincount(docs, minlength=len(texts))
        ids = rows["doc_id"].to_pylist()
        maps = [PageMap(_cell(rows, "pages", i) or []) if counts[i] else None for i in range(len(texts))]
        on_pages = [pages.range(span.start, span.end) if (pages := maps[span.doc]) else (None, None) for span in spans]
        words = [texts[span.doc][span.start : span.end] for span in spans]
        columns: dict[str, Any] = {
            "chunk_id": [chunk_id(ids[s.doc], s.start, text) for s, text in zip(spans, words, strict=True)],
            "chunk_index": np.arange(len(spans)) - np.repeat(np.cumsum(counts) - counts, counts),
            "text": words,
            "start": [span.start for span in spans],
            "end": [span.end for span in spans],
            "page_first": [first for first, _ in on_pages],
            "page_last": [last for _, last in on_pages],
            "heading_path": [span.path for span in spans],
            "n_tokens": [span.n_tokens for span in spans],
            "context": [span.context for span in spans],
        }
        arrays = []
        for field in schema:
            if field.name in columns:
                arrays.append(pa.array(columns[field.name], field.type))
            elif field.name in rows.column_names:
                arrays.append(rows[field.name].take(pa.array(docs)).cast(field.type))
            else:
                arrays.append(pa.nulls(len(spans), field.type))
        return pa.table(arrays, schema=schema)


def _groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Runs of rows of some GROUP_CHARS of text each."""
    begin, size = 0, 0
    lengths = [len(text.as_py() or "") for text in rows["text"]]
    for i, length in enumerate(lengths):
        size += length
        if size >= GROUP_CHARS or i == len(lengths) - 1:
            yield rows.slice(begin, i + 1 - begin)
            begin, size = i + 1, 0


def _cell(rows: pa.Table, name: str, i: int) -> Any:
    return rows[name][i].as_py() if name in rows.column_names else None


def _scale(tokenizer: Tokenizer, text: str, positions: np.ndarray) -> float:
    """Tokens per estimated token, by a sample from the middle of a text."""
    if tokenizer.estimates_well:
        return 1.0
    begin = max(len(text) - SAMPLE_CHARS, 0) // 2
    first, last = np.searchsorted(positions, (begin, begin + SAMPLE_CHARS))
    if last == first:
        return 1.0
    exact = tokenizer.counts([text[begin : begin + SAMPLE_CHARS]])[0] - tokenizer.special
    # Within reason: a word of a megabyte may be one unknown token, yet no chunk should hold it whole.
    return min(max(MARGIN * exact / float(last - first), 0.5), 2.0)


def _path_at(parts: list[Section], position: int) -> tuple[str, ...]:
    return next((part.path for part in parts if part.start <= position < part.end), ())


def _shorter(words: str) -> list[str]:
    """`words` without the last, or a part of the only one."""
    shorter, space, _ = words.rpartition(" ")
    shorter = shorter.rstrip() if space else words[: len(words) * 3 // 4]
    return [shorter] if shorter else []


def _whole(span: Span, text: str) -> str:
    """What a model is given of a chunk."""
    own = text[span.start : span.end]
    return f"{span.context}\n{own}" if span.context else own


def _shortened(span: Span, text: str, tokens: int, size: int) -> list[Span]:
    """A span that takes `tokens` where `size` is allowed, with less overlap; in two, where it has none; then without
    its context. Raises TooSmall for a single character."""
    if span.start < span.own:
        excess = (span.end - span.start) * (tokens - size) // tokens + 1
        start = min(span.start + excess, span.own)
        return [replace(span, start=overlap_start(text, start, span.own))]
    if span.end - span.start > 1:
        parts = halves(text, span.start, span.end)
        return [replace(span, start=start, own=start, end=end) for start, end in parts]
    if span.context:
        return [replace(span, context=None)]
    raise TooSmall(
        span.doc,
        f"the character {text[span.start]!r} at {span.start} takes {tokens} tokens, special ones included, and size "
        f"is {size}: set the stage's size to {tokens} or more",
    )
