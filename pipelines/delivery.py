"""Committed rows on their way to a sink."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa

from pipelines.catalogue import Unit
from pipelines.checkpoint import Checkpoint

AHEAD = 4
"""Units read ahead of the one in use: reading hides behind writing, and memory stays that of a few units."""


@dataclass(frozen=True)
class CommittedRows:
    """A `stages.core.sink.Delivery` out of one mark's committed units."""

    pipeline: str
    fingerprint: str
    metadata: dict[str, str]
    previous: dict[str, Any] | None
    checkpoint: Checkpoint
    members: Sequence[Unit]

    @cached_property
    def _by_name(self) -> dict[str, Unit]:
        return {unit.name: unit for unit in self.members}

    @property
    def units(self) -> Sequence[str]:
        return list(self._by_name)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the rows. Units without rows may know less of it, so the first that has some decides."""
        schema = pa.schema([])
        for unit in self.members:
            rows = self.checkpoint.load(unit).rows
            if not len(schema) or rows.num_rows:
                schema = rows.schema
            if rows.num_rows:
                break
        return schema.remove_metadata()

    def tables(self, units: Iterable[str]) -> Iterator[pa.Table]:
        names = iter(units)
        with ThreadPoolExecutor(AHEAD) as pool:
            waiting = deque(pool.submit(self._table, name) for name in islice(names, AHEAD))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(self._table, name) for name in islice(names, 1))

    def _table(self, name: str) -> pa.Table:
        rows = self.checkpoint.load(self._by_name[name]).rows
        columns = [
            rows[field.name].cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)
