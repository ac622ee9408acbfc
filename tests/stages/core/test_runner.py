"""The runner: one bad row never takes others with it, and the books are held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from stages.core.block import Block, Count
from stages.core.errors import LedgerError, RunError
from stages.core.outcome import OUTCOMES, Result, outcomes
from stages.core.runner import CAREFUL_AFTER, guarded, run
from stages.core.schema import doc_id
from stages.core.stage import Stage, Worker


class Plain(Stage):
    pass


class FansOut(Stage):
    fans_out: ClassVar[bool] = True


class Reads(Stage):
    reads: ClassVar[bool] = True


class Notes:
    """A monitor that remembers, as the run's own does."""

    def __init__(self) -> None:
        self.begun: dict[tuple[str, str, int | None], int] = {}
        self.counts: list[Count] = []

    def begin(self, unit: str, stage: str, row: int | None = None) -> int:
        before = self.begun.get((unit, stage, row), 0)
        self.begun[unit, stage, row] = before + 1
        return before

    def end(self, unit: str, stage: str, row: int | None = None, count: Count | None = None) -> None:
        self.begun.pop((unit, stage, row), None)
        if count:
            self.counts.append(count)


def table(n: int) -> pa.Table:
    return pa.table({"doc_id": [f"d{i}" for i in range(n)], "uri": [f"u{i}" for i in range(n)], "n": list(range(n))})


def block(n: int, gone: int = 0) -> pa.Table:
    lost = outcomes(table(n + gone).slice(n), "dropped", "before")
    return Block(table(n), lost, "unit", (Count("first", n + gone, n, gone, 0, n),)).to_table()


def raises_on(*numbers: int, error: Callable[[int], Exception] = lambda n: ValueError(f"number {n}")) -> Worker:
    def worker(rows: pa.Table) -> pa.Table:
        for n in rows["n"].to_pylist():
            if n in numbers:
                raise error(n)
        return rows.append_column("new", pa.array([str(n) for n in rows["n"].to_pylist()], pa.string()))

    return worker


def done(stage: Stage, worker: Worker, rows: pa.Table, monitor: Any = None) -> Block:
    return Block.from_table(run(stage, worker, rows, monitor))


def test_rows_pass_with_unit_earlier_outcomes_and_books() -> None:
    result = done(Plain(name="second"), raises_on(), block(5, 2))
    assert result.unit == "unit"
    assert result.rows["new"].to_pylist() == ["0", "1", "2", "3", "4"]
    assert result.outcomes["reason"].to_pylist() == ["before"] * 2
    assert [(c.stage, c.rows_in, c.ok, c.rows_out) for c in result.ledger] == [("first", 7, 5, 5), ("second", 5, 5, 5)]


@pytest.mark.parametrize("bad", [(), (0,), (6,), (2, 3), (0, 3, 6), tuple(range(7))])
def test_rows_that_raise_are_failed_alone_and_the_order_is_kept(bad: tuple[int, ...]) -> None:
    result = done(Plain(), raises_on(*bad), block(7))
    assert result.rows["n"].to_pylist() == [n for n in range(7) if n not in bad]
    assert "new" in result.rows.column_names
    assert result.outcomes["doc_id"].to_pylist() == [f"d{n}" for n in bad]
    for row, n in zip(result.outcomes.to_pylist(), bad, strict=True):
        assert (row["status"], row["reason"], row["error_type"], row["uri"]) == (
            "failed",
            "error",
            "ValueError",
            f"u{n}",
        )
        assert f"number {n}" in row["message"]
        assert "worker, line" in row["message"]
        assert row["stage"] == Plain().label
    assert result.ledger[-1].failed == len(bad)


def test_messages_of_any_kind_can_be_kept() -> None:
    def error(n: int) -> Exception:
        return RuntimeError("lone \ud800 NUL \0 " + "long " * 10_000)

    result = done(Plain(), raises_on(1, error=error), block(3))
    (row,) = result.outcomes.to_pylist()
    assert len(row["message"]) <= 2000
    row["message"].encode()
    assert "\0" not in row["message"]


