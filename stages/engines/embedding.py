"""What an embedding model is to the rest: a few lines of interface, whichever engine is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

EngineName = Literal["sentence_transformers", "openai"]


class EmbeddingSpec(BaseModel):
    """All that decides what a text's vector is. An output records it, so that questions are embedded alike."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str
    engine: EngineName = "sentence_transformers"
    revision: str | None = None
    url: str | None = None
    api_key_env: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    dimensions: int | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    normalize: bool = True
    trust_remote_code: bool = False

    def identity(self) -> dict[str, Any]:
        """Which model this is, as JSON values: see `stages.core.models.identity`; a name at a URL goes by both."""
        from stages.core import models

        if self.engine == "openai":
            return {"model": self.model, "url": self.url}
        return models.identity(self.model, self.revision)


class Failure(NamedTuple):
    """Why a text has no vector: a short code, a message for a person, the type of the error."""

    reason: str
    message: str
    error_type: str


@dataclass
class Embedded:
    """Vectors of n texts, in their order."""

    vectors: NDArray[np.float32]
    """[n, dimensions]; rows of failed texts are NaN."""
    truncated: list[bool | None]
    """True where the model did not see the whole text, None where that cannot be known."""
    failures: dict[int, Failure] = field(default_factory=dict)
    """By the position of the text."""


class EmbeddingEngine(Protocol):
    """A loaded model (or a client of one)."""

    @property
    def dimensions(self) -> int | None:
        """Length of a vector; None as long as a remote engine has not answered."""
        ...

    def documents(self, texts: Sequence[str]) -> Embedded:
        """Embed texts that are to be found."""
        ...

    def query(self, text: str) -> NDArray[np.float32]:
        """Embed a question: shape [dimensions]. Raises RuntimeError where the engine gives no vector."""
        ...


def open_engine(spec: EmbeddingSpec, **options: Any) -> EmbeddingEngine:
    """Load the engine that `spec` names; `options` say how it works, not what comes out (batch_size, device, ...)."""
    if spec.engine == "openai":
        from stages.engines.openai_embeddings import OpenAIEmbeddings

        return OpenAIEmbeddings(spec, **options)
    from stages.engines.sentence_transformer import SentenceTransformerEngine

    return SentenceTransformerEngine(spec, **options)


def unit_length(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """`vectors` [n, d] scaled to length 1; a vector of zeros stays what it is, one that is not finite becomes NaN."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.asarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)
