"""Answers that are kept as they come, for a unit that is not done: a kill after an hour must not cost the hour."""

from __future__ import annotations

import io
import uuid
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.parquet import read_file
from connectors.storage import Place

SCHEMA = pa.schema([("key", pa.string()), ("response", pa.string())])


@dataclass(frozen=True)
class Journal:
    """The answers of one unit so far, as small Parquet files that are named by it."""

    place: Place
    unit: str

    def load(self) -> dict[str, str]:
        """Every response that was kept, by its key."""
        found: dict[str, str] = {}
        for name in self._names():
            content = self.place.read_or_none(name)
            if content is not None:
                table = read_file(io.BytesIO(content))
                found.update(zip(table["key"].to_pylist(), table["response"].to_pylist(), strict=True))
        return found

    def add(self, responses: dict[str, str]) -> None:
        if not responses:
            return
        table = pa.table([list(responses), list(responses.values())], schema=SCHEMA)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        self.place.commit(f"{self.unit}.{uuid.uuid4().hex[:12]}.parquet", buffer.getbuffer())

    def remove(self) -> None:
        """Once the unit is committed."""
        self.place.remove(self._names())

    def _names(self) -> list[str]:
        return [name for name in self.place.names(".parquet") if name.startswith(f"{self.unit}.")]
