"""One row per word, by an actor."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from stages.core.outcome import Result, outcomes
from stages.core.schema import chunk_id
from stages.core.stage import Stage, Worker


class Words(Stage):
    requires: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = ("chunk_id", "word")
    actor: ClassVar[bool] = True
    fans_out: ClassVar[bool] = True

    def open(self) -> Worker:
        return words


def words(rows: pa.Table) -> Result:
    found = [
        {"chunk_id": chunk_id(document, n, word), "doc_id": document, "uri": uri, "word": word}
        for document, uri, text in zip(*(rows[c].to_pylist() for c in ("doc_id", "uri", "text")), strict=True)
        for n, word in enumerate(text.split())
    ]
    schema = pa.schema([(name, pa.string()) for name in ("chunk_id", "doc_id", "uri", "word")])
    empty = rows.filter(pa.array([not text.split() for text in rows["text"].to_pylist()], pa.bool_()))
    return Result(pa.Table.from_pylist(found, schema), outcomes(empty, "dropped", "empty"))
