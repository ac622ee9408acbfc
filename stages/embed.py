"""Text to vectors."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from stages.core import models
from stages.core.errors import ConfigError
from stages.core.outcome import Result, outcomes
from stages.core.schema import embedding_type
from stages.core.stage import Stage, Worker, operational
from stages.engines.embedding import EmbeddingEngine, EmbeddingSpec, EngineName, Failure, open_engine

NON_FINITE = Failure(
    "non_finite_vector", "the model gave NaN or infinity for this text: try dtype float32", "FloatingPointError"
)


class Embed(Stage):
    """Adds `embedding`, a fixed-size list of float32, and `truncated` (the model did not see the whole text; null where
    that cannot be known). Where a column `context` is there, its text is embedded ahead of the row's own.

    Blank text is dropped (`empty_text`). A text fails with `out_of_memory` where it does not fit alone, with
    `non_finite_vector`, and with the endpoint's words where a remote engine gives it up.
    """

    adds: ClassVar[tuple[str, ...]] = ("embedding", "truncated")
    actor: ClassVar[bool] = True

    # The model's name is not what it is: `identity` says that, so that a directory may move.
    model: str = operational(min_length=1, description="a directory, a hub id, or the name a remote engine knows")
    engine: EngineName = Field("sentence_transformers", description="`openai`: an OpenAI-compatible embeddings URL")
    revision: str | None = Field(None, description="a branch, tag or commit of a hub id")
    column: str = Field("text", description="the column to embed")
    query_prefix: str | None = Field(None, description="goes ahead of a question; null: what the model asks for")
    document_prefix: str | None = Field(None, description="goes ahead of a text; null: what the model asks for")
    normalize: bool = Field(True, description="scale vectors to length 1")
    dimensions: int | None = Field(None, ge=1, description="cut vectors to their first numbers (Matryoshka models)")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="`auto`: bfloat16 where the CPU or GPU is fast at it"
    )
    trust_remote_code: bool = Field(False, description="run Python code that comes with the model")

    device: str = operational("auto", description="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`")
    threads: int | None = operational(
        None, ge=1, description="CPU threads; null: num_cpus where that is above 1, else all CPUs of the node"
    )
    window: int = operational(4096, ge=1, description="rows that are sorted by length at once")

    url: str | None = Field(None, description="base URL of a remote engine (http://host:8000/v1)")
    api_key_env: str | None = operational(None, description="the environment variable that holds the API key")
    max_in_flight: int = operational(8, ge=1, description="requests to a remote engine at once")
    max_attempts: int = operational(6, ge=1, description="tries of one request to a remote engine")
    timeout_s: float = operational(60.0, gt=0, description="seconds that one request may take")

    @model_validator(mode="before")
    @classmethod
    def _url_means_openai(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("url") and "engine" not in values:
            return values | {"engine": "openai"}
        return values

    @property
    def spec(self) -> EmbeddingSpec:
        return EmbeddingSpec.model_validate(self.model_dump(include=set(EmbeddingSpec.model_fields)))

    def open(self) -> Worker:
        if self.engine == "openai":
            engine = open_engine(
                self.spec,
                batch_size=self.batch_size,
                max_in_flight=self.max_in_flight,
                max_attempts=self.max_attempts,
                timeout_s=self.timeout_s,
            )
        else:
            threads = self.threads or (int(self.num_cpus) if self.num_cpus > 1 else None)
            engine = open_engine(
                self.spec, batch_size=self.batch_size, device=self.device, threads=threads, window=self.window
            )
        return lambda rows: embed(rows, engine, self.column)

    def check(self) -> None:
        if self.engine != "openai":
            if self.url:
                raise ConfigError(f"{self.label}.url", "only the engine `openai` calls a URL")
            models.check(f"{self.label}.model", self.model, self.revision)
            return
        parts = urlsplit(self.url or "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{self.label}.url", "the engine `openai` needs a URL such as http://host:8000/v1")
        if self.api_key_env and not os.environ.get(self.api_key_env):
            raise ConfigError(f"{self.label}.api_key_env", f"the environment has no variable {self.api_key_env}")

    def identity(self) -> dict[str, Any]:
        return self.spec.identity()

    def input_columns(self) -> frozenset[str]:
        return frozenset((self.column,))

    def output_metadata(self) -> dict[str, str]:
        """What outputs record about their vectors: under `embedding`, the JSON that a search embeds questions by."""
        return {"embedding": json.dumps(self.spec.model_dump() | {"identity": self.identity()}, sort_keys=True)}

    @classmethod
    def code_modules(cls) -> tuple[str, ...]:
        engines = ("embedding", "openai_embeddings", "sentence_transformer")
        return (cls.__module__, *(f"stages.engines.{name}" for name in engines))


def embed(rows: pa.Table, engine: EmbeddingEngine, column: str = "text") -> Result:
    """`rows` with `embedding` (fixed-size list of float32) and `truncated` (bool), in their order."""
    text = rows[column].cast(pa.string())
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(pc.fill_null(text, ""))), 0)
    lost = []
    if pc.any(blank).as_py():
        lost.append(outcomes(rows.filter(blank), "dropped", "empty_text", f"there is nothing in '{column}' to embed"))
        rows = rows.filter(pc.invert(blank))
    done = engine.documents(to_embed(rows, column))
    for i in np.flatnonzero(~np.isfinite(done.vectors).all(axis=1)):
        done.failures.setdefault(int(i), NON_FINITE)
    if done.failures:
        at = sorted(done.failures)
        why = [done.failures[i] for i in at]
        failed = outcomes(
            rows.take(at), "failed", [w.reason for w in why], [w.message for w in why], [w.error_type for w in why]
        )
        lost.append(failed)
    kept = np.setdiff1d(np.arange(rows.num_rows), sorted(done.failures))
    rows = rows.take(kept) if done.failures else rows
    rows = _with(rows, "embedding", vectors_to_arrow(done.vectors[kept], engine.dimensions))
    rows = _with(rows, "truncated", pa.array([done.truncated[i] for i in kept], pa.bool_()))
    return Result(rows, pa.concat_tables(lost) if lost else None)


def to_embed(rows: pa.Table, column: str) -> Sequence[str]:
    """What is embedded of each row: its text, below its context where it has one."""
    text = rows[column].cast(pa.string())
    if "context" in rows.column_names:
        context = pc.fill_null(rows["context"].cast(pa.string()), "")
        with_context = pc.binary_join_element_wise(context, text, "\n")
        text = pc.if_else(pc.equal(context, ""), text, with_context)
    texts: list[str] = text.to_pylist()
    return texts


def vectors_to_arrow(vectors: np.ndarray, dimensions: int | None) -> pa.Array:
    """[n, dimensions] float32 as a fixed-size list; an array of nulls' type where no vector was ever seen."""
    if dimensions is None:
        return pa.nulls(len(vectors))
    flat = pa.array(np.ascontiguousarray(vectors, dtype=np.float32).reshape(-1), pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, type=embedding_type(dimensions))


def _with(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    i = rows.schema.get_field_index(name)
    return rows.append_column(name, values) if i < 0 else rows.set_column(i, name, values)
