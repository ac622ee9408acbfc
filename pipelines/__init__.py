"""How stages chain: `from pipelines import Pipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.pipeline import Pipeline as Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> Any:
    if name == "Pipeline":
        from pipelines.pipeline import Pipeline

        return Pipeline
    raise AttributeError(f"module 'pipelines' has no attribute {name!r}")
