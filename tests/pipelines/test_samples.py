"""The sample documents: made alike again, and each of them parsed or refused as the demo promises."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

import pipelines
from pipelines.pipeline import Pipeline
from stages.core.outcome import Result
from stages.core.schema import doc_id
from stages.parse import Parse

HERE = Path(pipelines.__file__).parent
DOCUMENTS = HERE / "samples" / "documents"
WORDS = {
    "berths.xlsx": "W2 | west | 16 | 3.8 | Kittiwake",
    "catches.csv": "February | Sea Campion | lumpfish | 640",
    "decree.fr.txt": "numéro du bateau, peint à la chaux",
    "ferry.rtf": "Bees are carried at night only",
    "guild.es.txt": "piedras blancas y negras",
    "handbook.pdf": "three short ones for a person in the",
    "harbour.ar.txt": "ميناء فيلمار",
    "lighthouse.md": "The lamp is **amber**, not white",
    "notice.ja.txt": "灯台の灯りは琥珀色です",
    "notice.ko.txt": "씨앗 도서관은",
    "observatory.de.pptx": "Die Gruppe darf höchstens zwölf Personen haben",
    "observatory.ru.md": "открыла слабую комету",
    "plan.fr.docx": "Brise-lames | 48 000",
    "quay-rules.txt": "Gulls are not fed",
    "storm-warning.eml": "The café on the quay",
    "tales.epub": "They waited nineteen days",
    "tea-house.zh.pdf": "这里最有名的是海藻茶",
    "visitors.html": "closed on Tuesdays",
}


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", HERE / "samples" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def parsed() -> Result:
    files = [p for p in sorted(DOCUMENTS.iterdir()) if p.suffix not in (".jsonl", ".parquet")]
    rows = {
        "doc_id": [doc_id(p.name) for p in files],
        "uri": [p.name for p in files],
        "content": pa.array([p.read_bytes() for p in files], pa.large_binary()),
    }
    result = Parse().open()(pa.table(rows))
    assert isinstance(result, Result)
    return result


def text_of(parsed: Result, name: str) -> str:
    texts = dict(zip(parsed.rows["uri"].to_pylist(), parsed.rows["text"].to_pylist(), strict=True))
    return " ".join(texts[name].split())


def test_documents_are_made_alike_again(generator: ModuleType, tmp_path: Path) -> None:
    generator.generate(tmp_path / "once")
    generator.generate(tmp_path / "twice")
    for name in generator.MAKERS:
        made = (tmp_path / "once" / name).read_bytes()
        assert made == (tmp_path / "twice" / name).read_bytes(), name
        assert (DOCUMENTS / name).is_file(), name
        if name.endswith((".txt", ".rtf")):  # what no library's version decides
            assert made == (DOCUMENTS / name).read_bytes(), name


@pytest.mark.parametrize("name", WORDS)
def test_a_sample_is_parsed(parsed: Result, name: str) -> None:
    assert WORDS[name] in text_of(parsed, name)


def test_columns_are_read_one_after_the_other(parsed: Result) -> None:
    text = text_of(parsed, "bulletin.pdf")
    order = [text.index(words) for words in ("Comet found", "A new bell", "first Sunday of Advent", "Barley prize")]
    assert order == sorted(order)


def test_table_rows_stay_together(parsed: Result) -> None:
    assert "4 March | 07:36 | 5.4 | 13:51 | 0.3" in text_of(parsed, "tides.pdf")


def test_quarantine_shows_four_reasons(parsed: Result) -> None:
    assert parsed.outcomes is not None
    found = {row["uri"]: (row["status"], row["reason"]) for row in parsed.outcomes.to_pylist()}
    assert found == {
        "damaged.pdf": ("failed", "damaged"),
        "empty.txt": ("dropped", "empty"),
        "locked.pdf": ("failed", "password_required"),
        "scan.pdf": ("dropped", "no_text_layer"),
    }


def test_samples_are_small() -> None:
    assert sum(p.stat().st_size for p in DOCUMENTS.iterdir()) < 500_000


def test_demo_pipeline_is_valid() -> None:
    pipeline = Pipeline.from_yaml(HERE / "demo.yaml")
    kinds = [stage.kind() for stage in pipeline.stages]
    assert kinds[:3] == ["read", "parse", "clean"]
    assert kinds[-2:] == ["write_parquet", "write_lancedb"]
