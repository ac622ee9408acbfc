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
        with filesystem.open(path, "rb") as file:
            parts = list(_jsonl_parts(file, source.size, size) if form == "jsonl" else _parquet_parts(file, size))
    except (OSError, pa.ArrowException) as error:
        damaged = isinstance(error, pa.ArrowException)
        yield replace(source, reason="damaged" if damaged else "unreadable", message=str(error) or type(error).__name__)
        return
    for part in parts:
        yield replace(source, part=part)


def _jsonl_parts(file: Any, total: int, size: int) -> Iterator[str]:
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
    content = filesystem.cat_file(path, start=start, end=end)
    for number, raw in enumerate(io.BytesIO(content), line):
        if raw.strip(b" \t\r\n\xef\xbb\xbf"):
            yield _jsonl_row(number, raw)


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
        for fields in batch.to_pylist():
            yield Row(number, fields)
            number += 1
