"""The baseline: document ingestion on Ray Data as tutorials show it.

It stands for what a person gets who puts the usual pieces together in the usual way, and it is written to be typical
rather than slow. Its habits are the point of the comparison:

- one row per file from `read_binary_files`, parsed by a Python function per row, split by `flat_map`;
- an actor with the model in float32, given 32 rows at a time in the order in which they come;
- a lazy dataset that is consumed three times: `count` for a log line, `write_parquet`, and the rows once more for
  LanceDB. Nothing is materialised between, so files are parsed and texts embedded three times over;
- no outcomes, no checkpoints: a file that does not parse ends the job.

Only `num_cpus` is set with care. With the defaults on two cores the actor pool can take every CPU, and the tasks that
feed it never start.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUFFIXES = ["pdf", "html", "htm", "txt", "rst", "md"]
CHUNK_SIZE = 1000
CHUNK_OVERLAP = 100
UPLOAD_ROWS = 1000


def parse(row: dict[str, Any]) -> dict[str, Any]:
    """One file's bytes to its text, by the suffix of its name."""
    path, content = row["path"], row["bytes"]
    suffix = Path(path).suffix.lower()
    if suffix == ".pdf":
        import pymupdf

        with pymupdf.open(stream=content, filetype="pdf") as document:
            text = "\n".join(page.get_text() for page in document)
    elif suffix in (".html", ".htm"):
        from lxml import html

        text = html.fromstring(content).text_content()
    else:
        text = content.decode("utf-8", errors="ignore")
    return {"path": path, "text": text}


def chunk(row: dict[str, Any]) -> list[dict[str, Any]]:
    """One document to a row per chunk."""
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    splitter = RecursiveCharacterTextSplitter(chunk_size=CHUNK_SIZE, chunk_overlap=CHUNK_OVERLAP)
    return [
        {"path": row["path"], "chunk_index": index, "text": text}
        for index, text in enumerate(splitter.split_text(row["text"]))
    ]


class Embedder:
    """The model, loaded once per actor."""

    def __init__(self, model: str) -> None:
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(model, model_kwargs={"dtype": "float32"})

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        batch["embedding"] = self.model.encode(list(batch["text"]), batch_size=32, show_progress_bar=False)
        return batch


def upload(rows: Iterator[dict[str, Any]], uri: str) -> None:
    """Add rows to a fresh LanceDB table, a thousand at a time."""
    import lancedb

    database = lancedb.connect(uri)
    table = None
    pending: list[dict[str, Any]] = []

    def flush() -> None:
        nonlocal table
        if table is None:
            table = database.create_table("docs", data=pending, mode="overwrite")
        else:
            table.add(pending)
        pending.clear()

    for row in rows:
        pending.append(row)
        if len(pending) == UPLOAD_ROWS:
            flush()
    if pending:
        flush()


def main(source_dir: str | Path, out_dir: str | Path, model: str, num_cpus: int = 2) -> dict[str, float]:
    """Ingest every file under `source_dir`; Parquet and a LanceDB table `docs` go below `out_dir`.

    Returns the number of chunks and the seconds of wall clock: `chunks`, `count_s`, `parquet_s`, `lance_s`, and
    `total_s`, which leaves out the start of Ray.
    """
    import ray

    out = Path(out_dir).absolute()
    if not ray.is_initialized():
        ray.init(num_cpus=num_cpus, include_dashboard=False, log_to_driver=False)
    started = time.perf_counter()
    dataset = ray.data.read_binary_files(str(source_dir), include_paths=True, file_extensions=SUFFIXES)
    dataset = (
        dataset.map(parse)
        .flat_map(chunk)
        .map_batches(Embedder, fn_constructor_args=(model,), batch_size=32, concurrency=1, num_cpus=1)
    )
    chunks = dataset.count()
    counted = time.perf_counter()
    dataset.write_parquet(str(out / "parquet"))
    written = time.perf_counter()
    upload(dataset.iter_rows(), str(out / "lance"))
    ended = time.perf_counter()
    return {
        "chunks": chunks,
        "count_s": counted - started,
        "parquet_s": written - counted,
        "lance_s": ended - written,
        "total_s": ended - started,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Document ingestion as tutorials show it: a baseline to measure by.")
    parser.add_argument("source_dir")
    parser.add_argument("out_dir")
    parser.add_argument("--model", required=True, help="a local path or a hub id")
    parser.add_argument("--num-cpus", type=int, default=2)
    options = parser.parse_args()
    for name, value in main(options.source_dir, options.out_dir, options.model, options.num_cpus).items():
        print(f"{name}: {value:.1f}")
