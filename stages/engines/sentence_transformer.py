"""Embeddings by a sentence-transformers model in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stages.core import models
from stages.engines.embedding import Embedded, EmbeddingSpec, Failure, unit_length

if TYPE_CHECKING:
    import torch

CPU_BATCH = 32
GPU_BATCH = 256


class SentenceTransformerEngine:
    """A SentenceTransformer that tokenises each text once, batches by length in tokens, and survives full memory.

    Raises ValueError where the model gives fewer dimensions than asked for, OSError where it cannot be loaded.
    """

    def __init__(
        self,
        spec: EmbeddingSpec,
        *,
        device: str = "auto",
        batch_size: int | None = None,
        threads: int | None = None,
        window: int = 4096,
    ) -> None:
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cpu":
            # Ray tells torch to use as many threads as the actor has CPUs; those that are idle may help.
            torch.set_num_threads(threads or available_cpus())
        self.dtype = choose_dtype(spec.dtype, device)
        self.batch_size = batch_size or (CPU_BATCH if device == "cpu" else GPU_BATCH)
        self.window = window
        self.spec = spec
        path = models.locate(spec.model, spec.revision)
        self.model = SentenceTransformer(
            str(path or spec.model),
            device=device,
            revision=None if path else spec.revision,
            truncate_dim=spec.dimensions,
            trust_remote_code=spec.trust_remote_code,
            model_kwargs={"dtype": self.dtype},
        ).eval()
        self._dimensions = len(self._forward(self.model.preprocess(["dimensions"]))[0])
        if spec.dimensions and spec.dimensions > self._dimensions:
            raise ValueError(f"{spec.model} gives {self._dimensions} dimensions, fewer than {spec.dimensions}")
        prompts = getattr(self.model, "prompts", None) or {}
        self.query_prefix = _first(spec.query_prefix, prompts.get("query"))
        self.document_prefix = _first(
            spec.document_prefix, prompts.get("document"), prompts.get("passage"), prompts.get("corpus")
        )

    @property
    def dimensions(self) -> int:
        return self._dimensions

    def documents(self, texts: Sequence[str]) -> Embedded:
        return self._embed([self.document_prefix + text for text in texts])

    def query(self, text: str) -> NDArray[np.float32]:
        done = self._embed([self.query_prefix + text])
        if done.failures:
            raise RuntimeError(done.failures[0].message)
        return done.vectors[0]

    def _embed(self, texts: list[str]) -> Embedded:
        done = Embedded(np.full((len(texts), self._dimensions), np.nan, np.float32), [None] * len(texts))
        for start in range(0, len(texts), self.window):
            for positions, vectors in self._window(texts[start : start + self.window], start, done):
                done.vectors[positions] = vectors.float().cpu().numpy()
        if self.spec.normalize:
            done.vectors = unit_length(done.vectors)
        return done

    def _window(self, texts: list[str], start: int, done: Embedded) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
        """Positions and vectors of one batch after the other, the longest texts first."""
        tokens = Tokens(self.model, texts)
        if tokens.truncated is not None:
            done.truncated[start : start + len(texts)] = tokens.truncated
        order = np.argsort(-tokens.lengths, kind="stable")
        i = 0
        while i < len(order):
            batch = order[i : i + self.batch_size]
            vectors = self._forward_or_none(tokens, batch)
            if vectors is not None:
                yield batch + start, vectors
                i += len(batch)
            elif len(batch) > 1:
                # What did not fit once will not fit later: the smaller size stays.
                self.batch_size = len(batch) // 2
            else:
                message = (
                    "memory does not hold even this text alone: use more of it, or a model that reads less at once"
                )
                done.failures[int(batch[0]) + start] = Failure("out_of_memory", message, "OutOfMemoryError")
                i += 1

    def _forward_or_none(self, tokens: Tokens, batch: NDArray[np.int64]) -> torch.Tensor | None:
        """None where the memory ran out. The error is gone by then, and with it the tensors that it held."""
        import torch

        try:
            return self._forward(tokens.features(batch))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return None

    def _forward(self, features: dict[str, Any]) -> torch.Tensor:
        import torch
        from sentence_transformers.util import batch_to_device

        with torch.inference_mode():
            vectors: torch.Tensor = self.model(batch_to_device(features, self.model.device))["sentence_embedding"]
            return vectors[:, : self.spec.dimensions] if self.spec.dimensions else vectors


class Tokens:
    """The texts of a window as the model reads them: tokenised once, padded batch by batch."""

    def __init__(self, model: Any, texts: list[str]) -> None:
        from sentence_transformers.sentence_transformer.modules import Transformer
        from transformers import PreTrainedTokenizerBase

        self.model = model
        self.texts = texts
        self.encoded: Any = None
        self.truncated: list[bool | None] | None = None
        tokenizer = getattr(model[0], "processor", None)
        if isinstance(model[0], Transformer) and isinstance(tokenizer, PreTrainedTokenizerBase) and tokenizer.is_fast:
            self.encoded = model.preprocess(
                texts, processing_kwargs={"text": {"padding": False}, "common": {"return_tensors": None}}
            )
            # The tokenizer keeps what it cut off: the one sure sign that it cut.
            self.truncated = [bool(e.overflowing) for e in self.encoded.encodings]
            self.lengths = np.array([len(ids) for ids in self.encoded["input_ids"]])
        else:
            self.lengths = np.array([len(text) for text in texts])

    def features(self, batch: NDArray[np.int64]) -> dict[str, Any]:
        """The model's input for the texts at the positions in `batch`: tensors of [len(batch), longest]."""
        if self.encoded is None:
            return dict(self.model.preprocess([self.texts[i] for i in batch]))
        lists = {k: [v[i] for i in batch] for k, v in self.encoded.items() if isinstance(v, list)}
        padded = self.model.tokenizer.pad(lists, return_tensors="pt")
        return {k: v for k, v in self.encoded.items() if not isinstance(v, list)} | dict(padded)


def available_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_dtype(name: str, device: str) -> torch.dtype:
    """The dtype called `name`; `auto` is half precision where the hardware multiplies it faster, else float32."""
    import torch

    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    if device.startswith("cuda"):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    if device == "cpu":
        has = torch.cpu.get_capabilities()
        return torch.bfloat16 if has.get("amx_bf16") or has.get("avx512_bf16") else torch.float32
    return torch.float32


def out_of_memory(error: Exception) -> bool:
    """Whether `error` says that an allocation failed, on a GPU or on the host."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return any(sign in str(error) for sign in ("can't allocate memory", "not enough memory", "bad_alloc"))


def _first(*prefixes: str | None) -> str:
    return next((p for p in prefixes if p is not None), "")
