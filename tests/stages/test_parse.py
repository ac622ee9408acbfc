from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from stages.core.errors import ConfigError
from stages.core.outcome import Result
from stages.core.schema import CONTENT, DOCUMENTS
from stages.core.stage import Stage
from stages.parse import Parse
from stages.parsers import process, registry, worker

HERE = Path(__file__).parent / "parsers"
HOSTILE = {"text/x-hostile": "hostile:parse"}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def table(*documents: tuple[str, bytes], media_type: str | None = None) -> pa.Table:
    columns = {
        "doc_id": [f"id-{name}" for name, _ in documents],
        "uri": [name for name, _ in documents],
        "media_type": pa.array([media_type] * len(documents), pa.string()),
        "content": pa.array([content for _, content in documents], pa.large_binary()),
    }
    return pa.table(columns)


def hostile(*commands: str) -> pa.Table:
    return table(*((f"{i}-{c}", c.encode()) for i, c in enumerate(commands)), media_type="text/x-hostile")


def run(stage: Stage, rows: pa.Table) -> Result:
    result = stage.open()(rows)
    assert isinstance(result, Result)
    lost = result.outcomes.num_rows if result.outcomes else 0
    assert result.rows.num_rows + lost == rows.num_rows
    return result


def reasons(result: Result) -> dict[str, str]:
    return {o["uri"]: o["reason"] for o in result.outcomes.to_pylist()} if result.outcomes else {}


def test_rows_become_documents() -> None:
    rows = table(("a.txt", b"one"), ("b.md", b"# Title\n\ntext\n"), ("c.csv", b"x,y\n1,2\n"))
    rows = rows.append_column("extra", pa.array([1, 2, 3]))
    out = run(Parse(), rows).rows
    assert out["text"].to_pylist() == ["one", "# Title\n\ntext\n", "x | y\n1 | 2"]
    assert out["media_type"].to_pylist() == ["text/plain", "text/markdown", "text/csv"]
    assert out["title"].to_pylist() == [None, "Title", None]
    assert out["headings"].to_pylist()[1] == [{"level": 1, "text": "Title", "start": 2, "end": 7}]
    assert out["extra"].to_pylist() == [1, 2, 3]
    assert "content" not in out.column_names
    for name in ("text", "metadata", "pages", "headings"):
        assert out.schema.field(name).type == DOCUMENTS.field(name).type


def test_an_empty_table_works() -> None:
    empty = pa.schema([*DOCUMENTS, CONTENT]).empty_table()
    assert run(Parse(), empty).rows.schema.names == DOCUMENTS.names


def test_rows_with_text_pass_through_in_their_place() -> None:
    full = pa.schema([*DOCUMENTS, CONTENT]).empty_table().schema
    rows = pa.Table.from_pylist(
        [
            {"doc_id": "1", "uri": "1", "text": "given", "metadata": '{"a": 1}'},
            {"doc_id": "2", "uri": "2.txt", "content": b"parsed", "title": "kept", "metadata": '{"b": 2}'},
            {"doc_id": "3", "uri": "3", "text": "given too"},
            {"doc_id": "4", "uri": "4.txt", "content": b""},
        ],
        full,
    )
    result = run(Parse(), rows)
    assert result.rows["text"].to_pylist() == ["given", "parsed", "given too"]
    assert result.rows["title"].to_pylist() == [None, "kept", None]
    assert json.loads(result.rows["metadata"][1].as_py()) == {"b": 2, "encoding": "utf-8"}
    assert reasons(result) == {"4.txt": "empty"}


def test_a_media_type_is_taken_at_its_word() -> None:
    out = run(Parse(), table(("page.html", b"<p>as it is</p>"), media_type="text/plain")).rows
    assert out["text"].to_pylist() == ["<p>as it is</p>"]


