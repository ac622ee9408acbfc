"""One execution of a pipeline: what is left is worked out, done, accounted for, and delivered."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from connectors.storage import Place
from pipelines import catalogue, config, ledger, outcomes
from pipelines.catalogue import Unit
from pipelines.checkpoint import DIRECTORY, Checkpoint
from pipelines.delivery import CommittedRows
from pipelines.execute import Segment, Work, execute, plan_work
from pipelines.pipeline import Pipeline
from stages.core.block import Block, Count
from stages.core.errors import ConfigError, RunError

RUN_FILE = "run.json"
CONFIG_FILE = "pipeline.yaml"
REPORT_FILE = "report.html"
DELIVERIES = "deliveries.json"
LIBRARIES = ("batchmill", "ray", "pyarrow", "torch", "transformers", "sentence-transformers", "lancedb", "pymupdf")
READERS = 8


@dataclass
class RunResult:
    """What became of a run. `status`: `done`, `nothing_to_do`, or `too_many_failed`."""

    status: str
    run_dir: str
    ledger: list[Count] = field(default_factory=list)
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    message: str = ""

    @property
    def exit_code(self) -> int:
        return 1 if self.status == "too_many_failed" else 0


@dataclass(frozen=True)
class Plan:
    """What a run would do: its units, the work left, and the checkpoints that it builds on."""

    units: list[Unit]
    work: Work
    checkpoints: tuple[Checkpoint, ...]
    committed: tuple[set[str], ...]
    catalogue: catalogue.Catalogue


def checkpoints(pipeline: Pipeline, run_dir: Place) -> tuple[Checkpoint, ...]:
    """The checkpoint of each of the pipeline's marks."""
    root = run_dir.child(DIRECTORY)
    return tuple(
        Checkpoint(root.child(mark.directory), mark.fingerprint, pipeline.transforms[: mark.position])
        for mark in pipeline.marks
    )


def plan(pipeline: Pipeline, run_dir: Place, *, retry_failed: bool = False) -> Plan:
    """List the sources and hold them against what the run directory has. Changes nothing."""
    forget = outcomes.failed_sources(run_dir) if retry_failed else None
    known = catalogue.update(catalogue.load(run_dir), pipeline.reader, forget)
    units = list(known.units())
    points = checkpoints(pipeline, run_dir)
    committed = tuple(point.committed() for point in points)
    segments, position = [], 0
    for mark, point in zip(pipeline.marks, points, strict=True):
        segments.append(Segment(pipeline.transforms[position : mark.position], point))
        position = mark.position
    required = [mark in pipeline.required for mark in pipeline.marks]
    work = plan_work(units, tuple(segments), required, committed)
    return Plan(units, work, points, committed, known)


def run(pipeline: Pipeline, run_dir: str, *, retry_failed: bool = False, quiet: bool = True) -> RunResult:
    """Run a pipeline, or go on where an earlier run of this directory ended.

    Raises ConfigError before any work where the configuration cannot work, RunError where the run cannot go on.
    """
    from pipelines import cluster

    pipeline.check(run_dir)
    place = Place(run_dir)
    if problem := place.writable():
        raise ConfigError("run_dir", f"{run_dir} cannot be written to: {problem}")
    if not cluster.joins_cluster():
        cluster.check_demands(pipeline.stages, cluster.this_machine(), "this machine")
    with locked(place):
        return _run(pipeline, place, retry_failed, quiet)


def _run(pipeline: Pipeline, place: Place, retry_failed: bool, quiet: bool) -> RunResult:
    started = time.time()
    todo = plan(pipeline, place, retry_failed=retry_failed)
    if not todo.units:
        raise ConfigError(f"{pipeline.reader.label}.uri", "there is no document under it that the patterns accept")
    previous = json.loads(place.read_or_none(RUN_FILE) or b"{}")
    state = {"units": [unit.name for unit in todo.units], "marks": [mark.directory for mark in pipeline.marks]}
    digest = _digest(state)
    catalogue.save(place, todo.catalogue)
    if retry_failed:
        outcomes.forget_failed(place)
    place.update(CONFIG_FILE, config.dump(pipeline, resolved=True).encode())
    record: dict[str, Any] = {
        "pipeline": pipeline.name,
        "run_id": uuid.uuid4().hex[:12],
        "started_at": _iso(started),
        "status": "running",
        "versions": versions(),
        "fingerprints": {mark.label: mark.fingerprint for mark in pipeline.marks},
        "units": {"all": len(todo.units), "to_do": todo.work.units},
        "worked": {},
    }
    try:
        if todo.work.units:
            place.commit(RUN_FILE, _json(record))
            record["worked"] = _execute(pipeline, todo.work, quiet)
        if todo.work.units or previous.get("state") != digest:
            books = _balance(todo, pipeline, place)
        else:
            books = [Count(**entry) for entry in previous["ledger"]]
        outputs = _deliver(pipeline, todo, place)
    except Exception as error:
        place.commit(RUN_FILE, _json(record | {"status": "failed", "error": f"{type(error).__name__}: {error}"}))
        raise
    unchanged = not todo.work.units and previous.get("state") == digest and previous.get("outputs") == outputs
    share, stage = ledger.failed_share(books)
    too_many = share > pipeline.max_failed
    message = (
        f"{share:.1%} of the rows failed at stage '{stage}'; max_failed is {pipeline.max_failed:.1%}"
        if too_many
        else ""
    )
    status = "too_many_failed" if too_many else "done"
    if unchanged and previous.get("status") == status:
        return RunResult("too_many_failed" if too_many else "nothing_to_do", place.uri, books, outputs, message)
    record |= {
        "status": status,
        "message": message,
        "finished_at": _iso(time.time()),
        "seconds": round(time.time() - started, 3),
        "ledger": [asdict(count) for count in books],
        "outcomes": outcomes.summary(place),
        "outputs": outputs,
        "state": digest,
    }
    _clean_up(todo)
    from pipelines import report

    place.commit(REPORT_FILE, report.render(pipeline, record, place).encode())
    place.commit(RUN_FILE, _json(record))
    return RunResult(status, place.uri, books, outputs, message)


