"""Committed rows on their way to a sink."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from connectors.storage import Place
from pipelines.catalogue import Unit
from pipelines.checkpoint import Checkpoint
from pipelines.delivery import AHEAD, CommittedRows
from stages.core.block import Block
from stages.core.outcome import OUTCOMES, outcomes
from stages.core.schema import doc_id
from stages.read import SOURCES, Read


def unit(name: str, size: int, *left: str) -> Unit:
    rows = [{"uri": uri, "path": b"", "version": "1", "part": ""} for uri in left]
    return Unit(name, pa.Table.from_pylist(rows, SOURCES), size)


def rows(*uris: str, kind: pa.DataType | None = None) -> pa.Table:
    ids = pa.array([doc_id(uri) for uri in uris], pa.string())
    return pa.table({"doc_id": ids, "text": pa.array(uris, kind or pa.string())}).replace_schema_metadata({"x": "y"})


def delivery(tables: dict[str, pa.Table], units: list[Unit]) -> CommittedRows:
    point = Checkpoint(Place("mark"), "f", (Read(uri="docs"),))
    for name, table in tables.items():
        point.commit(Block(table, OUTCOMES.empty_table(), name).to_table())
    return CommittedRows("p", "f", {}, None, point, units)


def test_units_come_in_the_order_asked_for_without_what_went(work: Path) -> None:
    tables = {f"u{n}": rows(f"{n}a", f"{n}b") for n in range(3 * AHEAD)}
    units = [unit(name, 2, f"{name[1:]}a", f"{name[1:]}b") for name in tables]
    units[1] = unit("u1", 2, "1b")
    found = delivery(tables, units)
    assert list(found.units) == [unit.name for unit in units]
    assert found.units[1].startswith("u1-")
    texts = [table["text"].to_pylist() for table in found.tables(found.units)]
    assert texts == [["1b"] if n == 1 else [f"{n}a", f"{n}b"] for n in range(3 * AHEAD)]
    asked = [found.units[n] for n in (7, 1, 3)]
    assert [table["text"].to_pylist() for table in found.tables(asked)] == [["7a", "7b"], ["1b"], ["3a", "3b"]]
    assert list(found.tables([])) == []
    reading = found.tables(found.units)
    next(reading)
    reading.close()


def test_the_schema_is_that_of_the_first_unit_with_rows(work: Path) -> None:
    tables = {"u1": rows("a"), "u2": rows("b", kind=pa.large_string())}
    found = delivery(tables, [unit("u0", 1, "gone"), unit("u1", 1, "a"), unit("u2", 1, "b")])
    nothing = pa.table({"doc_id": pa.array([], pa.string())})
    found.checkpoint.commit(Block(nothing, outcomes(rows("gone"), "dropped", "empty"), "u0").to_table())
    assert found.schema == pa.schema([("doc_id", pa.string()), ("text", pa.string())])
    assert found.schema.metadata is None
    assert all(table.schema.equals(found.schema, check_metadata=True) for table in found.tables(found.units))


def test_a_unit_that_is_not_there_is_an_error(work: Path) -> None:
    from stages.core.errors import RunError

    found = delivery({"u1": rows("a")}, [unit("u1", 1, "a"), unit("u2", 1, "b")])
    with pytest.raises(RunError, match="u2"):
        list(found.tables(["u1", "u2"]))