@pytest.mark.parametrize("command", ["loop", "hang in C"])
def test_a_document_that_hangs_fails_alone(command: str) -> None:
    started = time.monotonic()
    result = run(Parse(timeout_s=0.5, parsers=HOSTILE), hostile("a", "b", command, "c", command, "d"))
    assert time.monotonic() - started < 20
    assert result.rows["text"].to_pylist() == ["a", "b", "c", "d"]
    assert reasons(result) == {f"2-{command}": "timeout", f"4-{command}": "timeout"}


def test_documents_behind_a_slow_one_have_their_own_time() -> None:
    result = run(Parse(timeout_s=1.0, parsers=HOSTILE), hostile(*["sleep:0.4"] * 5))
    assert result.rows.num_rows == 5


def test_a_crash_takes_only_its_document() -> None:
    result = run(Parse(parsers=HOSTILE), hostile("a", "die", "b", "exit", "c"))
    assert result.rows["text"].to_pylist() == ["a", "b", "c"]
    messages = {o["uri"]: o["message"] for o in result.outcomes.to_pylist()}
    assert set(reasons(result).values()) == {"crashed"}
    assert "SIGSEGV" in messages["1-die"]
    assert "status 3" in messages["3-exit"]


def test_memory_is_limited() -> None:
    result = run(Parse(memory_mb=256, parsers=HOSTILE), hostile("a", "eat:100", "eat:2000", "b"))
    assert result.rows["text"].to_pylist() == ["a", str(100 << 20), "b"]
    assert reasons(result) == {"2-eat:2000": "memory_limit"}


def test_errors_and_noise_stay_inside() -> None:
    result = run(Parse(parsers=HOSTILE), hostile("print", "raise", "unprintable"))
    assert reasons(result) == {"1-raise": "damaged"}
    assert result.rows["text"].to_pylist() == ["print", "a\N{REPLACEMENT CHARACTER}b?c"]
    assert result.rows["title"][1].as_py() == "t?\N{REPLACEMENT CHARACTER}"


def test_workers_are_reused() -> None:
    stage = Parse(parsers=HOSTILE)
    first, second = (run(stage, hostile("pid", "pid")).rows["text"].to_pylist() for _ in range(2))
    assert len({*first, *second}) == 1
    process.close_all()


def test_the_alarm_of_an_idle_worker_is_off() -> None:
    stage = Parse(timeout_s=0.1, parsers=HOSTILE)
    [first] = run(stage, hostile("pid")).rows["text"].to_pylist()
    descriptor = os.pidfd_open(int(first))
    try:
        ended, _, _ = select.select([descriptor], [], [], worker.GRACE_S + 1)
    finally:
        os.close(descriptor)
    assert not ended
    assert run(stage, hostile("pid")).rows["text"].to_pylist() == [first]


def test_large_documents_go_both_ways() -> None:
    commands = ["large:30000000", "a" * 20_000_000, "large:10", "b" * 5_000_000]
    out = run(Parse(parsers=HOSTILE), hostile(*commands)).rows
    assert [len(text) for text in out["text"].to_pylist()] == [30_000_000, 20_000_000, 10, 5_000_000]


@pytest.mark.destructive
def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    """The parent is killed while a worker hangs in C; the worker's alarm ends it."""
    note = tmp_path / "pid"
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from stages.parsers.process import *\n"
        "spec = Spec(parsers=(('text/x-hostile', 'hostile:parse'),), timeout_s=1.0)\n"
        "request = Request('x', 'text/x-hostile', ('announce and hang:' + sys.argv[3]).encode())\n"
        "list(parse_all([request], spec))\n"
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", code, str(root), str(HERE), str(note)])
    deadline = time.monotonic() + 30
    while not (note.exists() and note.read_text()):
        assert time.monotonic() < deadline
        os.sched_yield()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    orphan = int(note.read_text())
    descriptor = None
    try:
        descriptor = os.pidfd_open(orphan)
    except ProcessLookupError:
        return
    ended, _, _ = select.select([descriptor], [], [], 20)
    os.close(descriptor)
    assert ended, "the worker is still there"


