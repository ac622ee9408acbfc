"""Mark a place in a pipeline where work is committed."""

from __future__ import annotations

from stages.core.stage import Stage, Worker


class Checkpoint(Stage):
    """A tee: the rows so far are committed to Parquet in the run directory and stream on to the next stage.

    The pipeline does the committing, since it knows the run directory and the fingerprint of all that came before.
    """

    def open(self) -> Worker:
        return lambda rows: rows
