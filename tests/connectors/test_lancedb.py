from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors import lancedb
from stages.core.errors import ConfigError, RunError
from stages.core.schema import CHUNKS, chunk_id, embedding_type
from stages.write_lancedb import UNIT, WriteLancedb

DIMENSIONS = 16
SCHEMA = CHUNKS.append(pa.field("embedding", embedding_type(DIMENSIONS)))


def chunks(document: str, n: int, text: str = "chunk") -> pa.Table:
    """n chunks of one document: ids and vectors follow from its name and text, as they do in a pipeline."""
    texts = [f"{text} {i} of {document}" for i in range(n)]
    ids = [chunk_id(document, i, t) for i, t in enumerate(texts)]
    vectors = np.array([np.random.default_rng(int(i[:8], 16)).normal(size=DIMENSIONS) for i in ids], np.float32)
    columns: dict[str, Any] = {name: pa.nulls(n, SCHEMA.field(name).type) for name in SCHEMA.names}
    columns |= {"chunk_id": ids, "doc_id": [document] * n, "uri": [f"/{document}"] * n, "text": texts}
    columns |= {"chunk_index": range(n), "embedding": pa.array(list(vectors), embedding_type(DIMENSIONS))}
    return pa.table(columns, schema=SCHEMA)


@dataclass(frozen=True)
class Rows:
    """A delivery of tables in memory."""

    held: dict[str, pa.Table]
    fingerprint: str = "f1"
    previous: dict[str, Any] | None = None
    schema: pa.Schema = SCHEMA
    pipeline: str = "rag"
    metadata: dict[str, str] = field(default_factory=lambda: {"embedding": "{}"})
    asked: list[str] = field(default_factory=list)

    @property
    def units(self) -> list[str]:
        return list(self.held)

    def tables(self, units: Iterable[str]) -> Iterator[pa.Table]:
        for unit in units:
            self.asked.append(unit)
            yield self.held[unit]

    def all(self) -> dict[str, Any]:
        table = pa.concat_tables(self.held.values())
        return dict(zip(table["chunk_id"].to_pylist(), table["text"].to_pylist(), strict=True))

    def after(self, state: dict[str, Any]) -> Rows:
        return replace(self, previous=json.loads(json.dumps(state)), asked=[])


def opened(sink: WriteLancedb) -> Any:
    return lancedb.open_table(lancedb.connect(sink.uri, sink.options), sink.table)


def content(sink: WriteLancedb) -> dict[str, Any]:
    """chunk_id -> text; fails where an id is there twice."""
    table = opened(sink).to_arrow()
    ids = table["chunk_id"].to_pylist()
    assert len(ids) == len(set(ids))
    return dict(zip(ids, table["text"].to_pylist(), strict=True))


@pytest.fixture
def sink(tmp_path: Path) -> WriteLancedb:
    return WriteLancedb(uri=str(tmp_path / "lance"), table="docs")


def first() -> Rows:
    return Rows({"u1": pa.concat_tables([chunks("a", 5), chunks("b", 3)]), "u2": chunks("c", 4), "u3": chunks("d", 2)})


def second() -> Rows:
    """As `first`, after b changed in part, d went and e came: b left u1, which has another name without it."""
    return Rows(
        {"u1-b": chunks("a", 5), "u2": chunks("c", 4), "u4": pa.concat_tables([chunks("b", 2), chunks("e", 6)])}
    )


def test_the_first_delivery_is_one_version_of_data_with_a_statement_about_itself(sink: WriteLancedb) -> None:
    rows = first()
    state = sink.publish(rows)
    assert content(sink) == rows.all()
    table = opened(sink)
    assert state["rows"] == 14
    assert state["version"] == table.version == 2  # the rows, and the full-text index
    recorded = lancedb.metadata(table)
    assert recorded.items() >= {"pipeline": "rag", "fingerprint": "f1", "embedding": "{}", "key": "chunk_id"}.items()
    assert table.schema.field("embedding").type == embedding_type(DIMENSIONS)
    assert table.to_arrow().schema.names == [*SCHEMA.names, UNIT]


def test_nothing_new_writes_nothing(sink: WriteLancedb) -> None:
    rows = first()
    state = sink.publish(rows)
    again = rows.after(state)
    assert sink.publish(again) == state
    assert again.asked == []
    forgotten = first()  # a run that was killed before it could note what was returned
    assert sink.publish(forgotten) == state
    assert forgotten.asked == []
    assert opened(sink).version == state["version"]


