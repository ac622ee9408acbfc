"""Files of rows (JSONL, Parquet): cut into pieces that can be read apart, and read row by row."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from connectors.sources import Source
from connectors.storage import store_errors

RowFormat = Literal["jsonl", "parquet"]
SUFFIXES: dict[str, RowFormat] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True)
class Row:
    """A row of a file: its number (a line from 1, a Parquet row from 0), and its fields or what is wrong with it."""

    number: int
    fields: dict[str, Any] | None = None
    error: str = ""


def row_format(uri: str) -> RowFormat | None:
    return next((form for suffix, form in SUFFIXES.items() if uri.lower().endswith(suffix)), None)


def pieces(
    source: Source, form: RowFormat, filesystem: fsspec.AbstractFileSystem, path: str, size: int
) -> Iterator[Source]:
    """`source` in parts of about `size` bytes, at line ends or row groups. A damaged file comes back with a reason."""
    try:
        with store_errors(), filesystem.open(path, "rb") as file:
            parts = list(_jsonl_parts(file, size) if form == "jsonl" else _parquet_parts(file, size))
    except (OSError, pa.ArrowException) as error:
        yield replace(source, reason=reason(error), message=str(error) or type(error).__name__)
        return
    for part in parts:
        yield replace(source, part=part)


def reason(error: OSError | pa.ArrowException) -> str:
    """The short code for what kept a file from being read."""
    if isinstance(error, FileNotFoundError):
        return "vanished"
    # Arrow reports some damage (a page that does not decompress) as an OSError, but without the system's number.
    damaged = isinstance(error, pa.ArrowException) or (type(error) is OSError and error.errno is None)
    return "damaged" if damaged else "unreadable"


def _jsonl_parts(file: Any, size: int) -> Iterator[str]:
    start, line, position, first_line = 0, 1, 0, 1
    while block := file.read(1 << 20):
        offset = 0
        while position + len(block) - start >= size:
            # The first line end at or after the size that is wanted.
            cut = block.find(b"\n", max(offset, start + size - position - 1))
            if cut < 0:
                break
            line += block.count(b"\n", offset, cut + 1)
            yield f"{start}:{position + cut + 1}:{first_line}"
            offset, start, first_line = cut + 1, position + cut + 1, line
        line += block.count(b"\n", offset)
        position += len(block)
    if position > start or position == 0:
        yield f"{start}:{position}:{first_line}"


def _parquet_parts(file: Any, size: int) -> Iterator[str]:
    metadata = pq.read_metadata(file)
    first, total = 0, 0
    for group in range(metadata.num_row_groups):
        total += metadata.row_group(group).total_byte_size
        if total >= size:
            yield f"{first}:{group + 1}"
            first, total = group + 1, 0
    if first < metadata.num_row_groups or metadata.num_row_groups == 0:
        yield f"{first}:{metadata.num_row_groups}"


def read_part(source: Source, form: RowFormat, filesystem: fsspec.AbstractFileSystem, path: str) -> Iterator[Row]:
    """The rows of one part. A line that is no JSON object is a row with an error; blank lines are no rows."""
    if form == "parquet":
        first, last = (int(number) for number in source.part.split(":"))
        with filesystem.open(path, "rb") as file:
            yield from _parquet_rows(pq.ParquetFile(file), first, last)
        return
    start, end, line = (int(number) for number in source.part.split(":"))
    content = filesystem.cat_file(path, start=start, end=end) if end > start else b""
    for number, raw in enumerate(io.BytesIO(content), line):
        if raw.strip(b" \t\r\n\xef\xbb\xbf"):
            yield _jsonl_row(number, raw)


def jsonl_bytes(source: Source) -> int:
    """How long a part of a JSONL file is: what was asked for, and at most the rest of one line beyond it."""
    start, end, _ = source.part.split(":")
    return int(end) - int(start)


def _jsonl_row(number: int, raw: bytes) -> Row:
    try:
        fields = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return Row(number, error=f"not JSON: {error}")
    if not isinstance(fields, dict):
        return Row(number, error=f"a JSON {type(fields).__name__} where an object is wanted")
    return Row(number, fields)


def _parquet_rows(file: pq.ParquetFile, first: int, last: int) -> Iterator[Row]:
    number = sum(file.metadata.row_group(group).num_rows for group in range(first))
    for batch in file.iter_batches(row_groups=list(range(first, last))) if last > first else ():
        for row in _converted(batch, number):
            yield row
            number += 1


def _converted(batch: pa.RecordBatch, first: int) -> Iterator[Row]:
    try:
        for number, fields in enumerate(batch.to_pylist(), first):
            yield Row(number, fields)
    except (ValueError, OverflowError) as error:
        # Such as a time in the year 30,000: Python has no such value. Only the row that holds it is lost.
        if batch.num_rows == 1:
            yield Row(first, error=f"holds a value that cannot be read: {error}")
            return
        for offset in range(batch.num_rows):
            yield from _converted(batch.slice(offset, 1), first + offset)