def test_suspect_text_is_kept_and_flagged_or_dropped() -> None:
    rows = hostile("fine", "doubt")
    kept = run(Parse(parsers=HOSTILE), rows).rows
    assert json.loads(kept["metadata"][1].as_py())["suspect_text"] is True
    result = run(Parse(parsers=HOSTILE, on_suspect="drop"), rows)
    assert result.rows["text"].to_pylist() == ["fine"]
    [outcome] = result.outcomes.to_pylist()
    assert (outcome["status"], outcome["reason"]) == ("dropped", "suspect_text")
    assert "undecoded_characters" in outcome["message"]


@pytest.mark.skipif(shutil.which("tesseract") is None, reason="Tesseract is not installed")
def test_ocr_reads_pages_without_a_text_layer() -> None:
    import pymupdf

    drawn = pymupdf.open()
    drawn.new_page(width=400, height=120).insert_text((20, 70), "Scanned words here", fontsize=36)
    picture = drawn[0].get_pixmap(dpi=200).tobytes("png")
    scan = pymupdf.open()
    scan.new_page(width=400, height=120).insert_image(pymupdf.Rect(0, 0, 400, 120), stream=picture)
    rows = table(("scan.pdf", scan.tobytes()))
    assert reasons(run(Parse(), rows)) == {"scan.pdf": "no_text_layer"}
    stage = Parse(ocr="auto")
    stage.check()
    out = run(stage, rows).rows
    assert "Scanned words here" in out["text"][0].as_py()
    assert json.loads(out["metadata"][0].as_py())["ocr_pages"] == [1]


def test_ocr_without_tesseract_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="tesseract"):
        Parse(ocr="auto").check()


@pytest.mark.parametrize("path", ["nowhere", "no.such.module:parse"])
def test_wrong_settings_are_refused(path: str) -> None:
    with pytest.raises(ValidationError):
        Parse(timeout_s=0)
    with pytest.raises(ConfigError, match=r"^documents\.parsers"):
        Parse(name="documents", parsers={"text/x": path}).check()


def test_without_a_library_only_its_documents_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pymupdf.py").write_text("raise ModuleNotFoundError(\"No module named 'pymupdf'\", name='pymupdf')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run(Parse(timeout_s=59), table(("a.pdf", b"%PDF-1.7\n"), ("b.txt", b"text")))  # a worker of its own
    assert result.rows["text"].to_pylist() == ["text"]
    [outcome] = result.outcomes.to_pylist()
    assert (outcome["status"], outcome["reason"]) == ("failed", "missing_library")
    assert "pymupdf" in outcome["message"]
    assert "`parsers`" in outcome["message"]


def test_the_fingerprint_leaves_out_libraries_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LIBRARIES", ("lxml", "no-such-distribution"))
    assert set(Parse().identity()) == {"lxml"}


def test_no_rows_but_failed_ones_keep_the_schema() -> None:
    out = run(Parse(), table(("a.txt", b""), ("b.pdf", b"no"))).rows
    assert out.num_rows == 0
    for name in ("text", "metadata", "pages", "headings"):
        assert out.schema.field(name).type == DOCUMENTS.field(name).type


def test_the_fingerprint_covers_options_and_libraries() -> None:
    assert Parse().fingerprint() == Parse().fingerprint() != Parse(html="whole").fingerprint()
    assert "pymupdf" in Parse().identity()
    here = {f"stages.parsers.{p.stem}" for p in (Path(__file__).parents[2] / "stages" / "parsers").glob("[a-z]*.py")}
    assert set(Parse.code_modules()) == here | {"stages.parse"}


def test_the_stage_imports_no_heavy_library() -> None:
    code = "import sys, stages.parse; print([m for m in ('pymupdf', 'lxml', 'trafilatura', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
