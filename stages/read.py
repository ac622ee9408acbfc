"""Read documents: files as bytes, or the rows of JSONL and Parquet files as text."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

import fsspec
import pyarrow as pa
from pydantic import ByteSize, Field, field_validator

from connectors import rows
from connectors.sources import Selection, Source, is_remote, list_sources, lists_below
from connectors.storage import open_uri, store_errors
from stages.core.errors import ConfigError
from stages.core.outcome import OUTCOMES, Result, outcomes, printable
from stages.core.schema import CONTENT, DOCUMENTS, content_hash, doc_id
from stages.core.stage import Stage, Worker, operational

SOURCES = pa.schema(
    [
        ("uri", pa.string()),
        ("path", pa.binary()),
        ("size", pa.int64()),
        ("modified_at", pa.float64()),
        ("version", pa.string()),
        ("part", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
    ]
)
"""The fields of connectors.sources.Source: what the worker is given."""

READ = DOCUMENTS.append(CONTENT)

REQUESTS = 16
"""Remote files of a unit that are fetched at once: one at a time, latency would rule."""


class Read(Stage):
    """The first stage. One row per file, or one per row of a JSONL or Parquet file; every other file's bytes go to
    `parse`. Files are listed by the driver, and read where the work is done."""

    adds: ClassVar[tuple[str, ...]] = tuple(READ.names)
    reads: ClassVar[bool] = True
    fans_out: ClassVar[bool] = True

    uri: tuple[str, ...] = operational(min_length=1, description="files, directories or globs; local or s3://")
    include: tuple[str, ...] = operational((), description="patterns (as in .gitignore) of files to take")
    exclude: tuple[str, ...] = operational((), description="patterns of files to leave out")
    hidden: bool = operational(False, description="take files and folders whose names begin with a dot")
    format: Literal["auto", "files", "jsonl", "parquet"] = Field(
        "auto", description="auto: .jsonl, .ndjson and .parquet hold rows, anything else is a document"
    )
    text_column: str | None = Field(
        "text", description="the column that holds the text, in files of rows; null: rows without, all in `metadata`"
    )
    max_bytes: ByteSize = Field(ByteSize(256 * 2**20), gt=0, description="a larger file fails as too_large")
    unit_bytes: ByteSize = operational(ByteSize(2 * 2**20), gt=0, description="bytes that travel and commit together")
    unit_docs: int = operational(128, ge=1, description="documents that travel and commit together")
    storage_options: dict[str, Any] = operational({}, repr=False, description="for fsspec: endpoint_url, key, ...")

    @field_validator("uri", "include", "exclude", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("include", "exclude")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        Selection(value)
        return value

    @classmethod
    def code_modules(cls) -> tuple[str, ...]:
        return (cls.__module__, "connectors.rows")

    def check(self) -> None:
        for uri in self.uri:
            next(self._listed([uri]), None)

    def reads_below(self, place: str) -> bool:
        """Whether what is written to the folder `place` would be read as documents."""
        selection = Selection(self.include, self.exclude, self.hidden)
        return any(lists_below(uri, selection, place) for uri in self.uri)

    def sources(self) -> Iterator[Source]:
        """Everything there is to read, lazily. Raises ConfigError where a URI names nothing."""
        for source in self._listed(self.uri):
            form = None if source.reason else self.row_format(source.uri)
            if form is None:
                yield source
            else:
                filesystem, path = self.opened(source)
                yield from rows.pieces(source, form, filesystem, path, int(self.unit_bytes))

    def _listed(self, uris: Iterable[str]) -> Iterator[Source]:
        selection = Selection(self.include, self.exclude, self.hidden)
        try:
            yield from list_sources(uris, selection, self.storage_options)
        except OSError as error:
            raise ConfigError(f"{self.label}.uri", str(error)) from error

    def units(self, sources: Iterator[Source]) -> Iterator[list[Source]]:
        """Group sources by bytes and count. A large file, or a part of one, is a unit of its own."""
        unit: list[Source] = []
        size = 0
        for source in sources:
            if source.part or source.size >= self.unit_bytes // 2:
                yield [source]
                continue
            if unit and (size + source.size > self.unit_bytes or len(unit) >= self.unit_docs):
                yield unit
                unit, size = [], 0
            unit.append(source)
            size += source.size
        if unit:
            yield unit

    def row_format(self, uri: str) -> rows.RowFormat | None:
        if self.format in ("jsonl", "parquet"):
            return self.format
        return rows.row_format(uri) if self.format == "auto" else None

    def opened(self, source: Source) -> tuple[fsspec.AbstractFileSystem, Any]:
        """The filesystem that a source is on, and its path there."""
        if not is_remote(source.uri):
            return fsspec.filesystem("file"), os.fsdecode(source.path)
        return open_uri(source.uri, self.storage_options)[0], source.path.decode()

    def open(self) -> Worker:
        def worker(table: pa.Table) -> Result:
            found: list[dict[str, Any]] = []
            lost: list[pa.Table] = []
            sources = [Source(**row) for row in table.select(SOURCES.names).to_pylist()]
            fetched = self._fetch(sources)
            for source in sources:
                form = self.row_format(source.uri) if source.part else None
                read = self._rows(source, form) if form else [self._file(source, fetched.get(source.uri))]
                for item in read:
                    lost.append(item) if isinstance(item, pa.Table) else found.append(item)
            return Result(pa.Table.from_pylist(found, schema=READ), pa.concat_tables([OUTCOMES.empty_table(), *lost]))

        return worker

    def _fetch(self, sources: list[Source]) -> dict[str, bytes | OSError]:
        """The bytes of the remote files of a unit, by URI, or why there are none."""
        wanted = [s for s in sources if is_remote(s.uri) and not s.part and not s.reason and s.size <= self.max_bytes]
        if not wanted:
            return {}

        def fetch(source: Source) -> bytes | OSError:
            filesystem, path = self.opened(source)
            try:
                with store_errors():
                    return bytes(filesystem.cat_file(path))
            except OSError as error:
                return error

        with ThreadPoolExecutor(REQUESTS) as pool:
            return dict(zip((source.uri for source in wanted), pool.map(fetch, wanted), strict=True))

    def _file(self, source: Source, fetched: bytes | OSError | None) -> dict[str, Any] | pa.Table:
        if source.reason:
            return lost_source(source, source.reason, source.message)
        if source.size > self.max_bytes:
            return lost_source(source, "too_large", f"{source.size} bytes; {self.label}.max_bytes is {self.max_bytes}")
        try:
            if isinstance(fetched, OSError):
                raise fetched
            filesystem, path = self.opened(source)
            content = fetched if fetched is not None else filesystem.cat_file(path)
        except FileNotFoundError as error:
            return lost_source(source, "vanished", "the file was there when it was listed and is gone", error)
        except OSError as error:
            return lost_source(source, "unreadable", error.strerror or str(error), error)
        return document(source, source.uri, content) | {"content": content}

    def _rows(self, source: Source, form: rows.RowFormat) -> Iterator[dict[str, Any] | pa.Table]:
        if form == "jsonl" and rows.jsonl_bytes(source) > self.unit_bytes + self.max_bytes:
            yield lost_source(source, "too_large", f"a line is longer than {self.label}.max_bytes, {self.max_bytes}")
            return
        filesystem, path = self.opened(source)
        empty = True
        try:
            with store_errors():
                for row in rows.read_part(source, form, filesystem, path):
                    empty = False
                    yield self._row(source, row, form)
        except (OSError, pa.ArrowException) as error:
            empty = False
            reason = rows.reason(error)
            message = "the file was there when it was listed and is gone" if reason == "vanished" else str(error)
            yield lost_source(source, reason, message, error)
        if empty:
            yield lost_source(source, "empty", "no rows", status="dropped")

    def _row(self, source: Source, row: rows.Row, form: rows.RowFormat) -> dict[str, Any] | pa.Table:
        uri = f"{source.uri}#{'L' if form == 'jsonl' else 'R'}{row.number}"
        place = f"{'line' if form == 'jsonl' else 'row'} {row.number}"
        if row.fields is None:
            return lost_row(uri, "invalid_json" if form == "jsonl" else "invalid_row", f"{place}: {row.error}")
        fields = dict(row.fields)
        text = "" if self.text_column is None else fields.pop(self.text_column, None)
        if not isinstance(text, str):
            there = f"it is a {type(text).__name__}" if text is not None else f"there are {sorted(fields)}"
            return lost_row(uri, "missing_text", f"{place}: no text in column '{self.text_column}', {there}")
        title = fields.pop("title") if isinstance(fields.get("title"), str) else None
        text = text.encode("utf-8", "replace").decode()  # JSON can spell lone surrogates, UTF-8 cannot
        try:
            metadata = json_object(fields)
        except RecursionError:
            return lost_row(uri, "invalid_json", f"{place}: the values are nested too deep")
        row_fields: dict[str, Any] = {
            "title": title and printable(title),
            "text": text,
            "metadata": metadata,
            "pages": [],
            "headings": [],
        }
        content = text if self.text_column is not None else metadata
        return document(source, uri, content.encode()) | {"media_type": "text/plain"} | row_fields


def json_object(fields: dict[str, Any]) -> str:
    """`fields` as JSON; what JSON has no word for becomes null (NaN, infinity) or text (times, bytes)."""
    try:
        return json.dumps(fields, default=str, sort_keys=True, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(fields), default=str, sort_keys=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def document(source: Source, uri: str, content: bytes) -> dict[str, Any]:
    """The identity columns of a document."""
    modified = None
    if source.modified_at is not None:
        with contextlib.suppress(ValueError, OverflowError):  # a time that no calendar has
            modified = datetime.fromtimestamp(source.modified_at, UTC)
    return {
        "doc_id": doc_id(uri),
        "uri": uri,
        "content_hash": content_hash(content),
        "size_bytes": len(content),
        "modified_at": modified,
    }


def lost_source(
    source: Source, reason: str, message: str, error: Exception | None = None, status: Any = "failed"
) -> pa.Table:
    kind = type(error).__name__ if error else ("ReadError" if status == "failed" else None)
    uri = source.uri + (f"#{source.part}" if source.part else "")
    return outcomes(pa.table({"doc_id": [doc_id(uri)], "uri": [uri]}), status, reason, message, kind)


def lost_row(uri: str, reason: str, message: str) -> pa.Table:
    return outcomes(pa.table({"doc_id": [doc_id(uri)], "uri": [uri]}), "failed", reason, message, "ReadError")
