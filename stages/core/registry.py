"""Stages by name: the modules in `stages/`, entry points, and dotted paths."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import entry_points

import stages
from stages.core.errors import ConfigError, nearest
from stages.core.stage import Stage, stages_in

ENTRY_POINTS = "batchmill.stages"


def known() -> dict[str, str]:
    """Name in YAML -> module, without importing any."""
    own = {m.name: f"stages.{m.name}" for m in pkgutil.iter_modules(stages.__path__) if not m.ispkg}
    return {e.name: e.value for e in entry_points(group=ENTRY_POINTS)} | own


def find(name: str) -> type[Stage]:
    """The stage class that goes by `name`. Raises ConfigError with the nearest name."""
    modules = known()
    path = modules.get(name) or (name if "." in name else None)
    if path is None or not all(part.isidentifier() for part in path.replace(":", ".").split(".")):
        raise ConfigError(name, f"no such stage{nearest(name, modules)}")
    try:
        return _stage_in(path.replace(":", "."))
    except (ImportError, SyntaxError) as error:
        raise ConfigError(name, f"cannot import the stage: {error}") from error


def _stage_in(path: str) -> type[Stage]:
    """The one Stage class in the module at `path`, or the class that `path` itself names."""
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        package, _, attribute = path.rpartition(".")
        if not package or error.name not in (path, package):
            raise
        candidate = getattr(importlib.import_module(package), attribute, None)
        if not (isinstance(candidate, type) and issubclass(candidate, Stage)):
            raise
        return candidate
    found = stages_in(module)
    if len(found) != 1:
        raise ImportError(f"{path} defines {len(found)} stages; a stage is one class in a module of its own")
    return found[0]
