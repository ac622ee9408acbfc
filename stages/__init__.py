"""What happens to rows: one module per stage. `from stages import Read, Parse` imports just those two modules."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # CamelCase class -> snake_case module, so that no list of stages has to be kept.
    module = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
    try:
        return getattr(importlib.import_module(f"stages.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != f"stages.{module}":
            raise
        raise AttributeError(f"module 'stages' has no stage {name!r}") from None
