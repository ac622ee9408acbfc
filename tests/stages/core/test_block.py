"""Blocks: rows, outcomes and books of a unit in one table, and back."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.core.block import OUTCOME, UNIT, Block, Count, counts_from_json, counts_to_json
from stages.core.outcome import OUTCOMES, outcomes
from stages.core.schema import CHUNKS, DOCUMENTS, embedding_type

LEDGER = (Count("read", 3, 2, 1, 0, 2, 0.5), Count("ünï\n", 2, 2, 0, 0, 7))


def documents(*names: str) -> pa.Table:
    rows = [{"doc_id": name, "uri": f"docs/{name}", "text": name, "pages": [{"page": 1, "start": 0}]} for name in names]
    return pa.Table.from_pylist(rows, DOCUMENTS)


def lost(*names: str) -> pa.Table:
    return outcomes(documents(*names), "failed", "damaged", [f"message of {name}" for name in names], "ValueError")


def same(one: Block, other: Block) -> bool:
    return one.rows.equals(other.rows) and one.outcomes.equals(other.outcomes) and one.unit == other.unit


@pytest.mark.parametrize(
    ("rows", "gone"), [(("a", "b"), ()), (("a", "b"), ("c",)), ((), ("c", "d")), (("a",), ("b", "c", "d"))]
)
def test_a_block_survives_its_table(rows: tuple[str, ...], gone: tuple[str, ...]) -> None:
    block = Block(documents(*rows), lost(*gone), "unit", LEDGER)
    table = block.to_table()
    assert table.num_rows == len(rows) + len(gone)
    assert table.column_names == [*DOCUMENTS.names, OUTCOME, UNIT]
    again = Block.from_table(table)
    assert same(again, block)
    assert again.ledger == LEDGER


def test_lost_rows_keep_their_identity_and_nothing_else() -> None:
    table = Block(documents("a"), lost("b"), "unit", LEDGER).to_table()
    row = table.to_pylist()[1]
    assert (row["doc_id"], row["uri"], row["text"], row["pages"]) == ("b", "docs/b", None, None)


def test_tables_of_anybody_are_all_ok_rows() -> None:
    table = pa.table({"a": [1, 2]})
    block = Block.from_table(table)
    assert block.rows is table
    assert block.outcomes.num_rows == 0
    assert (block.unit, block.ledger) == (None, ())
    assert Block.from_table(block.to_table()).rows.equals(table)
    assert UNIT not in block.to_table().column_names


def test_an_empty_table_is_an_empty_block() -> None:
    block = Block(documents("a"), lost("b"), "unit", LEDGER)
    empty = Block.from_table(block.to_table().slice(0, 0))
    assert empty.rows.num_rows == empty.outcomes.num_rows == 0
    assert empty.unit is None
    assert empty.rows.schema.equals(DOCUMENTS)


def test_blocks_joined_and_shuffled_give_the_same_rows_and_outcomes() -> None:
    tables = [Block(documents(f"a{n}", f"b{n}"), lost(f"c{n}"), None).to_table() for n in range(5)]
    table = pa.concat_tables(tables)
    order = list(range(table.num_rows))
    random.Random(1).shuffle(order)
    block = Block.from_table(table.take(order))
    assert sorted(block.rows["doc_id"].to_pylist()) == sorted(f"{x}{n}" for x in "ab" for n in range(5))
    assert sorted(block.outcomes["doc_id"].to_pylist()) == [f"c{n}" for n in range(5)]
    assert block.outcomes["message"].to_pylist()[0].startswith("message of c")


def test_columns_of_every_kind_can_stand_beside_outcomes() -> None:
    columns = {
        "doc_id": pa.array(["a"], pa.large_string()),
        "uri": pa.array(["docs/a"]).dictionary_encode(),
        "embedding": pa.array([[1.0, 2.0]], embedding_type(2)),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((1, 2, 2), np.float32)),
        "headings": pa.array([["x"]]),
        "n": pa.array([1], pa.uint8()),
        "nothing": pa.nulls(1),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
        "content": pa.array([b"x"], pa.large_binary()),
    }
    rows = pa.table(columns)
    block = Block(rows, lost("b"), "unit", LEDGER)
    again = Block.from_table(block.to_table())
    assert same(again, block)
    assert again.rows.schema.equals(rows.schema)


def test_columns_without_nulls_and_without_a_type_can_stand_beside_outcomes(work: Path) -> None:
    schema = pa.schema([pa.field("doc_id", pa.string(), nullable=False), pa.field("n", pa.int8(), nullable=False)])
    table = Block(pa.table([["a"], [1]], schema=schema), lost("b"), "unit", ()).to_table()
    pq.write_table(table, "a.parquet")
    assert Block.from_table(pq.read_table("a.parquet")).rows.to_pylist() == [{"doc_id": "a", "n": 1}]
    nothing = pa.table({"doc_id": pa.nulls(0), "text": pa.nulls(0)})
    again = Block.from_table(Block(nothing, lost("b"), "unit", ()).to_table())
    assert again.rows.equals(nothing)
    assert again.outcomes["doc_id"].to_pylist() == ["b"]


def test_chunks_keep_the_chunk_id_of_what_is_lost() -> None:
    rows = pa.Table.from_pylist([{"chunk_id": "c1", "doc_id": "a", "uri": "u"}], CHUNKS)
    block = Block(rows.slice(0, 0), outcomes(rows, "dropped", "too_short"), "unit", ())
    table = block.to_table()
    assert table["chunk_id"].to_pylist() == ["c1"]
    assert Block.from_table(table).outcomes["chunk_id"].to_pylist() == ["c1"]


def test_slices_and_chunked_tables_work() -> None:
    rows = pa.concat_tables([documents("x", "a"), documents("b", "y")]).slice(1, 2)
    gone = pa.concat_tables([lost("p", "q"), lost("r")]).slice(1, 2)
    again = Block.from_table(Block(rows, gone, "unit", LEDGER).to_table())
    assert again.rows["doc_id"].to_pylist() == ["a", "b"]
    assert again.outcomes["doc_id"].to_pylist() == ["q", "r"]
    assert again.outcomes.schema.equals(OUTCOMES)


def test_counts_add_balance_and_survive_json() -> None:
    one, other = Count("s", 3, 1, 1, 1, 4, 0.5), Count("s", 2, 2, 0, 0, 2, 0.25)
    assert one + other == Count("s", 5, 3, 1, 1, 6, 0.75)
    assert one.balanced()
    assert not Count("s", 3, 1, 1, 0, 1).balanced()
    assert counts_from_json(counts_to_json(LEDGER)) == LEDGER
