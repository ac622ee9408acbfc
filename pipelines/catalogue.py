"""Which documents a run directory knows, and in which unit each one travels.

A unit is named once: a document that changed or went is taken out of it, and what is new joins new units. So work that
is committed under a unit's name stays good, and bookkeeping grows with what changes.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, fields

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.parquet import read_file
from connectors.sources import Source
from connectors.storage import Place
from stages.core.schema import doc_id
from stages.read import SOURCES, Read

FILE = "catalogue.parquet"
MADE = b"units_made"
SCHEMA = pa.schema([*SOURCES, ("unit", pa.string()), ("position", pa.int64()), ("unit_size", pa.int32())])


@dataclass(frozen=True)
class Unit:
    """Documents that travel and commit together."""

    id: str
    sources: pa.Table
    """The members that are still as they were, in the schema SOURCES."""
    size: int
    """How many members the unit was made with."""

    @property
    def partial(self) -> bool:
        return self.sources.num_rows < self.size

    @property
    def name(self) -> str:
        """Another name when other members are left: the unit's id, with a hash of the members where some have gone."""
        if not self.partial:
            return self.id
        members = "\n".join(sorted(self.sources["uri"].to_pylist()))
        return f"{self.id}-{hashlib.sha256(members.encode()).hexdigest()[:8]}"

    def doc_ids(self) -> pa.Array:
        return pa.array([doc_id(uri) for uri in self.sources["uri"].to_pylist()], pa.string())


@dataclass(frozen=True)
class Catalogue:
    table: pa.Table
    """SCHEMA, members of a unit side by side, units in the order in which they were made."""
    made: int = 0
    """How many units were ever made: a number is never used twice, so that a unit is kept apart from an earlier one of
    the same members."""

    def units(self) -> Iterator[Unit]:
        if not self.table.num_rows:
            return
        names = self.table["unit"].combine_chunks()
        runs = pc.run_end_encode(names)
        start = 0
        for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            members = self.table.slice(start, end - start)
            yield Unit(name, members.select(SOURCES.names), members["unit_size"][0].as_py())
            start = end


def load(run_dir: Place) -> Catalogue:
    content = run_dir.read_or_none(FILE)
    if content is None:
        return Catalogue(SCHEMA.empty_table())
    table = read_file(io.BytesIO(content))
    return Catalogue(table.replace_schema_metadata(), int(table.schema.metadata[MADE]))


def save(run_dir: Place, catalogue: Catalogue) -> None:
    buffer = io.BytesIO()
    table = catalogue.table.replace_schema_metadata({MADE: str(catalogue.made)})
    pq.write_table(table, buffer, compression="zstd")
    run_dir.update(FILE, buffer.getbuffer())


def update(before: Catalogue, read: Read, forget: pa.Array | None = None) -> Catalogue:
    """`before` less what changed or went, plus units of what `read` lists and `before` does not know.

    The sources whose URIs are in `forget` (a string array) are taken for new.
    """
    listed = _listing(read)
    new_keys, old_keys = _keys(listed), _keys(before.table)
    keep = pc.is_in(old_keys, new_keys)
    # A folder that cannot be listed just now has not lost its documents.
    for folder in listed.filter(pc.equal(listed["reason"], "unreadable"))["uri"].to_pylist():
        keep = pc.or_(keep, pc.starts_with(before.table["uri"], f"{folder}/"))
    if forget is not None and len(forget):
        keep = pc.and_(keep, pc.invert(pc.is_in(before.table["uri"], forget)))
    fresh = listed.filter(pc.invert(pc.is_in(new_keys, old_keys.filter(keep))))
    made = list(_made(read, fresh, before.made + 1))
    return Catalogue(pa.concat_tables([before.table.filter(keep), *made]), before.made + len(made))


def _listing(read: Read) -> pa.Table:
    names = [field.name for field in fields(Source)]
    batches: list[pa.RecordBatch] = []
    pending: list[Source] = []

    def flush() -> None:
        columns = [pa.array([getattr(s, n) for s in pending], SOURCES.field(n).type) for n in names]
        batches.append(pa.record_batch(columns, schema=SOURCES))
        pending.clear()

    for source in read.sources():
        pending.append(source)
        if len(pending) == 10_000:
            flush()
    flush()
    return pa.Table.from_batches(batches, SOURCES)


def _keys(table: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(table["uri"], table["part"], table["version"], "\0")


def _made(read: Read, fresh: pa.Table, position: int) -> Iterator[pa.Table]:
    sources = (Source(**row) for batch in fresh.to_batches(1000) for row in batch.to_pylist())
    for number, members in enumerate(read.units(sources), position):
        keys = "\n".join(source.key for source in members)
        name = hashlib.sha256(f"{number}\n{keys}".encode()).hexdigest()[:16]
        rows = [{f.name: getattr(source, f.name) for f in fields(Source)} for source in members]
        extra = {"unit": name, "position": number, "unit_size": len(members)}
        yield pa.Table.from_pylist([row | extra for row in rows], SCHEMA)
