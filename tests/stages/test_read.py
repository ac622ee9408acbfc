"""The reader: bytes of files, rows of row files, and an outcome for whatever cannot be read."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from connectors.sources import Source
from stages.core.errors import ConfigError
from stages.core.outcome import OUTCOMES, Result
from stages.core.schema import content_hash, doc_id
from stages.read import READ, SOURCES, Read


def sources(read: Read) -> list[Source]:
    return list(read.sources())


def unit(members: list[Source]) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: getattr(source, name) for name in SOURCES.names} for source in members], SOURCES
    )


def worked(read: Read, members: list[Source] | None = None) -> Result:
    result = read.open()(unit(sources(read) if members is None else members))
    assert isinstance(result, Result)
    assert result.rows.schema.equals(READ)
    assert result.outcomes is not None
    assert result.outcomes.schema.equals(OUTCOMES)
    return result


def rows(read: Read) -> list[dict[str, Any]]:
    return list(worked(read).rows.to_pylist())


def lost(read: Read) -> list[dict[str, Any]]:
    outcomes = worked(read).outcomes
    return list(outcomes.to_pylist()) if outcomes else []


@pytest.fixture
def docs(work: Path) -> Path:
    folder = work / "docs"
    folder.mkdir()
    return folder


def test_a_file_becomes_a_document_with_its_bytes(docs: Path) -> None:
    (docs / "a.bin").write_bytes(b"\0\xff bytes")
    os.utime(docs / "a.bin", (1, 1_700_000_000.25))
    (row,) = rows(Read(uri="docs"))
    assert row == {
        "doc_id": doc_id("docs/a.bin"),
        "uri": "docs/a.bin",
        "content_hash": content_hash(b"\0\xff bytes"),
        "size_bytes": 8,
        "modified_at": datetime.fromtimestamp(1_700_000_000.25, UTC),
        "content": b"\0\xff bytes",
    } | dict.fromkeys(["media_type", "title", "text", "metadata", "pages", "headings"])


def test_no_sources_give_no_rows() -> None:
    result = worked(Read(uri="docs"), [])
    assert result.rows.num_rows == 0


def test_what_cannot_be_read_is_an_outcome_with_an_identity(docs: Path) -> None:
    (docs / "good.txt").write_text("good")
    (docs / "gone.txt").write_text("gone")
    (docs / "large.txt").write_text("x" * 101)
    (docs / "limit.txt").write_text("x" * 100)
    os.symlink("nowhere", docs / "link.txt")
    os.mkfifo(docs / "pipe")
    (docs / "swapped.txt").write_text("to become a folder")
    read = Read(uri="docs", max_bytes=100)
    members = sources(read)
    (docs / "gone.txt").unlink()
    (docs / "swapped.txt").unlink()
    (docs / "swapped.txt").mkdir()
    result = worked(read, members)
    assert sorted(result.rows["uri"].to_pylist()) == ["docs/good.txt", "docs/limit.txt"]
    assert result.outcomes
    outcomes = {row["uri"]: row for row in result.outcomes.to_pylist()}
    assert {uri: row["reason"] for uri, row in outcomes.items()} == {
        "docs/gone.txt": "vanished",
        "docs/large.txt": "too_large",
        "docs/link.txt": "broken_link",
        "docs/pipe": "not_a_file",
        "docs/swapped.txt": "unreadable",
    }
    for uri, row in outcomes.items():
        assert row["doc_id"] == doc_id(uri)
        assert row["status"] == "failed"
        assert row["error_type"]
        assert row["message"]
    assert "101" in outcomes["docs/large.txt"]["message"]
    assert "read.max_bytes" in outcomes["docs/large.txt"]["message"]


def test_an_unreadable_file_is_an_outcome() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        Path(folder, "a.txt").write_text("secret")
        Path(folder, "rows.jsonl").write_text('{"text": "secret"}')
        for name in os.listdir(folder):
            os.chmod(f"{folder}/{name}", 0)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            outcomes = lost(Read(uri=folder))
        finally:
            os.seteuid(user)
    assert [row["reason"] for row in outcomes] == ["unreadable"] * 2
    assert "Permission denied" in outcomes[0]["message"]


def test_a_file_of_an_impossible_time_is_read(docs: Path) -> None:
    (docs / "a.txt").write_text("from the far future")
    read = Read(uri="docs")
    members = [replace(source, modified_at=1e12) for source in sources(read)]  # as other filesystems have them
    (row,) = worked(read, members).rows.to_pylist()
    assert row["modified_at"] is None
    assert row["content"] == b"from the far future"


@pytest.mark.parametrize(
    "name", [b"caf\xe9.txt", b"a%FF.txt", b"new\nline#?*[x].txt", b"~", b"file:a.txt", b"a::b.txt"]
)
def test_odd_names_are_read(docs: Path, name: bytes) -> None:
    with open(os.path.join(os.fsencode(docs), name), "wb") as file:
        file.write(name)
    (row,) = rows(Read(uri="docs"))
    assert row["content"] == name


def test_rows_of_jsonl_are_documents_or_outcomes_with_line_numbers(docs: Path) -> None:
    lines = [
        '{"text": "one", "title": "First", "n": 1, "deep": {"a": [1, null]}}',
        "{broken",
        "",
        '{"txt": "none"}',
        '{"text": 5}',
        '{"text": null}',
        '{"text": "nan", "x": NaN, "y": [Infinity, {"z": -Infinity}], "title": 7}',
        '{"text": "lone \\ud800", "title": "\\ud800", "s": "\\ud800"}',
        '{"text": "", "text": "last"}',
        '{"text": ""}',
        '{"text": "too deep", "x": ' + "[" * 900 + "]" * 900 + "}",
        "[1]",
        '{"text": "end"}',
    ]
    (docs / "a.jsonl").write_text("\n".join(lines))
    read = Read(uri="docs")
    found = {row["uri"]: row for row in rows(read)}
    assert {"docs/a.jsonl#L1", "docs/a.jsonl#L7", "docs/a.jsonl#L13"} < set(found)
    assert found["docs/a.jsonl#L13"]["text"] == "end"
    first = found["docs/a.jsonl#L1"]
    assert (first["text"], first["title"], first["media_type"], first["content"]) == (
        "one",
        "First",
        "text/plain",
        None,
    )
    assert first["doc_id"] == doc_id("docs/a.jsonl#L1")
    assert first["content_hash"] == content_hash(b"one")
    assert json.loads(first["metadata"]) == {"n": 1, "deep": {"a": [1, None]}}
    for row in found.values():
        json.loads(row["metadata"], parse_constant=pytest.fail)
    assert json.loads(found["docs/a.jsonl#L7"]["metadata"]) == {"x": None, "y": [None, {"z": None}], "title": 7}
    assert found["docs/a.jsonl#L8"]["text"] == "lone ?"
    assert found["docs/a.jsonl#L9"]["text"] == "last"
    assert found["docs/a.jsonl#L10"]["text"] == ""
    outcomes = {row["uri"]: row for row in lost(read)}
    assert {uri: row["reason"] for uri, row in outcomes.items() if not uri.endswith("#L11")} == {
        "docs/a.jsonl#L2": "invalid_json",
        "docs/a.jsonl#L4": "missing_text",
        "docs/a.jsonl#L5": "missing_text",
        "docs/a.jsonl#L6": "missing_text",
        "docs/a.jsonl#L12": "invalid_json",
    }
    assert "line 2" in outcomes["docs/a.jsonl#L2"]["message"]
    assert "txt" in outcomes["docs/a.jsonl#L4"]["message"]
    assert len(found) + len(outcomes) == 12


def test_jsonl_in_parts_gives_the_same_documents(docs: Path) -> None:
    lines = [json.dumps({"text": f"text {n}", "n": n}) if n % 7 else "{broken" for n in range(100)]
    (docs / "a.jsonl").write_text("\r\n".join(lines) + "\r\n")
    whole = Read(uri="docs")
    parts = Read(uri="docs", unit_bytes=50)
    assert len(sources(whole)) == 1
    assert len(sources(parts)) > 30
    assert [len(members) for members in parts.units(parts.sources())] == [1] * len(sources(parts))
    assert rows(parts) == rows(whole)
    assert lost(parts) == lost(whole)


def test_formats_and_text_columns_can_be_named(docs: Path) -> None:
    (docs / "a.txt").write_text('{"body": "one"}\n')
    (docs / "b.jsonl").write_text('{"body": "two"}\n')
    assert [row["text"] for row in rows(Read(uri="docs", format="jsonl", text_column="body"))] == ["one", "two"]
    assert [row["content"] for row in rows(Read(uri="docs", format="files"))] == [
        b'{"body": "one"}\n',
        b'{"body": "two"}\n',
    ]
    assert [row["reason"] for row in lost(Read(uri="docs", format="parquet"))] == ["damaged", "damaged"]


def test_rows_of_parquet(docs: Path) -> None:
    table = pa.table(
        {
            "text": ["one", None, "three", "four"],
            "title": ["First", None, "", "T"],
            "vector": [[1.0, float("nan")], None, [], [2.0]],
            "at": pa.array([0, 0, 10**15, None], pa.timestamp("ms")),
            "raw": [b"\xff", None, b"", b"x"],
        }
    )
    pq.write_table(table, docs / "a.parquet", row_group_size=2)
    for read in (Read(uri="docs"), Read(uri="docs", unit_bytes=1)):
        found = rows(read)
        assert [row["uri"] for row in found] == ["docs/a.parquet#R0", "docs/a.parquet#R3"]
        assert found[0]["title"] == "First"
        assert json.loads(found[0]["metadata"])["vector"] == [1.0, None]
        assert {row["uri"]: row["reason"] for row in lost(read)} == {
            "docs/a.parquet#R1": "missing_text",
            "docs/a.parquet#R2": "invalid_row",
        }


def test_columns_that_are_missing_or_no_text(docs: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2]}), docs / "a.parquet")
    pq.write_table(pa.table({"text": [b"a", b"b"]}), docs / "b.parquet")
    pq.write_table(pa.table({"text": pa.array(["a"], pa.large_string())}), docs / "c.parquet")
    pq.write_table(pa.table({"text": pa.array(["a"]).dictionary_encode()}), docs / "d.parquet")
    read = Read(uri="docs")
    assert [row["uri"] for row in rows(read)] == ["docs/c.parquet#R0", "docs/d.parquet#R0"]
    outcomes = lost(read)
    assert [row["reason"] for row in outcomes] == ["missing_text"] * 4
    assert "bytes" in outcomes[2]["message"]


def test_empty_and_damaged_row_files(docs: Path) -> None:
    (docs / "blank.jsonl").write_bytes(b"\n\n \n")
    (docs / "empty.jsonl").write_bytes(b"")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), docs / "empty.parquet")
    (docs / "damaged.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(pa.table({"text": [f"{n}" * 50 for n in range(1000)]}), docs / "pages.parquet", compression="zstd")
    content = bytearray((docs / "pages.parquet").read_bytes())
    content[200:400] = bytes(200)
    (docs / "pages.parquet").write_bytes(content)
    (docs / "gone.jsonl").write_text('{"text": "x"}')
    read = Read(uri="docs")
    members = sources(read)
    (docs / "gone.jsonl").unlink()
    result = worked(read, members)
    assert result.rows.num_rows == 0
    assert result.outcomes
    found = {row["uri"].split("#")[0]: (row["status"], row["reason"]) for row in result.outcomes.to_pylist()}
    assert found == {
        "docs/blank.jsonl": ("dropped", "empty"),
        "docs/empty.jsonl": ("dropped", "empty"),
        "docs/empty.parquet": ("dropped", "empty"),
        "docs/damaged.parquet": ("failed", "damaged"),
        "docs/pages.parquet": ("failed", "damaged"),
        "docs/gone.jsonl": ("failed", "vanished"),
    }


def test_a_line_beyond_max_bytes_is_refused_and_a_small_max_bytes_spares_small_rows(docs: Path) -> None:
    (docs / "a.jsonl").write_text('{"text": "small"}\n' * 50)
    assert len(rows(Read(uri="docs", max_bytes=20))) == 50
    (docs / "a.jsonl").write_text(json.dumps({"text": "x" * 5000}))
    assert [row["reason"] for row in lost(Read(uri="docs", max_bytes=1000, unit_bytes=1000))] == ["too_large"]


def test_units_hold_to_bytes_and_counts_and_large_files_stand_alone() -> None:
    read = Read(uri="docs", unit_bytes=1000, unit_docs=4)
    sizes = [100, 100, 100, 100, 100, 499, 499, 10, 500, 5000, 0, 0, 0, 0, 0]
    members = [Source(f"docs/{n}", b"", size) for n, size in enumerate(sizes)]
    members.append(Source("docs/a.jsonl", b"", 10, part="0:10:1"))
    units = list(read.units(iter(members)))
    assert sorted(source.uri for source in chain(*units)) == sorted(source.uri for source in members)
    for group in units:
        assert len(group) <= 4
        assert len(group) == 1 or sum(source.size for source in group) <= 1000
    alone = {group[0].uri for group in units if len(group) == 1}
    assert {"docs/8", "docs/9", "docs/a.jsonl"} <= alone
    assert list(read.units(iter([]))) == []


def test_remote_files_are_read_by_name_whatever_the_name() -> None:
    store = fsspec.filesystem("memory")
    names = ["plain.txt", "a[1].txt", "what?.txt", "st*r.txt", "sub/ü.txt", "hash#1.txt"]
    try:
        for name in names:
            store.pipe_file(f"/bucket/{name}", name.encode())
        store.pipe_file("/bucket/rows.jsonl", b'{"text": "row"}\n')
        store.pipe_file("/bucket/empty.jsonl", b"")
        store.pipe_file("/bucket/gone.txt", b"gone")
        store.pipe_file("/bucket/large.txt", b"x" * 101)
        read = Read(uri="memory://bucket", max_bytes=100)
        members = sources(read)
        store.rm_file("/bucket/gone.txt")
        result = worked(read, members)
        assert sorted(row["content"].decode() for row in result.rows.to_pylist() if row["content"]) == sorted(names)
        assert "row" in result.rows["text"].to_pylist()
        assert result.outcomes
        reasons = {row["uri"].rsplit("/")[-1].split("#")[0]: row["reason"] for row in result.outcomes.to_pylist()}
        assert reasons == {"gone.txt": "vanished", "large.txt": "too_large", "empty.jsonl": "empty"}
        with pytest.raises(ConfigError, match=r"read\.uri.*nowhere"):
            Read(uri="memory://nowhere").check()
    finally:
        store.rm("/bucket", recursive=True)


def test_what_is_not_there_is_refused(docs: Path) -> None:
    (docs / "a.txt").write_text("a")
    Read(uri=("docs", "docs/*.pdf")).check()
    for uri in ("dosc", "docs/a.txt/b", "foo://x", "/nowhere/at/all"):
        with pytest.raises(ConfigError, match=r"read\.uri"):
            Read(uri=("docs", uri)).check()
        with pytest.raises(ConfigError, match=r"read\.uri"):
            sources(Read(uri=("docs", uri)))


def test_fields_are_checked() -> None:
    assert Read(uri="docs").uri == ("docs",)
    assert Read(uri=["a", "b"], include="*.pdf").include == ("*.pdf",)
    for wrong in (
        {"uri": ()},
        {"uri": "a", "max_bytes": 0},
        {"uri": "a", "unit_docs": 0},
        {"uri": "a", "exclude": "!"},
    ):
        with pytest.raises(ValidationError):
            Read(**wrong)  # type: ignore[arg-type]
