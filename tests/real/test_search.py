"""Known-item search: whoever knows Python's documentation asks, and the right page is among the first five."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.pipeline import Pipeline
from pipelines.search import search
from stages.chunk import Chunk
from stages.clean import Clean
from stages.embed import Embed
from stages.parse import Parse
from stages.read import Read
from stages.write_lancedb import WriteLancedb

DOCS = Path("/usr/share/doc/python3.11/html/_sources")
QUESTIONS = Path(__file__).with_name("python_docs_questions.jsonl")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.skipif(not DOCS.exists(), reason="needs Debian's package python3.11-doc"),
]


def test_the_right_page_is_among_the_first_five(work: Path, embedding_model: str) -> None:
    stages = [
        Read(uri=str(DOCS)),
        Parse(),
        Clean(),
        Chunk(size=256, overlap=32, unit="tokens", tokenizer=embedding_model),
        Embed(model=embedding_model),
        WriteLancedb(uri="lance", table="docs"),
    ]
    result = Pipeline("python-docs", stages).run("run")
    assert result.ledger[0].ok == sum(1 for path in DOCS.rglob("*") if path.is_file())
    missed = []
    for line in QUESTIONS.read_text().splitlines():
        asked = json.loads(line)
        hits = search("lance", "docs", asked["question"], k=5)
        if not any(hit["uri"].endswith(asked["page"]) for hit in hits):
            missed.append((asked["page"], [hit["uri"].removeprefix(f"{DOCS}/") for hit in hits]))
    print(f"{40 - len(missed)} of 40 found")
    assert len(missed) <= 4, missed
