"""Committed units: there whole or not, the first of several stays, and what has gone since is left out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own.shout import Shout
from own.words import Words

from connectors.storage import Place
from pipelines.catalogue import Unit
from pipelines.checkpoint import Checkpoint
from pipelines.ledger import verify
from stages.core.block import Block
from stages.core.errors import RunError
from stages.core.outcome import OUTCOMES
from stages.core.runner import run
from stages.core.schema import doc_id
from stages.core.stage import Stage
from stages.read import SOURCES, Read

TRANSFORMS: tuple[Stage, ...] = (Read(uri="docs"), Shout(), Words())


@pytest.fixture
def point(work: Path) -> Checkpoint:
    return Checkpoint(Place("checkpoints/words-f"), "f", TRANSFORMS)


@pytest.fixture
def unit(work: Path) -> Unit:
    """Four documents: good, dropped, raising, and gone before they are read."""
    Path("docs").mkdir()
    texts = {"a": "loud one two", "b": "quiet", "c": "raise", "d": "gone"}
    for name, text in texts.items():
        Path("docs", f"{name}.txt").write_text(text)
    sources = [{name: getattr(source, name) for name in SOURCES.names} for source in Read(uri="docs").sources()]
    Path("docs/d.txt").unlink()
    return Unit("u1", pa.Table.from_pylist(sources, SOURCES), len(sources))


def worked(unit: Unit, ending: str = "!") -> pa.Table:
    table = Block(unit.sources, OUTCOMES.empty_table(), unit.id).to_table()
    for stage in (TRANSFORMS[0], Shout(ending=ending), TRANSFORMS[2]):
        table = run(stage, stage.open(), table)
    return table


def without(unit: Unit, *names: str) -> Unit:
    keep = [uri not in {f"docs/{name}.txt" for name in names} for uri in unit.sources["uri"].to_pylist()]
    return Unit(unit.id, unit.sources.filter(pa.array(keep)), unit.size)


def test_a_unit_is_read_back_as_it_was_committed(point: Checkpoint, unit: Unit) -> None:
    assert point.committed() == set()
    table = worked(unit)
    assert point.commit(table) is table
    assert point.committed() == {"u1"}
    assert os.listdir("checkpoints/words-f") == ["u1.parquet"]
    block, was = point.load(unit), Block.from_table(table)
    assert block.rows.equals(was.rows)
    assert block.outcomes.equals(was.outcomes)
    assert (block.unit, block.ledger) == ("u1", was.ledger)
    verify(block, TRANSFORMS)
    assert block.rows["word"].to_pylist() == ["LOUD", "ONE", "TWO!"]
    assert sorted(block.outcomes["reason"].to_pylist()) == ["error", "quiet", "vanished"]


def test_metadata_of_the_rows_survives_and_ours_stays_out(point: Checkpoint) -> None:
    rows = pa.table({"doc_id": ["a"]}).replace_schema_metadata({"theirs": "x"})
    point.commit(Block(rows, OUTCOMES.empty_table(), "u").to_table())
    assert point.read("u").rows.schema.metadata == {b"theirs": b"x"}


def test_the_first_commit_stays_and_is_what_goes_on(point: Checkpoint, unit: Unit) -> None:
    point.commit(worked(unit, "!"))
    inode = os.stat("checkpoints/words-f/u1.parquet").st_ino
    again = Block.from_table(point.commit(worked(unit, "?")))
    assert again.rows["word"].to_pylist() == ["LOUD", "ONE", "TWO!"]
    assert again.unit == "u1"
    assert os.stat("checkpoints/words-f/u1.parquet").st_ino == inode


def test_of_tasks_that_commit_together_all_go_on_with_the_same(point: Checkpoint, unit: Unit) -> None:
    barrier = threading.Barrier(6)
    went_on: list[list[str]] = []

    def commit(ending: str) -> None:
        table = worked(unit, ending)
        barrier.wait()
        went_on.append(Block.from_table(point.commit(table)).rows["word"].to_pylist())

    threads = [threading.Thread(target=commit, args=(ending,)) for ending in "!?.,;:"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert went_on == [point.read("u1").rows["word"].to_pylist()] * 6


def test_documents_that_went_are_left_out_and_the_books_follow(point: Checkpoint, unit: Unit) -> None:
    point.commit(worked(unit))
    for gone in ("a", "b", "c", "d", "ab", "acd", "bcd"):
        left = without(unit, *gone)
        block = point.load(left)
        verify(block, TRANSFORMS)
        assert block.ledger[0].rows_in == 4 - len(gone)
        assert block.rows.num_rows == (0 if "a" in gone else 3)
        assert set(block.outcomes["doc_id"].to_pylist()) <= {doc_id(uri) for uri in left.sources["uri"].to_pylist()}
        assert block.outcomes.num_rows == sum(name not in gone for name in "bcd")
        again = Block.from_table(block.to_table())
        assert (again.unit, again.ledger) == (block.unit, block.ledger)


def test_some_columns_can_be_read_and_those_that_are_not_there_are_passed_over(point: Checkpoint, unit: Unit) -> None:
    point.commit(worked(unit))
    for reader in (unit, without(unit, "b")):
        block = point.load(reader, ["chunk_id", "never there"])
        assert block.rows.column_names == ["doc_id", "chunk_id"]
        verify(block, TRANSFORMS)
        assert point.load(reader, []).rows.column_names == ["doc_id"]


def test_a_block_without_a_unit_is_refused(point: Checkpoint) -> None:
    with pytest.raises(RunError, match="without a unit"):
        point.commit(pa.table({"doc_id": ["a"]}))


def test_damaged_and_foreign_files_are_named(point: Checkpoint, unit: Unit) -> None:
    point.commit(worked(unit))
    path = Path("checkpoints/words-f/u1.parquet")
    good = path.read_bytes()
    for content in (b"", good[:50], good[:-30], good[:-8] + b"\xff" * 8):
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"u1\.parquet cannot be read .*remove it and run again"):
            point.load(unit)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(RunError, match=r"u1\.parquet cannot be read"):
        point.load(unit)
    path.unlink()
    with pytest.raises(RunError, match=r"u1\.parquet cannot be read"):
        point.load(unit)
    point.commit(worked(unit))
    verify(point.load(unit), TRANSFORMS)


def test_leftovers_of_killed_commits_are_no_units(point: Checkpoint, unit: Unit) -> None:
    point.commit(worked(unit))
    Path("checkpoints/words-f/.u2.parquet.01234567.tmp").write_bytes(b"half")
    assert point.committed() == {"u1"}
