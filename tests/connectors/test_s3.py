"""The same promises on a real object store: listings, commits, reading, and the Parquet sink."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from own.delivered import Rows

from connectors.sources import Selection, list_sources
from connectors.storage import Place
from pipelines import catalogue
from stages.core.errors import ConfigError
from stages.core.outcome import Result
from stages.read import SOURCES, Read
from stages.write_parquet import MANIFEST, WriteParquet, read_current

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def options(s3: dict[str, str]) -> dict[str, Any]:
    return {"key": s3["key"], "secret": s3["secret"], "endpoint_url": s3["endpoint"]}


@pytest.fixture
def bucket(options: dict[str, Any]) -> Iterator[str]:
    store = s3fs.S3FileSystem(**options, use_listings_cache=False)
    name = f"test-{uuid.uuid4().hex[:8]}"
    store.mkdir(name)
    yield name
    store.rm(name, recursive=True)


@pytest.fixture
def place(bucket: str, options: dict[str, Any]) -> Place:
    return Place(f"s3://{bucket}/a/place", tuple(options.items()))


def test_places(place: Place) -> None:
    assert place.names() == []
    assert place.writable() is None
    assert place.names() == place.leftovers() == []
    assert place.read_or_none("a") is None
    assert place.commit("a.parquet", b"one", once=True)
    assert not place.commit("a.parquet", b"two", once=True)
    assert place.read("a.parquet") == b"one"
    place.update("a.parquet", b"three")
    assert place.read("a.parquet") == b"three"
    place.commit("_m.json", b"{}")
    place.commit("_0123456789abcdef.parquet.tmp", b"")
    place.child("sub").commit("b.parquet", b"")
    assert place.names(".parquet") == ["a.parquet"]
    assert place.leftovers() == ["_0123456789abcdef.parquet.tmp"]
    assert place.exists("a.parquet")
    place.remove(["a.parquet", "never there"])
    assert not place.exists("a.parquet")


def test_wrong_keys_and_buckets_are_told(place: Place, bucket: str, options: dict[str, Any]) -> None:
    wrong = options | {"secret": "wrong"}
    assert Place(f"s3://{bucket}/x", tuple(wrong.items())).writable()
    with pytest.raises(ConfigError, match=r"read\.uri"):
        Read(uri=f"s3://{bucket}/x", storage_options=wrong).check()
    with pytest.raises(ConfigError, match=r"read\.uri.*does not exist"):
        Read(uri=f"s3://{bucket}/nothing", storage_options=options).check()
    with pytest.raises(ConfigError, match=r"read\.uri"):
        Read(uri="s3://no-such-bucket-here/x", storage_options=options).check()


NAMES = ["a.txt", "sub/b [1].txt", "sub/c*.txt", "sub/deep/ü#1.txt", "sub/.hidden/d.txt", "notes.md", "e%20f.txt"]


@pytest.fixture
def filled(place: Place, options: dict[str, Any]) -> Place:
    for name in NAMES:
        place.fs.pipe_file(place.path(name), name.encode())
    place.fs.pipe_file(place.path("folder/"), b"")  # as some tools mark a folder
    return place


def listed(filled: Place, uri: str, **selection: Any) -> list[str]:
    found = list_sources([uri], Selection(**selection), dict(filled.options))
    return sorted(source.uri.removeprefix(f"{filled.uri}/") for source in found)


def test_listings(filled: Place) -> None:
    visible = sorted(name for name in NAMES if ".hidden" not in name)
    assert listed(filled, filled.uri) == listed(filled, f"{filled.uri}/") == visible
    assert listed(filled, filled.uri, hidden=True) == sorted(NAMES)
    assert listed(filled, filled.uri, include=("*.md",)) == ["notes.md"]
    assert listed(filled, filled.uri, exclude=("sub/",)) == ["a.txt", "e%20f.txt", "notes.md"]
    assert listed(filled, f"{filled.uri}/*.txt") == ["a.txt", "e%20f.txt"]
    assert listed(filled, f"{filled.uri}/sub/c*.txt") == ["sub/c*.txt"]
    assert listed(filled, f"{filled.uri}/**/*.txt", exclude=("deep/",)) == [
        "a.txt",
        "e%20f.txt",
        "sub/b [1].txt",
        "sub/c*.txt",
    ]
    assert listed(filled, f"{filled.uri}/notes.md", exclude=("*",)) == ["notes.md"]


def worked(read: Read) -> Result:
    members = [{name: getattr(source, name) for name in SOURCES.names} for source in read.sources()]
    result = read.open()(pa.Table.from_pylist(members, SOURCES))
    assert isinstance(result, Result)
    return result


def test_reading_by_names_of_every_kind(filled: Place, options: dict[str, Any]) -> None:
    filled.commit("rows.jsonl", b'{"text": "one"}\n{broken\n{"text": "three"}')
    filled.commit("empty.jsonl", b"")
    filled.commit("empty.txt", b"")
    with filled.fs.open(filled.path("rows.parquet"), "wb") as file:
        pq.write_table(pa.table({"text": ["p0", "p1", "p2"]}), file, row_group_size=1)
    read = Read(uri=filled.uri, storage_options=options, hidden=True, unit_bytes=10, max_bytes=1000)
    result = worked(read)
    contents = {row["uri"].removeprefix(f"{filled.uri}/"): row["content"] for row in result.rows.to_pylist()}
    assert {name: contents[name] for name in NAMES} == {name: name.encode() for name in NAMES}
    assert contents["empty.txt"] == b""
    assert [text for text in result.rows["text"].to_pylist() if text] == ["one", "three", "p0", "p1", "p2"]
    assert result.outcomes
    assert sorted(result.outcomes["reason"].to_pylist()) == ["empty", "invalid_json"]


def test_what_changed_in_a_bucket_is_seen(filled: Place, options: dict[str, Any]) -> None:
    read = Read(uri=filled.uri, storage_options=options, hidden=True)
    known = catalogue.update(catalogue.load(filled.child("run")), read)
    filled.commit("a.txt", b"other")
    filled.remove(["notes.md"])
    changed = catalogue.update(known, read)
    first, second = changed.units()
    assert first.sources.num_rows == len(NAMES) - 2
    assert [uri.rsplit("/", 1)[1] for uri in second.sources["uri"].to_pylist()] == ["a.txt"]


def test_the_parquet_sink(place: Place, options: dict[str, Any]) -> None:
    sink = WriteParquet(uri=place.uri, storage_options=options, file_bytes=1000)
    units = {f"u{n}": 20 for n in range(4)}
    for rows in (
        Rows(units),
        Rows(units),
        Rows(units | {"new": 1}),
        Rows({"u1": 20}),
        Rows({"u1": 20}, fingerprint="g"),
    ):
        place.commit("_0123456789abcdef.parquet.tmp", b"as a killed writer leaves it")
        sink.check()
        out = sink.publish(rows)
        assert sorted(read_current(place)["text"].to_pylist()) == rows.texts()
        assert out["rows"] == len(rows.texts())
        assert len(place.names(".parquet")) == out["files"]
        assert place.leftovers() == []
    assert place.exists(MANIFEST)
    place.commit("theirs.parquet", b"")
    with pytest.raises(ConfigError, match="not ours"):
        sink.check()
