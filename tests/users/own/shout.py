"""Text in capitals; and, by the document's own words, every kind of trouble."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from stages.core.outcome import Result, split
from stages.core.stage import Stage, Worker, operational


class Shout(Stage):
    requires: ClassVar[tuple[str, ...]] = ("content",)

    ending: str = "!"
    log: Path | None = operational(None)
    """A file that gets a line for every document worked on."""

    def output_columns(self, columns: frozenset[str]) -> frozenset[str]:
        return columns - {"content"}

    def open(self) -> Worker:
        return self.shout

    def shout(self, rows: pa.Table) -> Result:
        texts = [content.decode() for content in rows["content"].to_pylist()]
        if self.log and texts:
            with open(self.log, "a") as log:
                log.writelines(f"{uri}\n" for uri in rows["uri"].to_pylist())
        if any("raise" in text for text in texts):
            raise ValueError("the text says raise")
        if any("die" in text for text in texts) and not Path("survive").exists():
            os._exit(3)
        if any("lose" in text for text in texts):
            return Result(rows.slice(1).drop_columns(["content"]))
        loud = rows.drop_columns(["content", "text"]).append_column(
            "text", pa.array([text.upper() + self.ending for text in texts], pa.string())
        )
        keep = ["quiet" not in text for text in texts]
        return split(loud, keep, "dropped", ["quiet"] * len(texts), ["it is quiet"] * len(texts))
