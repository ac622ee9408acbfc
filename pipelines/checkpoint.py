"""Committed work: one Parquet file per unit and mark, whole or not there."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.storage import Place
from pipelines.catalogue import Unit
from pipelines.ledger import recount
from stages.core.block import OUTCOME, UNIT, Block, counts_from_json, counts_to_json
from stages.core.errors import RunError
from stages.core.journal import Journal
from stages.core.stage import Stage

DIRECTORY = "checkpoints"
FOOTER = b"batchmill"
JOURNAL = "_journal"


@dataclass(frozen=True)
class Checkpoint:
    """The committed units of one mark. `transforms` are the stages up to it."""

    place: Place
    fingerprint: str
    transforms: tuple[Stage, ...]

    @property
    def journal(self) -> Place:
        """Where stages of this segment keep what they have of units that are not committed."""
        return self.place.child(JOURNAL)

    def committed(self) -> set[str]:
        """The ids of the units that are there."""
        return {name.removesuffix(".parquet") for name in self.place.names(".parquet")}

    def commit(self, table: pa.Table) -> pa.Table:
        """Commit a block. Where its unit is there already (a retried task), the committed one is given back, so that
        all that follows builds on one and the same."""
        block = Block.from_table(table)
        if block.unit is None:
            raise RunError("a block without a unit reached a checkpoint: units must stay whole from stage to stage")
        name = f"{block.unit}.parquet"
        if self.place.exists(name):
            return self.read(block.unit).to_table()
        footer = {"unit": block.unit, "fingerprint": self.fingerprint, "ledger": counts_to_json(block.ledger)}
        rows = table.drop_columns([UNIT])
        rows = rows.replace_schema_metadata({**(rows.schema.metadata or {}), FOOTER: json.dumps(footer).encode()})
        buffer = io.BytesIO()
        pq.write_table(rows, buffer, compression="zstd")
        new = self.place.commit(name, buffer.getbuffer(), once=True)
        if any(stage.keeps_journal for stage in self.transforms):
            Journal(self.journal, block.unit).remove()
        if not new:
            return self.read(block.unit).to_table()
        return table

    def read(self, unit: str, columns: list[str] | None = None) -> Block:
        """A committed unit as it was committed. Raises RunError where the file is damaged."""
        try:
            with self.place.fs.open(self.place.path(f"{unit}.parquet"), "rb") as file:
                source = pq.ParquetFile(file)
                there = None if columns is None else [name for name in columns if name in source.schema_arrow.names]
                table = source.read(there)
            metadata = table.schema.metadata or {}
            footer: dict[str, Any] = json.loads(metadata[FOOTER])
        except (pa.ArrowException, OSError, KeyError) as error:
            where = f"{self.place.uri}/{unit}.parquet"
            raise RunError(f"{where} cannot be read ({error}); remove it and run again: its unit is redone") from error
        kept = {key: value for key, value in metadata.items() if key != FOOTER}
        block = Block.from_table(table.replace_schema_metadata(kept or None))
        return Block(block.rows, block.outcomes, footer["unit"], counts_from_json(footer["ledger"]))

    def load(self, unit: Unit, columns: list[str] | None = None) -> Block:
        """A committed unit without the documents that have changed or gone since."""
        if columns is not None:
            columns = [*dict.fromkeys(["doc_id", *columns, OUTCOME])]
        block = self.read(unit.id, columns)
        if not unit.partial:
            return block
        members = unit.doc_ids()
        rows = block.rows.filter(pc.is_in(block.rows["doc_id"], members))
        outcomes = block.outcomes.filter(pc.is_in(block.outcomes["doc_id"], members))
        left = Block(rows, outcomes, block.unit)
        seconds = {count.stage: count.seconds for count in block.ledger}
        return Block(rows, outcomes, block.unit, recount(left, self.transforms, seconds))
