"""Models by name: is one there, where does it lie, and which one is it. Imports nothing heavy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from stages.core.errors import ConfigError, nearest

Part = Literal["model", "tokenizer"]
"""How much of a model is needed: all of it, or its tokenizer alone."""

WEIGHTS = frozenset({".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx"})
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")
CONFIGS = ("config.json", "modules.json")
INERT = frozenset({".md", ".png", ".jpg", ".gitattributes", ".lock", ".tmp"})
"""What may change in a model's directory without changing the model."""

SAMPLE = 1 << 20
HUB_TIMEOUT_S = 3.0


def locate(model: str, revision: str | None = None) -> Path | None:
    """The directory that holds `model`: a local one, or its snapshot in the Hugging Face cache. None: not here.

    What exists locally under that name wins over a hub id, as it does in transformers.
    """
    local = Path(model).expanduser()
    if local.is_dir():
        return local
    if _names_a_path(model):
        return None
    from huggingface_hub import try_to_load_from_cache

    for repository in _repositories(model):
        for name in (*CONFIGS, *TOKENIZERS):
            found = try_to_load_from_cache(repository, name, revision=revision)
            if isinstance(found, str):
                return Path(found).parent
    return None


def check(field: str, model: str, revision: str | None = None, needs: Part = "model") -> None:
    """Refuse a model that cannot be loaded. Looks at local files, and asks the hub only for what is not here.

    Raises ConfigError: no such directory, files missing from it, an id that is neither cached nor on the hub.
    """
    where = locate(model, revision)
    if where is not None:
        # A partly downloaded snapshot is completed from the hub, where that can be reached.
        missing = _missing(where, needs)
        if missing and (Path(model).expanduser().is_dir() or _on_hub(model, revision) is None):
            raise ConfigError(field, f"{where} holds no {missing}: it is not a complete {needs}")
        return
    if _names_a_path(model):
        parent = Path(model).expanduser().parent
        siblings = [str(p) for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
        raise ConfigError(field, f"there is no directory {model}{nearest(model, siblings)}")
    if _offline():
        raise ConfigError(field, f"'{model}' is not in the local cache and HF_HUB_OFFLINE is set{_nearest(model)}")
    if _on_hub(model, revision) is None:
        at = f" at revision {revision}" if revision else ""
        raise ConfigError(
            field,
            f"'{model}'{at} is not a directory, not in the local cache, and the model hub does not give it "
            f"(unknown, private, or no network){_nearest(model)}",
        )


def identity(model: str, revision: str | None = None) -> dict[str, Any]:
    """What tells this model from every other, as JSON values.

    A local directory goes by a hash of its files, so that it may be moved; a hub id by the commit it resolves to. The
    files of a directory count in full, its weights by their size and their first and last MiB.
    """
    local = Path(model).expanduser()
    if local.is_dir():
        return {"files": _digest(str(local.resolve()), tuple(_stamp(p) for p in _files(local)))}
    snapshot = locate(model, revision)
    commit = snapshot.name if snapshot else _on_hub(model, revision)
    return {"model": model, "revision": commit or revision}


def _names_a_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model


def _repositories(model: str) -> tuple[str, ...]:
    """Hub ids that `model` may mean: sentence-transformers lets its own models go by their bare name."""
    return (model,) if "/" in model else (f"sentence-transformers/{model}", model)


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if path.is_file() and not hidden and path.suffix.lower() not in INERT:
            yield path


def _missing(directory: Path, needs: Part) -> str:
    names = {p.name for p in directory.iterdir()}
    if needs == "tokenizer":
        return "" if names.intersection(TOKENIZERS) else "tokenizer.json"
    if not names.intersection(CONFIGS):
        return "config.json"
    return "" if any(p.suffix in WEIGHTS for p in _files(directory)) else "weights (model.safetensors)"


def _stamp(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


@lru_cache(maxsize=32)
def _digest(directory: str, stamps: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, size, _ in stamps:
        path = Path(name)
        digest.update(f"{os.path.relpath(name, Path(directory))}\0{size}\0".encode())
        with path.open("rb") as file:
            if path.suffix in WEIGHTS and size > 2 * SAMPLE:
                digest.update(file.read(SAMPLE))
                file.seek(-SAMPLE, os.SEEK_END)
            while block := file.read(SAMPLE):
                digest.update(block)
    return digest.hexdigest()[:32]


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@lru_cache(maxsize=32)
def _on_hub(model: str, revision: str | None) -> str | None:
    """The commit that the hub resolves `model` to; None where it has no such model or cannot be reached."""
    import httpx
    from huggingface_hub import constants, get_token

    if _offline():
        return None
    token = get_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    for repository in _repositories(model):
        url = f"{constants.ENDPOINT}/api/models/{repository}/revision/{revision or 'main'}"
        try:
            answer = httpx.get(url, headers=headers, timeout=HUB_TIMEOUT_S, follow_redirects=True)
        except httpx.HTTPError:
            return None
        if answer.is_success:
            return str(answer.json()["sha"])
    return None


def _nearest(model: str) -> str:
    """Help from the names of the models that the cache holds."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    cached = [p.name.removeprefix("models--").replace("--", "/") for p in cache.glob("models--*")]
    return nearest(model, cached)
