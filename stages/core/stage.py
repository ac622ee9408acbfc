"""The one declaration of a stage: a frozen model whose fields are its whole configuration."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import json
import sys
import tokenize
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator

from stages.core.outcome import Result

if TYPE_CHECKING:
    import ray.data

Worker = Callable[[pa.Table], "Result | pa.Table"]
"""A plain function over a batch of ok rows. It gives back the rows that are ok, and outcomes for the rest."""

Concurrency = int | tuple[int, int] | None


def operational(default: Any = ..., **kwargs: Any) -> Any:
    """A field that changes how the work is done and not what comes out: it stays out of the fingerprint."""
    return Field(default, json_schema_extra={"operational": True}, **kwargs)


class Stage(BaseModel):
    """What happens to rows. Subclass it in a module of its own:

    - declare the configuration as fields, with constraints; mark what cannot change the result `operational`;
    - `requires` and `adds` name the columns that it reads and gives;
    - `open` returns the worker: called once per task, or once per actor where `actor` is true (heavy state: a model).

    In YAML a stage goes by its module's name (`stages/clean.py` is `clean`), by an entry point in the group
    `batchmill.stages`, or by a dotted path (`my_package.my_stage`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    requires: ClassVar[tuple[str, ...]] = ()
    adds: ClassVar[tuple[str, ...]] = ()
    actor: ClassVar[bool] = False
    fans_out: ClassVar[bool] = False
    """True where one document in can become several rows out."""
    keeps_journal: ClassVar[bool] = False
    """True where the worker takes a unit's `Journal` beside its rows, to keep what it has before the unit is done."""
    reads: ClassVar[bool] = False
    """True for the stage that a pipeline begins with: its rows in are the documents that it finds."""

    name: str | None = operational(
        None, pattern=r"^\w[\w.-]{0,63}$", description="a name of its own, where a pipeline has two of a kind"
    )
    num_cpus: float = operational(1.0, ge=0, allow_inf_nan=False, description="CPUs for each task or actor")
    num_gpus: float = operational(
        0.0, ge=0, allow_inf_nan=False, description="GPUs for each task or actor; may be a fraction"
    )
    memory: ByteSize | None = operational(None, description="memory that Ray sets aside for each task or actor (2GiB)")
    concurrency: Concurrency = operational(None, description="tasks or actors at once: a number, or [least, most]")
    batch_size: int | None = operational(
        None, ge=1, description="rows that the stage works on at once, where it batches"
    )

    @field_validator("concurrency", mode="before")
    @classmethod
    def _number_or_range(cls, value: Any) -> Any:
        numbers = list(value) if isinstance(value, list | tuple) else [1, value]
        if value is not None and not (
            len(numbers) == 2 and all(type(n) is int for n in numbers) and 1 <= numbers[0] <= numbers[1]
        ):
            raise ValueError(f"must be a number from 1, or [least, most], not {value!r}")
        return value

    def open(self) -> Worker:
        """Build the worker. It must pickle by configuration only: what is heavy is loaded here."""
        raise NotImplementedError

    def input_columns(self) -> frozenset[str]:
        """The columns that rows must have: `requires`, unless fields of the stage name them."""
        return frozenset(self.requires)

    def output_columns(self, columns: frozenset[str]) -> frozenset[str]:
        """The columns of ok rows after this stage, given those before it."""
        return columns | frozenset(self.adds)

    def check(self) -> None:
        """Refuse a configuration that cannot work (a model that is not there): raise ConfigError. Seconds at most."""

    def identity(self) -> dict[str, Any]:
        """What the result depends on beside the fields: a model's or tokenizer's identity. JSON values."""
        return {}

    def output_metadata(self) -> dict[str, str]:
        """What an output of this stage's rows must record about itself, beside the fingerprint."""
        return {}

    def actors(self) -> tuple[int, int]:
        """The least and the most actors of an actor stage."""
        size = self.concurrency or 1
        return size if isinstance(size, tuple) else (size, size)

    @property
    def units_at_once(self) -> int:
        """How many units an actor works on at the same time, in threads of its own; its worker must bear that."""
        return 1

    @classmethod
    def code_modules(cls) -> tuple[str, ...]:
        """The modules whose code decides the result."""
        return (cls.__module__,)

    @classmethod
    def kind(cls) -> str:
        """The name in YAML: the module's own name for the stages here, the dotted path for others, with the class
        where its module has several."""
        package, _, module = cls.__module__.rpartition(".")
        if package == "stages":
            return module
        return cls.__module__ if len(stages_in(sys.modules[cls.__module__])) < 2 else f"{cls.__module__}.{cls.__name__}"

    @property
    def label(self) -> str:
        return self.name or self.kind()

    def fingerprint(self) -> str:
        """A hash over everything that decides what this stage makes of a row."""
        fields = type(self).model_fields
        config = {
            key: value
            for key, value in self.model_dump(mode="json").items()
            if not (isinstance(extra := fields[key].json_schema_extra, dict) and extra.get("operational"))
        }
        parts = {
            "kind": self.kind(),
            "class": type(self).__qualname__,
            "config": config,
            "code": code_hash(self.code_modules()),
            "identity": self.identity(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def apply(self, dataset: ray.data.Dataset) -> ray.data.Dataset:
        """Map the stage over a dataset; rows that are not ok come out with `_outcome` filled in."""
        from stages.core.runner import map_stage

        return map_stage(dataset, self)


def stages_in(module: ModuleType) -> list[type[Stage]]:
    """The stages that a module defines."""
    found = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Stage)]
    return [stage for stage in found if stage.__module__ == module.__name__]


def code_hash(modules: tuple[str, ...]) -> str:
    """A hash over the code of `modules`, blind to comments and blank lines."""
    digest = hashlib.sha256()
    for name in sorted(modules):
        module = sys.modules.get(name) or importlib.import_module(name)
        try:
            text = inspect.getsource(module)
        except (OSError, TypeError):  # typed in, or compiled: there is nothing to read
            continue
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                digest.update(token.string.encode())
                digest.update(b"\0")
    return digest.hexdigest()[:16]
