"""Split documents into chunks."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from stages.core import tokenizer as tokenizers
from stages.core.chunking import Chunker
from stages.core.errors import ConfigError, nearest
from stages.core.schema import CHUNKS
from stages.core.stage import Stage, Worker, operational


class Chunk(Stage):
    """Gives a row per chunk, with the columns of CHUNKS and those that `keep` names.

    `document_text[start:end] == text` for every chunk. `n_tokens` counts what the tokenizer makes of `text` alone,
    special tokens included. With a `prefix`, a column `context` holds what `embed` puts ahead of the text, on a line of
    its own; no chunk is longer than `size` with special tokens, context and line break included. A context that would
    take more than half of the size loses its outermost headings first.

    A document without visible text is dropped (`empty`). One with a single character that takes more tokens than
    `size` allows (an emoji may take four) fails (`size_too_small`).
    """

    requires: ClassVar[tuple[str, ...]] = ("doc_id", "text")
    adds: ClassVar[tuple[str, ...]] = tuple(CHUNKS.names)
    fans_out: ClassVar[bool] = True

    size: int = Field(1000, ge=1, description="the most that a chunk may measure")
    overlap: int = Field(0, ge=0, description="of the text before a chunk, what is repeated in it at most")
    unit: Literal["chars", "tokens"] = Field("chars", description="what size and overlap are measured in")
    # Its identity, not its name, decides what comes out.
    tokenizer: str | None = operational(None, description="a model's directory, a tokenizer.json, or a hub id")
    revision: str | None = operational(None, description="a branch, tag or commit of a hub id")
    cross_headings: bool = Field(False, description="let a chunk go on past a heading")
    prefix: Literal["none", "heading_path", "title"] = Field(
        "none", description="context for each chunk: the headings above it, or the document's title"
    )
    keep: tuple[str, ...] = Field((), description="columns of the document that its chunks carry along")

    @model_validator(mode="after")
    def _consistent(self) -> Chunk:
        if self.overlap >= self.size:
            raise ValueError(f"overlap ({self.overlap}) must be below size ({self.size})")
        if self.unit == "tokens" and not self.tokenizer:
            raise ValueError("unit 'tokens' needs a tokenizer: a model's directory or hub id")
        if self.cross_headings and self.prefix == "heading_path":
            raise ValueError("prefix 'heading_path' needs chunks of one section: leave cross_headings off")
        if taken := [name for name in self.keep if name in CHUNKS.names or name == "context"]:
            raise ValueError(f"keep: chunks have columns of their own named {', '.join(taken)}")
        return self

    def open(self) -> Worker:
        counter = tokenizers.load(self.tokenizer, self.revision) if self.tokenizer else None
        self._check_size(counter)
        return Chunker(
            size=self.size,
            overlap=self.overlap,
            in_tokens=self.unit == "tokens",
            tokenizer=counter,
            cross_headings=self.cross_headings,
            prefix=self.prefix,
            keep=self.keep,
        )

    def check(self) -> None:
        if self.tokenizer:
            tokenizers.check(f"{self.label}.tokenizer", self.tokenizer, self.revision)
            if self.unit == "tokens" and tokenizers.find(self.tokenizer, self.revision):
                self._check_size(tokenizers.load(self.tokenizer, self.revision))

    def _check_size(self, counter: tokenizers.Tokenizer | None) -> None:
        if self.unit == "tokens" and counter and self.size <= counter.special:
            raise ConfigError(
                f"{self.label}.size",
                f"{self.size} leaves no room for text: the tokenizer adds {counter.special} special tokens to each",
            )

    def identity(self) -> dict[str, Any]:
        return tokenizers.identity(self.tokenizer, self.revision) if self.tokenizer else {}

    def output_columns(self, columns: frozenset[str]) -> frozenset[str]:
        for name in self.keep:
            if name not in columns:
                raise ConfigError(f"{self.label}.keep", f"no column '{name}' here{nearest(name, columns)}")
        return frozenset((*CHUNKS.names, *self.keep, *(("context",) if self.prefix != "none" else ())))

    @classmethod
    def code_modules(cls) -> tuple[str, ...]:
        parts = ("chunking", "schema", "sections", "splitting", "tokenizer")
        return (cls.__module__, *(f"stages.core.{part}" for part in parts))
