"""Pipelines: what is refused, and where work is committed under which fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from own.shout import Shout
from own.words import Words

from pipelines.pipeline import Pipeline
from stages.checkpoint import Checkpoint
from stages.core.errors import ConfigError
from stages.core.stage import Stage
from stages.filter import Filter
from stages.parse import Parse
from stages.read import Read
from stages.write_lancedb import WriteLancedb
from stages.write_parquet import WriteParquet


class Known(Stage):
    """A stage whose result depends on something beside its fields."""

    version: ClassVar[str] = "1"

    def identity(self) -> dict[str, Any]:
        return {"version": self.version}

    def output_metadata(self) -> dict[str, str]:
        return {"model": "m"}


READ, SINK = Read(uri="docs"), WriteParquet(uri="out")


def marks(*stages: Stage) -> list[tuple[int, str]]:
    return [(mark.position, mark.label) for mark in Pipeline("p", stages).marks]


def fingerprints(*stages: Stage) -> list[str]:
    return [mark.fingerprint for mark in Pipeline("p", stages).marks]


@pytest.mark.parametrize(
    ("name", "stages", "max_failed", "said"),
    [
        ("", [READ, Shout()], 0.25, "name: a pipeline needs a name"),
        ("  ", [READ, Shout()], 0.25, "needs a name"),
        (None, [READ, Shout()], 0.25, "needs a name"),
        ("p", [], 0.25, "the first stage must be one that reads"),
        ("p", [Shout(), READ], 0.25, "the first stage must be one that reads"),
        ("p", [Checkpoint(), READ, Shout()], 0.25, "the first stage must be one that reads"),
        ("p", [READ, Shout(), Read(uri="x", name="second")], 0.25, r"stage 3 \(second\) reads"),
        ("p", [READ], 0.25, "nothing follows"),
        ("p", [READ, Checkpoint()], 0.25, "nothing follows"),
        ("p", [READ, Shout(), Shout()], 0.25, r"own\.shout: two stages go by this name"),
        ("p", [READ, SINK, SINK], 0.25, "write_parquet: two stages go by this name"),
        ("p", [READ, Shout(name="read")], 0.25, "two stages go by this name"),
        ("p", [READ, Shout(), Shout(name="again")], 0.25, "again: needs the column 'content'"),
        ("p", [READ, Shout()], 1.5, "max_failed: 1.5 is no share"),
        ("p", [READ, Shout()], -0.1, "is no share"),
        ("p", [READ, Shout()], float("nan"), "is no share"),
        ("p", [READ, Shout()], "much", "is no share"),
        ("p", [READ, Shout()], None, "is no share"),
    ],
)
def test_what_cannot_work_is_refused(name: Any, stages: list[Stage], max_failed: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Pipeline(name, stages, max_failed)


def test_what_can_work_is_let_pass() -> None:
    Pipeline("p", [READ, SINK])
    Pipeline("p", [READ, Shout(), Checkpoint(), Checkpoint(), Words()], 0)
    Pipeline("p", [READ, Shout(), SINK, WriteParquet(uri="out2", name="second")], 1)


def test_work_is_committed_at_checkpoints_before_sinks_and_at_the_end() -> None:
    assert marks(READ, Shout()) == [(2, "own.shout")]
    assert marks(READ, SINK) == [(1, "read")]
    assert marks(READ, Shout(), Checkpoint(), Words(), SINK) == [(2, "own.shout"), (3, "own.words")]
    assert marks(READ, Shout(), Checkpoint(), SINK, Words()) == [(2, "own.shout"), (3, "own.words")]
    assert marks(READ, Checkpoint(), Shout(), Words(), Checkpoint(), Checkpoint()) == [(1, "read"), (3, "own.words")]


def test_sinks_deliver_the_last_mark_before_them_and_it_must_hold_all() -> None:
    first, second = WriteParquet(uri="a", name="first"), WriteParquet(uri="b", name="second")
    pipeline = Pipeline("p", [READ, Checkpoint(), Shout(), first, Words(), Known(), second])
    assert [pipeline.mark_of(sink).position for sink in pipeline.sinks] == [2, 4]
    assert [mark.position for mark in pipeline.required] == [2, 4]
    assert [mark.position for mark in pipeline.marks] == [1, 2, 4]
    early = Pipeline("p", [READ, first, Shout(), Checkpoint(), Words()])
    assert [mark.position for mark in early.required] == [1, 3]


def test_a_fingerprint_covers_all_that_comes_before_and_nothing_else() -> None:
    base = [READ, Shout(), Checkpoint(), Words(), SINK]
    first, second = fingerprints(*base)
    assert fingerprints(READ, Shout(), Checkpoint(), Words(concurrency=2), WriteParquet(uri="else")) == [first, second]
    assert fingerprints(Read(uri="elsewhere"), *base[1:]) == [first, second]
    assert fingerprints(READ, Shout(), Words(), SINK) == [second]
    changed = fingerprints(READ, Shout(ending="?"), *base[2:])
    assert not {first, second} & set(changed)
    appended = fingerprints(*base[:3], Words(), Known(), SINK)
    assert appended[0] == first
    assert appended[1] != second


def test_what_a_model_is_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    was = fingerprints(READ, Shout(), Known())
    monkeypatch.setattr(Known, "version", "2")
    assert fingerprints(READ, Shout(), Known()) != was


def test_another_label_is_other_committed_work() -> None:
    """Outcomes and books that are committed name their stages, also where the mark bears another name."""
    was = fingerprints(READ, Shout(), Words())
    assert fingerprints(READ, Shout(name="loud"), Words()) != was


def test_outputs_say_what_they_are() -> None:
    pipeline = Pipeline("p", [READ, Shout(), Known(), Checkpoint(), Words()])
    metadata = pipeline.metadata(pipeline.marks[0])
    assert metadata == {
        "pipeline": "p",
        "fingerprint": pipeline.marks[0].fingerprint,
        "identities": f'{{"{Known().label}": {{"version": "1"}}}}',
        "model": "m",
    }


def test_checks_are_those_of_the_stages() -> None:
    with pytest.raises(ConfigError, match=r"read\.uri"):
        Pipeline("p", [Read(uri="/nowhere/at/all"), Shout()]).check()


@pytest.mark.parametrize("out", ["docs", "docs/out", "./docs/deep/er"])
def test_outputs_among_the_documents_are_refused(work: Path, out: str) -> None:
    (work / "docs").mkdir()
    with pytest.raises(ConfigError, match=r"write_parquet\.uri: .*read\.exclude"):
        Pipeline("p", [Read(uri="docs"), Shout(), WriteParquet(uri=out)]).check()
    with pytest.raises(ConfigError, match="run_dir"):
        Pipeline("p", [Read(uri="docs"), Shout()]).check(out)


def test_outputs_among_the_documents_are_fine_where_they_are_excluded(work: Path) -> None:
    (work / "docs").mkdir()
    read = Read(uri="docs", exclude="out/")
    Pipeline("p", [read, Shout(), WriteParquet(uri="docs/out/parquet")]).check("docs/.run")
    Pipeline("p", [read, Shout(), WriteParquet(uri="docs-out")]).check("docs2/run")


def test_only_one_stage_fans_out() -> None:
    with pytest.raises(ConfigError, match="several rows of one"):
        Pipeline("p", [READ, Shout(), Words(), Words(name="again")])


def test_a_column_that_a_field_names_must_be_there() -> None:
    with pytest.raises(ConfigError, match=r"filter: needs the column 'titel'.*did you mean 'title'"):
        Pipeline("p", [READ, Parse(), Filter(column="titel")])


def test_files_must_be_parsed_before_their_text_is_worked_on() -> None:
    with pytest.raises(ConfigError, match="put `parse` before it"):
        Pipeline("p", [READ, Filter()])
    Pipeline("p", [Read(uri="a.jsonl", format="jsonl"), Filter()])


def test_two_sinks_to_one_place_are_refused() -> None:
    tables = [WriteLancedb(name=name, uri="lance", table=name) for name in ("a", "b")]
    Pipeline("p", [READ, Parse(), *tables])
    with pytest.raises(ConfigError, match=r"c\.uri: 'write_parquet' writes to out already"):
        Pipeline("p", [READ, Parse(), WriteParquet(uri="out"), WriteParquet(name="c", uri="out/")])
