"""Files of rows: cut anywhere, they give the same rows under the same numbers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.rows import Row, RowFormat, pieces, read_part, row_format
from connectors.sources import Source


def read(path: Path, form: RowFormat, size: int) -> tuple[list[Row], list[Source]]:
    filesystem = fsspec.filesystem("file")
    source = Source(str(path), bytes(path), path.stat().st_size)
    parts = list(pieces(source, form, filesystem, str(path), size))
    return [row for part in parts for row in read_part(part, form, filesystem, str(path))], parts


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_names_tell_the_format() -> None:
    assert row_format("a/b.JSONL") == row_format("b.ndjson") == "jsonl"
    assert row_format("b.parquet") == "parquet"
    assert row_format("b.json") is row_format("parquet") is None


HARD = b"".join(
    [
        b"\xef\xbb\xbf" + line(text="with a BOM") + b"\r\n",
        b"\n",
        b"   \t\r\n",
        line(text="two") + b"\n",
        b"{broken\n",
        b"[1, 2]\n",
        b'"text"\n',
        b"null\n",
        line(text="x" * 50) + b"\n",
        b'{"text": "lone \\ud800 surrogate"}\n',
        b'{"text": "nan", "n": NaN, "i": Infinity}\n',
        b'{"text": "first", "text": "second"}\n',
        b'{"text": "bytes \xff"}\n',
        b"[" * 100_000 + b"\n",
        b'{"n": ' + b"9" * 5000 + b"}\n",
        '{"text": "line\u2028separators\u0085are no line ends"}\n'.encode(),
        b'{"text": "form\\u000cfeed"}\r\n',
        b"\r\n" * 7,
        line(text="no line end"),
    ]
)


def test_every_line_is_a_row_or_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(HARD)
    rows, parts = read(path, "jsonl", 1 << 20)
    assert [part.part for part in parts] == [f"0:{len(HARD)}:1"]
    by_number = {row.number: row for row in rows}
    assert len(by_number) == len(rows)
    texts = {n: row.fields.get("text") for n, row in by_number.items() if row.fields}
    assert texts == {
        1: "with a BOM",
        4: "two",
        9: "x" * 50,
        10: "lone \ud800 surrogate",
        11: "nan",
        12: "second",
        16: "line\u2028separators\u0085are no line ends",
        17: "form\x0cfeed",
        25: "no line end",
    }
    errors = {n: row.error for n, row in by_number.items() if row.fields is None}
    assert set(errors) == {5, 6, 7, 8, 13, 14, 15}
    assert "list" in errors[6]
    assert "str" in errors[7]
    assert "NoneType" in errors[8]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
def test_parts_of_any_size_give_the_same_rows_and_numbers(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "a.jsonl"
    content = b"\r\n".join([line(text="x" * (n % 13), n=n) for n in range(40)]) + b"\n\n\n" + b'{"text": ""}' + end
    path.write_bytes(content)
    whole, _ = read(path, "jsonl", 1 << 30)
    assert [row.number for row in whole] == [*range(1, 41), 43]
    for size in range(1, len(content) + 2):
        rows, parts = read(path, "jsonl", size)
        assert rows == whole
        edges = [tuple(map(int, part.part.split(":"))) for part in parts]
        assert edges[0][0] == 0
        assert edges[-1][1] == len(content)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))
        assert all(end - start >= size for start, end, _ in edges[:-1])


def test_hard_lines_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(HARD)
    whole, _ = read(path, "jsonl", 1 << 30)
    for size in (1, 2, 3, 7, 40, 100, 1000, 65_536):
        rows, _ = read(path, "jsonl", size)
        assert repr(rows) == repr(whole)  # by repr: NaN is not equal to itself


def test_lines_that_are_longer_than_a_part_and_than_a_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "a"}, {"text": "x" * 5_000_000}, {"text": "b"}, {"text": "y" * 1_500_000}, {"text": "c"}]
    path.write_bytes(b"".join(line(**row) + b"\n" for row in rows))
    for size in (1, 10_000, 1 << 20, (1 << 20) - 1, 3_000_000, 1 << 30):
        found, _ = read(path, "jsonl", size)
        assert [row.fields for row in found] == rows
        assert [row.number for row in found] == [1, 2, 3, 4, 5]


def test_an_empty_file_has_one_part_and_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"")
    rows, parts = read(path, "jsonl", 100)
    assert rows == []
    assert len(parts) == 1


def test_parquet_in_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"row {n}" for n in range(100)], "n": range(100)})
    pq.write_table(table, path, row_group_size=7)
    for size in (1, 100, 500, 1 << 30):
        rows, parts = read(path, "parquet", size)
        assert [row.fields for row in rows] == table.to_pylist()
        assert [row.number for row in rows] == list(range(100))
        assert len(parts) == {1: 15, 1 << 30: 1}.get(size, len(parts))
    pq.write_table(table.slice(0, 0), path)
    assert read(path, "parquet", 100)[0] == []


def test_a_value_that_python_has_not_loses_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    times = pa.array([0, 10**15, None, 1], pa.timestamp("ms"))
    pq.write_table(pa.table({"text": ["a", "b", "c", "d"], "at": times}), path)
    rows, _ = read(path, "parquet", 100)
    assert [row.number for row in rows] == [0, 1, 2, 3]
    assert [row.fields["text"] for row in rows if row.fields] == ["a", "c", "d"]
    assert "cannot be read" in rows[1].error


def test_damaged_files_come_back_with_a_reason(tmp_path: Path) -> None:
    filesystem = fsspec.filesystem("file")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"] * 1000}), path)
    good = path.read_bytes()
    for content in (
        b"",
        b"PAR1",
        good[:-20],
        good[:-6] + b"\xff\xff\xff\xff\xff\xff",
        b"not Parquet at all",
        good[:40],
    ):
        path.write_bytes(content)
        (source,) = pieces(Source(str(path), bytes(path)), "parquet", filesystem, str(path), 100)
        assert source.reason == "damaged", content[:20]
        assert source.message
    path.unlink()
    (source,) = pieces(Source(str(path), bytes(path)), "parquet", filesystem, str(path), 100)
    assert source.reason == "vanished"
    (source,) = pieces(Source(str(tmp_path), bytes(tmp_path)), "jsonl", filesystem, str(tmp_path), 100)
    assert source.reason == "unreadable"
