"""Questions to a LanceDB table that a pipeline wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from stages.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from stages.engines.embedding import EmbeddingEngine, EmbeddingSpec


def search(
    uri: str,
    table: str,
    question: str,
    mode: Literal["hybrid", "vector", "fulltext"] = "hybrid",
    k: int = 5,
    model: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The k rows that answer `question` best, best first, as `connectors.lancedb.search` gives them.

    The question is embedded by the model that the table names, with its query prefix. `model` says where that model
    lies now, if it moved. Raises ConfigError: no such table, no vectors in it, another model than the table's.
    """
    from connectors import lancedb

    if not question.strip():
        raise ConfigError("question", "it is empty")
    if k < 1:
        raise ConfigError("k", "it must be 1 or more")
    if not lancedb.exists(uri):
        raise ConfigError("uri", f"there is no directory {uri}")
    db = lancedb.connect(uri, storage_options)
    opened = lancedb.open_table(db, table)
    if opened is None:
        raise ConfigError("table", f"{uri} holds no table '{table}'{nearest(table, lancedb.table_names(db))}")
    names = opened.schema.names
    if mode != "vector" and not any(lancedb.TEXT in index.columns for index in opened.list_indices()):
        raise ConfigError("mode", f"'{table}' has no full-text index; search it by mode vector")
    if mode != "fulltext" and lancedb.VECTOR not in names:
        raise ConfigError("mode", f"'{table}' holds no vectors; search it by mode fulltext")
    vector = None if mode == "fulltext" else _embed(question, lancedb.metadata(opened), model, table)
    return lancedb.search(opened, mode, k, question, vector)


def _embed(question: str, recorded: Mapping[str, str], model: str | None, table: str) -> list[float]:
    """`question` as the table's own model sees it."""
    from stages.core import models
    from stages.engines.embedding import EmbeddingSpec

    if "embedding" not in recorded:
        raise ConfigError("table", f"'{table}' does not say which model made its vectors; search it by mode fulltext")
    made = json.loads(recorded["embedding"])
    # One question is not worth half precision, and not every machine is fast at it.
    spec = EmbeddingSpec.model_validate(made | {"dtype": "float32"} | ({"model": model} if model else {}))
    if spec.engine == "sentence_transformers":
        models.check("model", spec.model, spec.revision)
    if spec.identity() != made["identity"]:
        mend = "leave it out" if model else "name the directory that holds the model it was made with"
        raise ConfigError(
            "model",
            f"'{spec.model}' is not the model that made the vectors of '{table}' ('{made['model']}'); {mend}",
        )
    vector: list[float] = _engine(spec).query(question).tolist()
    return vector


@lru_cache(maxsize=1)
def _engine(spec: EmbeddingSpec) -> EmbeddingEngine:
    """Loading a model takes seconds, a question milliseconds: whoever asks again finds it loaded."""
    from stages.engines.embedding import open_engine

    return open_engine(spec)
