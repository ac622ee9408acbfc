"""`make bench`: what batchmill adds to, and takes off, the work of the libraries below it. Ratios within one run.

Each figure compares two ways of doing the same work on this machine, one after the other, since absolute times say more
about the machine than about the code.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
DOCS = Path("/usr/share/doc/python3.11/html/_sources")
MODEL = HERE.parents[1] / ".models" / "all-minilm-l6-v2"
PIPELINE = """
name: bench
stages:
  - read: {{uri: {source}}}
  - parse: {{}}
  - clean: {{}}
  - checkpoint: {{}}
  - chunk: {{size: 256, overlap: 32, unit: tokens, tokenizer: {model}}}
  - embed: {{model: {model}}}
  - checkpoint: {{}}
  - write_parquet: {{uri: {out}/parquet}}
  - write_lancedb: {{uri: {out}/lance, table: docs}}
"""


def documents() -> list[Path]:
    """The sources of Python's documentation, evenly spread over their folders; else the standard library's modules."""
    found = sorted(DOCS.rglob("*.txt")) if DOCS.exists() else sorted(Path(os.__file__).parent.glob("*.py"))
    step = 7  # neighbours are alike: step through them
    return [path for start in range(step) for path in found[start::step]]


def copy(files: list[Path], folder: Path, times: int = 1) -> Path:
    folder.mkdir(parents=True)
    for n in range(times):
        for i, path in enumerate(files):
            shutil.copy(path, folder / f"{n}-{i:03}-{path.name}")
    return folder


def measured(command: list[str], log: Path) -> tuple[float, float]:
    """Seconds, and the peak of memory in MiB: the proportional set size of the process and all below it."""
    peak = 0.0
    ended = threading.Event()
    started = time.perf_counter()
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

        def watch() -> None:
            nonlocal peak
            root = psutil.Process(process.pid)
            while not ended.wait(1.0):
                total = 0
                for member in [root, *_below(root)]:
                    try:
                        total += member.memory_full_info().pss
                    except psutil.Error:
                        continue
                peak = max(peak, total / 2**20)

        thread = threading.Thread(target=watch)
        thread.start()
        status = process.wait()
        ended.set()
        thread.join()
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}:\n{log.read_text()[-3000:]}")
    return time.perf_counter() - started, peak


def _below(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.Error:
        return []


def batchmill(source: Path, out: Path, *options: str) -> tuple[float, float, dict[str, Any]]:
    """A whole run: seconds, peak MiB, and its run.json."""
    out.mkdir(parents=True)
    (out / "pipeline.yaml").write_text(PIPELINE.format(source=source, out=out, model=MODEL))
    command = [
        sys.executable,
        "-m",
        "jobs.cli",
        "run",
        str(out / "pipeline.yaml"),
        "--run-dir",
        str(out / "run"),
        *options,
    ]
    seconds, peak = measured(command, out / "log")
    return seconds, peak, json.loads((out / "run" / "run.json").read_text())


def embedding(out: Path, record: dict[str, Any]) -> tuple[str, float, float, str]:
    """Rows per second of the embed stage in that run, over a bare loop on the very same texts."""
    import pyarrow.parquet as pq
    from bare_embedding import rows_per_second

    texts = pq.read_table(out / "parquet", columns=["text"])["text"].to_pylist()
    stage = next(count for count in record["ledger"] if count["stage"] == "embed")
    inside = stage["rows_out"] / stage["seconds"]
    bare = rows_per_second(texts, str(MODEL), "bfloat16", 32)
    return (
        f"embedding, {len(texts)} chunks: rows/s inside {inside:.0f}, bare {bare:.0f}",
        inside / bare,
        0.95,
        "at least",
    )


def whole_run(files: list[Path], folder: Path) -> list[tuple[str, float, float, str]]:
    source = copy(files, folder / "source")
    seconds, _, record = batchmill(source, folder / "ours")
    script = [sys.executable, str(HERE / "blog_script.py"), str(source), str(folder / "blog"), "--model", str(MODEL)]
    blog, _ = measured(script, folder / "blog.log")
    label = f"whole run, {len(files)} files: {seconds:.0f} s, the tutorial's script {blog:.0f} s"
    return [embedding(folder / "ours", record), (label, seconds / blog, 0.25, "at most")]


def parsing(files: list[Path], repeat: int = 3) -> tuple[str, float, float, str]:
    """Killable worker processes over the same parsers called in place; the better of a few rounds each."""
    from functools import cache

    from stages.parse import Parse
    from stages.parsers import registry
    from stages.parsers.document import Options
    from stages.parsers.worker import parse
    from stages.read import Read

    read = Read(uri=tuple(map(str, files)))
    rows = read.open()(_sources(read)).rows
    worker = Parse().open()
    contents = [(c, u) for c, u in zip(rows["content"].to_pylist(), rows["uri"].to_pylist(), strict=True)]

    @cache
    def find(media_type: str) -> registry.Parser:
        return registry.load(registry.PARSERS[media_type])

    def in_place() -> None:
        for content, uri in contents:
            try:
                parse(content, uri, None, Options(), frozenset(registry.PARSERS), find)
            except Exception:  # noqa: BLE001 - a document that does not parse costs its time all the same
                continue

    inside, outside = _best(lambda: worker(rows), repeat), _best(in_place, repeat)
    label = f"parsing, {len(files)} files: killable workers {inside:.2f} s, in place {outside:.2f} s"
    return label, inside / outside, 1.15, "at most"


def _sources(read: Any) -> Any:
    import pyarrow as pa

    from stages.read import SOURCES

    found = list(read.sources())
    return pa.table([[getattr(s, name) for s in found] for name in SOURCES.names], schema=SOURCES)


def _best(function: Callable[[], Any], repeat: int) -> float:
    function()  # imports, and the start of the worker process
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


def memory(files: list[Path], folder: Path) -> tuple[str, float, float, str]:
    """Peaks at two sizes of input, cut into units of one size, of which the smaller input makes several."""
    peaks = []
    for times in (1, 4):
        source = copy(files, folder / f"source{times}", times)
        peaks.append(batchmill(source, folder / f"run{times}", "--set", "read.unit_bytes=150KB")[1])
    label = f"peak memory, {len(files)} files: 1x {peaks[0]:.0f} MiB, 4x {peaks[1]:.0f} MiB"
    return label, peaks[1] / peaks[0], 1.1, "at most"


MEASURES = ("parsing", "run", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=60, help="documents for the whole run")
    parser.add_argument("--memory-files", type=int, default=40, help="documents for the memory figure, at 1x")
    parser.add_argument("--only", choices=MEASURES, action="append", help="measure just this; may be repeated")
    options = parser.parse_args()
    measures = options.only or MEASURES
    files = documents()
    corpus = sorted(p for p in (HERE.parents[2] / "shared" / "corpus").glob("*/*") if p.is_file())
    results: list[tuple[str, float, float, str]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "parsing" in measures:
            results.append(parsing(files[:120]))
            if corpus:
                label, *rest = parsing(corpus, repeat=1)
                results.append((f"{label} (mixed formats)", *rest))  # type: ignore[arg-type]
        if "run" in measures:
            results += whole_run(files[: options.files], folder / "whole")
        if "memory" in measures:
            results.append(memory(files[: options.memory_files], folder / "memory"))
    table = Table("measure", "ratio", "aim", "met")
    for label, ratio, aim, kind in results:
        met = ratio >= aim if kind == "at least" else ratio <= aim
        table.add_row(label, f"{ratio:.2f}", f"{kind} {aim}", "yes" if met else "no")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