def test_a_later_delivery_touches_what_changed_in_one_version(sink: WriteLancedb) -> None:
    state = sink.publish(first())
    rows = second().after(state)
    sink.publish(rows)
    assert content(sink) == rows.all()
    assert set(rows.asked) == {"u1-b", "u4"}
    assert lancedb.distinct(opened(sink), UNIT) == set(rows.units)
    merged = opened(sink)
    merged.checkout(state["version"] + 1)
    assert merged.count_rows() == len(rows.all())


def test_units_that_are_gone_take_their_rows_along(sink: WriteLancedb) -> None:
    state = sink.publish(first())
    rows = Rows({"u2": chunks("c", 4)}).after(state)
    sink.publish(rows)
    assert content(sink) == rows.all()
    nothing = Rows({}).after(sink.publish(rows))
    sink.publish(nothing)
    assert content(sink) == {}


def test_another_configuration_replaces_the_table_at_once(sink: WriteLancedb) -> None:
    state = sink.publish(first())
    rows = replace(Rows({"u1": chunks("a", 2, "other"), "u2": chunks("c", 1, "other")}), fingerprint="f2")
    sink.publish(rows.after(state))
    assert content(sink) == rows.all()
    assert lancedb.metadata(opened(sink))["fingerprint"] == "f2"


def test_an_update_larger_than_one_merge_ends_the_same(tmp_path: Path) -> None:
    sink = WriteLancedb(uri=str(tmp_path / "lance"), table="docs", merge_bytes="1KiB")
    state = sink.publish(first())
    sink.publish(second().after(state))
    assert content(sink) == second().all()


def test_an_empty_delivery_makes_an_empty_table(sink: WriteLancedb) -> None:
    sink.publish(Rows({"u1": SCHEMA.empty_table()}))
    assert content(sink) == {}
    sink.publish(first())
    assert content(sink) == first().all()


def test_a_table_of_documents_is_keyed_by_doc_id(sink: WriteLancedb) -> None:
    schema = pa.schema([("doc_id", pa.string()), ("text", pa.string())])

    def documents(*names: str) -> pa.Table:
        return pa.table({"doc_id": names, "text": [f"text of {n}" for n in names]}, schema=schema)

    state = sink.publish(Rows({"u1": documents("a", "b")}, schema=schema))
    sink.publish(Rows({"u2": documents("b", "c")}, schema=schema).after(state))
    assert sorted(opened(sink).to_arrow()["doc_id"].to_pylist()) == ["b", "c"]
    assert lancedb.metadata(opened(sink))["key"] == "doc_id"


def test_tables_of_others_are_not_touched(sink: WriteLancedb) -> None:
    lancedb.connect(sink.uri).create_table("docs", chunks("mine", 3))
    with pytest.raises(RunError, match="not written by batchmill"):
        sink.publish(first())
    assert opened(sink).count_rows() == 3


@pytest.mark.filterwarnings("ignore:optimize.cleanup_older_than=0")
def test_many_small_updates_stay_compact(tmp_path: Path) -> None:
    sink = WriteLancedb(uri=str(tmp_path / "lance"), table="docs", retain_days=0)
    held: dict[str, pa.Table] = {}
    state = None
    for i in range(25):
        held = held | {f"u{i}": chunks(f"d{i}", 2)}
        state = sink.publish(replace(Rows(held), previous=state))
    table = opened(sink)
    assert content(sink) == Rows(held).all()
    assert table.stats()["fragment_stats"]["num_fragments"] <= lancedb.SMALL_FRAGMENTS + 1
    assert len(table.list_versions()) <= 4


