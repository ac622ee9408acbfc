"""Read documents: files as bytes, or the rows of JSONL and Parquet files as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

import fsspec
import pyarrow as pa
from pydantic import ByteSize, Field, field_validator

from connectors import rows
from connectors.sources import Selection, Source, is_remote, list_sources
from connectors.storage import storage_options
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
    text_column: str = Field("text", description="the column that holds the text, in files of rows")
    max_bytes: ByteSize = Field(ByteSize(256 * 2**20), gt=0, description="a larger file fails as too_large")
    unit_bytes: ByteSize = operational(ByteSize(2 * 2**20), gt=0, description="bytes that travel and commit together")
    unit_docs: int = operational(128, ge=1, description="documents that travel and commit together")
    storage_options: dict[str, Any] = operational({}, repr=False, description="for fsspec: endpoint_url, key, ...")

    @field_validator("uri", "include", "exclude", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @classmethod
    def code_modules(cls) -> tuple[str, ...]:
        return (cls.__module__, "connectors.rows")

    def sources(self) -> Iterator[Source]:
        """Everything there is to read, lazily. Raises ConfigError where a URI names nothing."""
        selection = Selection(self.include, self.exclude, self.hidden)
        try:
            for source in list_sources(self.uri, selection, self.storage_options):
                form = None if source.reason else self.row_format(source.uri)
                if form is None:
                    yield source
                else:
                    filesystem, path = self.opened(source)
                    yield from rows.pieces(source, form, filesystem, path, int(self.unit_bytes))
        except FileNotFoundError as error:
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
            return fsspec.filesystem("file"), source.path.decode("utf-8", "surrogateescape")
        scheme = source.uri.split("://", 1)[0]
        return fsspec.filesystem(scheme, **storage_options(source.uri, self.storage_options)), source.path.decode()

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

    def _fetch(self, sources: list[Source]) -> dict[str, bytes | Exception]:
        """The bytes of the remote files of a unit, requested together: one at a time, latency would rule."""
        wanted = [s for s in sources if is_remote(s.uri) and not s.part and not s.reason and s.size <= self.max_bytes]
        if not wanted:
            return {}
        filesystem = self.opened(wanted[0])[0]
        paths = {source.path.decode(): source.uri for source in wanted}
        contents = filesystem.cat(list(paths), on_error="return")
        return {paths[path]: content for path, content in contents.items()}

    def _file(self, source: Source, fetched: bytes | Exception | None) -> dict[str, Any] | pa.Table:
        if source.reason:
            return lost_source(source, source.reason, source.message)
        if source.size > self.max_bytes:
            return lost_source(source, "too_large", f"{source.size} bytes; {self.label}.max_bytes is {self.max_bytes}")
        try:
            if isinstance(fetched, Exception):
                raise fetched
            filesystem, path = self.opened(source)
            content = fetched if fetched is not None else filesystem.cat_file(path)
        except FileNotFoundError as error:
            return lost_source(source, "vanished", "the file was there when it was listed and is gone", error)
        except OSError as error:
            return lost_source(source, "unreadable", error.strerror or str(error), error)
        return document(source, source.uri, content) | {"content": content}

    def _rows(self, source: Source, form: rows.RowFormat) -> Iterator[dict[str, Any] | pa.Table]:
        filesystem, path = self.opened(source)
        empty = True
        try:
            for row in rows.read_part(source, form, filesystem, path):
                empty = False
                yield self._row(source, row, f"{source.uri}#{'L' if form == 'jsonl' else 'R'}{row.number}")
        except FileNotFoundError as error:
            empty = False
            yield lost_source(source, "vanished", "the file was there when it was listed and is gone", error)
        except (OSError, pa.ArrowException) as error:
            empty = False
            yield lost_source(
                source, "damaged" if isinstance(error, pa.ArrowException) else "unreadable", str(error), error
            )
        if empty:
            yield lost_source(source, "empty", "no rows", status="dropped")

    def _row(self, source: Source, row: rows.Row, uri: str) -> dict[str, Any] | pa.Table:
        number = f"{'line' if '#L' in uri else 'row'} {row.number}"
        if row.fields is None:
            return lost_row(uri, "invalid_json", f"{number}: {row.error}")
        fields = dict(row.fields)
        text = fields.pop(self.text_column, None)
        if not isinstance(text, str):
            there = f"it is a {type(text).__name__}" if text is not None else f"there are {sorted(fields)}"
            return lost_row(uri, "missing_text", f"{number}: no text in column '{self.text_column}', {there}")
        title = fields.pop("title") if isinstance(fields.get("title"), str) else None
        text = text.encode("utf-8", "replace").decode()  # JSON can spell lone surrogates, UTF-8 cannot
        metadata = json.dumps(fields, ensure_ascii=True, default=str, sort_keys=True)
        row_fields: dict[str, Any] = {
            "title": title and printable(title),
            "text": text,
            "metadata": metadata,
            "pages": [],
            "headings": [],
        }
        return document(source, uri, text.encode()) | {"media_type": "text/plain"} | row_fields


def document(source: Source, uri: str, content: bytes) -> dict[str, Any]:
    """The identity columns of a document."""
    modified = None if source.modified_at is None else datetime.fromtimestamp(source.modified_at, UTC)
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
