"""A delivery of made-up rows, as sinks are given it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stages.write_parquet import WriteParquet

SCHEMA = pa.schema([("text", pa.string()), ("embedding", pa.list_(pa.float32(), 4))])


@dataclass(frozen=True)
class Rows:
    """Units by name, with how many rows each has; a row tells its unit, its number and the fingerprint."""

    counts: dict[str, int]
    fingerprint: str = "f"
    pipeline: str = "p"
    previous: dict[str, Any] | None = None

    @property
    def metadata(self) -> dict[str, str]:
        return {"pipeline": self.pipeline, "fingerprint": self.fingerprint, "identities": "{}"}

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def units(self) -> Sequence[str]:
        return list(self.counts)

    def tables(self, units: Iterable[str]) -> Iterator[pa.Table]:
        for unit in units:
            n = self.counts[unit]
            yield pa.table([self._texts(unit), [[1.0, 2.0, 3.0, 4.0]] * n], schema=SCHEMA)

    def texts(self) -> list[str]:
        return sorted(text for unit in self.counts for text in self._texts(unit))

    def _texts(self, unit: str) -> list[str]:
        return [f"{self.fingerprint}/{unit}/{n}" for n in range(self.counts[unit])]


def deliver(rows: Rows, folder: str) -> dict[str, Any]:
    """Publish to files of about 1,000 bytes."""
    sink = WriteParquet(uri=folder, file_bytes=1000)
    sink.check()
    return sink.publish(rows)
