"""Tokenizers by name: which one is it, and how many tokens does a text take. Imports nothing heavy before `load`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stages.core import models
from stages.core.errors import ConfigError

if TYPE_CHECKING:
    import tokenizers

FILE = "tokenizer.json"
BATCH_CHARS = 1_000_000
"""Characters encoded at once: an encoding takes some fifty times the memory of its text."""
MAX_CACHED = 400_000
"""Words whose token counts are remembered."""

# Stretches that a tokenizer most likely treats apart, every character in one of them: a word or a run of punctuation,
# with the space before it (byte-level tokenizers count that in), or white space.
_PUNCTUATION = r"!-/:-@\[-`{-~\u00a1-\u00bf\u2010-\u2027\u2030-\u205e\u3001-\u3003\u3008-\u3011\uff01-\uff0f"
_WORD = re.compile(rf"[^\s{_PUNCTUATION}]")
_STRETCH = re.compile(rf" ?[^\s{_PUNCTUATION}]{{1,64}}| ?[{_PUNCTUATION}]{{1,64}}|\s{{1,64}}")

_SAMPLE = """# Notes (draft)

The quick brown fox jumps over a lazy dog; "twenty-five" of its friends -- all of them -- look on, unbelievably amazed.

    def area(radius): return 3.14159 * radius ** 2  # see `math.pi`

* Der schnelle braune Fuchs springt über den faulen Hund. Ça alors, où est-il passé ?
* Быстрая лиса прыгает через собаку. 天地玄黄，宇宙洪荒。 नमस्ते दुनिया।
"""


class Tokenizer:
    """Counts tokens as the model's own tokenizer does, without truncation."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.special: int = backend.num_special_tokens_to_add(False)
        """Tokens that go around every text ([CLS], [SEP], <s>)."""
        self._cache: dict[str, int] = {}
        self.estimates_well: bool = abs(len(self.positions(_SAMPLE)) - self.counts([_SAMPLE])[0] + self.special) <= 2
        """Whether `positions` is near enough for most text, as it is for tokenizers that part words and punctuation."""

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text as it is encoded alone, special tokens included."""
        return [n for batch in _batches(texts) for n in map(len, self._backend.encode_batch_fast(batch))]

    def positions(self, text: str) -> np.ndarray:
        """Where in `text` its tokens begin: int64, ascending; several may share a character. An estimate.

        Encoding a whole document with offsets takes five times as long. Here each different word is encoded once and
        its tokens are spread over its characters, which is close enough to find split points by; what is split is then
        counted exactly.
        """
        stretches = _STRETCH.findall(text)
        lengths = np.fromiter(map(len, stretches), np.int64, len(stretches))
        counts = np.array(self._remembered(stretches), np.int64)
        begins = np.cumsum(lengths) - lengths
        first = np.cumsum(counts) - counts
        nth = np.arange(counts.sum()) - np.repeat(first, counts)
        return np.repeat(begins, counts) + nth * np.repeat(lengths, counts) // np.maximum(np.repeat(counts, counts), 1)

    def _remembered(self, stretches: list[str]) -> list[int]:
        if len(self._cache) > MAX_CACHED:
            self._cache.clear()
        new = list(set(stretches).difference(self._cache))
        # Something stands before each, or SentencePiece models would put a space of their own there.
        for lead in ("x", "."):
            group = [s for s in new if (lead == ".") == (_WORD.match(s) is not None)]
            alone, *counts = self._encode([lead, *(lead + s for s in group)])
            self._cache.update((s, max(n - alone, 0)) for s, n in zip(group, counts, strict=True))
        return [self._cache[stretch] for stretch in stretches]

    def _encode(self, texts: Sequence[str]) -> list[int]:
        encode = self._backend.encode_batch_fast
        return [n for batch in _batches(texts) for n in map(len, encode(batch, add_special_tokens=False))]


def load(name: str, revision: str | None = None) -> Tokenizer:
    """The tokenizer of a local directory or file, or of a hub id. Loaded once per process and version."""
    file = find(name, revision)
    return _from_file(str(file), file.stat().st_mtime_ns) if file else _from_transformers(name, revision)


def find(name: str, revision: str | None = None) -> Path | None:
    """The tokenizer.json of `name`, where it lies on this machine."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    directory = models.locate(name, revision)
    if directory is None:
        return None
    # sentence-transformers may keep the model a directory down.
    return next((f for f in (directory / FILE, directory / "0_Transformer" / FILE) if f.is_file()), None)


def identity(name: str, revision: str | None = None) -> dict[str, Any]:
    """What tells this tokenizer from others, as JSON values: a hash of its file, wherever that lies."""
    file = find(name, revision)
    if file is None:
        return models.identity(name, revision)
    with file.open("rb") as content:
        return {"tokenizer": hashlib.file_digest(content, "sha256").hexdigest()[:32]}


def check(field: str, name: str, revision: str | None = None) -> None:
    """Refuse a tokenizer that is not there: raises ConfigError."""
    file = find(name, revision)
    if file is None:
        models.check(field, name, revision, needs="tokenizer")
        return
    try:
        load(name, revision)
    except Exception as error:
        raise ConfigError(field, f"{file} is no tokenizer that the library `tokenizers` can read: {error}") from error


@lru_cache(maxsize=4)
def _from_file(path: str, modified_ns: int) -> Tokenizer:
    import tokenizers

    return Tokenizer(tokenizers.Tokenizer.from_file(path))


@lru_cache(maxsize=4)
def _from_transformers(name: str, revision: str | None) -> Tokenizer:
    import tokenizers
    from transformers import AutoTokenizer

    backend = getattr(AutoTokenizer.from_pretrained(name, revision=revision), "backend_tokenizer", None)
    if backend is None:
        raise ConfigError("tokenizer", f"'{name}' has no fast tokenizer, which exact counts need")
    return Tokenizer(tokenizers.Tokenizer.from_str(backend.to_str()))


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
