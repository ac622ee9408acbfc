"""The errors that reach a person."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A configuration that cannot work, found before any work starts.

    `field` is the dotted place (`embed.model`), `message` what is wrong with it and how to mend it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class RunError(RuntimeError):
    """A run that cannot go on. Its message says what happened and what to do."""


class WorkerLost(BaseException):
    """A worker process that is of no use any more: it has to end, so that Ray puts another in its place. No row's
    fault, and so no Exception, which would be put down to rows."""


class LedgerError(RunError):
    """The rows that went into a stage and those that came out of it do not add up."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest of `known`, or the sorted list of them when nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (known: {', '.join(known)})" if known else ""
