"""Rows to a LanceDB table: keyed, exactly once, with the indexes that searching it needs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import ByteSize, Field, SecretStr, field_validator

from stages.core.errors import ConfigError, RunError
from stages.core.sink import Delivery, Sink
from stages.core.stage import operational

UNIT = "_unit"
"""The column that names the unit a row came with. It makes the table say for itself what it holds."""

WRITER = "batchmill"
"""Metadata key that marks a table as written here; its value is the version of the layout."""
LAYOUT = "1"

Language = Literal[
    "Arabic", "Danish", "Dutch", "English", "Finnish", "French", "German", "Greek", "Hungarian", "Italian",
    "Norwegian", "Portuguese", "Romanian", "Russian", "Spanish", "Swedish", "Tamil", "Turkish",
]  # fmt: skip


class WriteLancedb(Sink):
    """Makes a LanceDB table hold the rows that come, one per `key`, and searchable.

    The first delivery, and one made by another configuration, is a single new version that replaces the table's rows
    at once. A later one merges the units that are new and deletes those that are gone, in one version where they fit
    `merge_bytes`. A delivery that changes nothing writes nothing. Every step is one atomic commit, after which the
    table itself tells what is left to do, so a kill between any two of them costs only the step that it hit.
    """

    adds: ClassVar[tuple[str, ...]] = ()

    uri: str = operational(min_length=1, description="a directory, or s3://bucket/prefix")
    table: str = operational(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="the table's name: letters, digits, `_`, `-` and `.`"
    )
    key: str | None = Field(None, description="the column that is unique; null: chunk_id, or doc_id without chunks")
    full_text: bool = operational(True, description="index `text` for full-text search")
    language: Language | None = operational(
        None, description="stem full-text search in one language; null: words as they are, for any mix of languages"
    )
    index_above: int = operational(
        50_000, ge=256, description="rows from which vectors are indexed; below, a search reads them all and is exact"
    )
    merge_bytes: ByteSize = operational(
        ByteSize(256 << 20), description="rows in one merge of an update, about: what bounds its memory"
    )
    retain_days: float = operational(7.0, ge=0, description="days that replaced versions stay readable")
    storage_options: dict[str, SecretStr] = operational(
        {}, repr=False, description="options of the object store (endpoint, region, ...); null: the AWS variables"
    )

    @field_validator("storage_options", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            k: str(v).lower() if isinstance(v, bool) else v if isinstance(v, SecretStr) else str(v)
            for k, v in value.items()
        }

    @property
    def target(self) -> str:
        return f"{self.uri.rstrip('/')}/{self.table}.lance"

    @property
    def options(self) -> dict[str, str]:
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    def check(self) -> None:
        if "://" in self.uri and not self.uri.startswith("file://"):
            return
        directory = Path(self.uri.removeprefix("file://")).expanduser().absolute()
        existing = next(p for p in (directory, *directory.parents) if p.exists())
        if not existing.is_dir():
            raise ConfigError(f"{self.label}.uri", f"{existing} is a file; a LanceDB database is a directory")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise ConfigError(f"{self.label}.uri", f"{existing} is not writable")

    def publish(self, delivery: Delivery) -> dict[str, Any]:
        """Make the table hold exactly the delivery's rows. Raises RunError where the table is not one of ours."""
        from connectors import lancedb

        key = self._key(delivery.schema)
        state: dict[str, Any] = {
            "uri": self.uri,
            "table": self.table,
            "fingerprint": delivery.fingerprint,
            "units": _digest(delivery),
        }
        state |= {"full_text": self.full_text, "language": self.language, "index_above": self.index_above}
        db = lancedb.connect(self.uri, self.options)
        table = lancedb.open_table(db, self.table)
        recorded = lancedb.metadata(table) if table else {}
        if table and WRITER not in recorded:
            raise RunError(
                f"the table '{self.table}' in {self.uri} was not written by batchmill: choose another name, or drop it"
            )
        if table and delivery.previous == state | {"version": table.version, "rows": table.count_rows()}:
            return delivery.previous

        schema = _schema(delivery, key)
        if table is None or _meaning(recorded) != _meaning(_text(schema.metadata)):
            table = lancedb.build(db, self.table, schema, _named(delivery, delivery.units, schema))
        else:
            held = lancedb.distinct(table, UNIT)
            new = [unit for unit in delivery.units if unit not in held]
            gone = sorted(held.difference(delivery.units))
            lancedb.replace_groups(table, key, UNIT, _named(delivery, new, schema), gone, self.merge_bytes)
        indexing = lancedb.Indexing(self.full_text, self.language, self.index_above, timedelta(days=self.retain_days))
        lancedb.maintain(table, indexing)
        return state | {"version": table.version, "rows": table.count_rows()}

    def _key(self, schema: pa.Schema) -> str:
        key = self.key or ("chunk_id" if "chunk_id" in schema.names else "doc_id")
        if key not in schema.names:
            raise RunError(f"{self.label}: the rows have no column '{key}' to be the key")
        return key


def _digest(delivery: Delivery) -> str:
    return hashlib.sha256("\0".join(sorted(delivery.units)).encode()).hexdigest()[:32]


def _schema(delivery: Delivery, key: str) -> pa.Schema:
    """The table's schema: the delivery's columns and UNIT, and in its metadata what the table says about itself."""
    recorded = delivery.metadata | {"pipeline": delivery.pipeline, "fingerprint": delivery.fingerprint}
    recorded |= {WRITER: LAYOUT, "key": key}
    return delivery.schema.append(pa.field(UNIT, pa.string())).with_metadata(recorded)


def _text(metadata: dict[bytes, bytes]) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in metadata.items()}


def _meaning(recorded: dict[str, str]) -> tuple[str | None, ...]:
    """What must be the same for rows to be kept."""
    return tuple(recorded.get(name) for name in (WRITER, "key", "fingerprint"))


def _named(delivery: Delivery, units: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of each of `units`, with the unit's name as a column."""
    for unit, rows in zip(units, delivery.tables(units), strict=True):
        yield rows.append_column(schema.field(UNIT), pa.array([unit] * rows.num_rows, pa.string()))