def test_full_text_search_knows_words_of_several_languages_and_rows_of_the_last_update(sink: WriteLancedb) -> None:
    texts = {
        "de": "Die Straße führt über das Gebirge",
        "ja": "東京都に住んでいます",
        "zh": "我爱北京天安门",
        "th": "ภาษาไทยง่าย",
        "ru": "Привет мир",
        "code": "call os.path.join or list_comprehension",
    }

    def table(names: Iterable[str]) -> pa.Table:
        rows = pa.concat_tables([chunks(name, 1) for name in names])
        return rows.set_column(rows.schema.get_field_index("text"), "text", pa.array([texts[n] for n in names]))

    state = sink.publish(Rows({"u1": table(["de", "ja", "zh"])}))
    sink.publish(Rows({"u1": table(["de", "ja", "zh"]), "u2": table(["th", "ru", "code"])}).after(state))
    asked = {"strasse": "de", "gebirge": "de", "東京": "ja", "北京": "zh", "ไทย": "th", "мир": "ru", "path": "code"}
    for question, document in asked.items():
        hits = lancedb.search(opened(sink), "fulltext", 3, question)
        assert [hit["doc_id"] for hit in hits] == [document], question


def test_a_language_stems_and_changes_the_index_alone(sink: WriteLancedb) -> None:
    rows = Rows({"u1": chunks("a", 3, "running dogs")})
    state = sink.publish(rows)
    assert lancedb.search(opened(sink), "fulltext", 3, "dog") == []
    stemming = sink.model_copy(update={"language": "English"})
    again = rows.after(state)
    stemming.publish(again)
    assert again.asked == []
    assert len(lancedb.search(opened(sink), "fulltext", 3, "dog")) == 3


def test_vectors_are_indexed_above_the_row_count_and_found_with_or_without(tmp_path: Path) -> None:
    sink = WriteLancedb(uri=str(tmp_path / "lance"), table="docs", index_above=1000)
    few, many = {"u1": chunks("a", 500)}, {"u1": chunks("a", 500), "u2": chunks("b", 3000)}
    table = pa.concat_tables(many.values())
    for rows, indexed in ((few, False), (many, True)):
        sink.publish(Rows(rows))
        assert ("embedding" in [i.columns[0] for i in opened(sink).list_indices()]) == indexed
        found = 0
        for i in range(0, 500, 10):
            vector = table["embedding"][i].as_py()
            best = lancedb.search(opened(sink), "vector", 1, vector=vector)[0]
            found += best["chunk_id"] == table["chunk_id"][i].as_py() and best["score"] > 0.98
        assert found >= (49 if indexed else 50)


def test_hybrid_search_finds_what_either_ranking_finds(sink: WriteLancedb) -> None:
    rows = first()
    sink.publish(rows)
    other = chunks("c", 4)
    hits = lancedb.search(opened(sink), "hybrid", 3, "3 of a", other["embedding"][2].as_py())
    assert {"chunk 3 of a", "chunk 2 of c"} <= {hit["text"] for hit in hits}
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert set(hits[0]) == {"score", "chunk_id", "doc_id", "uri", "text", "heading_path", "page_first"}


def test_check_wants_a_directory_that_can_be_written(tmp_path: Path) -> None:
    WriteLancedb(uri=str(tmp_path / "not" / "yet"), table="t").check()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        WriteLancedb(uri=str(tmp_path / "file" / "lance"), table="t").check()
    with pytest.raises(ValueError, match="table"):
        WriteLancedb(uri="x", table="a/b")


def test_secrets_stay_out_of_dumps() -> None:
    sink = WriteLancedb(
        uri="s3://b/x", table="t", storage_options={"aws_secret_access_key": "hush", "allow_http": True}
    )
    assert "hush" not in sink.model_dump_json() + repr(sink) + str(sink.model_dump())
    assert sink.options == {"aws_secret_access_key": "hush", "allow_http": "true"}


def test_the_endpoint_comes_from_the_environment_where_no_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert lancedb.storage_options_for("s3://b/x") == {
        "endpoint": "http://127.0.0.1:1", "allow_http": "true", "region": "eu-west-1"
    }  # fmt: skip
    given = {"endpoint": "https://store", "region": "r"}
    assert lancedb.storage_options_for("s3://b/x", given) == given
    assert lancedb.storage_options_for("/local", {}) == {}


