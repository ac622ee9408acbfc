"""Turns the work that is left into one Ray Data execution: units flow through stages and marks, each from the last mark
that holds it to the last one that wants it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.catalogue import Unit
from pipelines.checkpoint import Checkpoint
from stages.core.block import Block, Count, counts_from_json, counts_to_json
from stages.core.errors import RunError
from stages.core.outcome import OUTCOMES
from stages.core.runner import ATTEMPTS, Monitor, map_blocks, map_stage
from stages.core.stage import Stage
from stages.read import SOURCES


@dataclass(frozen=True)
class Segment:
    """The stages between one mark and the next, and the mark that they lead to."""

    stages: tuple[Stage, ...]
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Work:
    """What is left to do: for each segment, the units that enter there, and those that are done when it ends."""

    segments: tuple[Segment, ...]
    entering: tuple[tuple[Unit, ...], ...]
    leaving: tuple[frozenset[str], ...]

    @property
    def units(self) -> int:
        return sum(len(units) for units in self.entering)

    @property
    def active(self) -> tuple[Stage, ...]:
        """The stages that some unit has to pass."""
        stages: list[Stage] = []
        on_the_way = 0
        for segment, entering, leaving in zip(self.segments, self.entering, self.leaving, strict=True):
            on_the_way += len(entering)
            if on_the_way:
                stages += segment.stages
            on_the_way -= len(leaving)
        return tuple(stages)


def plan_work(
    units: Sequence[Unit], segments: tuple[Segment, ...], required: Sequence[bool], committed: Sequence[set[str]]
) -> Work:
    """Where each unit has to enter and may leave, given what is `committed` at each segment's mark.

    `required` says which marks must hold every unit in the end; the others only save work.
    """
    entering: list[list[Unit]] = [[] for _ in segments]
    leaving: list[set[str]] = [set() for _ in segments]
    for unit in units:
        missing = [n for n, needed in enumerate(required) if needed and unit.id not in committed[n]]
        if not missing:
            continue
        start = next((n + 1 for n in reversed(range(missing[0])) if unit.id in committed[n]), 0)
        entering[start].append(unit)
        leaving[missing[-1]].add(unit.id)
    return Work(segments, tuple(map(tuple, entering)), tuple(map(frozenset, leaving)))


class Commit:
    """The tee: commits a unit and lets it stream on, or, where it has arrived, lets only its books go on."""

    def __init__(self, checkpoint: Checkpoint, done: frozenset[str], last: bool) -> None:
        self.checkpoint, self.done, self.last = checkpoint, done, last

    def __call__(self, table: pa.Table) -> pa.Table:
        block = Block.from_table(table)
        if block.unit is None and block.rows.num_rows == 0:
            return table  # of a unit that left at an earlier mark
        committed = self.checkpoint.commit(table)
        if self.last:
            return _summary(Block.from_table(committed))
        return committed.slice(0, 0) if block.unit in self.done else committed


class Load:
    """Reads committed units back, to go on with them. A block names a unit and its sources, as in the catalogue."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def __call__(self, table: pa.Table) -> pa.Table:
        name, size = table["unit"][0].as_py(), table["unit_size"][0].as_py()
        return self.checkpoint.load(Unit(name, table.select(SOURCES.names), size)).to_table()


def execute(work: Work, monitor: Monitor | None) -> Iterator[tuple[str, tuple[Count, ...]]]:
    """Run what is left; yields each unit that reaches the last mark, with its books."""
    import ray.data
    import ray.exceptions

    dataset: ray.data.Dataset | None = None
    for number, segment in enumerate(work.segments):
        if work.entering[number]:
            entering = _loaded(work, number) if number else _listed(work.entering[number])
            dataset = entering if dataset is None else dataset.union(entering)
        if dataset is None:
            continue
        for stage in segment.stages:
            dataset = map_stage(dataset, stage, monitor, segment.checkpoint.journal)
        last = number == len(work.segments) - 1
        commit = Commit(segment.checkpoint, work.leaving[number], last)
        dataset = map_blocks(dataset, commit.__call__)
    if dataset is None:
        return
    try:
        for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            if "unit" in table.column_names:
                for row in table.to_pylist():
                    yield row["unit"], counts_from_json(row["ledger"])
    except ray.exceptions.RayError as error:
        raise RunError(f"{explained(error)}. What is committed is kept: run again to go on") from error


def explained(error: Exception) -> str:
    """What happened in a worker, in its own words: Ray keeps the error that a worker raised as text alone."""
    import ray.exceptions

    if isinstance(error, ray.exceptions.RayTaskError):
        own, _, _ = str(error).partition("\nThe above exception was the direct cause")
        return own.strip().splitlines()[-1]
    if isinstance(error, ray.exceptions.WorkerCrashedError | ray.exceptions.ActorDiedError):
        return f"a worker process died {ATTEMPTS + 1} times over the same unit: by crashes, or for want of memory"
    return f"{type(error).__name__}: {error}"


def _listed(units: Sequence[Unit]) -> Any:
    import ray.data

    return ray.data.from_arrow([Block(unit.sources, OUTCOMES.empty_table(), unit.id).to_table() for unit in units])


def _loaded(work: Work, number: int) -> Any:
    import ray.data

    blocks = []
    for unit in work.entering[number]:
        n = unit.sources.num_rows
        blocks.append(
            unit.sources.append_column("unit", pa.array([unit.id] * n)).append_column(
                "unit_size", pa.array([unit.size] * n)
            )
        )
    load = Load(work.segments[number - 1].checkpoint)
    return map_blocks(ray.data.from_arrow(blocks), load.__call__)


def _summary(block: Block) -> pa.Table:
    return pa.table({"unit": [block.unit], "ledger": [counts_to_json(block.ledger)]})
