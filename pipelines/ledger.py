"""The books: what each stage was given and what became of it, counted as the work was done and again from what is
committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import pyarrow.compute as pc

from stages.core.block import Block, Count
from stages.core.errors import LedgerError
from stages.core.stage import Stage


def recount(block: Block, transforms: Sequence[Stage], seconds: dict[str, float] | None = None) -> tuple[Count, ...]:
    """The counts of each stage as they follow from a block's rows and outcomes, last stage first."""
    counts: list[Count] = []
    rows_out = block.rows.num_rows
    documents = set(pc.unique(block.rows["doc_id"]).to_pylist()) if rows_out else set()
    for stage in reversed(transforms):
        lost = block.outcomes.filter(pc.equal(block.outcomes["stage"], stage.label))
        dropped = pc.sum(pc.equal(lost["status"], "dropped")).as_py() or 0
        failed = lost.num_rows - dropped
        ok = len(documents) if stage.fans_out and not stage.reads else rows_out
        counts.append(
            Count(stage.label, ok + lost.num_rows, ok, dropped, failed, rows_out, (seconds or {}).get(stage.label, 0.0))
        )
        documents |= set(lost["doc_id"].to_pylist())
        rows_out = ok + lost.num_rows
    return tuple(reversed(counts))


def verify(block: Block, transforms: Sequence[Stage]) -> None:
    """Hold what was counted as the work was done against what is committed. Raises LedgerError where they differ."""
    measured = [replace(count, seconds=0.0) for count in block.ledger]
    found = [replace(count, seconds=0.0) for count in recount(block, transforms)]
    for was, is_ in zip(measured, found, strict=True):
        if was != is_ or not is_.balanced():
            raise LedgerError(
                f"unit {block.unit}: the books of stage '{was.stage}' do not match what is committed: counted {was}, "
                f"found {is_}. The rows are kept; please report this with the run directory"
            )


def total(ledgers: Iterable[Sequence[Count]], transforms: Sequence[Stage]) -> list[Count]:
    """The sums over units, one count per stage, and the chain held: what a stage gives, the next one is given."""
    sums = {stage.label: Count(stage.label, 0, 0, 0, 0, 0) for stage in transforms}
    for ledger in ledgers:
        for count in ledger:
            sums[count.stage] = sums[count.stage] + count
    ordered = [sums[stage.label] for stage in transforms]
    for before, after in pairwise(ordered):
        if before.rows_out != after.rows_in:
            raise LedgerError(
                f"stage '{before.stage}' gave {before.rows_out} rows and '{after.stage}' was given {after.rows_in}"
            )
    for count in ordered:
        if not count.balanced():
            raise LedgerError(f"the books of stage '{count.stage}' do not balance: {count}")
    return ordered


def failed_share(ledger: Sequence[Count]) -> tuple[float, str]:
    """The worst share of failed rows at any stage, and that stage."""
    shares = [(count.failed / count.rows_in, count.stage) for count in ledger if count.rows_in]
    return max(shares, default=(0.0, ""))
