"""Reads a Parquet file whole; writes one a batch at a time and shows it only when it is complete."""

from __future__ import annotations

import uuid
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.storage import Place

ROW_GROUP_BYTES = 32 * 2**20
"""Rows are gathered to groups of this size in memory: few enough groups to scan fast, small enough to write lean."""


def read_file(source: BinaryIO) -> pa.Table:
    """All rows of an open Parquet file, with its schema's metadata.

    `pyarrow.parquet.read_table` on a Python file object leaves threads behind that abort the interpreter as it ends.
    """
    with pq.ParquetFile(source) as file:
        return file.read()


class FileWriter:
    """Rows in, one committed file out: `write` as often as you like, then `close` with the file's name."""

    def __init__(self, place: Place, schema: pa.Schema) -> None:
        self.rows = 0
        self.bytes = 0
        self._place = place
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._schema = schema
        self._temporary = f"_{uuid.uuid4().hex[:16]}.parquet.tmp"
        place.fs.makedirs(place.root, exist_ok=True)
        self._file = place.fs.open(place.path(self._temporary), "wb")
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        self.bytes += table.nbytes
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        table = pa.concat_tables(self._pending).replace_schema_metadata(self._schema.metadata)
        if table.num_rows:
            self._writer.write_table(table)
        self._pending, self._pending_bytes = [], 0

    def close(self, name: str) -> None:
        """Finish the file and give it its name; until then nobody who reads the directory sees it."""
        if self._pending:
            self._flush()
        self._writer.close()
        self._file.close()
        self._place.rename(self._temporary, name)
