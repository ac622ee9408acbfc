"""What became of the rows that did not come through: `dropped` by a decision or `failed` by an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from stages.core.schema import doc_id

Status = Literal["dropped", "failed"]

OUTCOMES = pa.schema(
    [
        ("doc_id", pa.string()),
        ("uri", pa.string()),
        ("chunk_id", pa.string()),  # null before documents are chunked
        ("stage", pa.string()),
        ("status", pa.string()),  # dropped | failed
        ("reason", pa.string()),  # a short code: too_short, damaged, timeout, ...
        ("message", pa.string()),
        ("error_type", pa.string()),  # null for dropped rows
    ]
)

MAX_MESSAGE = 2000
"""Characters kept of a message: outcomes stay small however long an error is."""


@dataclass(frozen=True)
class Result:
    """What a worker gives back: the rows that are ok, and an OUTCOMES table of those that are not."""

    rows: pa.Table
    outcomes: pa.Table | None = None


def outcomes(
    rows: pa.Table,
    status: Status,
    reason: str | Sequence[str],
    message: str | Sequence[str] = "",
    error_type: str | Sequence[str] | None = None,
) -> pa.Table:
    """An OUTCOMES table with one line per row of `rows`, which needs `doc_id` and may have `uri` and `chunk_id`.

    `reason`, `message` and `error_type` are one value for all rows or one per row. The runner fills in `stage`.
    """
    n = rows.num_rows

    def column(name: str) -> pa.Array | pa.ChunkedArray:
        if name == "doc_id" and name not in rows.column_names and "uri" in rows.column_names:
            return pa.array([doc_id(uri) for uri in rows["uri"].to_pylist()], pa.string())  # a source, not read yet
        return rows[name].cast(pa.string()) if name in rows.column_names else pa.nulls(n, pa.string())

    def each(value: str | Sequence[str] | None) -> pa.Array:
        values = [value] * n if value is None or isinstance(value, str) else list(value)
        return pa.array([None if v is None else printable(v) for v in values], pa.string())

    columns = [column("doc_id"), column("uri"), column("chunk_id"), pa.nulls(n, pa.string())]
    columns += [each(status), each(reason), each(message), each(error_type)]
    return pa.table(columns, schema=OUTCOMES)


def printable(message: str) -> str:
    """`message` as UTF-8 can hold it (no lone surrogates, no NUL), cut to MAX_MESSAGE characters."""
    clean = message.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= MAX_MESSAGE else clean[: MAX_MESSAGE - 1] + "…"


def split(
    rows: pa.Table, keep: pa.Array | Sequence[bool], status: Status, reasons: Sequence[str], messages: Sequence[str]
) -> Result:
    """Part `rows` by `keep`; `reasons` and `messages` are one per row of `rows`, read for the rows that go."""
    mask = keep if isinstance(keep, pa.Array) else pa.array(keep, pa.bool_())
    if mask.true_count == rows.num_rows:
        return Result(rows)
    gone = [i for i, kept in enumerate(mask.to_pylist()) if not kept]
    lost = outcomes(rows.take(gone), status, [reasons[i] for i in gone], [messages[i] for i in gone])
    return Result(rows.filter(mask), lost)
