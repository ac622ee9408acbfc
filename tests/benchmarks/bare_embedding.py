"""The least that embedding can cost: SentenceTransformer.encode over texts in memory, and nothing around it.

What a pipeline's rows per second are divided by, at the same dtype and batch size and on the same texts. Loading the
model and a first warm-up batch stay outside the clock; tokenizing is inside, as it is in a pipeline.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path


def rows_per_second(texts: Sequence[str], model: str, dtype: str = "bfloat16", batch_size: int = 32) -> float:
    """Texts embedded per second of wall clock, in batches of `batch_size` sorted by length, shortest first.

    `dtype` is the name of a torch dtype (`float32`, `bfloat16`). Raises ValueError where there are no texts.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    if not texts:
        raise ValueError("there are no texts to embed")
    encoder = SentenceTransformer(model, model_kwargs={"dtype": getattr(torch, dtype)})
    ordered = sorted(texts, key=len)
    encoder.encode(ordered[:batch_size], batch_size=batch_size, show_progress_bar=False)
    started = time.perf_counter()
    for start in range(0, len(ordered), batch_size):
        encoder.encode(ordered[start : start + batch_size], batch_size=batch_size, show_progress_bar=False)
    return len(ordered) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows per second of a bare SentenceTransformer loop.")
    parser.add_argument("parquet", type=Path, help="a Parquet file or folder with a column `text`")
    parser.add_argument("--model", required=True, help="a local path or a hub id")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()

    import pyarrow.parquet as pq

    texts = pq.read_table(options.parquet, columns=["text"])["text"].to_pylist()
    rate = rows_per_second(texts, options.model, options.dtype, options.batch_size)
    print(f"{len(texts)} texts, {options.dtype}, batches of {options.batch_size}: {rate:.1f} rows/s")


if __name__ == "__main__":
    main()
