"""The books: what was counted follows from what is committed, whatever stages do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import pytest

from pipelines.ledger import failed_share, recount, total, verify
from stages.core.block import Block, Count
from stages.core.errors import LedgerError
from stages.core.outcome import OUTCOMES, Result, outcomes
from stages.core.runner import run
from stages.core.stage import Stage


class Reading(Stage):
    reads: ClassVar[bool] = True
    fans_out: ClassVar[bool] = True


class Picking(Stage):
    pass


class Cutting(Stage):
    fans_out: ClassVar[bool] = True


TRANSFORMS: tuple[Stage, ...] = (
    Reading(name="read"),
    Picking(name="one"),
    Cutting(name="cut"),
    Picking(name="two"),
    Picking(name="three"),
)


def act(stage: Stage, rows: pa.Table, chance: random.Random) -> Result:
    """What a worker might do: some rows kept, some dropped, some failed, some made into several."""
    fates = [chance.choice(["ok", "ok", "ok", "dropped", "failed"]) for _ in range(rows.num_rows)]
    kept = [n for n, fate in enumerate(fates) if fate == "ok"]
    dropped = rows.take([n for n, fate in enumerate(fates) if fate == "dropped"])
    failed = rows.take([n for n, fate in enumerate(fates) if fate == "failed"])
    if stage.fans_out:
        kept = [n for n in kept for _ in range(chance.randrange(1, 4))]
    return Result(
        rows.take(kept), pa.concat_tables([outcomes(dropped, "dropped", "x"), outcomes(failed, "failed", "y")])
    )


def worked(seed: int, transforms: Sequence[Stage] = TRANSFORMS) -> Block:
    chance = random.Random(seed)
    names = [f"d{n}" for n in range(chance.randrange(1, 9))]
    table = Block(pa.table({"doc_id": names, "uri": names}), OUTCOMES.empty_table(), f"u{seed}").to_table()
    for stage in transforms:
        if stage.reads:

            def read(rows: pa.Table) -> Result:
                # Files of rows give documents of their own.
                found = [f"{d}-{n}" for d in rows["doc_id"].to_pylist() for n in range(chance.randrange(1, 4))]
                return Result(pa.table({"doc_id": found, "uri": found}))

            table = run(stage, read, table)
        else:
            table = run(stage, lambda rows, stage=stage: act(stage, rows, chance), table)  # type: ignore[misc]
    return Block.from_table(table)


@pytest.mark.parametrize("seed", range(60))
def test_the_counts_follow_from_rows_and_outcomes(seed: int) -> None:
    block = worked(seed)
    verify(block, TRANSFORMS)
    assert all(count.balanced() for count in block.ledger)
    seconds = {count.stage: count.seconds for count in block.ledger}
    assert recount(block, TRANSFORMS, seconds) == block.ledger


def test_sums_over_units_form_a_chain() -> None:
    blocks = [worked(seed) for seed in range(60)]
    ledger = total([block.ledger for block in blocks], TRANSFORMS)
    assert [count.stage for count in ledger] == [stage.label for stage in TRANSFORMS]
    assert ledger[-1].rows_out == sum(block.rows.num_rows for block in blocks)
    assert sum(c.dropped + c.failed for c in ledger) == sum(block.outcomes.num_rows for block in blocks)


@pytest.mark.parametrize("harm", ["a row less", "a row twice", "an outcome less", "another stage", "another count"])
def test_what_does_not_match_is_an_error(harm: str) -> None:
    block = next(block for block in map(worked, range(100)) if block.rows.num_rows > 1 and block.outcomes.num_rows > 1)
    if harm == "a row less":
        harmed = replace(block, rows=block.rows.slice(1))
    elif harm == "a row twice":
        harmed = replace(block, rows=pa.concat_tables([block.rows, block.rows.slice(0, 1)]))
    elif harm == "an outcome less":
        harmed = replace(block, outcomes=block.outcomes.slice(1))
    elif harm == "another stage":
        moved = pa.array(["two"] * block.outcomes.num_rows)
        harmed = replace(block, outcomes=block.outcomes.set_column(3, "stage", moved))
    else:
        harmed = replace(block, ledger=(*block.ledger[:-1], replace(block.ledger[-1], failed=99)))
    with pytest.raises(LedgerError, match=f"unit {block.unit}"):
        verify(harmed, TRANSFORMS)


def test_a_broken_chain_and_unbalanced_books_are_errors() -> None:
    transforms = TRANSFORMS[:2]
    good = (Count("read", 3, 2, 1, 0, 2), Count("one", 2, 1, 0, 1, 1))
    assert total([good, good], transforms) == [good[0] + good[0], good[1] + good[1]]
    with pytest.raises(LedgerError, match="'read' gave 2 rows and 'one' was given 3"):
        total([(good[0], Count("one", 3, 3, 0, 0, 3))], transforms)
    with pytest.raises(LedgerError, match="do not balance"):
        total([(good[0], Count("one", 2, 1, 0, 0, 1))], transforms)


def test_no_units_have_empty_books() -> None:
    assert [count.rows_in for count in total([], TRANSFORMS)] == [0] * 5
    assert failed_share(total([], TRANSFORMS)) == (0.0, "")


def test_the_worst_stage_gives_the_share() -> None:
    ledger = [
        Count("a", 10, 9, 0, 1, 9),
        Count("b", 9, 6, 0, 3, 6),
        Count("c", 6, 0, 6, 0, 0),
        Count("d", 0, 0, 0, 0, 0),
    ]
    assert failed_share(ledger) == (3 / 9, "b")
