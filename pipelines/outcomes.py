"""The rows of a run that did not come through, as a Parquet dataset in its directory."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connectors.parquet import FileWriter, read_file
from connectors.storage import Place
from stages.core.outcome import OUTCOMES

DIRECTORY = "outcomes"
FILE = "outcomes.parquet"


@contextlib.contextmanager
def writer(run_dir: Place) -> Iterator[Callable[[pa.Table], None]]:
    """A function that takes OUTCOMES tables; they replace the dataset together when the block ends well."""
    place = run_dir.child(DIRECTORY)
    place.remove(place.leftovers())
    file = FileWriter(place, OUTCOMES)
    yield file.write
    file.close(FILE)


def read(run_dir: Place, status: str | None = None) -> pa.Table:
    """The outcomes of a run, in the schema OUTCOMES. Empty where it has none yet."""
    content = run_dir.child(DIRECTORY).read_or_none(FILE)
    if content is None:
        return OUTCOMES.empty_table()
    table = read_file(io.BytesIO(content))
    return table.filter(pc.equal(table["status"], status)) if status else table


def failed_sources(run_dir: Place) -> pa.Array:
    """The URIs of the sources with a failed row; of a row in a file, the file's."""
    uris = pc.unique(read(run_dir, "failed")["uri"])
    files = pc.replace_substring_regex(uris, r"#([LR]\d+|[\d:]+)$", "")
    return pc.unique(pa.concat_arrays([uris, files]))


def forget_failed(run_dir: Place) -> None:
    """Leave out the failed rows, once their documents are down for another try: a second request to try the failed
    ones again, after a kill, must not begin anew with those that have had it."""
    kept = read(run_dir, "dropped")
    with writer(run_dir) as write:
        write(kept)


def summary(run_dir: Place) -> list[dict[str, Any]]:
    """How many rows ended at each stage, by status and reason; the most frequent first."""
    groups = read(run_dir).group_by(["stage", "status", "reason"]).aggregate([([], "count_all")])
    rows = [
        {"stage": r["stage"], "status": r["status"], "reason": r["reason"], "rows": r["count_all"]}
        for r in groups.to_pylist()
    ]
    return sorted(rows, key=lambda row: (-row["rows"], row["stage"], row["reason"]))
