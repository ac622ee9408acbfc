"""Damaged documents: each has an answer, in time, whatever is wrong with it."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from stages.parse import Parse
from stages.parsers import process

SAMPLES = Path(__file__).parents[2] / "pipelines" / "samples" / "documents"
PARTS = (".xml", ".rels", ".opf", ".ncx", ".xhtml")


def mutants(content: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    """`content` cut off, with bytes changed, with a stretch missing, or with one repeated."""
    for _ in range(count):
        mutant = bytearray(content)
        kind = chance.choice(("cut", "change", "change", "remove", "repeat"))
        at = chance.randrange(len(mutant))
        end = min(len(mutant), at + chance.randrange(1, 400))
        if kind == "cut":
            del mutant[at:]
        elif kind == "change":
            for _ in range(chance.choice((1, 3, 20, 200))):
                mutant[chance.randrange(len(mutant))] = chance.randrange(256)
        elif kind == "remove":
            del mutant[at:end]
        else:
            mutant[at:at] = mutant[at:end] * chance.choice((1, 50))
        yield bytes(mutant)


def mutants_inside(content: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    """Sound zip files in which one XML part is a mutant."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(count):
        name = chance.choice([name for name in parts if name.endswith(PARTS)])
        [mutant] = mutants(parts[name], chance, 1)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for part, whole in parts.items():
                archive.writestr(part, mutant if part == name else whole)
        yield buffer.getvalue()


@pytest.mark.parametrize("path", sorted(p for p in SAMPLES.iterdir() if p.stat().st_size), ids=lambda path: path.name)
def test_every_mutant_has_an_answer(path: Path) -> None:
    chance = random.Random(path.name)
    content = path.read_bytes()
    documents = list(mutants(content, chance, 12))
    if zipfile.is_zipfile(path):
        documents += mutants_inside(content, chance, 12)
    names = [f"{i}/{path.name}" for i in range(len(documents))]
    rows = pa.table({"doc_id": names, "uri": names, "content": pa.array(documents, pa.large_binary())})
    result = Parse(timeout_s=20).open()(rows)
    lost = result.outcomes.to_pylist() if result.outcomes else []
    assert sorted(result.rows["uri"].to_pylist() + [outcome["uri"] for outcome in lost]) == sorted(names)
    assert {outcome["reason"] for outcome in lost}.isdisjoint({"timeout", "crashed", "memory_limit"})
    assert all(outcome["message"] for outcome in lost)
    for row in result.rows.to_pylist():
        assert all(row["text"][h["start"] : h["end"]] == h["text"] for h in row["headings"])
        assert all(0 <= p["start"] <= p["end"] <= len(row["text"]) for p in row["pages"] or ())


def test_no_process_is_left_behind() -> None:
    Parse().open()(pa.table({"doc_id": ["a"], "uri": ["a.txt"], "content": pa.array([b"text"], pa.large_binary())}))
    pids = [worker.popen.pid for kept in process._idle.values() for worker in kept]
    process.close_all()
    assert pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
