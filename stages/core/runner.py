"""Runs a stage's worker over blocks: isolates the bad row, counts, and keeps rows and outcomes together."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from connectors.storage import Place
from stages.core.block import Block, Count
from stages.core.errors import LedgerError, RunError, WorkerLost
from stages.core.journal import Journal
from stages.core.outcome import OUTCOMES, Result, outcomes
from stages.core.stage import Stage, Worker

if TYPE_CHECKING:
    import ray.data


ATTEMPTS = 12
"""How often a worker process that dies is replaced for the same block. Ray itself would try for ever."""

CAREFUL_AFTER = 2
"""Deaths over the same unit at the same stage after which its rows are worked on one at a time."""


class Monitor(Protocol):
    """Whoever watches a run. It outlives the worker processes, and so knows what one was at when it died."""

    def begin(self, unit: str, stage: str, row: int | None = None) -> int:
        """Say what is begun; gives how often it was begun before and not ended."""
        ...

    def end(self, unit: str, stage: str, row: int | None = None, count: Count | None = None) -> None:
        """Say that it is done, and for a unit what was counted."""
        ...


def run(
    stage: Stage, worker: Worker, table: pa.Table, monitor: Monitor | None = None, journal: Place | None = None
) -> pa.Table:
    """One stage over one block. Raises LedgerError where the stage lost or invented rows."""
    block = Block.from_table(table)
    started = time.perf_counter()
    if journal and block.unit and stage.keeps_journal:
        worker = Journaled(worker, Journal(journal, block.unit))
    if monitor and block.unit and monitor.begin(block.unit, stage.label) >= CAREFUL_AFTER:
        result = carefully(worker, block.rows, monitor, block.unit, stage.label)
    else:
        result = guarded(worker, block.rows)
    lost = result.outcomes if result.outcomes is not None else OUTCOMES.empty_table()
    lost = lost.set_column(3, "stage", pa.array([stage.label] * lost.num_rows, pa.string()))
    count = tally(stage, block.rows, result.rows, lost, time.perf_counter() - started)
    if monitor and block.unit:
        monitor.end(block.unit, stage.label, count=count)
    done = Block(result.rows, pa.concat_tables([block.outcomes, lost]), block.unit, block.ledger)
    return done.counted(count).to_table()


class Journaled:
    """A worker with the journal of the unit that it works on."""

    def __init__(self, worker: Any, journal: Journal) -> None:
        self.worker, self.journal = worker, journal
        self.alone = worker.alone

    def __call__(self, rows: pa.Table) -> Result | pa.Table:
        done: Result | pa.Table = self.worker(rows, self.journal)
        return done


def carefully(worker: Worker, rows: pa.Table, monitor: Monitor, unit: str, stage: str) -> Result:
    """Row by row, and past a row over which a worker process died already: it is failed by name."""
    results = []
    # Where several units share a worker, the row must be the only one in it, or the wrong one gets the blame.
    alone = getattr(worker, "alone", contextlib.nullcontext)
    for number in range(rows.num_rows):
        row = rows.slice(number, 1)
        with alone():
            results.append(_carefully(worker, row, monitor, unit, stage, number))
    return joined(results)


def _carefully(worker: Worker, row: pa.Table, monitor: Monitor, unit: str, stage: str, number: int) -> Result:
    if monitor.begin(unit, stage, number):
        message = "the worker process died whenever it worked on this row: a crash in a library, or want of memory"
        return Result(_nothing(worker, row), outcomes(row, "failed", "worker_died", message, "WorkerDied"))
    result = guarded(worker, row)
    monitor.end(unit, stage, number)
    return result


def joined(results: list[Result]) -> Result:
    return Result(
        pa.concat_tables([result.rows for result in results], promote_options="permissive"),
        pa.concat_tables([result.outcomes or OUTCOMES.empty_table() for result in results]),
    )


def guarded(worker: Worker, rows: pa.Table) -> Result:
    """Call the worker; where it raises, halve the rows until the one that does it stands alone, and fail that one."""
    if rows.num_rows == 0:
        return Result(_nothing(worker, rows))
    try:
        result = worker(rows)
    except RunError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a row causes is that row's outcome
        if rows.num_rows > 1:
            middle = rows.num_rows // 2
            return joined([guarded(worker, rows.slice(0, middle)), guarded(worker, rows.slice(middle))])
        return Result(_nothing(worker, rows), failure(rows, error))
    return result if isinstance(result, Result) else Result(result)


def failure(rows: pa.Table, error: Exception) -> pa.Table:
    """The outcomes of `rows` that all met `error`, with the place in the code where it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (at {frames[-1].name}, line {frames[-1].lineno})" if frames else ""
    return outcomes(rows, "failed", "error", f"{error}{place}", type(error).__name__)


