"""The outcomes of a run as a dataset."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.storage import Place
from pipelines import outcomes
from stages.core.outcome import OUTCOMES
from stages.core.outcome import outcomes as made


def lost(status: str, reason: str, *uris: str) -> pa.Table:
    table = made(pa.table({"uri": list(uris)}), status, reason, "why")  # type: ignore[arg-type]
    return table.set_column(3, "stage", pa.array(["parse"] * len(uris)))


@pytest.fixture
def run_dir(work: Path) -> Place:
    return Place("run")


def test_a_run_without_any(run_dir: Place) -> None:
    assert outcomes.read(run_dir).schema.equals(OUTCOMES)
    assert outcomes.failed_sources(run_dir).to_pylist() == []
    assert outcomes.summary(run_dir) == []
    with outcomes.writer(run_dir):
        pass
    assert outcomes.read(run_dir).num_rows == 0
    assert outcomes.failed_sources(run_dir).to_pylist() == []


def test_written_together_read_by_status_and_summed(run_dir: Place) -> None:
    for turn in (2, 1):
        with outcomes.writer(run_dir) as write:
            write(lost("failed", "damaged", *["docs/a"] * turn))
            write(OUTCOMES.empty_table())
            write(lost("dropped", "empty", "docs/b"))
    assert outcomes.read(run_dir)["reason"].to_pylist() == ["damaged", "empty"]
    assert outcomes.read(run_dir, "failed")["uri"].to_pylist() == ["docs/a"]
    assert outcomes.summary(run_dir) == [
        {"stage": "parse", "status": "failed", "reason": "damaged", "rows": 1},
        {"stage": "parse", "status": "dropped", "reason": "empty", "rows": 1},
    ]
    assert os.listdir("run/outcomes") == ["outcomes.parquet"]


def test_a_writer_that_fails_leaves_the_old_and_the_next_one_tidies_up(run_dir: Place) -> None:
    with outcomes.writer(run_dir) as write:
        write(lost("failed", "damaged", "docs/a"))
    with pytest.raises(RuntimeError, match="killed"), outcomes.writer(run_dir) as write:
        raise RuntimeError("killed")
    assert outcomes.read(run_dir).num_rows == 1
    with outcomes.writer(run_dir) as write:
        write(lost("failed", "damaged", "docs/a", "docs/b"))
    assert os.listdir("run/outcomes") == ["outcomes.parquet"]


def test_failed_rows_lead_to_the_files_that_hold_them(run_dir: Place) -> None:
    with outcomes.writer(run_dir) as write:
        write(lost("failed", "x", "docs/a.txt", "docs/r.jsonl#L12", "docs/r.jsonl#0:100:1", "docs/p.parquet#R3"))
        write(lost("failed", "x", "docs/q.parquet#0:7", "docs/odd#L.txt", "docs/odd#5.txt", "docs/a.txt"))
        write(lost("dropped", "x", "docs/dropped.txt"))
    files = set(outcomes.failed_sources(run_dir).to_pylist())
    assert files >= {
        "docs/a.txt",
        "docs/r.jsonl",
        "docs/p.parquet",
        "docs/q.parquet",
        "docs/odd#L.txt",
        "docs/odd#5.txt",
    }
    assert "docs/dropped.txt" not in files
