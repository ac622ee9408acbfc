"""Kill anything, repeat the command, and get what an uninterrupted run gives: on real documents, with a real model."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

from connectors.storage import Place
from stages.write_parquet import read_current

pytestmark = [pytest.mark.slow, pytest.mark.destructive, pytest.mark.timeout(900)]

DOCS = Path("/usr/share/doc/python3.11/html/_sources/howto")
FILES = int(os.environ.get("BATCHMILL_KILL_FILES", "14"))
KILLS = int(os.environ.get("BATCHMILL_KILLS", "3"))

PIPELINE = """
name: killed
stages:
  - read: {{uri: docs, unit_docs: 2}}
  - parse: {{}}
  - clean: {{}}
  - checkpoint: {{}}
  - chunk: {{size: 256, overlap: 32, unit: tokens, tokenizer: {model}}}
  - embed: {{model: {model}, dtype: float32}}
  - checkpoint: {{}}
  - write_parquet: {{uri: {out}/parquet}}
  - write_lancedb: {{uri: {out}/lance, table: docs}}
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, embedding_model: str) -> Path:
    """A directory with documents in `docs`, and in `whole` what an uninterrupted run makes of them.

    The documents are sources of Python's documentation, where Debian's package is; else Python's own modules as text.
    """
    folder = tmp_path_factory.mktemp("kill")
    (folder / "docs").mkdir()
    found = sorted(DOCS.rglob("*.txt")) if DOCS.exists() else sorted(Path(os.__file__).parent.glob("*.py"))
    for path in [path for path in found if path.stat().st_size < 60_000][:FILES]:
        shutil.copy(path, folder / "docs" / f"{path.name.removesuffix('.txt')}.txt")
    (folder / "docs" / "damaged.pdf").write_bytes(b"%PDF-1.7 and no more")
    with contextlib.chdir(folder):
        finish("whole", embedding_model)
    return folder


@pytest.fixture
def here(whole: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(whole)
    return whole


def command(name: str, model: str) -> list[str]:
    Path(f"{name}.yaml").write_text(PIPELINE.format(model=model, out=name))
    return [sys.executable, "-m", "jobs.cli", "run", f"{name}.yaml", "--run-dir", f"runs/{name}"]


def start(name: str, model: str) -> subprocess.Popen[bytes]:
    """A run in a process group of its own."""
    with open(f"{name}.log", "ab") as log:
        return subprocess.Popen(command(name, model), stdout=log, stderr=log, start_new_session=True)


def finish(name: str, model: str) -> None:
    process = start(name, model)
    assert process.wait(timeout=600) == 0, Path(f"{name}.log").read_text()[-4000:]


def contents(name: str) -> tuple[list[dict[str, object]], np.ndarray]:
    """The rows of the Parquet output by id, and their vectors; LanceDB holds the very same."""
    import lancedb

    parquet = read_current(Place(f"{name}/parquet")).sort_by("chunk_id")
    lance = lancedb.connect(f"{name}/lance").open_table("docs").to_arrow().sort_by("chunk_id")
    plain = parquet.column_names
    assert (
        lance.select(plain).drop_columns(["embedding"]).to_pylist() == parquet.drop_columns(["embedding"]).to_pylist()
    )
    assert np.array_equal(vectors(lance), vectors(parquet))
    ids = parquet["chunk_id"].to_pylist()
    assert len(set(ids)) == len(ids)
    return parquet.drop_columns(["embedding"]).to_pylist(), vectors(parquet)


def vectors(table: pa.Table) -> np.ndarray:
    column = table["embedding"].combine_chunks()
    return np.asarray(column.flatten()).reshape(len(column), -1)


def assert_same(name: str, other: str) -> None:
    (rows, matrix), (expected, expected_matrix) = contents(name), contents(other)
    assert rows == expected
    np.testing.assert_allclose(matrix, expected_matrix, atol=1e-5)


def busy_workers(driver: psutil.Process) -> list[psutil.Process]:
    """Ray's worker processes under a driver that are at work: their titles begin with `ray::`, the name of what they
    do, or IDLE."""
    found = []
    for child in driver.children(recursive=True):
        try:
            title = (child.cmdline() or [""])[0]
        except psutil.Error:
            continue  # it has just ended
        if title.startswith("ray::") and "IDLE" not in title:
            found.append(child)
    return found


def test_the_driver_s_process_group(here: Path, embedding_model: str) -> None:
    dice = random.Random(11)
    for _ in range(KILLS):
        process = start("group", embedding_model)
        try:
            process.wait(timeout=dice.uniform(8, 40))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finish("group", embedding_model)
    assert_same("group", "whole")


def test_workers_in_mid_work(here: Path, embedding_model: str) -> None:
    """Three workers are killed, each at work, once the run has begun to commit; it goes on by itself."""
    process = start("workers", embedding_model)
    driver = psutil.Process(process.pid)
    killed = 0
    deadline = time.monotonic() + 120
    while killed < 3 and process.poll() is None and time.monotonic() < deadline:
        committed = list(Path("runs/workers/checkpoints").glob("*/*.parquet"))
        busy = busy_workers(driver)
        if len(committed) > 2 * killed and busy:
            victim = random.Random(killed).choice(busy)
            victim.kill()
            killed += 1
            psutil.wait_procs([victim], timeout=10)
    assert process.wait(timeout=600) == 0, Path("workers.log").read_text()[-4000:]
    assert killed == 3
    assert_same("workers", "whole")