def test_s3_holds_what_a_directory_holds(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    s3fs.S3FileSystem(key=s3["key"], secret=s3["secret"], endpoint_url=s3["endpoint"]).mkdir("s3://lance-docs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3["endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret"])
    sink = WriteLancedb(uri="s3://lance-docs/lance", table="docs")
    sink.check()
    state = sink.publish(first())
    assert content(sink) == first().all()
    state = sink.publish(second().after(state))
    assert content(sink) == second().all()
    assert sink.publish(second().after(state)) == state
    assert lancedb.search(opened(sink), "fulltext", 1, "5 of e")[0]["doc_id"] == "e"


PUBLISH = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet as pq
from stages.write_lancedb import WriteLancedb

uri, directory, die_at = sys.argv[1:]

class Files:
    def __init__(self):
        self.paths = {p.stem: p for p in sorted(Path(directory).glob("*.parquet"))}
        self.units, self.previous = list(self.paths), None
        self.fingerprint, self.pipeline, self.metadata = "f1", "rag", {"embedding": "{}"}
        self.schema = pq.read_schema(next(iter(self.paths.values())))

    def tables(self, units):
        for n, unit in enumerate(units):
            if n == int(die_at):
                os.kill(os.getpid(), signal.SIGKILL)
            yield pq.read_table(self.paths[unit])

WriteLancedb(uri=uri, table="docs", merge_bytes="200KiB", index_above=5000).publish(Files())
"""


def write(directory: Path, units: dict[str, pa.Table]) -> None:
    directory.mkdir()
    for name, table in units.items():
        pq.write_table(table, directory / f"{name}.parquet")


def kill_while_publishing(sink: WriteLancedb, units: Path, moment: str) -> None:
    """Publish in a process that is killed as it reads its n-th unit (`unit n`) or has committed version n."""
    what, number = moment.split()
    child = subprocess.Popen(
        [sys.executable, "-c", PUBLISH, sink.uri, str(units), number if what == "unit" else "-1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    versions = Path(sink.uri) / "docs.lance" / "_versions"
    while what == "version" and child.poll() is None and len(list(versions.glob("*.manifest"))) < int(number):
        time.sleep(0.001)  # watches another process
    if what == "version":
        child.kill()
    assert child.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.destructive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["unit 0", "unit 19", "version 1", "version 2"])
def test_a_first_delivery_that_is_killed_is_there_as_a_whole_or_not_at_all(tmp_path: Path, moment: str) -> None:
    units = large()
    write(tmp_path / "units", units)
    sink = WriteLancedb(uri=str(tmp_path / "lance"), table="docs", index_above=5000)
    kill_while_publishing(sink, tmp_path / "units", moment)
    assert (opened(sink) is None) == moment.startswith("unit")
    assert opened(sink) is None or content(sink) == Rows(units).all()
    ends_exactly(sink, units)


@pytest.mark.slow
@pytest.mark.destructive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["unit 2", "unit 4", "version 4", "version 5", "version 6", "version 7"])
def test_an_update_that_is_killed_leaves_whole_units_and_ends_exactly(tmp_path: Path, moment: str) -> None:
    before = large()
    after = {name: table for name, table in before.items() if int(name[1:]) % 4}
    after |= {f"v{i:02d}": pa.concat_tables([chunks(f"{i}-{j}", 35 + j) for j in range(12)]) for i in range(0, 20, 4)}
    write(tmp_path / "units", after)
    sink = WriteLancedb(uri=str(tmp_path / "lance"), table="docs", index_above=5000)
    sink.publish(Rows(before))
    assert opened(sink).version == 3  # rows and two indexes
    kill_while_publishing(sink, tmp_path / "units", moment)
    content(sink)
    table = opened(sink)
    for unit in lancedb.distinct(table, UNIT) & set(after):
        assert table.count_rows(f"{UNIT} = '{unit}'") == after[unit].num_rows
    ends_exactly(sink, after)


def large() -> dict[str, pa.Table]:
    return {f"u{i:02d}": pa.concat_tables([chunks(f"{i}-{j}", 40) for j in range(10)]) for i in range(20)}


def ends_exactly(sink: WriteLancedb, units: dict[str, pa.Table]) -> None:
    """The next delivery holds all of `units`, and the one after that does nothing."""
    state = sink.publish(Rows(units))
    assert content(sink) == Rows(units).all()
    assert {i.columns[0] for i in opened(sink).list_indices()} == {"text", "embedding"}
    again = Rows(units).after(state)
    assert sink.publish(again) == state
    assert again.asked == []


def test_versions_that_are_kept_can_be_read(sink: WriteLancedb) -> None:
    state = sink.publish(first())
    sink.publish(second().after(state))
    old = opened(sink)
    old.checkout(state["version"])
    assert old.count_rows() == 14
    assert lancedb.Indexing().retain == timedelta(days=7)
