"""A unit's rows on their way through a pipeline, and how they fit into one Arrow table.

A block is the ok rows, then a row for each outcome so far. `_outcome` is null in the first and filled in the others, so
that what happened to a row stays with its unit until both are committed together. `_unit` stands in the first row of a
block: the unit's name and what each stage counted. A unit holds a document at least, and a document ends as a row or as
an outcome, so there is always a first row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from stages.core.outcome import OUTCOMES

UNIT = "_unit"
OUTCOME = "_outcome"
UNIT_TYPE = pa.struct([("id", pa.string()), ("ledger", pa.string())])
IDENTITY = ("doc_id", "uri", "chunk_id")
"""Columns that the rows of outcomes keep, where there are such columns."""
OUTCOME_TYPE = pa.struct(list(OUTCOMES))


@dataclass(frozen=True)
class Count:
    """What one stage made of the rows that reached it. Where it fans out, `ok` counts documents and `rows_out` rows."""

    stage: str
    rows_in: int
    ok: int
    dropped: int
    failed: int
    rows_out: int
    seconds: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.stage,
            self.rows_in + other.rows_in,
            self.ok + other.ok,
            self.dropped + other.dropped,
            self.failed + other.failed,
            self.rows_out + other.rows_out,
            self.seconds + other.seconds,
        )

    def balanced(self) -> bool:
        return self.rows_in == self.ok + self.dropped + self.failed


@dataclass(frozen=True)
class Block:
    rows: pa.Table
    outcomes: pa.Table
    unit: str | None = None
    ledger: tuple[Count, ...] = ()

    @classmethod
    def from_table(cls, table: pa.Table) -> Block:
        """Read a block; a table of anybody's, without the two columns, is all ok rows."""
        unit: str | None = None
        ledger: tuple[Count, ...] = ()
        if UNIT in table.column_names:
            header = table[UNIT][0].as_py() if table.num_rows else None
            if header:
                unit, ledger = header["id"], counts_from_json(header["ledger"])
            table = table.drop_columns([UNIT])
        outcomes = OUTCOMES.empty_table()
        if OUTCOME in table.column_names:
            column = table[OUTCOME]
            table = table.drop_columns([OUTCOME])
            if column.null_count < len(column):
                # Several blocks of a plain dataset may have been joined, so the outcomes need not stand last.
                outcomes = _unstruct(column.filter(column.is_valid()))
                table = table.filter(column.is_null())
        return cls(table, outcomes, unit, ledger)

    def to_table(self) -> pa.Table:
        n_ok, n_out = self.rows.num_rows, self.outcomes.num_rows
        rows = self.rows
        if n_out:
            schema = pa.schema([field.with_nullable(True) for field in rows.schema], rows.schema.metadata)
            lost = [
                self.outcomes[field.name].cast(field.type)
                if field.name in IDENTITY and not pa.types.is_null(field.type)
                else pa.nulls(n_out, field.type)
                for field in schema
            ]
            rows = pa.concat_tables([pa.table(rows.columns, schema=schema), pa.table(lost, schema=schema)])
        outcome = pa.chunked_array([pa.nulls(n_ok, OUTCOME_TYPE), _struct(self.outcomes)], OUTCOME_TYPE)
        rows = rows.append_column(OUTCOME, outcome)
        if self.unit is not None:
            header = pa.array([{"id": self.unit, "ledger": counts_to_json(self.ledger)}], UNIT_TYPE)
            rest = pa.nulls(max(rows.num_rows - 1, 0), UNIT_TYPE)
            rows = rows.append_column(UNIT, pa.chunked_array([header, rest], UNIT_TYPE))
        return rows

    def counted(self, count: Count) -> Block:
        return replace(self, ledger=(*self.ledger, count))


def counts_to_json(ledger: Iterable[Count]) -> str:
    return json.dumps([asdict(count) for count in ledger])


def counts_from_json(text: str) -> tuple[Count, ...]:
    return tuple(Count(**entry) for entry in json.loads(text))


def _struct(outcomes: pa.Table) -> pa.Array:
    arrays = [outcomes[name].combine_chunks() for name in OUTCOMES.names]
    return pa.StructArray.from_arrays(arrays, fields=list(OUTCOMES))


def _unstruct(column: pa.ChunkedArray) -> pa.Table:
    return pa.Table.from_struct_array(column.combine_chunks()).cast(OUTCOMES)