def test_sources_that_raise_get_the_identity_of_their_uri() -> None:
    def worker(rows: pa.Table) -> pa.Table:
        raise MemoryError("no")

    sources = pa.table({"uri": ["docs/a", "docs/b"], "path": [b"a", b"b"]})
    result = done(Reads(), worker, Block(sources, OUTCOMES.empty_table(), "unit").to_table())
    assert result.outcomes["doc_id"].to_pylist() == [doc_id("docs/a"), doc_id("docs/b")]
    assert result.ledger[-1] == Count(Reads().label, 2, 0, 0, 2, 0, result.ledger[-1].seconds)


def test_an_error_of_the_run_stops_it() -> None:
    with pytest.raises(RunError, match="engine died"):
        done(Plain(), raises_on(1, error=lambda n: RunError("the engine died")), block(3))


@pytest.mark.parametrize("n", [0, 1, 3])
def test_no_rows_work_and_keep_the_schema_of_the_output(n: int) -> None:
    result = done(Plain(), raises_on(*range(n)), block(n, 1))
    assert result.rows.num_rows == 0
    assert "new" in result.rows.column_names
    assert result.ledger[-1].rows_in == n


def test_a_worker_that_cannot_do_without_rows_is_spared_them() -> None:
    def worker(rows: pa.Table) -> pa.Table:
        assert rows.num_rows
        return rows

    assert done(Plain(), worker, block(0, 1)).ledger[-1].rows_in == 0


def test_rows_lost_or_invented_are_an_error() -> None:
    for worker in (lambda rows: rows.slice(1), lambda rows: pa.concat_tables([rows, rows])):
        with pytest.raises(LedgerError, match=r"was given 3 rows and accounts for (2|6) ok"):
            done(Plain(), worker, block(3))
    with pytest.raises(LedgerError):
        done(Plain(), lambda rows: Result(rows, outcomes(rows.slice(0, 1), "failed", "both")), block(3))
    with pytest.raises(LedgerError):
        done(FansOut(), lambda rows: rows.slice(1), block(3))


def test_a_stage_that_fans_out_counts_documents_and_rows() -> None:
    def worker(rows: pa.Table) -> Result:
        kept = rows.slice(1)
        return Result(pa.concat_tables([kept, kept, kept]), outcomes(rows.slice(0, 1), "dropped", "empty"))

    count = done(FansOut(), worker, block(3)).ledger[-1]
    assert (count.rows_in, count.ok, count.dropped, count.failed, count.rows_out) == (3, 2, 1, 0, 6)
    count = done(FansOut(), lambda rows: Result(rows.slice(0, 0), outcomes(rows, "failed", "x")), block(3)).ledger[-1]
    assert (count.rows_in, count.ok, count.failed, count.rows_out) == (3, 0, 3, 0)


def test_halving_calls_the_worker_few_times() -> None:
    calls: list[int] = []

    def worker(rows: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        return raises_on(37)(rows)

    guarded(worker, table(1024))
    assert len(calls) <= 2 * 10 + 2


def test_after_deaths_rows_are_worked_on_one_by_one_and_past_the_deadly_one() -> None:
    notes = Notes()
    sizes: list[int] = []

    def worker(rows: pa.Table) -> pa.Table:
        sizes.append(rows.num_rows)
        if 2 in rows["n"].to_pylist():
            raise KeyboardInterrupt  # as good as dead: nobody gets to tell
        return rows

    stage = Plain(name="deadly")
    for _ in range(CAREFUL_AFTER + 1):
        with pytest.raises(KeyboardInterrupt):
            done(stage, worker, block(5), notes)
    result = done(stage, worker, block(5), notes)
    assert sizes[:CAREFUL_AFTER] == [5] * CAREFUL_AFTER
    assert set(sizes[CAREFUL_AFTER:]) <= {0, 1}
    assert result.rows["n"].to_pylist() == [0, 1, 3, 4]
    (row,) = result.outcomes.to_pylist()
    assert (row["doc_id"], row["reason"], row["stage"]) == ("d2", "worker_died", "deadly")
    assert notes.begun.keys() <= {("unit", "deadly", 2)}
    assert [count.failed for count in notes.counts] == [1]


def test_the_monitor_is_told_what_was_counted() -> None:
    notes = Notes()
    done(Plain(name="p"), raises_on(1), block(3), notes)
    assert [(c.stage, c.rows_in, c.ok, c.failed) for c in notes.counts] == [("p", 3, 2, 1)]
    assert notes.begun == {}
