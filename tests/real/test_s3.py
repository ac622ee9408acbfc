"""Everything in a bucket: sources, run directory, checkpoints, Parquet and LanceDB, on a real S3 server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import s3fs

from connectors.storage import Place
from stages.write_parquet import read_current

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SAMPLES = Path(__file__).parents[2] / "pipelines" / "samples" / "documents"
BUCKET = "documents"
PIPELINE = """
name: bucket
max_failed: 0.5
stages:
  - read: {{uri: s3://documents/in, unit_docs: 8}}
  - parse: {{}}
  - clean: {{}}
  - checkpoint: {{}}
  - chunk: {{size: 128, unit: tokens, tokenizer: {model}}}
  - embed: {{model: {model}, dtype: float32}}
  - write_parquet: {{uri: s3://documents/out/parquet}}
  - write_lancedb: {{uri: s3://documents/out/lance, table: docs}}
"""


@pytest.fixture
def bucket(s3: dict[str, str], work: Path, monkeypatch: pytest.MonkeyPatch) -> s3fs.S3FileSystem:
    """The sample documents in a bucket, found by the usual variables alone."""
    variables = {
        "AWS_ENDPOINT_URL": s3["endpoint"],
        "AWS_ACCESS_KEY_ID": s3["key"],
        "AWS_SECRET_ACCESS_KEY": s3["secret"],
        "AWS_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    store.mkdir(BUCKET)
    store.put(str(SAMPLES), f"{BUCKET}/in", recursive=True)
    return store


def start() -> subprocess.Popen[bytes]:
    with open("log", "ab") as log:
        command = [sys.executable, "-m", "jobs.cli", "run", "bucket.yaml", "--run-dir", "s3://documents/run"]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def finish() -> str:
    """A run to its end, and what it printed."""
    Path("log").unlink(missing_ok=True)
    status = start().wait(timeout=400)
    printed = Path("log").read_text()
    assert status == 0, printed[-4000:]
    return printed


def rows() -> pa.Table:
    import lancedb

    parquet = read_current(Place("s3://documents/out/parquet")).sort_by("chunk_id")
    options = {"allow_http": "true", "aws_endpoint": os.environ["AWS_ENDPOINT_URL"]}
    lance = lancedb.connect("s3://documents/out/lance", storage_options=options).open_table("docs").to_arrow()
    assert lance.sort_by("chunk_id").select(parquet.column_names).to_pylist() == parquet.to_pylist()
    return parquet


def test_a_run_in_a_bucket(bucket: s3fs.S3FileSystem, embedding_model: str) -> None:
    Path("bucket.yaml").write_text(PIPELINE.format(model=embedding_model))
    process = start()
    try:
        process.wait(timeout=25)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finish()
    first = rows()
    assert first.num_rows > 30
    assert {uri.split("/")[3] for uri in first["uri"].to_pylist()} == {"in"}
    assert "Nothing to do" in finish()

    bucket.pipe(f"{BUCKET}/in/added.txt", b"A page that came later tells of a second lighthouse.")
    bucket.rm(f"{BUCKET}/in/quay-rules.txt")
    finish()
    uris = set(rows()["uri"].to_pylist())
    assert "s3://documents/in/added.txt" in uris
    assert "s3://documents/in/quay-rules.txt" not in uris
    assert bucket.exists(f"{BUCKET}/run/report.html")
