"""Keep the rows whose text is worth keeping."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from stages.core.measures import Measure, alpha_share, chars, repeated_lines, words
from stages.core.outcome import OUTCOMES, Result, outcomes
from stages.core.stage import Stage, Worker

MEASURES: dict[str, tuple[Measure, str, str]] = {
    "min_chars": (chars, "too_short", "{value:.0f} characters, fewer than min_chars={limit}"),
    "max_chars": (chars, "too_long", "{value:.0f} characters, more than max_chars={limit}"),
    "min_words": (words, "too_short", "{value:.0f} words, fewer than min_words={limit}"),
    "max_words": (words, "too_long", "{value:.0f} words, more than max_words={limit}"),
    "min_alpha_share": (alpha_share, "low_alpha", "{value:.3f} of it is letters, less than min_alpha_share={limit}"),
    "max_repeated_lines_share": (
        repeated_lines,
        "repeated_lines",
        "{value:.3f} of its lines repeat an earlier one, more than max_repeated_lines_share={limit}",
    ),
}
"""Rule -> what it measures, the reason it drops a row for, and the message. Rules are asked in this order."""


class Filter(Stage):
    """Drops rows by rules on a text column, of documents or of chunks. The first rule that a row breaks is its reason:
    `too_short`, `too_long`, `low_alpha` or `repeated_lines`; the message has what was measured, and the limit."""

    min_chars: int | None = Field(1, ge=0, description="characters, white space at the ends not counted")
    max_chars: int | None = Field(None, ge=0, description="characters, white space at the ends not counted")
    min_words: int | None = Field(None, ge=0, description="words; counted by length where a script has no spaces")
    max_words: int | None = Field(None, ge=0, description="words; counted by length where a script has no spaces")
    min_alpha_share: float | None = Field(None, ge=0, le=1, description="letters of any script, of all but white space")
    max_repeated_lines_share: float | None = Field(None, ge=0, le=1, description="lines that repeat an earlier one")
    column: str = Field("text", description="the column to judge by")

    @model_validator(mode="after")
    def _ordered(self) -> Filter:
        for unit in ("chars", "words"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least is not None and most is not None and least > most:
                raise ValueError(f"min_{unit} ({least}) is above max_{unit} ({most}): no row could pass")
        return self

    def open(self) -> Worker:
        limits = {name: limit for name in MEASURES if (limit := getattr(self, name)) is not None}
        return partial(keep, limits=limits, column=self.column)

    def input_columns(self) -> frozenset[str]:
        return frozenset((self.column,))

    @classmethod
    def code_modules(cls) -> tuple[str, ...]:
        return (cls.__module__, "stages.core.measures")


def keep(rows: pa.Table, limits: dict[str, Any], column: str = "text") -> Result:
    """The rows that break no rule; each rule measures only the rows that passed those before it."""
    lost = [OUTCOMES.empty_table()]
    measured: dict[Measure, np.ndarray] = {}
    for rule, limit in limits.items():
        measure, reason, message = MEASURES[rule]
        if measure not in measured:
            measured[measure] = measure(pc.fill_null(rows[column].cast(pa.large_string()), "").combine_chunks())
        values = measured[measure]
        good = values >= limit if rule.startswith("min_") else values <= limit
        if good.all():
            continue
        messages = [message.format(value=value, limit=limit) for value in values[~good]]
        lost.append(outcomes(rows.filter(pa.array(~good)), "dropped", reason, messages))
        rows = rows.filter(pa.array(good))
        measured = {known: values[good] for known, values in measured.items()}
    return Result(rows, pa.concat_tables(lost))
