"""Write Parquet: a directory of files of a sensible size that holds exactly the committed rows."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pydantic import ByteSize

from connectors.parquet import FileWriter, read_file
from connectors.storage import Place
from stages.core.errors import ConfigError
from stages.core.sink import Delivery, Sink
from stages.core.stage import operational

MANIFEST = "_batchmill.json"
OURS = re.compile(r"part-[0-9a-f]{16}\.parquet")


class WriteParquet(Sink):
    """Files of about `file_bytes` (in memory), each made of whole units. A file whose units are unchanged is not
    written again. `_batchmill.json` names the files that count, with their units; readers of Parquet directories pass
    over names that begin with an underscore, so that a half-written file is never seen."""

    uri: str = operational(min_length=1, description="a directory of its own, local or s3://")
    file_bytes: ByteSize = operational(ByteSize(256 * 2**20), gt=0, description="size of a file's rows in memory")
    storage_options: dict[str, Any] = operational({}, repr=False, description="for fsspec: endpoint_url, key, ...")

    @property
    def place(self) -> Place:
        return Place(self.uri, tuple(sorted(self.storage_options.items())))

    def check(self) -> None:
        if problem := self.place.writable():
            raise ConfigError(f"{self.label}.uri", f"{self.uri} cannot be written to: {problem}")
        files = self.place.names(".parquet")
        strangers = [name for name in files if not OURS.fullmatch(name)]
        if files and not self.place.exists(MANIFEST):
            strangers = files
        if strangers:
            raise ConfigError(
                f"{self.label}.uri", f"{self.uri} holds {strangers[0]}, which is not ours: name another directory"
            )

    def publish(self, delivery: Delivery) -> dict[str, Any]:
        place = self.place
        manifest = json.loads(place.read_or_none(MANIFEST) or b"{}")
        if manifest and manifest.get("pipeline") != delivery.pipeline:
            raise ConfigError(
                f"{self.label}.uri",
                f"{self.uri} belongs to the pipeline '{manifest.get('pipeline')}': name another directory",
            )
        if not manifest:
            # The claim comes first: files that a killed delivery leaves must be known for ours.
            manifest = {"pipeline": delivery.pipeline, "fingerprint": delivery.fingerprint, "files": []}
            place.commit(MANIFEST, json.dumps(manifest).encode())
        place.remove(place.leftovers())
        there = {name for name in place.names(".parquet") if OURS.fullmatch(name)}
        wanted = set(delivery.units)
        kept = [
            file
            for file in manifest.get("files", [])
            if manifest["fingerprint"] == delivery.fingerprint
            and file["name"] in there
            and wanted.issuperset(file["units"])
        ]
        new = len(wanted) - sum(len(file["units"]) for file in kept)
        if new:
            # What is new joins the last small file, so that small additions do not pile up as small files.
            kept = [file for file in kept if file["bytes"] >= self.file_bytes // 2]
        held = {unit for file in kept for unit in file["units"]}
        files = [*kept, *self._write(delivery, place, [unit for unit in delivery.units if unit not in held])]
        state = {"pipeline": delivery.pipeline, "fingerprint": delivery.fingerprint, "files": files}
        if state != manifest:
            place.commit(MANIFEST, json.dumps(state, indent=1).encode())
        place.remove(sorted(there - {file["name"] for file in files}))
        return {"rows": sum(file["rows"] for file in files), "files": len(files)}

    def _write(self, delivery: Delivery, place: Place, units: list[str]) -> Iterator[dict[str, Any]]:
        schema = delivery.schema.with_metadata(delivery.metadata)
        writer: FileWriter | None = None
        members: list[str] = []
        for unit, table in zip(units, delivery.tables(units), strict=True):
            if writer is None:
                writer, members = FileWriter(place, schema), []
            writer.write(table)
            members.append(unit)
            if writer.bytes >= self.file_bytes:
                yield self._finished(writer, delivery, members)
                writer = None
        if writer is not None:
            yield self._finished(writer, delivery, members)

    def _finished(self, writer: FileWriter, delivery: Delivery, units: list[str]) -> dict[str, Any]:
        digest = hashlib.sha256("\n".join([delivery.fingerprint, *units]).encode()).hexdigest()[:16]
        name = f"part-{digest}.parquet"
        writer.close(name)
        return {"name": name, "units": units, "rows": writer.rows, "bytes": writer.bytes}


def read_current(place: Place) -> pa.Table:
    """The rows of the files that the manifest names, whatever else a killed run has left."""
    manifest = json.loads(place.read(MANIFEST))
    tables = []
    for file in manifest["files"]:
        with place.fs.open(place.path(file["name"]), "rb") as source:
            tables.append(read_file(source))
    return pa.concat_tables(tables)
