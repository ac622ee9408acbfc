"""The Parquet sink: exactly the committed rows, whatever is killed, and nothing written twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own.delivered import Rows, deliver
from own.interrupted import at_every_step

from connectors.storage import Place
from stages.core.errors import ConfigError
from stages.write_parquet import MANIFEST, WriteParquet, read_current

SMALL = WriteParquet(uri="out", file_bytes=1000)


def published(sink: WriteParquet, rows: Rows) -> dict[str, Any]:
    sink.check()
    return sink.publish(rows)


def there(folder: str = "out") -> list[str]:
    """The rows as any reader of Parquet directories sees them."""
    return sorted(pq.read_table(folder)["text"].to_pylist())


def state(folder: str = "out") -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in Path(folder).iterdir()}


def test_the_output_holds_the_rows_with_schema_and_metadata(work: Path) -> None:
    rows = Rows({"u1": 2, "u2": 0, "u3": 1})
    assert published(WriteParquet(uri="out"), rows) == {"rows": 3, "files": 1}
    assert there() == rows.texts()
    table = pq.read_table("out")
    assert table.schema.metadata[b"fingerprint"] == b"f"
    assert table.schema.equals(rows.schema)
    assert read_current(Place("out")).num_rows == 3
    assert set(os.listdir("out")) == {MANIFEST, *Place("out").names(".parquet")}


def test_rows_are_spread_over_files_of_whole_units(work: Path) -> None:
    rows = Rows({f"u{n}": 10 for n in range(12)})
    out = published(SMALL, rows)
    assert out["rows"] == 120
    assert 2 < out["files"] <= 12
    assert there() == rows.texts()


def test_no_rows_at_all_are_an_output_too(work: Path) -> None:
    assert published(SMALL, Rows({"u1": 0})) == {"rows": 0, "files": 1}
    assert there() == []


def test_nothing_is_rewritten_where_nothing_changed(work: Path) -> None:
    rows = Rows({f"u{n}": 10 for n in range(12)})
    first = published(SMALL, rows)
    before = state()
    assert published(SMALL, rows) == first
    assert state() == before


def test_what_is_new_joins_the_small_files_and_large_ones_stay(work: Path) -> None:
    units = {f"u{n}": 30 for n in range(5)}
    published(SMALL, Rows(units))
    before = state()
    for n in range(6):
        units |= {f"small{n}": 1}
        published(SMALL, Rows(units))
        assert there() == Rows(units).texts()
        assert len(Place("out").names(".parquet")) <= 5 + 1
    assert {name: inode for name, inode in state().items() if before.get(name) == inode}.keys() >= (
        before.keys() - {MANIFEST}
    )


def test_units_that_went_or_changed_their_name_are_replaced(work: Path) -> None:
    units = {f"u{n}": 40 for n in range(5)}
    published(SMALL, Rows(units))
    before = state()
    del units["u3"]
    units["u1-0badcafe"] = units.pop("u1") - 5
    published(SMALL, Rows(units))
    assert there() == Rows(units).texts()
    kept = [name for name in before if state().get(name) == before[name]]
    assert len(kept) == 3


def test_another_fingerprint_writes_everything_anew(work: Path) -> None:
    units = {f"u{n}": 30 for n in range(3)}
    published(SMALL, Rows(units))
    published(SMALL, Rows(units, fingerprint="g"))
    assert there() == Rows(units, fingerprint="g").texts()
    assert pq.read_table("out").schema.metadata[b"fingerprint"] == b"g"


def test_a_file_that_somebody_removed_is_written_again(work: Path) -> None:
    rows = Rows({f"u{n}": 30 for n in range(3)})
    published(SMALL, rows)
    Path("out", Place("out").names(".parquet")[1]).unlink()
    published(SMALL, rows)
    assert there() == rows.texts()


def test_directories_of_others_are_refused_and_left_alone(work: Path) -> None:
    Path("theirs").mkdir()
    pq.write_table(pa.table({"a": [1]}), "theirs/part-0123456789abcdef.parquet")
    with pytest.raises(ConfigError, match="not ours"):
        published(WriteParquet(uri="theirs"), Rows({"u1": 1}))
    published(SMALL, Rows({"u1": 1}))
    with pytest.raises(ConfigError, match=r"write_parquet\.uri.*belongs to the pipeline 'p'"):
        published(SMALL, Rows({"u1": 1}, pipeline="another"))
    pq.write_table(pa.table({"a": [1]}), "out/mine.parquet")
    with pytest.raises(ConfigError, match=r"mine\.parquet.*not ours"):
        published(SMALL, Rows({"u1": 2}))
    SMALL.publish(Rows({"u1": 2}))
    assert Path("out/mine.parquet").exists()
    for uri in ("theirs/part-0123456789abcdef.parquet/x", "/proc/out"):
        with pytest.raises(ConfigError, match="cannot be written to"):
            WriteParquet(uri=uri).check()


def test_what_killed_deliveries_left_is_removed(work: Path) -> None:
    rows = Rows({"u1": 1})
    published(SMALL, rows)
    for name in ("_0123456789abcdef.parquet.tmp", f".{MANIFEST}.01234567.tmp", "part-0123456789abcdef.parquet"):
        Path("out", name).write_bytes(b"half")
    published(SMALL, rows)
    assert set(os.listdir("out")) == {MANIFEST, *Place("out").names(".parquet")}
    assert there() == rows.texts()


BEFORE = {f"u{n}": 20 for n in range(4)}
CASES = {
    "the first delivery": (None, Rows(BEFORE)),
    "some more": (Rows(BEFORE), Rows(BEFORE | {"new": 3, "newer": 20})),
    "some less": (Rows(BEFORE), Rows({"u0": 20, "u2": 20, "u3-0badcafe": 7})),
    "all anew": (Rows(BEFORE), Rows(BEFORE, fingerprint="g")),
    "small ones joined": (Rows(BEFORE | {"s": 1}), Rows(BEFORE | {"s": 1, "t": 1})),
}


@pytest.mark.destructive
@pytest.mark.parametrize("case", CASES)
def test_killed_before_any_step_and_repeated_it_is_exact(work: Path, case: str) -> None:
    before, after = CASES[case]
    folders = at_every_step(partial(deliver, after), partial(deliver, before) if before else None)
    assert len(folders) > 8
    for folder in folders:
        if before:
            current = sorted(read_current(Place(folder))["text"].to_pylist())
            assert current in (before.texts(), after.texts())
        deliver(after, folder)
        assert there(folder) == after.texts()
        assert set(os.listdir(folder)) == {MANIFEST, *Place(folder).names(".parquet")}
        again = state(folder)
        deliver(after, folder)
        assert state(folder) == again


PUBLISHING = """
from own.delivered import Rows
from stages.write_parquet import WriteParquet
sink = WriteParquet(uri="out", file_bytes=100_000)
print("now", flush=True)
for turn in range(1000):
    sink.check()
    sink.publish(Rows({f"u{n}-{turn // 2}": 500 for n in range(20)}))
"""


@pytest.mark.destructive
def test_killed_at_any_moment_and_repeated_it_is_exact(work: Path) -> None:
    chance = random.Random(7)
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", PUBLISHING], stdout=subprocess.PIPE, text=True)
        assert writer.stdout
        assert writer.stdout.readline() == "now\n"
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(chance.uniform(0.0, 0.5))  # the moment is chosen by the clock: that is the test
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        rows = Rows({f"u{n}": 500 for n in range(20)})
        published(WriteParquet(uri="out", file_bytes=100_000), rows)
        assert there() == rows.texts()
        assert set(os.listdir("out")) == {MANIFEST, *Place("out").names(".parquet")}
