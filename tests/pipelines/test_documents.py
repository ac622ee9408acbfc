"""The main job on real files with a real model: documents in, vectors out, and only what changed is worked on again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from connectors.storage import Place
from pipelines.pipeline import Pipeline
from pipelines.run import RunResult
from stages.checkpoint import Checkpoint
from stages.chunk import Chunk
from stages.clean import Clean
from stages.embed import Embed
from stages.parse import Parse
from stages.read import Read
from stages.write_lancedb import WriteLancedb
from stages.write_parquet import WriteParquet, read_current

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.slow]

SAMPLES = Path(__file__).parents[2] / "pipelines" / "samples" / "documents"


@pytest.fixture
def docs(work: Path) -> Path:
    shutil.copytree(SAMPLES, work / "docs")
    return work / "docs"


def run(model: str, name: str = "a", size: int = 128) -> RunResult:
    stages = [
        Read(uri="docs", unit_docs=8),
        Parse(),
        Clean(),
        Checkpoint(),
        Chunk(size=size, overlap=16, unit="tokens", tokenizer=model),
        Embed(model=model, dtype="float32"),
        Checkpoint(),
        WriteParquet(uri=f"{name}/parquet"),
        WriteLancedb(uri=f"{name}/lance", table="docs"),
    ]
    return Pipeline("documents", stages, max_failed=0.5).run(f"runs/{name}")


def worked(name: str = "a") -> dict[str, int]:
    return dict(json.loads(Path(f"runs/{name}/run.json").read_text())["worked"])


def table(name: str = "a") -> pa.Table:
    return read_current(Place(f"{name}/parquet")).sort_by("chunk_id")


def vectors(rows: pa.Table) -> np.ndarray:
    return np.stack(rows["embedding"].to_numpy(zero_copy_only=False))


def test_incremental_runs_equal_runs_from_scratch(docs: Path, embedding_model: str) -> None:
    import lancedb

    first = run(embedding_model)
    books = {count.stage: count for count in first.ledger}
    assert books["read"].rows_in == sum(1 for path in docs.rglob("*") if path.is_file()) + rows_beyond_files(docs)
    assert books["parse"].failed >= 2  # damaged, password-protected
    assert books["parse"].dropped >= 2  # empty, no text layer
    lance = lancedb.connect("a/lance").open_table("docs")
    assert sorted(lance.to_arrow()["chunk_id"].to_pylist()) == table()["chunk_id"].to_pylist()
    version = lance.version

    assert run(embedding_model).status == "nothing_to_do"
    assert lancedb.connect("a/lance").open_table("docs").version == version

    changed = next(docs.rglob("*.md"))
    changed.write_text(changed.read_text() + "\n\nA sentence about a walrus was added here.\n")
    next(docs.rglob("*.html")).unlink()
    (docs / "added.txt").write_text("A new page tells of the two lamps of the old harbour.")
    run(embedding_model)
    assert worked() == {"read": 2, "parse": 2, "clean": 2, "chunk": 2, "embed": worked()["embed"]}
    assert worked()["embed"] < table().num_rows / 4

    run(embedding_model, name="scratch")
    one, other = table(), table("scratch")
    assert one.drop_columns(["embedding"]).to_pylist() == other.drop_columns(["embedding"]).to_pylist()
    np.testing.assert_allclose(vectors(one), vectors(other), atol=1e-5)
    rows = lancedb.connect("a/lance").open_table("docs").to_arrow().sort_by("chunk_id")
    assert rows.select(one.column_names).to_pylist() == one.to_pylist()

    run(embedding_model, size=64)
    assert set(worked()) == {"chunk", "embed"}  # nothing is parsed again
    assert max(table()["n_tokens"].to_pylist()) <= 64


def rows_beyond_files(docs: Path) -> int:
    """Files of rows count by their rows."""
    import pyarrow.parquet as pq

    extra = sum(len(path.read_text().splitlines()) - 1 for path in docs.rglob("*.jsonl"))
    return extra + sum(pq.read_metadata(path).num_rows - 1 for path in docs.rglob("*.parquet"))