def _nothing(worker: Worker, rows: pa.Table) -> pa.Table:
    """No rows, in the schema of the worker's output where it can tell."""
    try:
        result = worker(rows.slice(0, 0))
    except Exception:  # noqa: BLE001 - a worker that cannot do without rows leaves the schema as it was
        return rows.slice(0, 0)
    return result.rows if isinstance(result, Result) else result


def tally(stage: Stage, before: pa.Table, after: pa.Table, lost: pa.Table, seconds: float) -> Count:
    """Count, and hold the stage to its books: what went in came out, as a row or as an outcome."""
    dropped = pc.sum(pc.equal(lost["status"], "dropped")).as_py() or 0
    failed = lost.num_rows - dropped
    if stage.reads:
        found = after.num_rows + lost.num_rows
        return Count(stage.label, found, after.num_rows, dropped, failed, after.num_rows, seconds)
    ok = after.num_rows
    if stage.fans_out:
        ok = pc.count_distinct(after["doc_id"]).as_py() if after.num_rows else 0
    count = Count(stage.label, before.num_rows, ok, dropped, failed, after.num_rows, seconds)
    if not count.balanced():
        raise LedgerError(
            f"stage '{stage.label}' was given {count.rows_in} rows and accounts for {ok} ok, {dropped} dropped and "
            f"{failed} failed: a worker must return every row or an outcome for it"
        )
    return count


class TaskRunner:
    """A stage in Ray tasks: what the worker needs is cheap, so that each task opens its own."""

    def __init__(self, stage: Stage, monitor: Monitor | None) -> None:
        self.stage, self.monitor = stage, monitor

    def __call__(self, table: pa.Table) -> pa.Table:
        return run(self.stage, self.stage.open(), table, self.monitor)


class ActorRunner:
    """A stage in Ray actors: the worker is opened once and serves every block that comes."""

    def __init__(self, stage: Stage, monitor: Monitor | None, journal: Place | None) -> None:
        self.stage, self.monitor, self.journal = stage, monitor, journal
        self.worker = stage.open()

    def __call__(self, table: pa.Table) -> pa.Table:
        try:
            return run(self.stage, self.worker, table, self.monitor, self.journal)
        except WorkerLost:
            # An actor that lives on would be given the same work again and again, over an engine that is dead.
            os._exit(1)


def map_stage(
    dataset: ray.data.Dataset, stage: Stage, monitor: Monitor | None = None, journal: Place | None = None
) -> ray.data.Dataset:
    """Map a stage over whole blocks, as tasks or as a pool of actors, with the resources that it asks for. `journal` is
    where stages that keep one may keep what they have of a unit."""
    from ray.data import ActorPoolStrategy, TaskPoolStrategy

    options: dict[str, Any] = {"num_cpus": stage.num_cpus}
    if stage.num_gpus:
        options["num_gpus"] = stage.num_gpus
    if stage.memory:
        options["memory"] = int(stage.memory)
    if not stage.actor:
        size = stage.concurrency[1] if isinstance(stage.concurrency, tuple) else stage.concurrency
        return map_blocks(dataset, TaskRunner(stage, monitor).__call__, compute=TaskPoolStrategy(size=size), **options)
    least, most = stage.actors()
    several = stage.units_at_once > 1
    return map_blocks(
        dataset,
        ActorRunner,
        fn_constructor_args=(stage, monitor, journal),
        compute=ActorPoolStrategy(
            min_size=least,
            max_size=most,
            max_concurrent_calls_per_actor=stage.units_at_once if several else None,
            enable_true_multi_threading=several,
        ),
        # Ray fuses tasks into the actors after them, and parsing would wait for the model. It does not fuse operators
        # whose arguments differ, and an empty selector is such a difference.
        label_selector={},
        **options,
    )


def map_blocks(dataset: ray.data.Dataset, function: Any, **options: Any) -> ray.data.Dataset:
    """map_batches over whole blocks: a block in is a block out, and a worker process that dies is replaced a bounded
    number of times."""
    retries = {"max_retries": ATTEMPTS}
    if isinstance(function, type):
        retries = {"max_restarts": ATTEMPTS, "max_task_retries": ATTEMPTS}
    with warnings.catch_warnings():
        # Ray deprecates these three without naming a successor; its own default is to retry for ever.
        warnings.filterwarnings("ignore", message=".*ray_remote_args")
        return dataset.map_batches(
            function, batch_size=None, batch_format="pyarrow", zero_copy_batch=True, **retries, **options
        )
