"""A pipeline: an ordered list of stages with a name, and the places where its work is committed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.checkpoint import Checkpoint
from stages.core.errors import ConfigError, nearest
from stages.core.sink import Sink
from stages.core.stage import Stage
from stages.read import Read

if TYPE_CHECKING:
    from pipelines.run import RunResult


@dataclass(frozen=True)
class Mark:
    """A place where units are committed: after the stage `stages[position - 1]`, under the fingerprint so far."""

    position: int
    label: str
    fingerprint: str

    @property
    def directory(self) -> str:
        return f"{self.label}-{self.fingerprint}"


@dataclass(frozen=True)
class Pipeline:
    """`Pipeline("rag", [Read(uri="docs"), Parse(), ...]).run("runs/rag")`. Raises ConfigError where it cannot work.

    `max_failed` is the share of failed rows (0 to 1, at the worst stage) above which the run ends with an error, after
    all the good work is committed.
    """

    name: str
    stages: Sequence[Stage]
    max_failed: float = 0.25

    transforms: tuple[Stage, ...] = field(init=False, repr=False, compare=False)
    """The stages that work on rows: all but checkpoints and sinks."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.strip()):
            raise ConfigError("name", "a pipeline needs a name")
        if not (isinstance(self.max_failed, int | float) and 0 <= self.max_failed <= 1):
            raise ConfigError("max_failed", f"{self.max_failed} is no share between 0 and 1")
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "transforms", tuple(s for s in self.stages if not isinstance(s, (Checkpoint, Sink))))
        self._check_order()
        self._check_labels()
        self._check_columns()

    def _check_order(self) -> None:
        if not self.stages or not isinstance(self.stages[0], Read):
            raise ConfigError("stages", "the first stage must be one that reads, such as `read`")
        for number, stage in enumerate(self.stages[1:], 2):
            if stage.reads:
                raise ConfigError("stages", f"stage {number} ({stage.label}) reads; only the first can")
        fanning = [stage.label for stage in self.transforms[1:] if stage.fans_out]
        if len(fanning) > 1:
            raise ConfigError(fanning[1], f"makes several rows of one, after '{fanning[0]}' has: one such stage can be")
        if len(self.transforms) == 1 and not self.sinks:
            raise ConfigError("stages", "nothing follows the first stage: add one that works on what is read")

    def _check_labels(self) -> None:
        seen: set[str] = set()
        for stage in self.stages:
            if isinstance(stage, Checkpoint):
                continue
            if stage.label in seen:
                raise ConfigError(stage.label, "two stages go by this name: give one of them a `name` of its own")
            seen.add(stage.label)
        targets: dict[str, str] = {}
        for sink in self.sinks:
            if (other := targets.setdefault(sink.target, sink.label)) != sink.label:
                raise ConfigError(f"{sink.label}.uri", f"'{other}' writes to {sink.target} already: name another place")

    def _check_columns(self) -> None:
        columns: frozenset[str] = frozenset()
        for stage in self.stages:
            for column in sorted(stage.input_columns() - columns):
                raise ConfigError(
                    stage.label,
                    f"needs the column '{column}', which no stage before it gives{nearest(column, columns)}",
                )
            if "text" in stage.input_columns() and "content" in columns and self.reader.format in ("auto", "files"):
                raise ConfigError(
                    stage.label, "works on text, and files are not text yet: put `parse` before it, or set read.format"
                )
            columns = stage.output_columns(columns)

    def check(self, run_dir: str | None = None) -> None:
        """Ask every stage whether its configuration can work here. Raises ConfigError; starts nothing."""
        for stage in self.stages:
            stage.check()
        places = {f"{sink.label}.uri": sink.uri for sink in self.sinks} | ({"run_dir": run_dir} if run_dir else {})
        for where, place in places.items():
            if self.reader.reads_below(place):
                raise ConfigError(
                    where,
                    f"{place} lies where documents are read from, and would be read at the next run: "
                    f"choose a place outside of {self.reader.label}.uri, or name it in {self.reader.label}.exclude",
                )

    @property
    def reader(self) -> Read:
        first = self.stages[0]
        assert isinstance(first, Read)
        return first

    @property
    def sinks(self) -> tuple[Sink, ...]:
        return tuple(stage for stage in self.stages if isinstance(stage, Sink))

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """Where units are committed: at each checkpoint, before each sink, and at the end."""
        marks: dict[int, Mark] = {}
        digest, position, label = "", 0, ""
        for stage in self.stages:
            if isinstance(stage, (Checkpoint, Sink)):
                marks.setdefault(position, Mark(position, label, digest))
                continue
            # With the label: the books and outcomes of committed units name their stages.
            digest = hashlib.sha256(f"{digest}/{stage.label}/{stage.fingerprint()}".encode()).hexdigest()[:16]
            position, label = position + 1, stage.label
        marks.setdefault(position, Mark(position, label, digest))
        return tuple(marks.values())

    def mark_of(self, sink: Sink) -> Mark:
        """The mark whose committed rows a sink delivers: the last one before it."""
        position = sum(1 for stage in self.stages[: self.stages.index(sink)] if stage in self.transforms)
        return next(mark for mark in reversed(self.marks) if mark.position <= position)

    @property
    def required(self) -> tuple[Mark, ...]:
        """The marks that must hold every unit in the end: the sinks' and the last."""
        wanted = {self.mark_of(sink) for sink in self.sinks} | {self.marks[-1]}
        return tuple(mark for mark in self.marks if mark in wanted)

    def metadata(self, mark: Mark) -> dict[str, str]:
        """What an output made at `mark` says about itself."""
        before = self.transforms[: mark.position]
        identities = {stage.label: identity for stage in before if (identity := stage.identity())}
        own = {key: value for stage in before for key, value in stage.output_metadata().items()}
        known = {
            "pipeline": self.name,
            "fingerprint": mark.fingerprint,
            "identities": json.dumps(identities, sort_keys=True),
        }
        return own | known

    @classmethod
    def from_yaml(cls, source: str | Path, overrides: Sequence[str] = ()) -> Pipeline:
        """Read a pipeline file; `overrides` are `stage.field=value` as on the command line."""
        from pipelines.config import load

        return load(Path(source), overrides)

    def to_yaml(self) -> str:
        """The same pipeline as YAML, every field spelt out but for those left at their defaults."""
        from pipelines.config import dump

        return dump(self)

    def run(self, run_dir: str | Path, **options: Any) -> RunResult:
        """Run, or go on where an earlier run of this directory ended. See `pipelines.run.run`."""
        from pipelines.run import run

        return run(self, str(run_dir), **options)
