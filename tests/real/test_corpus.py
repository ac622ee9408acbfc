"""Every line of the corpus's manifest holds: text with its phrase, empty, or refused with a reason."""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest

from stages.parse import Parse

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpus"
BIDI_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
ALTERNATIVE = {"text is fine": "ok", "reject with": "failed"}
"""What a manifest line says when it accepts another outcome as well."""


def manifest() -> list[dict[str, str]]:
    path = CORPUS / "MANIFEST.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


pytestmark = pytest.mark.skipif(not manifest(), reason="the corpus folder is not there")


def normal(text: str) -> str:
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", BIDI_MARKS.sub("", text)))


@pytest.fixture(scope="module")
def parsed() -> dict[str, dict[str, object]]:
    """Path in the corpus -> its row or its outcome, parsed in one batch."""
    paths = [line["path"] for line in manifest()]
    table = pa.table(
        {
            "doc_id": paths,
            "uri": paths,
            "content": pa.array([(CORPUS / path).read_bytes() for path in paths], pa.large_binary()),
        }
    )
    result = Parse().open()(table)
    found = {row["uri"]: row | {"status": "ok"} for row in result.rows.to_pylist()}
    found |= {row["uri"]: row for row in result.outcomes.to_pylist()}
    assert len(found) == len(paths) == result.rows.num_rows + result.outcomes.num_rows
    return found


@pytest.mark.parametrize("line", manifest(), ids=lambda line: line["path"])
def test_the_manifest_holds(line: dict[str, str], parsed: dict[str, dict[str, object]]) -> None:
    found = parsed[line["path"]]
    allowed = {"text": {"ok"}, "empty": {"dropped"}, "reject": {"failed"}}[line["expect"]]
    allowed |= {status for words, status in ALTERNATIVE.items() if words in line["what_is_special"]}
    assert found["status"] in allowed, f"{found['status']}: {found.get('reason')} {found.get('message')}"
    if found["status"] != "ok":
        assert found["reason"]
        assert found["message"]
        return
    text = found["text"]
    assert normal(line["must_contain"]) in normal(text)
    assert all(text[h["start"] : h["end"]] == h["text"] for h in found["headings"])
    ranges = [(page["start"], page["end"]) for page in found["pages"] or ()]
    assert all(0 <= start <= end <= len(text) for start, end in ranges)
    assert ranges == sorted(ranges)
    json.loads(found["metadata"])


@pytest.mark.parametrize(
    "path", ["pdf/pdfjs-ThuluthFeatures.pdf", "pdf/pdfjs-freetext_no_appearance.pdf", "pdf/pypdf-habibi-rotated.pdf"]
)
def test_text_that_cannot_be_right_is_flagged(path: str, parsed: dict[str, dict[str, object]]) -> None:
    assert json.loads(parsed[path]["metadata"])["suspect_text"] is True


def test_few_other_documents_are_flagged(parsed: dict[str, dict[str, object]]) -> None:
    flagged = [path for path, row in parsed.items() if '"suspect_text": true' in str(row.get("metadata"))]
    assert len(flagged) <= 5, flagged


def test_table_rows_stay_together(parsed: dict[str, dict[str, object]]) -> None:
    assert "Carbon dioxide (CO2) | 100 million | - | -" in parsed["pdf/pdfbox-eu-001.pdf"]["text"]
    turned = parsed["pdf/plumber-issue-140-example.pdf"]["text"]
    assert "0085648100305 | CENTRAL KMA | LILYS 40% SLTD ALMND CHOC | 637 | $ 0.61 | $ 388.57" in turned


def test_numbers_in_right_to_left_lines_are_not_turned_round(parsed: dict[str, dict[str, object]]) -> None:
    text = parsed["pdf/pdfbox-BidiSample.pdf"]["text"]
    assert "١٤٣٤" in text
    assert "٤٣٤١" not in text


def test_legacy_code_pages_are_mended(parsed: dict[str, dict[str, object]]) -> None:
    assert parsed["pdf/pdfjs-issue11740_reduced.pdf"]["text"].strip() == "Оглавление"


def test_two_columns_are_read_one_after_the_other(parsed: dict[str, dict[str, object]]) -> None:
    text = normal(parsed["pdf/docling-amt_handbook_sample.pdf"]["text"])
    assert "pulleys, provided the inner race of the bearing is clamped to the supporting structure" in text