def _execute(pipeline: Pipeline, work: Work, quiet: bool) -> dict[str, int]:
    """Do the work that is left. Gives the rows that each stage was given in doing so."""
    from pipelines import cluster
    from pipelines.progress import Progress

    has = cluster.connect(quiet)
    cluster.check_demands(work.active, has, "the cluster")
    with Progress([stage.label for stage in work.active], work.units) as progress:
        for _ in execute(work, progress.monitor):
            progress.units_done += 1
        worked = {stage: count.rows_in for stage, count in progress.snapshot().items()}
    for segment, leaving in zip(work.segments, work.leaving, strict=True):
        if missing := leaving - segment.checkpoint.committed():
            raise RunError(f"{len(missing)} units did not reach {segment.checkpoint.place.uri}: run again to go on")
    return worked


def _balance(todo: Plan, pipeline: Pipeline, place: Place) -> list[Count]:
    """Hold the books of every unit against what is committed, sum them, and write the outcomes out."""
    last = todo.checkpoints[-1]
    columns = ["chunk_id"] if any("chunk_id" in stage.adds for stage in last.transforms) else []

    def read(unit: Unit) -> Block:
        block = last.load(unit, columns)
        ledger.verify(block, last.transforms)
        return block

    books: list[Sequence[Count]] = []
    with ThreadPoolExecutor(READERS) as pool, outcomes.writer(place) as write:
        for start in range(0, len(todo.units), 1024):
            for block in pool.map(read, todo.units[start : start + 1024]):
                books.append(block.ledger)
                write(block.outcomes)
    return ledger.total(books, last.transforms)


def _deliver(pipeline: Pipeline, todo: Plan, place: Place) -> dict[str, dict[str, Any]]:
    """Hand the committed rows to each sink. A sink's state is kept before the next one begins."""
    states = json.loads(place.read_or_none(DELIVERIES) or b"{}")
    outputs: dict[str, dict[str, Any]] = {}
    for sink in pipeline.sinks:
        mark = pipeline.mark_of(sink)
        point = todo.checkpoints[pipeline.marks.index(mark)]
        rows = CommittedRows(
            pipeline.name, mark.fingerprint, pipeline.metadata(mark), states.get(sink.label), point, todo.units
        )
        outputs[sink.label] = sink.publish(rows)
        if outputs[sink.label] != states.get(sink.label):
            states[sink.label] = outputs[sink.label]
            place.commit(DELIVERIES, _json(states))
    return outputs


def _clean_up(todo: Plan) -> None:
    """Remove what is committed for units that have no member any more, once nothing is built on it."""
    live = {unit.id for unit in todo.units}
    for point, committed in zip(todo.checkpoints, todo.committed, strict=True):
        point.place.remove([f"{unit}.parquet" for unit in sorted(committed - live)])
        point.place.remove(point.place.leftovers())


@contextlib.contextmanager
def locked(place: Place) -> Iterator[None]:
    """Hold a local run directory against a second run at the same time. The lock ends with the process."""
    if not place.local:
        yield
        return
    os.makedirs(place.root, exist_ok=True)
    with open(place.path(".lock"), "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RunError(f"{place.uri} is in use by another run ({file.read().strip() or 'unknown'})") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} since {_iso(time.time())}")
        file.flush()
        yield


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            found[library] = version(library)
    return found


def _digest(state: Any) -> str:
    import hashlib

    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def _json(record: Any) -> bytes:
    return json.dumps(record, indent=1, ensure_ascii=False).encode()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
