"""Whole runs on real Ray: exact, resumable, accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from own.shout import Shout
from own.words import Words

from connectors.storage import Place
from pipelines import outcomes
from pipelines.pipeline import Pipeline
from stages.checkpoint import Checkpoint
from stages.core.errors import ConfigError, LedgerError, RunError
from stages.core.stage import Stage
from stages.read import Read
from stages.write_parquet import WriteParquet, read_current

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def docs(work: Path) -> Path:
    """Forty documents, of which four are quiet and one makes the stage raise."""
    folder = work / "docs"
    folder.mkdir()
    for n in range(40):
        text = "raise me" if n == 7 else f"{'quiet' if n % 10 == 3 else 'loud'} document {n}"
        (folder / f"{n:02}.txt").write_text(text)
    return folder


def pipeline(
    ending: str = "!", *, out: str = "out", max_failed: float = 0.25, between: Stage | None = None
) -> Pipeline:
    stages: list[Stage] = [
        Read(uri="docs", unit_docs=6),
        Shout(ending=ending, log=Path("worked").absolute()),
        Checkpoint(),
    ]
    stages += [between] if between else []
    return Pipeline("shouting", [*stages, Words(num_cpus=0.5), WriteParquet(uri=out)], max_failed=max_failed)


def rows(out: str = "out") -> list[tuple[str, str, str]]:
    table = read_current(Place(out))
    return sorted(zip(*(table[c].to_pylist() for c in ("chunk_id", "uri", "word")), strict=True))


def worked() -> list[str]:
    log = Path("worked")
    lines = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(lines)


def test_every_row_is_accounted_for(docs: Path) -> None:
    result = pipeline().run("run")
    read, shout, words = result.ledger
    assert (read.rows_in, read.ok) == (40, 40)
    assert (shout.rows_in, shout.ok, shout.dropped, shout.failed) == (40, 35, 4, 1)
    assert (words.rows_in, words.ok, words.rows_out) == (35, 35, 105)
    lost = outcomes.read(Place("run")).to_pylist()
    assert {(row["uri"], row["status"], row["reason"]) for row in lost if row["status"] == "failed"} == {
        ("docs/07.txt", "failed", "error")
    }
    failed = next(row for row in lost if row["status"] == "failed")
    assert failed["error_type"] == "ValueError"
    assert "the text says raise" in failed["message"]
    assert sum(row["reason"] == "quiet" for row in lost) == 4
    assert len(rows()) == 105
    record = json.loads(Path("run/run.json").read_text())
    assert record["status"] == "done"
    assert "docs/07.txt" in Path("run/report.html").read_text()


def test_a_finished_run_does_nothing_again(docs: Path) -> None:
    pipeline().run("run")
    worked()
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file() and path.name != ".lock"}
    again = pipeline().run("run")
    assert again.status == "nothing_to_do"
    assert worked() == []
    assert {p: p.stat().st_mtime_ns for p in Path().rglob("*") if p.is_file() and p.name != ".lock"} == before


def test_changes_give_what_a_run_from_scratch_gives(docs: Path) -> None:
    pipeline().run("run")
    worked()
    (docs / "00.txt").write_text("loud and other words")
    (docs / "05.txt").unlink()
    (docs / "new.txt").write_text("loud news")
    result = pipeline().run("run")
    assert set(worked()) == {"docs/00.txt", "docs/new.txt"}
    assert result.ledger[0].rows_in == 40
    pipeline(out="scratch").run("run-from-scratch")
    assert rows() == rows("scratch")


def test_a_changed_stage_reuses_what_comes_before_it(docs: Path) -> None:
    pipeline().run("run")
    worked()
    changed = pipeline(between=Shoutless())
    changed.run("run")
    assert worked() == []
    assert all(word == word.lower() for _, _, word in rows())
    pipeline(ending="?").run("run")
    assert len(worked()) == 40 + 6 + 3 + 2  # the unit of the document that raises is halved: 6, 3, 2, 1
    assert {word[-1] for _, _, word in rows() if word[0].isdigit()} == {"?"}


class Shoutless(Stage):
    """Lives in a test module that workers cannot import: Ray ships it by value."""

    def open(self):  # type: ignore[no-untyped-def]
        def lower(table: pa.Table) -> pa.Table:
            texts = pa.array([text.lower() for text in table["text"].to_pylist()], pa.string())
            return table.set_column(table.column_names.index("text"), "text", texts)

        return lower


def test_a_sink_put_in_later_gets_all_rows_and_nothing_after_it_is_redone(docs: Path) -> None:
    pipeline().run("run")
    worked()
    pipeline(between=WriteParquet(name="documents", uri="documents")).run("run")
    assert worked() == []
    assert read_current(Place("documents")).num_rows == 35
    assert len(rows()) == 105


def test_failed_documents_are_tried_again_on_request(docs: Path) -> None:
    pipeline().run("run")
    (docs / "07.txt").write_text("loud again and well")
    worked()
    pipeline().run("run", retry_failed=True)
    assert worked() == ["docs/07.txt"]
    assert outcomes.read(Place("run"), "failed").num_rows == 0


def test_too_many_failures_end_the_run_after_the_good_work(docs: Path) -> None:
    for n in range(20, 40):
        (docs / f"{n}.txt").write_text("raise this too")
    result = pipeline().run("run")
    assert result.status == "too_many_failed"
    assert result.exit_code == 1
    assert len(rows()) > 0
    assert pipeline().run("run").exit_code == 1
    assert pipeline(max_failed=0.9).run("run").exit_code == 0


def test_a_stage_that_loses_rows_is_an_error(docs: Path) -> None:
    (docs / "05.txt").write_text("lose this")
    with pytest.raises((LedgerError, RunError), match="accounts for"):
        pipeline().run("run")
    assert json.loads(Path("run/run.json").read_text())["status"] == "failed"


def test_a_row_that_kills_its_worker_is_failed_by_name(docs: Path) -> None:
    (docs / "05.txt").write_text("die here")
    (docs / "06.txt").write_text("die here too")
    result = pipeline().run("run")
    assert {row["uri"]: row["reason"] for row in outcomes.read(Place("run"), "failed").to_pylist()} == {
        "docs/05.txt": "worker_died",
        "docs/06.txt": "worker_died",
        "docs/07.txt": "error",
    }
    assert result.ledger[1].ok == 33


def test_nothing_to_read_is_refused(work: Path) -> None:
    (work / "docs").mkdir()
    with pytest.raises(ConfigError, match=r"read\.uri"):
        pipeline().run("run")


def test_a_second_run_at_the_same_time_is_refused(docs: Path) -> None:
    from pipelines.run import locked

    with locked(Place("run")), pytest.raises(RunError, match="in use by another run"):
        pipeline().run("run")
