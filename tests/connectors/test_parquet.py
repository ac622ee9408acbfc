"""One Parquet file, a batch at a time, and nothing to be seen of it until it is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.parquet import ROW_GROUP_BYTES, FileWriter, read_file
from connectors.storage import Place

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), 3))], {"model": "m"})


def batch(start: int, n: int) -> pa.Table:
    rows = [{"id": i, "text": f"row {i}", "vector": [i, i, i]} for i in range(start, start + n)]
    return pa.Table.from_pylist(rows, SCHEMA.remove_metadata())


def test_batches_become_one_file_with_schema_and_metadata(work: Path) -> None:
    place = Place("out")
    writer = FileWriter(place, SCHEMA)
    writer.write(batch(0, 3))
    writer.write(batch(3, 0))
    writer.write(batch(3, 1))
    assert place.names() == []
    assert pq.ParquetDataset("out").files == []  # readers of a directory pass over what is not finished
    writer.close("a.parquet")
    assert os.listdir("out") == ["a.parquet"]
    table = pq.read_table("out/a.parquet")
    assert table.schema.equals(SCHEMA)
    assert table.schema.metadata == SCHEMA.metadata
    assert table["id"].to_pylist() == [0, 1, 2, 3]
    assert (writer.rows, writer.bytes) == (4, batch(0, 3).nbytes + batch(3, 1).nbytes)
    assert pq.ParquetFile("out/a.parquet").num_row_groups == 1


def test_no_rows_make_a_file_with_the_schema(work: Path) -> None:
    writer = FileWriter(Place("out"), SCHEMA)
    writer.close("a.parquet")
    assert pq.read_table("out/a.parquet").schema.equals(SCHEMA)


def test_many_small_batches_are_gathered_to_row_groups(work: Path) -> None:
    writer = FileWriter(Place("out"), SCHEMA)
    wide = pa.table([[0], ["x" * 2**20], [[0, 0, 0]]], schema=SCHEMA.remove_metadata())
    for _ in range(70):
        writer.write(wide)
    writer.close("a.parquet")
    metadata = pq.read_metadata("out/a.parquet")
    assert metadata.num_rows == 70
    assert metadata.num_row_groups == -(-writer.bytes // ROW_GROUP_BYTES)


def test_a_file_of_the_name_is_replaced_whole(work: Path) -> None:
    for n in (1, 2):
        writer = FileWriter(Place("out"), SCHEMA)
        writer.write(batch(0, n))
        writer.close("a.parquet")
    assert pq.read_table("out/a.parquet").num_rows == 2
    assert os.listdir("out") == ["a.parquet"]


def test_an_unfinished_file_is_a_known_leftover(work: Path) -> None:
    place = Place("out")
    writer = FileWriter(place, SCHEMA)
    writer.write(batch(0, 1))
    assert place.leftovers() == os.listdir("out")


def test_a_file_is_read_with_its_metadata(work: Path) -> None:
    pq.write_table(batch(0, 3).replace_schema_metadata(SCHEMA.metadata), "a.parquet")
    with Path("a.parquet").open("rb") as source:
        table = read_file(source)
    assert table.schema.metadata == SCHEMA.metadata
    assert table.num_rows == 3


def test_an_interpreter_that_has_read_a_file_ends_well(work: Path) -> None:
    """More often than not, `pyarrow.parquet.read_table` has it abort."""
    pq.write_table(pa.table({name: ["x"] * 5 for name in "abcdefgh"}), "a.parquet")
    script = "from connectors.parquet import read_file; read_file(open('a.parquet', 'rb'))"
    for _ in range(6):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
